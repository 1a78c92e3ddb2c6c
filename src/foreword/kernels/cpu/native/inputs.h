// The rows that products read, prepared in the layouts they want.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "arena.h"
#include "plan.h"

namespace foreword {

// The input of some products in every layout they want.
class Inputs {
 public:
  Inputs() = default;

  // Bytes needed by `rows` rows; the same products are passed to `make`.
  static size_t bytes(std::initializer_list<const Linear*> linears, int rows) {
    size_t total = 0;
    for (const Linear* linear : linears) {
      const size_t blocks = static_cast<size_t>(rows + 15) / 16 * 16;
      const size_t groups = is_grouped(linear->activation) ? groups_of(*linear) : 0;
      total += blocks / kRowBlock * row_block_bytes(linear->activation, linear->padded) +
               blocks * groups * 12 + 2 * kPage;
    }
    return total;
  }

  void make(std::initializer_list<const Linear*> linears, int rows, uint8_t* memory) {
    count_ = 0;
    int place = 0;
    for (const Linear* linear : linears) {
      int known = 0;
      while (known < count_ && !same(rows_[known], *linear)) ++known;
      if (known == count_) memory = add(*linear, rows, memory);
      which_[place++] = known;
    }
  }

  const Rows& of(int product) const { return rows_[which_[product]]; }

  // Whether pieces of so many columns can be prepared each by itself.
  bool parts(int columns) const { return columns % unit() == 0; }
  int unit() const { return columns_together(rows_[0]); }  // of the only product

  void fill(const Ops& ops, const float* x, int n, int row) const { fill(ops, x, n, 0, n, row); }

  // Columns [from, to) of n.
  void fill(const Ops& ops, const float* x, int n, int from, int to, int row) const {
    for (int i = 0; i < count_; ++i)
      ops.prepare(x, n, from, to < n ? to : rows_[i].padded, row, rows_[i]);
  }

 private:
  static bool same(const Rows& rows, const Linear& linear) {
    return rows.kind == linear.activation && rows.padded == linear.padded &&
           (!is_grouped(rows.kind) || (rows.group == linear.group && rows.block == linear.block));
  }

  uint8_t* add(const Linear& linear, int rows, uint8_t* memory) {
    auto take = [&memory](size_t bytes) {
      uint8_t* found = memory;
      memory += (bytes + 63) / 64 * 64;
      return found;
    };
    memory += (kPage - reinterpret_cast<uintptr_t>(memory) % kPage) % kPage;
    const size_t blocks = static_cast<size_t>(rows + 15) / 16 * 16;
    const size_t groups = is_grouped(linear.activation) ? groups_of(linear) : 0;
    Rows& made = rows_[count_++];
    made.kind = linear.activation;
    made.rows = rows;
    made.padded = linear.padded;
    made.group = linear.group;
    made.block = linear.block;
    made.values = take(blocks / kRowBlock * row_block_bytes(linear.activation, linear.padded));
    made.scales = reinterpret_cast<float*>(take(blocks * groups * 4));
    made.sums = reinterpret_cast<float*>(take(blocks * groups * 4));
    made.isums = reinterpret_cast<int32_t*>(take(blocks * groups * 4));
    return memory;
  }

  int count_ = 0;
  Rows rows_[3];
  int which_[3];
};

}  // namespace foreword
