#include "processed.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace foreword {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void keep_only(const Edit& edit, float* row, int size) {
  std::vector<float> kept(edit.count);
  for (int64_t i = 0; i < edit.count; ++i) kept[i] = row[edit.ids[i]];
  std::fill(row, row + size, kMasked);
  for (int64_t i = 0; i < edit.count; ++i) row[edit.ids[i]] = kept[i];
}

}  // namespace

void apply_edits(const Edit* edits, int64_t count, float* row, int size) {
  for (const Edit* edit = edits; edit != edits + count; ++edit) {
    const float penalty = static_cast<float>(edit->factor);
    switch (edit->kind) {
      case Change::kAdd:
        for (int64_t i = 0; i < edit->count; ++i) row[edit->ids[i]] += edit->values[i];
        break;
      case Change::kRepeat:
        for (int64_t i = 0; i < edit->count; ++i) {
          float& value = row[edit->ids[i]];
          value = value > 0.0f ? value / penalty : value * penalty;
        }
        break;
      case Change::kMask:
        for (int64_t i = 0; i < edit->count; ++i) row[edit->ids[i]] = kMasked;
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
