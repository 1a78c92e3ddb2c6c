// The kernels for instruction set portable; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>

#define FOREWORD_UNIT_PORTABLE 1
#include "plan.h"

namespace foreword {
namespace {
#include "simd_portable.h"
#include "kernels.inl"

const Ops kOps = {"portable",   norm,   prepare, product, gate, rotate,
                  store_kv, attend, join,    embed};
}  // namespace

const Ops& ops_portable() { return kOps; }
}  // namespace foreword
