// What adapters add, for instruction set portable; CMakeLists.txt gives this file its compiler flags.
#include <math.h>
#include <string.h>

#define FOREWORD_UNIT_PORTABLE 1
#include "adapter_ops.h"

namespace foreword {
namespace {
#include "simd_portable.h"
#include "lanes.inl"
#include "adapters.inl"

const AdapterOps kOps = {round_line, lower, raise};
}  // namespace

const AdapterOps& adapter_ops_portable() { return kOps; }
}  // namespace foreword
