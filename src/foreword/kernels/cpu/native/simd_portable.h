// 16 lanes as plain arrays, no fused multiply-add: any 64-bit processor.
struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct B {
  uint8_t v[64];
};
constexpr int kTile = 4;

#define FOREWORD_EACH for (int i = 0; i < 16; ++i)
#define FOREWORD_F(name, expression) \
  inline F name(F a, F b) {          \
    F r;                             \
    FOREWORD_EACH r.v[i] = expression; \
    return r;                        \
  }
#define FOREWORD_I(name, expression) \
  inline I name(I a, I b) {          \
    I r;                             \
    FOREWORD_EACH r.v[i] = expression; \
    return r;                        \
  }

inline float float_of(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}
inline uint32_t bits_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}
inline float float_of_half(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = (float)fraction * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -small : small;
}

inline F f_load(const float* p) {
  F r;
  memcpy(r.v, p, 64);
  return r;
}
inline void f_store(float* p, F a) { memcpy(p, a.v, 64); }
inline F f_set(float a) {
  F r;
  FOREWORD_EACH r.v[i] = a;
  return r;
}
inline F f_zero() { return f_set(0.0f); }
FOREWORD_F(f_add, a.v[i] + b.v[i])
FOREWORD_F(f_sub, a.v[i] - b.v[i])
FOREWORD_F(f_mul, a.v[i] * b.v[i])
FOREWORD_F(f_div, a.v[i] / b.v[i])
FOREWORD_F(f_max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
FOREWORD_F(f_min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
inline F f_fma(F a, F b, F c) { return f_add(f_mul(a, b), c); }
inline F f_from_int(I a) {
  F r;
  FOREWORD_EACH r.v[i] = (float)a.v[i];
  return r;
}
// Nearest, ties to even, for |v| < 2^22; anything else becomes the most negative number.
inline I f_to_int(F a) {
  I r;
  FOREWORD_EACH {
    const bool small = a.v[i] > -4194304.0f && a.v[i] < 4194304.0f;
    const float shifted = (small ? a.v[i] : 0.0f) + 12582912.0f;
    r.v[i] = small ? (int32_t)(bits_of(shifted) - 0x4b400000u) : INT32_MIN;
  }
  return r;
}
inline I f_bits(F a) {
  I r;
  memcpy(r.v, a.v, 64);
  return r;
}
inline F f_of_bits(I a) {
  F r;
  memcpy(r.v, a.v, 64);
  return r;
}
inline F f_range(F a, F other, int low, int high) {
  FOREWORD_EACH if (i < low || i >= high) a.v[i] = other.v[i];
  return a;
}
inline F f_from_bf16(const uint16_t* p) {
  F r;
  FOREWORD_EACH r.v[i] = float_of((uint32_t)p[i] << 16);
  return r;
}
inline F f_from_half(const uint16_t* p) {
  F r;
  FOREWORD_EACH r.v[i] = float_of_half(p[i]);
  return r;
}
inline F f_from_i8(const uint8_t* p) {
  F r;
  FOREWORD_EACH r.v[i] = (float)(int8_t)p[i];
  return r;
}
inline F f_from_u8(const uint8_t* p) {
  F r;
  FOREWORD_EACH r.v[i] = (float)p[i];
  return r;
}
inline float f_sum(F a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  return a.v[0];
}
// Whether -limit < a < limit in all lanes.
inline bool f_all_within(F a, float limit) {
  for (int i = 0; i < 16; ++i)
    if (!(-limit < a.v[i] && a.v[i] < limit)) return false;
  return true;
}
inline float f_top(F a) {
  for (int i = 1; i < 16; ++i) a.v[0] = a.v[0] > a.v[i] ? a.v[0] : a.v[i];
  return a.v[0];
}

inline I i_set(int a) {
  I r;
  FOREWORD_EACH r.v[i] = a;
  return r;
}
inline I i_zero() { return i_set(0); }
FOREWORD_I(i_add, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]))
FOREWORD_I(i_sub, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i]))
FOREWORD_I(i_and, a.v[i] & b.v[i])
FOREWORD_I(i_or, a.v[i] | b.v[i])
FOREWORD_I(i_max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
FOREWORD_I(i_min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
template <int N>
inline I i_left(I a) {
  FOREWORD_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] << N);
  return a;
}
template <int N>
inline I i_right(I a) {
  FOREWORD_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] >> N);
  return a;
}
inline I i_greater(I a, I b, I yes, I no) {
  FOREWORD_EACH a.v[i] = a.v[i] > b.v[i] ? yes.v[i] : no.v[i];
  return a;
}
inline I i_load(const int32_t* p) {
  I r;
  memcpy(r.v, p, 64);
  return r;
}
inline void i_store(int32_t* p, I a) { memcpy(p, a.v, 64); }
inline int i_top(I a) {
  for (int i = 1; i < 16; ++i) a.v[0] = a.v[0] > a.v[i] ? a.v[0] : a.v[i];
  return a.v[0];
}
inline int i_sum(I a) {
  for (int i = 1; i < 16; ++i) a.v[0] += a.v[i];
  return a.v[0];
}
inline void i_store_low16(uint16_t* p, I a) { FOREWORD_EACH p[i] = (uint16_t)a.v[i]; }
inline void i_store_i8(uint8_t* p, I a) { FOREWORD_EACH p[i] = (uint8_t)a.v[i]; }

inline B b_load(const uint8_t* p) {
  B r;
  memcpy(r.v, p, 64);
  return r;
}
inline void b_store(uint8_t* p, B a) { memcpy(p, a.v, 64); }
inline B b_or(B a, B b) {
  for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i];
  return a;
}
inline B b_low4(B a) {
  for (int i = 0; i < 64; ++i) a.v[i] &= 15;
  return a;
}
inline B b_high4(B a) {
  for (int i = 0; i < 64; ++i) a.v[i] >>= 4;
  return a;
}
template <int FROM, int MASK>
inline B b_plane(B a) {
  for (int i = 0; i < 64; ++i) a.v[i] = (uint8_t)((a.v[i] >> FROM & MASK) << 4);
  return a;
}
inline I b_dot(I acc, B w, const uint8_t* x) {
  const int32_t x0 = (int8_t)x[0], x1 = (int8_t)x[1], x2 = (int8_t)x[2], x3 = (int8_t)x[3];
  FOREWORD_EACH acc.v[i] += w.v[4 * i] * x0 + w.v[4 * i + 1] * x1 + w.v[4 * i + 2] * x2 +
                            w.v[4 * i + 3] * x3;
  return acc;
}
template <int K>
inline F b_float(B w, I zero) {
  F r;
  FOREWORD_EACH r.v[i] = (float)((int32_t)w.v[4 * i + K] - zero.v[i]);
  return r;
}

struct Pair {
  F even, odd;
};
inline Pair pair_load(const uint8_t* p) {
  Pair r;
  FOREWORD_EACH {
    uint32_t two;
    memcpy(&two, p + 4 * i, 4);
    r.even.v[i] = float_of(two << 16);
    r.odd.v[i] = float_of(two & 0xffff0000u);
  }
  return r;
}
inline Pair pair_set(const uint8_t* x) {
  uint32_t two;
  memcpy(&two, x, 4);
  return {f_set(float_of(two << 16)), f_set(float_of(two & 0xffff0000u))};
}
inline F pair_step(F acc, Pair x, Pair w) {
  return f_fma(x.odd, w.odd, f_fma(x.even, w.even, acc));
}
inline void f_transpose(F (&r)[16]) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < i; ++j) {
      const float t = r[i].v[j];
      r[i].v[j] = r[j].v[i];
      r[j].v[i] = t;
    }
}
inline void prefetch(const void*) {}
