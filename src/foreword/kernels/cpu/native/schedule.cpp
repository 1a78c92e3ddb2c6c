#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace foreword {
namespace {

constexpr int kPairs = 96;               // (row, head) pairs that share loaded keys
constexpr int kFewPairs = 16;            // so few of a KV head go with those of the other heads
constexpr size_t kSplitBytes = 4 << 20;  // partitions are shared out below this

int first_partition(int position, int window) {
  return window ? std::max(0, position - window + 1) / kPartition : 0;
}

}  // namespace

void Attention::plan(const Model& model, const Batch& batch, int threads) {
  heads_ = model.heads;
  padded_dim_ = round_up(model.dim, 16);
  unit_ = part_floats(padded_dim_);
  const int group = model.heads / model.kv_heads;
  row_position_.resize(batch.rows);
  row_partial_.resize(batch.rows);
  size_t units = 0;
  for (int row = 0; row < batch.rows; ++row) {
    const int position = static_cast<int>(batch.positions[row]);
    const int parts = position / kPartition + 1;
    row_position_[row] = position;
    row_partial_[row] = units;
    longest_ = std::max(longest_, parts);
    units += static_cast<size_t>(heads_) * parts;
  }
  split_ = units * unit_ * 4 <= kSplitBytes;
  partials_ = split_ ? units * unit_ * 4 : 0;

  const int block = std::max(1, kPairs / group);
  most_ = std::max({kPairs, group, std::min(kFewPairs, block * group) * model.kv_heads});
  scratch_ = attend_scratch(padded_dim_, most_) + static_cast<size_t>(most_) * 24 + 1024;
  if (!split_) scratch_ += static_cast<size_t>(most_) * longest_ * unit_ * 4;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    Path path{true, 0, 0, {}};
    for (int row = 0; row < segment.rows; ++row) {
      path.chain = path.chain && segment.parents[row] == row - 1;
      path.depth = std::max(path.depth, row_position_[segment.first + row] - segment.cached + 1);
    }
    if (!path.chain) {
      path.slots.assign(static_cast<size_t>(segment.rows) * path.depth, 0);
      for (int row = 0; row < segment.rows; ++row) {
        int64_t* mine = path.slots.data() + static_cast<size_t>(row) * path.depth;
        const int depth = row_position_[segment.first + row] - segment.cached;
        if (segment.parents[row] >= 0)
          std::copy_n(path.slots.data() + static_cast<size_t>(segment.parents[row]) * path.depth,
                      depth, mine);
        mine[depth] = segment.slots[segment.cached + row];
      }
    }
    paths_.push_back(std::move(path));
    Path& kept = paths_.back();
    const int parts = (segment.cached + kept.depth - 1) / kPartition + 1;
    kept.shared = kept.chain ? parts : segment.cached / kPartition;
    // Few rows: all heads of a partition at once, so that memory is read in one line.
    const bool few = segment.rows * group <= kFewPairs;
    const int heads = few ? model.kv_heads : 1;
    const int whole = (segment.rows + block - 1) / block * (model.kv_heads / heads) *
                      static_cast<int>(batch.segments.size());
    const int pieces = split_ ? std::min(parts, std::max(1, 4 * threads / std::max(1, whole))) : 1;
    const int step = (parts + pieces - 1) / pieces;
    for (int begin = 0; begin < segment.rows; begin += block)
      for (int head = 0; head < model.kv_heads; head += heads)
        for (int first = 0; first < parts; first += step)
          items_.push_back({static_cast<int>(s), begin, std::min(begin + block, segment.rows), head,
                            head + heads, first, std::min(first + step, parts)});
  }
  std::reverse(items_.begin(), items_.end());  // later rows see more: the long ones first
}

struct Attention::Work {
  const Model& model;
  const Ops& ops;
  const float* qkv;
  size_t qkv_stride;
  int window, group;
  Attend call;            // what all calls share
  const float** queries;  // [most]
  int *low, *high;        // [most]
  float** parts;          // [most]
  float* kept;            // [most][longest] partitions, unless split
  float* context;
  size_t context_stride;
};

void Attention::run(int& phase, std::vector<Ticket>& tickets, const Ops& ops, const Model& model,
                    const Batch& batch, size_t layer, const float* qkv, size_t qkv_stride,
                    float* context, size_t context_stride, uint8_t* scratch) const {
  Ticket& ticket = tickets[phase++];
  auto take = [&scratch](size_t bytes) {
    uint8_t* found = scratch;
    scratch += (bytes + 63) / 64 * 64;
    return found;
  };
  const size_t most = most_, head_bytes = kv_head_bytes(model.kv_format, model.dim);
  Work work{model, ops, qkv, qkv_stride, model.layers[layer].window, model.heads / model.kv_heads,
            {}, nullptr, nullptr, nullptr, nullptr, nullptr, context, context_stride};
  work.call.scratch = take(attend_scratch(padded_dim_, most_));
  work.queries = reinterpret_cast<const float**>(take(most * sizeof(float*)));
  work.parts = reinterpret_cast<float**>(take(most * sizeof(float*)));
  work.low = reinterpret_cast<int*>(take(most * sizeof(int)));
  work.high = reinterpret_cast<int*>(take(most * sizeof(int)));
  if (!split_) work.kept = reinterpret_cast<float*>(take(most * longest_ * unit_ * sizeof(float)));
  Attend& call = work.call;
  call.dim = model.dim;
  call.padded_dim = padded_dim_;
  call.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.dim)));
  call.format = model.kv_format;
  call.head_bytes = head_bytes;
  call.slot_bytes = head_bytes * model.kv_heads;
  call.queries = work.queries, call.parts = work.parts;
  call.low = work.low, call.high = work.high;
  while (true) {
    const int next = ticket.next.fetch_add(1, std::memory_order_relaxed);
    if (next >= static_cast<int>(items_.size())) return;
    const Item& item = items_[next];
    const Segment& segment = batch.segments[item.segment];
    call.keys = batch.keys[layer] + item.kv_head * head_bytes;
    call.values = batch.values[layer] + item.kv_head * head_bytes;
    attend(work, item, segment);
    if (!split_) finish(work, item, segment);
  }
}

// Partitions that all rows share go together; those with lanes of a row's own, row by row.
void Attention::attend(Work& work, const Item& item, const Segment& segment) const {
  const Path& path = paths_[item.segment];
  const int together = std::min(item.last, path.shared);
  if (item.first < together)
    call(work, item, segment, {item.begin, item.end, item.first, together},
         segment.slots + static_cast<size_t>(item.first) * kPartition);
  std::vector<int64_t> room;
  const int first = std::max(item.first, path.shared), start = first * kPartition;
  for (int row = item.begin; row < item.end && first < item.last; ++row) {
    const int position = row_position_[segment.first + row];
    const int last = std::min(item.last, position / kPartition + 1);
    if (first >= last) continue;
    room.assign(static_cast<size_t>(last - first) * kPartition, 0);
    const int64_t* own = path.slots.data() + static_cast<size_t>(row) * path.depth;
    const int end = std::min(position + 1, last * kPartition);
    for (int content = start; content < end; ++content)
      room[content - start] =
          content < segment.cached ? segment.slots[content] : own[content - segment.cached];
    call(work, item, segment, {row, row + 1, first, last}, room.data());
  }
}

void Attention::call(Work& work, const Item& item, const Segment& segment, const Part& part,
                     const int64_t* slots) const {
  Attend& call = work.call;
  call.kv_heads = item.kv_end - item.kv_head;
  call.count = (part.end - part.begin) * work.group;
  call.begin = part.first, call.end = part.last;
  call.slots = slots;
  for (int row = part.begin; row < part.end; ++row) {
    const int at = segment.first + row, position = row_position_[at];
    for (int h = 0; h < work.group; ++h) {
      const int pair = (row - part.begin) * work.group + h;
      work.low[pair] = work.window ? std::max(0, position - work.window + 1) : 0;
      work.high[pair] = position + 1;
      for (int kv = 0; kv < call.kv_heads; ++kv) {
        const int head = (item.kv_head + kv) * work.group + h, place = kv * call.count + pair;
        work.queries[place] =
            work.qkv + at * work.qkv_stride + static_cast<size_t>(head) * work.model.dim;
        work.parts[place] = parts(work, item, segment, row, head);
      }
    }
  }
  work.ops.attend(call);
}

// Where a pair's partition 0 goes.
float* Attention::parts(const Work& work, const Item& item, const Segment& segment, int row,
                        int head) const {
  const int at = segment.first + row, count = row_position_[at] / kPartition + 1;
  if (split_) return memory_ + (row_partial_[at] + static_cast<size_t>(head) * count) * unit_;
  const int heads = (item.kv_end - item.kv_head) * work.group;
  const int pair = (row - item.begin) * heads + head - item.kv_head * work.group;
  return work.kept + static_cast<size_t>(pair) * longest_ * unit_;
}

void Attention::finish(Work& work, const Item& item, const Segment& segment) const {
  for (int row = item.begin; row < item.end; ++row)
    for (int head = item.kv_head * work.group; head < item.kv_end * work.group; ++head) {
      const int at = segment.first + row;
      join_pair(work.ops, parts(work, item, segment, row, head), row_position_[at], work.window,
                work.context + at * work.context_stride + static_cast<size_t>(head) * work.model.dim,
                work.model.dim);
    }
}

void Attention::join_pair(const Ops& ops, const float* parts, int position, int window, float* out,
                          int dim) const {
  const int first = first_partition(position, window), last = position / kPartition;
  ops.join(parts + static_cast<size_t>(first) * unit_, last - first + 1, padded_dim_, out, dim);
}

void Attention::join(const Ops& ops, const Model& model, int row, int window, float* out) const {
  const int position = row_position_[row], count = position / kPartition + 1;
  for (int head = 0; head < model.heads; ++head)
    join_pair(ops, memory_ + (row_partial_[row] + static_cast<size_t>(head) * count) * unit_,
              position, window, out + static_cast<size_t>(head) * model.dim, model.dim);
}

}  // namespace foreword
