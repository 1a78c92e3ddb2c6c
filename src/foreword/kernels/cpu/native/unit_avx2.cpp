// The kernels for instruction set avx2; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>
#include <immintrin.h>
#include "plan.h"

namespace foreword {
namespace {
#include "simd_avx2.h"
#include "kernels.inl"

const Ops kOps = {"avx2",   norm,   prepare, product, gate, rotate,
                  store_kv, attend, join,    embed};
}  // namespace

const Ops& ops_avx2() { return kOps; }
}  // namespace foreword
