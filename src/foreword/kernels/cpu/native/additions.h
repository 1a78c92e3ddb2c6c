// What the adapters of a pass add to its products, and to which rows.
#pragma once
#include <algorithm>
#include <vector>

#include "adapters.h"
#include "pass.h"

namespace foreword {

// Products of a layer with one input, [first, last) of Part.
struct Parts {
  size_t layer;
  int first, last;
};

class Additions {
 public:
  Additions(const AdapterOps& ops, const Batch& batch, bool wide) : ops_(ops), wide_(wide) {
    for (const Segment& segment : batch.segments) {
      if (!segment.adapter) continue;
      rows_.resize(batch.rows, nullptr);
      std::fill_n(rows_.begin() + segment.first, segment.rows, segment.adapter);
      const bool follows = !runs_.empty() && runs_.back().adapter == segment.adapter &&
                           runs_.back().first + runs_.back().rows == segment.first;
      if (follows)
        runs_.back().rows += segment.rows;
      else
        runs_.push_back({segment.adapter, segment.first, segment.rows});
      stride_ = std::max(stride_, segment.adapter->widest());
    }
  }

  bool any() const { return !runs_.empty(); }
  int stride() const { return stride_; }  // floats of a row in `lows`

  // Keeps the n values of a row's input as adapters read it.
  void keep(const float* x, int n, int row, float* line) const {
    if (!rows_.empty() && rows_[row]) ops_.round(x, n, wide_, line);
  }

  // u for every part, one behind the other, of rows [begin, end) from the lines that were kept,
  // `stride` apart.
  void lower(const float* lines, size_t stride, Parts parts, int begin, int end,
             float* lows) const {
    for (const Run& run : runs_) {
      const int from = std::max(begin, run.first), to = std::min(end, run.first + run.rows);
      if (from >= to) continue;
      float* u = lows + static_cast<size_t>(from) * stride_;
      for (int part = parts.first; part < parts.last; ++part) {
        const Delta& delta = run.adapter->of(parts.layer, part);
        if (delta.rank)
          ops_.lower(delta, lines + (from - begin) * stride, stride, to - from, u, stride_);
        u += delta.rank;
      }
    }
  }

  // Adds B u to panels [begin, end) of the product `part`, all rows.
  void raise(const float* lows, Parts parts, int part, int begin, int end, float* out,
             size_t stride) const {
    for (const Run& run : runs_) {
      const Delta& delta = run.adapter->of(parts.layer, part);
      if (!delta.rank) continue;
      const float* u = lows + static_cast<size_t>(run.first) * stride_;
      for (int before = parts.first; before < part; ++before)
        u += run.adapter->of(parts.layer, before).rank;
      ops_.raise(delta, u, stride_, run.rows, begin, end, out + run.first * stride, stride);
    }
  }

 private:
  struct Run {  // rows that follow one another
    const Adapter* adapter;
    int first, rows;
  };

  const AdapterOps& ops_;
  const bool wide_;
  std::vector<const Adapter*> rows_;  // one for each row, or none at all
  std::vector<Run> runs_;
  int stride_ = 0;
};

}  // namespace foreword
