#include "processed.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace foreword {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Calls body(i, row[ids[i]]) for the ids inside the row.
template <typename Body>
void each(const Edit& edit, float* row, int size, const Body& body) {
  for (int64_t i = 0; i < edit.count; ++i)
    if (edit.ids[i] < size) body(i, row[edit.ids[i]]);
}

void keep_only(const Edit& edit, float* row, int size) {
  std::vector<float> kept(edit.count);
  each(edit, row, size, [&](int64_t i, float& value) { kept[i] = value; });
  std::fill(row, row + size, kMasked);
  each(edit, row, size, [&](int64_t i, float& value) { value = kept[i]; });
}

}  // namespace

void apply_edits(const Edit* edits, int64_t count, float* row, int size) {
  for (const Edit* edit = edits; edit != edits + count; ++edit) {
    const float penalty = static_cast<float>(edit->factor);
    switch (edit->kind) {
      case Change::kAdd:
        each(*edit, row, size, [&](int64_t i, float& value) { value += edit->values[i]; });
        break;
      case Change::kRepeat:
        each(*edit, row, size, [&](int64_t, float& value) {
          value = value > 0.0f ? value / penalty : value * penalty;
        });
        break;
      case Change::kMask:
        each(*edit, row, size, [&](int64_t, float& value) { value = kMasked; });
        break;
      case Change::kOnly:
        keep_only(*edit, row, size);
    }
  }
}

const float* edited(const float* values, int size, const Edit* edits, int64_t count) {
  if (!count) return values;
  thread_local std::vector<float> own;
  own.assign(values, values + size);
  apply_edits(edits, count, own.data(), size);
  return own.data();
}

}  // namespace foreword
