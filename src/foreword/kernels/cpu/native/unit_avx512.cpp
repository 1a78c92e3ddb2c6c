// The kernels for instruction set avx512; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>
#include <immintrin.h>
#include "plan.h"

namespace foreword {
namespace {
#include "simd_avx512.h"
#include "kernels.inl"

const Ops kOps = {"avx512",   norm,   prepare, product, gate, rotate,
                  store_kv, attend, join,    embed};
}  // namespace

const Ops& ops_avx512() { return kOps; }
}  // namespace foreword
