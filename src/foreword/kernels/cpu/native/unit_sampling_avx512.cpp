// The loops of sampling for instruction set avx512; CMakeLists.txt gives this file its flags.
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "sampling_loops.h"

namespace foreword {
namespace {
#include "simd_avx512.h"
#include "sampling_loops.inl"

const Loops kLoops = {"avx512", maxima, weights, block_sums, rough};
}  // namespace

const Loops& loops_avx512() { return kLoops; }
}  // namespace foreword
