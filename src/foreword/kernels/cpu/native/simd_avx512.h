// 16 lanes in one register: AVX-512 F, BW, VL, DQ, VNNI, BF16.
using F = __m512;
using I = __m512i;
using B = __m512i;
constexpr int kTile = 16;  // accumulators of a register tile

inline F f_load(const float* p) { return _mm512_loadu_ps(p); }
inline void f_store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline F f_set(float v) { return _mm512_set1_ps(v); }
inline F f_zero() { return _mm512_setzero_ps(); }
inline F f_add(F a, F b) { return _mm512_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F f_div(F a, F b) { return _mm512_div_ps(a, b); }
inline F f_fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F f_max(F a, F b) { return _mm512_max_ps(a, b); }
inline F f_min(F a, F b) { return _mm512_min_ps(a, b); }
inline F f_from_int(I v) { return _mm512_cvtepi32_ps(v); }
inline I f_to_int(F v) { return _mm512_cvtps_epi32(v); }
inline I f_bits(F v) { return _mm512_castps_si512(v); }
inline F f_of_bits(I v) { return _mm512_castsi512_ps(v); }
inline F f_range(F v, F other, int low, int high) {
  const unsigned upto = high >= 16 ? 0xffffu : (1u << (high < 0 ? 0 : high)) - 1;
  const unsigned below = low >= 16 ? 0xffffu : (1u << (low < 0 ? 0 : low)) - 1;
  return _mm512_mask_mov_ps(other, static_cast<__mmask16>(upto & ~below), v);
}
inline F f_from_bf16(const uint16_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
inline F f_from_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F f_from_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline F f_from_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline float f_sum(F v) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
// Whether -limit < v < limit in all lanes.
inline bool f_all_within(F v, float limit) {
  return _mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(limit), _CMP_LT_OQ) == 0xffff;
}
inline float f_top(F v) { return _mm512_reduce_max_ps(v); }

inline I i_zero() { return _mm512_setzero_si512(); }
inline I i_set(int v) { return _mm512_set1_epi32(v); }
inline I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I i_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I i_and(I a, I b) { return _mm512_and_si512(a, b); }
inline I i_or(I a, I b) { return _mm512_or_si512(a, b); }
inline I i_max(I a, I b) { return _mm512_max_epi32(a, b); }
inline I i_min(I a, I b) { return _mm512_min_epi32(a, b); }
template <int N>
inline I i_left(I v) {
  return _mm512_slli_epi32(v, N);
}
template <int N>
inline I i_right(I v) {
  return _mm512_srli_epi32(v, N);
}
// a > b ? yes : no
inline I i_greater(I a, I b, I yes, I no) {
  return _mm512_mask_mov_epi32(no, _mm512_cmpgt_epi32_mask(a, b), yes);
}
inline I i_load(const int32_t* p) { return _mm512_loadu_si512(p); }
inline void i_store(int32_t* p, I v) { _mm512_storeu_si512(p, v); }
inline int i_top(I v) { return _mm512_reduce_max_epi32(v); }
inline int i_sum(I v) { return _mm512_reduce_add_epi32(v); }
inline void i_store_low16(uint16_t* p, I v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
}
inline void i_store_i8(uint8_t* p, I v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}

inline B b_load(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void b_store(uint8_t* p, B v) { _mm512_storeu_si512(p, v); }
inline B b_or(B a, B b) { return _mm512_or_si512(a, b); }
inline B b_low4(B v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline B b_high4(B v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
// `mask` bits of every byte from bit `from`, moved to bit 4.
template <int FROM, int MASK>
inline B b_plane(B v) {
  const B moved = FROM >= 4 ? _mm512_srli_epi16(v, FROM >= 4 ? FROM - 4 : 0)
                            : _mm512_slli_epi16(v, FROM >= 4 ? 0 : 4 - FROM);
  return _mm512_and_si512(moved, _mm512_set1_epi8(MASK << 4));
}
// acc[i] += sum over 4 of unsigned w[4 i + k] * signed x[k], exact.
inline I b_dot(I acc, B w, const uint8_t* x) {
  int32_t four;
  memcpy(&four, x, 4);
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(four));
}
// Byte K of every lane's four, as a float, after subtracting `zero`.
template <int K>
inline F b_float(B w, I zero) {
  const I moved = K == 0 ? w : _mm512_srli_epi32(w, 8 * K);
  const I byte = K == 3 ? moved : _mm512_and_si512(moved, _mm512_set1_epi32(255));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(byte, zero));
}

// The floats i - zero, chosen by the low 4 bits of every lane.
#define FOREWORD_TABLES 1
struct Table16 {
  F values;
  explicit Table16(int zero)
      : values(_mm512_cvtepi32_ps(_mm512_sub_epi32(
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
            _mm512_set1_epi32(zero)))) {}
  F get(I index) const { return _mm512_permutexvar_ps(index, values); }
};

// Two bfloat16 products a lane.
using Pair = __m512bh;
inline Pair pair_load(const uint8_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline Pair pair_set(const uint8_t* x) {
  int32_t two;
  memcpy(&two, x, 4);
  return (__m512bh)_mm512_set1_epi32(two);
}
inline F pair_step(F acc, Pair x, Pair w) { return _mm512_dpbf16_ps(acc, x, w); }

inline void f_transpose(F (&r)[16]) {
  F t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}
inline void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
