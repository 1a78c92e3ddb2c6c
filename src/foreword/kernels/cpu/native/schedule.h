// Which keys each row reads, and how attention is shared out over threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "pass.h"

namespace foreword {

struct alignas(64) Ticket {  // the next piece of a phase's work
  std::atomic<int> next{0};
  Ticket() = default;
  Ticket(const Ticket&) {}
};

class Attention {
 public:
  void plan(const Model& model, const Batch& batch, int threads);
  size_t scratch_bytes() const { return scratch_; }
  size_t partial_bytes() const { return partials_; }
  void use(float* memory) { memory_ = memory; }
  // Whether a row's partitions may be shared out, to be merged by `join`.
  bool split() const { return split_; }

  // Called when columns [from, to) of a row of `context` are complete.
  using Done = std::function<void(int row, int from, int to)>;

  // This thread's share of a layer. With split() off, `context` is complete afterwards.
  void run(int& phase, std::vector<Ticket>& tickets, const Ops& ops, const Model& model,
           const Batch& batch, size_t layer, const float* qkv, size_t qkv_stride, float* context,
           size_t context_stride, uint8_t* scratch, const Done& done) const;

  // Merges a row's partitions: [heads * dim] floats.
  void join(const Ops& ops, const Model& model, int row, int window, float* out) const;

 private:
  struct Path {  // one segment
    bool chain;
    int depth;                   // of the deepest row, plus one
    std::vector<int32_t> nodes;  // [rows][depth]: the row's own ancestors and itself
  };
  struct Item {  // rows, KV heads and partitions, half-open
    int segment, begin, end, kv_head, kv_end, first, last;
  };
  struct Work;

  double cost(const Segment& segment) const;
  bool plenty(const Model& model, const Batch& batch, int threads) const;
  void cut(const Model& model, int number, const Segment& segment, int block, int threads,
           int parts);
  void attend(Work& work, const Item& item, const Segment& segment) const;
  float* parts(const Work& work, const Item& item, const Segment& segment, int row,
               int head) const;
  void finish(const Work& work, const Item& item, const Segment& segment, const Done& done) const;
  void join_pair(const Ops& ops, const float* parts, int position, int window, float* out,
                 int dim) const;

  std::vector<Path> paths_;
  std::vector<Item> items_;
  std::vector<int> row_position_;
  std::vector<size_t> row_partial_;  // in (row, head, partition) units
  bool split_ = false;
  int heads_ = 0, padded_dim_ = 0, unit_ = 0, most_ = 0, longest_ = 0;
  size_t scratch_ = 0, partials_ = 0;
  float* memory_ = nullptr;
};

}  // namespace foreword
