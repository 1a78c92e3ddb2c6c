// Included once per instruction set. Plain loops over independent lanes: the compiler widens them.
// Every lane does what sample/portable.py does, in its order; nothing is fused or re-associated.

constexpr int kLanes = 16;
constexpr int kTogether = 4;            // blocks summed at a time, so that additions overlap
constexpr double kExpFloor = -708.0;    // below it exp is 0
constexpr double kRounder = 0x1.8p52;   // adding it rounds to a whole number, half to even

// exp as in sample/portable.py; x <= 709, -inf allowed.
inline double exp_lane(double x) {
  const double clipped = x > kExpFloor ? x : kExpFloor;
  const double shifted = clipped * 0x1.71547652b82fep+0 + kRounder;
  const double k = shifted - kRounder;
  const double r = (clipped - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
  double series = 1.0 / 6227020800.0;
  series = series * r + 1.0 / 479001600.0;
  series = series * r + 1.0 / 39916800.0;
  series = series * r + 1.0 / 3628800.0;
  series = series * r + 1.0 / 362880.0;
  series = series * r + 1.0 / 40320.0;
  series = series * r + 1.0 / 5040.0;
  series = series * r + 1.0 / 720.0;
  series = series * r + 1.0 / 120.0;
  series = series * r + 1.0 / 24.0;
  series = series * r + 1.0 / 6.0;
  series = series * r + 1.0 / 2.0;
  uint64_t bits;  // the low bits of `shifted` hold k
  memcpy(&bits, &shifted, 8);
  bits = (bits + 1023) << 52;
  double power;
  memcpy(&power, &bits, 8);
  const double result = (1.0 + (r + r * r * series)) * power;
  return x < kExpFloor ? 0.0 : result;
}

void weights(const float* values, int count, double peak, double temperature, double* out) {
  if (temperature == 1.0) {  // a division by one changes nothing
    for (int i = 0; i < count; ++i) out[i] = exp_lane((double)values[i] - peak);
    return;
  }
  for (int i = 0; i < count; ++i)
    out[i] = exp_lane(((double)values[i] - peak) / temperature);
}

void block_sums(const float* row, int size, int first, int last, double peak, double temperature,
                double* sums) {
  double held[kTogether][kBlock];
  for (int block = first; block < last; block += kTogether) {
    const int blocks = last - block < kTogether ? last - block : kTogether;
    for (int b = 0; b < kTogether; ++b) {
      const int begin = (block + b) * kBlock;
      int count = b < blocks ? size - begin : 0;
      if (count > kBlock) count = kBlock;
      if (count > 0) weights(row + begin, count, peak, temperature, held[b]);
      for (int i = count; i < kBlock; ++i) held[b][i] = 0.0;
    }
    double sum[kTogether] = {0.0, 0.0, 0.0, 0.0};
    for (int i = 0; i < kBlock; ++i)
      for (int b = 0; b < kTogether; ++b) sum[b] += held[b][i];
    for (int b = 0; b < blocks; ++b) sums[block + b] = sum[b];
  }
}

bool maxima(const float* row, int size, int first, int last, float* out) {
  const I sign = i_set(0x7fffffff);
  const int32_t infinity = 0x7f800000;
  I signed_most = i_set(0), plain_most = i_set(0);  // of the bits, as integers
  for (int group = first; group < last; ++group) {
    const float* values = row + (int64_t)group * kGroup;
    float padded[kGroup];
    if (size - group * kGroup < kGroup) {
      const int count = size - group * kGroup;
      for (int i = 0; i < kGroup; ++i) padded[i] = values[i < count ? i : 0];
      values = padded;
    }
    F most = f_load(values);
    for (int i = 0; i < kGroup; i += kLanes) {
      const F next = f_load(values + i);
      most = f_max(next, most);
      signed_most = i_max(signed_most, f_bits(next));
      plain_most = i_max(plain_most, i_and(f_bits(next), sign));
    }
    out[group] = f_top(most);
  }
  // +inf and NaN without a sign; any NaN.
  return i_top(signed_most) < infinity && i_top(plain_most) <= infinity;
}

// e^x for x in [-87, 0], to about 2e-7 of it.
inline F rough_exp(F x) {
  const F rounder = f_set(0x1.8p23f);
  const F shifted = f_fma(x, f_set(1.44269504f), rounder);
  const F k = f_sub(shifted, rounder);
  const F r = f_fma(k, f_set(2.12194440e-4f), f_fma(k, f_set(-0.693359375f), x));
  F series = f_set(1.0f / 720.0f);
  series = f_fma(series, r, f_set(1.0f / 120.0f));
  series = f_fma(series, r, f_set(1.0f / 24.0f));
  series = f_fma(series, r, f_set(1.0f / 6.0f));
  series = f_fma(series, r, f_set(0.5f));
  series = f_fma(series, r, f_set(1.0f));
  series = f_fma(series, r, f_set(1.0f));
  return f_mul(series, f_of_bits(i_left<23>(i_add(f_bits(shifted), i_set(127)))));
}

double rough(const float* values, int count, float peak, float inverse) {
  const F highest = f_set(peak), scale = f_set(inverse), floor = f_set(-87.0f);
  double total = 0.0;
  for (int start = 0; start < count; start += kBlock) {
    const int stop = count - start < kBlock ? count : start + kBlock;
    F sum = f_zero();
    for (int i = start; i < stop; i += kLanes) {
      float padded[kLanes];
      const float* next = values + i;
      if (stop - i < kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) padded[lane] = lane < stop - i ? next[lane] : -INFINITY;
        next = padded;
      }
      sum = f_add(sum, rough_exp(f_max(f_mul(f_sub(f_load(next), highest), scale), floor)));
    }
    total += (double)f_sum(sum);
  }
  return total;
}
