// The kernels for instruction set amx; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>
#include <immintrin.h>
#include "plan.h"

#define FOREWORD_UNIT_AMX 1
namespace foreword {
namespace {
#include "simd_avx512.h"
#include "kernels.inl"

const Ops kOps = {"amx",   norm,   prepare, product, gate, rotate,
                  store_kv, attend, join,    embed};
}  // namespace

const Ops& ops_amx() { return kOps; }
}  // namespace foreword
