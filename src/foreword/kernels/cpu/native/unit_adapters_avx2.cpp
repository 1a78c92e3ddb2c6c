// What adapters add, for instruction set avx2; CMakeLists.txt gives this file its compiler flags.
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "adapter_ops.h"

namespace foreword {
namespace {
#include "simd_avx2.h"
#include "lanes.inl"
#include "adapters.inl"

const AdapterOps kOps = {round_line, lower, raise};
}  // namespace

const AdapterOps& adapter_ops_avx2() { return kOps; }
}  // namespace foreword
