// The loops over a whole logit row, one copy per instruction set. All copies give the same bits:
// they are the same lines, compiled for wider registers; only `rough` may differ.
#pragma once
#include <stdint.h>

namespace foreword {

constexpr int kGroup = 64;    // ids that share a maximum
constexpr int kBlock = 1024;  // ids of a block of sample/portable.block_sum

struct Loops {
  const char* name;

  // maxima[g] of the row's values [first * kGroup, last * kGroup), the row ending at `size`;
  // false if one of them is NaN or +inf.
  bool (*maxima)(const float* row, int size, int first, int last, float* maxima);

  // Portable exp((value - peak) / temperature) of float32 values.
  void (*weights)(const float* values, int count, double peak, double temperature, double* out);

  // sums[b] of the weights of blocks [first, last), left to right inside a block.
  void (*block_sums)(const float* row, int size, int first, int last, double peak,
                     double temperature, double* sums);

  // About the sum of exp((value - peak) * inverse): float32 inside, no bit may depend on it.
  double (*rough)(const float* values, int count, float peak, float inverse);
};

const Loops& loops_portable();
#if defined(FOREWORD_X86)
const Loops& loops_avx2();
const Loops& loops_avx512();
#endif

}  // namespace foreword
