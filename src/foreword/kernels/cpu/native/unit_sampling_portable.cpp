// The loops of sampling for instruction set portable; CMakeLists.txt gives this file its flags.
#include <math.h>
#include <string.h>

#include "sampling_loops.h"

namespace foreword {
namespace {
#include "simd_portable.h"
#include "sampling_loops.inl"

const Loops kLoops = {"portable", maxima, weights, block_sums, rough};
}  // namespace

const Loops& loops_portable() { return kLoops; }
}  // namespace foreword
