// Rounding, and lines that end inside a vector.

// The bits of v rounded to bfloat16, to nearest even, in the low half of every lane.
inline I bf16_bits(F v) {
  const I bits = f_bits(v);
  const I odd = i_and(i_right<16>(bits), i_set(1));
  const I rounded = i_right<16>(i_add(bits, i_add(i_set(0x7fff), odd)));
  const I quiet = i_right<16>(i_or(bits, i_set(0x400000)));
  const I size = i_and(bits, i_set(0x7fffffff));
  return i_greater(size, i_set(0x7f800000), quiet, rounded);
}
inline F round_bf16(F v) { return f_of_bits(i_left<16>(bf16_bits(v))); }

// 16 values from k on, zeros from n on; x is readable up to the next multiple of 16.
inline F fetch(const float* x, int n, int k) {
  if (k + 16 <= n) return f_load(x + k);
  return k >= n ? f_zero() : f_range(f_load(x + k), f_zero(), 0, n - k);
}
