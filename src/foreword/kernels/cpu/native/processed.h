// What a request's edits make of its row, as sample/edits.edit_row.
#pragma once
#include <cstdint>

namespace foreword {

enum class Change : int64_t { kAdd = 0, kRepeat = 1, kMask = 2, kOnly = 3 };

struct Edit {
  Change kind;
  const int64_t* ids;   // distinct, >= 0; those outside the row are passed over
  const float* values;  // kAdd's
  int64_t count;
  double factor;  // kRepeat's
};

// Changes `row` [size] in place, in order.
void apply_edits(const Edit* edits, int64_t count, float* row, int size);

// The edited row, in memory that belongs to this thread until its next call; `values` itself where
// there are no edits.
const float* edited(const float* values, int size, const Edit* edits, int64_t count);

}  // namespace foreword
