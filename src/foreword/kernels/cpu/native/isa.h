// Which instruction sets this processor and operating system let us use.
#pragma once
#include "plan.h"

namespace foreword {

// "amx", "avx512", "avx2" or "portable": the best there is.
const char* best_isa();
// The kernels of that name, or null when this machine lacks it.
const Ops* find_ops(const char* name);

}  // namespace foreword
