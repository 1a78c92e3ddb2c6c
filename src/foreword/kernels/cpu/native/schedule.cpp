#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace foreword {
namespace {

constexpr int kPairs = 96;               // (row, head) pairs that share loaded keys
constexpr int kFewPairs = 16;            // so few of a KV head go with those of the other heads
constexpr int kManyPairs = 24;           // of a thread: so many need no partitions of others
constexpr size_t kSplitBytes = 4 << 20;  // partitions are shared out below this

int first_partition(int position, int window) {
  return window ? std::max(0, position - window + 1) / kPartition : 0;
}

}  // namespace

// A segment's work, in keys times rows.
double Attention::cost(const Segment& segment) const {
  double keys = 0;
  for (int row = 0; row < segment.rows; ++row) keys += row_position_[segment.first + row] + 1;
  return keys;
}

// Whether every thread finds enough to do when rows and heads alone are shared out.
bool Attention::plenty(const Model& model, const Batch& batch, int threads) const {
  double most = 0, total = 0;  // most: of a segment that stays in one piece
  for (const Segment& segment : batch.segments) {
    const double mine = cost(segment);
    total += mine;
    if (segment.rows * (model.heads / model.kv_heads) <= kFewPairs) most = std::max(most, mine);
  }
  return batch.rows * model.heads >= kManyPairs * threads && most * 2 * threads <= total;
}

// Cuts rows of all heads, one head's after the other's, into pieces of at most `block` rows, so
// many that threads get the same.
void Attention::cut(const Model& model, int number, const Segment& segment, int block, int threads,
                    int parts) {
  const int line = segment.rows * model.kv_heads, share = threads * block;
  const int pieces = (line + share - 1) / share * threads;
  for (int piece = 0; piece < pieces; ++piece) {
    const int end = static_cast<int>(static_cast<int64_t>(line) * (piece + 1) / pieces);
    int from = static_cast<int>(static_cast<int64_t>(line) * piece / pieces);
    while (from < end) {
      const int head = from / segment.rows, begin = from % segment.rows;
      const int rows = std::min(end - from, segment.rows - begin);
      items_.push_back({number, begin, begin + rows, head, head + 1, 0, parts});
      from += rows;
    }
  }
}

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
  split_ = units * unit_ * 4 <= kSplitBytes && !plenty(model, batch, threads);
  partials_ = split_ ? units * unit_ * 4 : 0;

  const int block = std::max(1, kPairs / group);
  most_ = std::max({kPairs, group, std::min(kFewPairs, block * group) * model.kv_heads});
  scratch_ = attend_scratch(padded_dim_, most_) + static_cast<size_t>(most_) * 32 + 1024;
  if (!split_) scratch_ += static_cast<size_t>(most_) * longest_ * unit_ * 4;
  double total = 0;
  for (const Segment& segment : batch.segments) total += cost(segment);
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    Path path{true, 0, {}};
    for (int row = 0; row < segment.rows; ++row) {
      path.chain = path.chain && segment.parents[row] == row - 1;
      path.depth = std::max(path.depth, row_position_[segment.first + row] - segment.cached + 1);
    }
    if (!path.chain) {
      path.nodes.assign(static_cast<size_t>(segment.rows) * path.depth, 0);
      for (int row = 0; row < segment.rows; ++row) {
        int32_t* mine = path.nodes.data() + static_cast<size_t>(row) * path.depth;
        const int depth = row_position_[segment.first + row] - segment.cached;
        if (segment.parents[row] >= 0)
          std::copy_n(path.nodes.data() + static_cast<size_t>(segment.parents[row]) * path.depth,
                      depth, mine);
        mine[depth] = row;
      }
    }
    paths_.push_back(std::move(path));
    Path& kept = paths_.back();
    const int parts = (segment.cached + kept.depth - 1) / kPartition + 1;
    // Few rows: all heads of a partition at once, so that memory is read in one line.
    const bool few = segment.rows * group <= kFewPairs;
    const int heads = few ? model.kv_heads : 1;
    if (!split_ && !few) {
      const double part = cost(segment) / total;
      cut(model, static_cast<int>(s), segment, block,
          std::max(1, static_cast<int>(std::ceil(threads * part))), parts);
      continue;
    }
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
  std::reverse(items_.begin(), items_.end());  // later rows see more
  if (split_) return;
  auto size = [&](const Item& item) {
    const int last = batch.segments[item.segment].first + item.end - 1;
    return static_cast<int64_t>(item.end - item.begin) * (item.kv_end - item.kv_head) *
           (row_position_[last] + 1);
  };
  std::stable_sort(items_.begin(), items_.end(),
                   [&](const Item& x, const Item& y) { return size(x) > size(y); });
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
  const int32_t** paths;  // [most]
  float** parts;          // [most]
  float* kept;            // [most][longest] partitions, unless split
  float* context;
  size_t context_stride;
};

void Attention::run(int& phase, std::vector<Ticket>& tickets, const Ops& ops, const Model& model,
                    const Batch& batch, size_t layer, const float* qkv, size_t qkv_stride,
                    float* context, size_t context_stride, uint8_t* scratch,
                    const Done& done) const {
  Ticket& ticket = tickets[phase++];
  auto take = [&scratch](size_t bytes) {
    uint8_t* found = scratch;
    scratch += (bytes + 63) / 64 * 64;
    return found;
  };
  const size_t most = most_, head_bytes = kv_head_bytes(model.kv_format, model.dim);
  Work work{model, ops, qkv, qkv_stride, model.layers[layer].window, model.heads / model.kv_heads,
            {}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, context, context_stride};
  work.call.scratch = take(attend_scratch(padded_dim_, most_));
  work.queries = reinterpret_cast<const float**>(take(most * sizeof(float*)));
  work.parts = reinterpret_cast<float**>(take(most * sizeof(float*)));
  work.paths = reinterpret_cast<const int32_t**>(take(most * sizeof(int32_t*)));
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
  call.low = work.low, call.high = work.high, call.paths = work.paths;
  while (true) {
    const int next = ticket.next.fetch_add(1, std::memory_order_relaxed);
    if (next >= static_cast<int>(items_.size())) return;
    const Item& item = items_[next];
    const Segment& segment = batch.segments[item.segment];
    call.keys = batch.keys[layer] + item.kv_head * head_bytes;
    call.values = batch.values[layer] + item.kv_head * head_bytes;
    attend(work, item, segment);
    if (!split_) finish(work, item, segment, done);
  }
}

void Attention::attend(Work& work, const Item& item, const Segment& segment) const {
  const Path& path = paths_[item.segment];
  Attend& call = work.call;
  call.kv_heads = item.kv_end - item.kv_head;
  call.count = (item.end - item.begin) * work.group;
  call.begin = item.first, call.end = item.last;
  call.slots = segment.slots + static_cast<size_t>(item.first) * kPartition;
  call.own = segment.cached;
  call.nodes = path.chain ? 0 : item.end;  // later rows are nobody's ancestors here
  call.node_slots = segment.slots + segment.cached;
  for (int row = item.begin; row < item.end; ++row) {
    const int at = segment.first + row, position = row_position_[at];
    for (int h = 0; h < work.group; ++h) {
      const int pair = (row - item.begin) * work.group + h;
      work.low[pair] = work.window ? std::max(0, position - work.window + 1) : 0;
      work.high[pair] = position + 1;
      work.paths[pair] =
          path.chain ? nullptr : path.nodes.data() + static_cast<size_t>(row) * path.depth;
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

void Attention::finish(const Work& work, const Item& item, const Segment& segment,
                       const Done& done) const {
  const int first = item.kv_head * work.group, last = item.kv_end * work.group;
  for (int row = item.begin; row < item.end; ++row) {
    const int at = segment.first + row;
    float* line = work.context + at * work.context_stride;
    for (int head = first; head < last; ++head)
      join_pair(work.ops, parts(work, item, segment, row, head), row_position_[at], work.window,
                line + static_cast<size_t>(head) * work.model.dim, work.model.dim);
    done(at, first * work.model.dim, last * work.model.dim);
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
