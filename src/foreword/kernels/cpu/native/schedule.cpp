#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace foreword {
namespace {

constexpr int kPairs = 96;             // (row, head) pairs that share loaded keys
constexpr size_t kSplitBytes = 4 << 20;  // partitions are kept apart below this

int first_partition(int position, int window) {
  return window ? std::max(0, position - window + 1) / kPartition : 0;
}

}  // namespace

void Attention::plan(const Model& model, const Batch& batch, int threads) {
  heads_ = model.heads;
  padded_dim_ = round_up(model.dim, 16);
  const int group = model.heads / model.kv_heads;
  row_position_.resize(batch.rows);
  row_partial_.resize(batch.rows);
  size_t units = 0;
  for (int row = 0; row < batch.rows; ++row) {
    row_position_[row] = static_cast<int>(batch.positions[row]);
    row_partial_[row] = units;
    units += static_cast<size_t>(heads_) * (row_position_[row] / kPartition + 1);
  }
  split_ = units * (padded_dim_ + 2) * 4 <= kSplitBytes;
  partials_ = split_ ? units * (padded_dim_ + 2) * 4 : 0;

  const int block = std::max(1, kPairs / group);
  most_ = std::max(kPairs, group);
  scratch_ = attend_scratch(padded_dim_, most_) + static_cast<size_t>(most_) * 64 +
             2 * static_cast<size_t>(most_) * (padded_dim_ + 2) * 4;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    Path path{true, 0, {}};
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
    const int parts = (segment.cached + paths_.back().depth - 1) / kPartition + 1;
    const int pieces = split_ ? std::min(parts, std::max(1, 4 * threads / model.kv_heads)) : 1;
    const int step = (parts + pieces - 1) / pieces;
    for (int begin = 0; begin < segment.rows; begin += block)
      for (int head = 0; head < model.kv_heads; ++head)
        for (int first = 0; first < parts; first += step)
          items_.push_back({static_cast<int>(s), begin, std::min(begin + block, segment.rows),
                            head, first, std::min(first + step, parts)});
  }
  std::reverse(items_.begin(), items_.end());  // later rows see more: the long ones first
}

struct Attention::Work {
  const Ops& ops;
  const Model& model;
  const Batch& batch;
  int window;
  Attend call;                                  // what all calls share
  const float** queries;                        // [most]
  int *low, *high, *which;                      // [most]
  float *tops, *totals, *sums;                  // running state, by pair
  float *part_tops, *part_totals, *part_sums;   // of one partition
  const float* qkv;
  size_t qkv_stride;
  int head;  // first head of the group
  int group;
};

float* Attention::partial(int row, int head, int number) const {
  const size_t unit = row_partial_[row] +
                      static_cast<size_t>(head) * (row_position_[row] / kPartition + 1) + number;
  return memory_ + unit * (padded_dim_ + 2);
}

void Attention::run(int& phase, std::vector<Ticket>& tickets, const Ops& ops, const Model& model,
                    const Batch& batch, size_t layer, const float* qkv, size_t qkv_stride,
                    float* context, size_t context_stride, uint8_t* scratch) const {
  Ticket& ticket = tickets[phase++];
  const int group = model.heads / model.kv_heads;
  auto take = [&scratch](size_t bytes) {
    uint8_t* found = scratch;
    scratch += (bytes + 15) / 16 * 16;
    return found;
  };
  const size_t most = most_, floats = most * 4;
  Work work{ops, model, batch, model.layers[layer].window, {}, nullptr, nullptr, nullptr, nullptr,
            nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, qkv, qkv_stride, 0, group};
  work.call.scratch = take(attend_scratch(padded_dim_, most_) - 4096);
  work.sums = reinterpret_cast<float*>(take(floats * padded_dim_));
  work.part_sums = reinterpret_cast<float*>(take(floats * padded_dim_));
  work.queries = reinterpret_cast<const float**>(take(most * sizeof(float*)));
  work.low = reinterpret_cast<int*>(take(floats));
  work.high = reinterpret_cast<int*>(take(floats));
  work.which = reinterpret_cast<int*>(take(floats));
  work.tops = reinterpret_cast<float*>(take(floats));
  work.totals = reinterpret_cast<float*>(take(floats));
  work.part_tops = reinterpret_cast<float*>(take(floats));
  work.part_totals = reinterpret_cast<float*>(take(floats));
  work.call.dim = model.dim;
  work.call.padded_dim = padded_dim_;
  work.call.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.dim)));
  work.call.kv_bfloat16 = model.kv_bfloat16;
  const size_t head_bytes = static_cast<size_t>(model.dim) * (model.kv_bfloat16 ? 2 : 4);
  work.call.slot_bytes = head_bytes * model.kv_heads;
  while (true) {
    const int next = ticket.next.fetch_add(1, std::memory_order_relaxed);
    if (next >= static_cast<int>(items_.size())) return;
    const Item& item = items_[next];
    work.head = item.kv_head * group;
    work.call.keys = batch.keys[layer] + item.kv_head * head_bytes;
    work.call.values = batch.values[layer] + item.kv_head * head_bytes;
    attend(work, item);
    if (split_) continue;
    const int first = batch.segments[item.segment].first;
    for (int row = item.begin; row < item.end; ++row)
      for (int h = 0; h < group; ++h) {
        const int pair = (row - item.begin) * group + h;
        ops.divide(work.sums + static_cast<size_t>(pair) * padded_dim_, work.totals[pair],
                   context + (first + row) * context_stride + (work.head + h) * model.dim,
                   model.dim);
      }
  }
}

void Attention::attend(Work& work, const Item& item) const {
  const int pairs = (item.end - item.begin) * work.group;
  for (int pair = 0; pair < pairs; ++pair) work.totals[pair] = -1.0f;  // nothing yet
  for (int number = item.first; number < item.last; ++number) partition(work, item, number);
}

// Lanes of a partition as slots: those of the cached positions, then the row's own path.
const int64_t* Attention::lanes(const Work& work, const Item& item, int row, int number,
                                int64_t* room) const {
  const Segment& segment = work.batch.segments[item.segment];
  const Path& path = paths_[item.segment];
  const int start = number * kPartition;
  if (path.chain || start + kPartition <= segment.cached) return segment.slots + start;
  const int64_t* own = path.slots.data() + static_cast<size_t>(row) * path.depth;
  for (int lane = 0; lane < kPartition; ++lane) {
    const int content = start + lane;
    if (content > row_position_[segment.first + row]) break;
    room[lane] = content < segment.cached ? segment.slots[content] : own[content - segment.cached];
  }
  return room;
}

void Attention::partition(Work& work, const Item& item, int number) const {
  const Segment& segment = work.batch.segments[item.segment];
  const int start = number * kPartition;
  const bool together =
      paths_[item.segment].chain || start + kPartition <= segment.cached;
  int64_t room[kPartition];
  int count = 0;
  auto flush = [&](int row) {
    if (!count) return;
    Attend call = work.call;
    call.count = count;
    call.queries = work.queries;
    call.low = work.low;
    call.high = work.high;
    call.slots = lanes(work, item, row, number, room);
    call.tops = work.part_tops;
    call.totals = work.part_totals;
    call.sums = work.part_sums;
    work.ops.attend(call);
    for (int i = 0; i < count; ++i) {
      const int pair = work.which[i];
      const float* sums = work.part_sums + static_cast<size_t>(i) * padded_dim_;
      float* mine = work.sums + static_cast<size_t>(pair) * padded_dim_;
      if (split_) {
        const int at = segment.first + item.begin + pair / work.group;
        float* kept = partial(at, work.head + pair % work.group, number);
        kept[0] = work.part_tops[i], kept[1] = work.part_totals[i];
        std::memcpy(kept + 2, sums, sizeof(float) * padded_dim_);
      } else if (work.totals[pair] == -1.0f) {
        work.tops[pair] = work.part_tops[i], work.totals[pair] = work.part_totals[i];
        std::memcpy(mine, sums, sizeof(float) * padded_dim_);
      } else {
        work.ops.merge(1, padded_dim_, work.tops + pair, work.totals + pair, mine,
                       work.part_tops + i, work.part_totals + i, sums);
      }
    }
    count = 0;
  };
  for (int row = item.begin; row < item.end; ++row) {
    const int position = row_position_[segment.first + row];
    const int lowest = work.window ? std::max(0, position - work.window + 1) : 0;
    const int low = std::max(0, lowest - start), high = std::min(kPartition, position + 1 - start);
    if (low >= high) continue;
    for (int h = 0; h < work.group; ++h, ++count) {
      work.queries[count] = work.qkv + (segment.first + row) * work.qkv_stride +
                            static_cast<size_t>(work.head + h) * work.model.dim;
      work.low[count] = low, work.high[count] = high;
      work.which[count] = (row - item.begin) * work.group + h;
    }
    if (!together) flush(row);
  }
  flush(item.begin);
}

void Attention::join(const Ops& ops, const Model& model, int row, int window, float* out) const {
  const int last = row_position_[row] / kPartition;
  for (int head = 0; head < model.heads; ++head) {
    const int first = first_partition(row_position_[row], window);
    float* state = partial(row, head, first);
    float copy[2 + 512];
    float* mine = state;
    if (first < last) {  // other threads may join the same row: leave what they read
      mine = copy;
      std::memcpy(copy, state, sizeof(float) * (padded_dim_ + 2));
    }
    for (int number = first + 1; number <= last; ++number) {
      const float* part = partial(row, head, number);
      ops.merge(1, padded_dim_, mine, mine + 1, mine + 2, part, part + 1, part + 2);
    }
    ops.divide(mine + 2, mine[1], out + head * model.dim, model.dim);
  }
}

}  // namespace foreword
