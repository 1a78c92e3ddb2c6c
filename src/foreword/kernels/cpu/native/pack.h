// Weights as the checkpoint holds them -> panels of 16 output columns.
//
// A grouped panel is a row of units, each `unit_groups` groups of k:
//   header  two-level: 16 fp16 super scales (and 16 super offsets); then for every group 16 scales,
//           then for every group 16 offsets (fp16, float32, or one byte when two-level); padded
//           to 64 bytes
//   values  per group, per block of min(group, 64) values of k, taken in quads [16 outputs][4 k]:
//           4, 5, 6 bits: vector j holds quad j in its low nibbles and quad j + half in its high
//           ones; 5 bits: then vectors whose bit j of a byte is the high bit of quad j (of eight);
//           6 bits: vectors whose bits 2 j and 2 j + 1 belong to quad j (of four); 8 bits: bytes
#pragma once
#include <memory>
#include <vector>

#include "plan.h"
#include "threads.h"

namespace foreword {

// Memory for weights, in large pieces that the system may back with large pages.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  ~Store();
  uint8_t* take(size_t bytes);  // zeroed, aligned to 64
  size_t bytes() const { return used_; }

 private:
  struct Piece {
    uint8_t* data;
    size_t size, used;
  };
  std::vector<Piece> pieces_;
  size_t used_ = 0;
};

// One scale or offset per group, [outputs][groups] of `size` bytes; two-level: and a float16
// [outputs][groups / unit_groups].
struct Level {
  const uint8_t* values;
  int size;
  const uint8_t* supers;
};

// Fills in block and the byte counts of a grouped weight whose other fields are set.
void plan_grouped(Linear& linear);
void pack_grouped(Linear& linear, const uint8_t* q, Level scale, Level offset, Store& store,
                  Pool& pool);
// values: [outputs][inputs] of the format's element.
void pack_floats(Linear& linear, const uint8_t* values, Store& store, Pool& pool);

}  // namespace foreword
