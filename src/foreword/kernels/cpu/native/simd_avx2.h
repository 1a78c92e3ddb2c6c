// 16 lanes in two registers: AVX2, FMA, F16C.
struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct B {
  __m256i a, b;
};
constexpr int kTile = 4;

inline F f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void f_store(float* p, F v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
inline F f_set(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
inline F f_zero() { return f_set(0.0f); }
inline F f_add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F f_sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F f_mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F f_div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F f_fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F f_max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F f_min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F f_from_int(I v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
inline I f_to_int(F v) { return {_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)}; }
inline I f_bits(F v) { return {_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)}; }
inline F f_of_bits(I v) { return {_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)}; }
inline F f_range(F v, F other, int low, int high) {
  const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i second = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  const __m256i l = _mm256_set1_epi32(low), h = _mm256_set1_epi32(high);
  const __m256i in_a = _mm256_andnot_si256(_mm256_cmpgt_epi32(l, first),
                                           _mm256_cmpgt_epi32(h, first));
  const __m256i in_b = _mm256_andnot_si256(_mm256_cmpgt_epi32(l, second),
                                           _mm256_cmpgt_epi32(h, second));
  return {_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(in_a)),
          _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(in_b))};
}
inline __m128i load16(const void* p) { return _mm_loadu_si128((const __m128i*)p); }
inline F f_from_bf16(const uint16_t* p) {
  return f_of_bits({_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16),
                    _mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p + 8)), 16)});
}
inline F f_from_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 8))};
}
inline F f_from_i8(const uint8_t* p) {
  const __m128i v = load16(p);
  return f_from_int({_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))});
}
inline F f_from_u8(const uint8_t* p) {
  const __m128i v = load16(p);
  return f_from_int({_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))});
}
inline float f_sum(F v) {
  const __m256 a = _mm256_add_ps(v.a, v.b);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
// Whether -limit < v < limit in all lanes.
inline bool f_all_within(F v, float limit) {
  const __m256 size = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)), l = _mm256_set1_ps(limit);
  return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_and_ps(v.a, size), l, _CMP_LT_OQ)) == 0xff &&
         _mm256_movemask_ps(_mm256_cmp_ps(_mm256_and_ps(v.b, size), l, _CMP_LT_OQ)) == 0xff;
}
inline float f_top(F v) {
  const __m256 a = _mm256_max_ps(v.a, v.b);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

inline I i_set(int v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
inline I i_zero() { return i_set(0); }
inline I i_add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I i_sub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline I i_and(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I i_or(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline I i_max(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline I i_min(I x, I y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
template <int N>
inline I i_left(I v) {
  return {_mm256_slli_epi32(v.a, N), _mm256_slli_epi32(v.b, N)};
}
template <int N>
inline I i_right(I v) {
  return {_mm256_srli_epi32(v.a, N), _mm256_srli_epi32(v.b, N)};
}
inline I i_greater(I x, I y, I yes, I no) {
  return {_mm256_blendv_epi8(no.a, yes.a, _mm256_cmpgt_epi32(x.a, y.a)),
          _mm256_blendv_epi8(no.b, yes.b, _mm256_cmpgt_epi32(x.b, y.b))};
}
inline I i_load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
inline void i_store(int32_t* p, I v) {
  _mm256_storeu_si256((__m256i*)p, v.a);
  _mm256_storeu_si256((__m256i*)(p + 8), v.b);
}
inline int i_top(I v) {
  int32_t lanes[16];
  i_store(lanes, v);
  int top = lanes[0];
  for (int i = 1; i < 16; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
}
inline int i_sum(I v) {
  int32_t lanes[16];
  i_store(lanes, v);
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum += lanes[i];
  return sum;
}
inline void i_store_low16(uint16_t* p, I v) {
  int32_t lanes[16];
  i_store(lanes, v);
  for (int i = 0; i < 16; ++i) p[i] = (uint16_t)lanes[i];
}
inline void i_store_i8(uint8_t* p, I v) {
  int32_t lanes[16];
  i_store(lanes, v);
  for (int i = 0; i < 16; ++i) p[i] = (uint8_t)lanes[i];
}

inline B b_load(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline void b_store(uint8_t* p, B v) {
  _mm256_storeu_si256((__m256i*)p, v.a);
  _mm256_storeu_si256((__m256i*)(p + 32), v.b);
}
inline B b_or(B x, B y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline B b_low4(B v) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(v.a, mask), _mm256_and_si256(v.b, mask)};
}
inline B b_high4(B v) {
  return b_low4({_mm256_srli_epi16(v.a, 4), _mm256_srli_epi16(v.b, 4)});
}
template <int FROM>
inline __m256i to_bit4(__m256i v) {
  return FROM >= 4 ? _mm256_srli_epi16(v, FROM >= 4 ? FROM - 4 : 0)
                   : _mm256_slli_epi16(v, FROM >= 4 ? 0 : 4 - FROM);
}
template <int FROM, int MASK>
inline B b_plane(B v) {
  const __m256i mask = _mm256_set1_epi8(MASK << 4);
  return {_mm256_and_si256(to_bit4<FROM>(v.a), mask), _mm256_and_si256(to_bit4<FROM>(v.b), mask)};
}
// maddubs would saturate at 16 bits; even and odd bytes widened first cannot.
inline __m256i dot_half(__m256i w, __m256i x) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  return _mm256_add_epi32(even, odd);
}
inline I b_dot(I acc, B w, const uint8_t* x) {
  int32_t four;
  memcpy(&four, x, 4);
  const __m256i v = _mm256_set1_epi32(four);
  return {_mm256_add_epi32(acc.a, dot_half(w.a, v)), _mm256_add_epi32(acc.b, dot_half(w.b, v))};
}
template <int K>
inline F b_float(B w, I zero) {
  const I moved = i_and(i_right<8 * K>({w.a, w.b}), i_set(255));
  return f_from_int(i_sub(moved, zero));
}

struct Pair {
  F even, odd;
};
inline Pair pair_load(const uint8_t* p) {
  const I two = i_load((const int32_t*)p);
  return {f_of_bits(i_left<16>(two)), f_of_bits(i_and(two, i_set((int)0xffff0000u)))};
}
inline Pair pair_set(const uint8_t* x) {
  int32_t two;
  memcpy(&two, x, 4);
  const I all = i_set(two);
  return {f_of_bits(i_left<16>(all)), f_of_bits(i_and(all, i_set((int)0xffff0000u)))};
}
inline F pair_step(F acc, Pair x, Pair w) {
  return f_fma(x.odd, w.odd, f_fma(x.even, w.even, acc));
}
inline void f_transpose(F (&r)[16]) {
  float from[16][16], to[16];
  for (int i = 0; i < 16; ++i) f_store(from[i], r[i]);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) to[j] = from[j][i];
    r[i] = f_load(to);
  }
}
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
