// What this machine can do at best: read memory, and multiply with the kernels of an instruction
// set. Figures for a person to compare with; no result depends on them.
#pragma once
#include "pack.h"
#include "plan.h"
#include "threads.h"

namespace foreword {

// Memory of a model's size, to be read from beginning to end by all threads.
class ReadProbe {
 public:
  ReadProbe(size_t bytes, Pool& pool);  // rounded up to whole pieces, and written once
  size_t bytes() const { return bytes_; }
  double seconds(Pool& pool);  // of reading all of it once

 private:
  Store store_;
  uint8_t* data_;
  size_t bytes_;
  uint64_t sum_ = 0;  // of what was read, so that no compiler may leave the reading out
};

// Seconds in which every thread of the pool multiplies `rows` rows by the weight, `times` times.
// A weight that fits the nearest caches shows the arithmetic alone.
double product_seconds(const Ops& ops, const Linear& linear, Pool& pool, int rows, int times);

}  // namespace foreword
