// The loops of sampling for instruction set avx2; CMakeLists.txt gives this file its flags.
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "sampling_loops.h"

namespace foreword {
namespace {
#include "simd_avx2.h"
#include "sampling_loops.inl"

const Loops kLoops = {"avx2", maxima, weights, block_sums, rough};
}  // namespace

const Loops& loops_avx2() { return kLoops; }
}  // namespace foreword
