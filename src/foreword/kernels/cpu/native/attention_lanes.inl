// Which lanes of a partition a pair sees, which keys they are, and what is read next.

struct Lanes {  // of one partition, half-open; empty when low >= high
  int low, high;
};

inline Lanes seen(const Attend& a, int pair, int start) {
  const int low = a.low[pair] - start, high = a.high[pair] - start;
  return {low < 0 ? 0 : low, high > kPartition ? kPartition : high};
}

// What pairs [from, to) see together, and whether all see the same.
struct Span {
  int from, to;
  Lanes lanes;
  bool same;
};

inline Span span_of(const Attend& a, int start) {
  Span s = {a.count, 0, {kPartition, 0}, true};
  for (int i = 0; i < a.count; ++i) {
    const Lanes mine = seen(a, i, start);
    if (mine.low >= mine.high) continue;
    if (s.from > i) s.from = i, s.lanes = mine;
    s.same = s.same && s.lanes.low == mine.low && s.lanes.high == mine.high;
    s.to = i + 1;
    if (mine.low < s.lanes.low) s.lanes.low = mine.low;
    if (mine.high > s.lanes.high) s.lanes.high = mine.high;
  }
  return s;
}

// The lanes of a partition whose keys are the same for all pairs.
inline int common_lanes(const Attend& a, int start) {
  if (!a.nodes || a.own - start > kPartition) return kPartition;
  return a.own > start ? a.own - start : 0;
}

// The slot of a lane of a pair; `slots`: of the partition's lanes that all pairs share.
inline int64_t slot_of(const Attend& a, const int64_t* slots, int pair, int start, int lane) {
  const int beyond = start + lane - a.own;
  return a.nodes && beyond >= 0 ? a.node_slots[a.paths[pair][beyond]] : slots[lane];
}

// Whether two pairs read the same keys of a partition.
inline bool alike(const Attend& a, int pair, int other, int start) {
  const Lanes x = seen(a, pair, start), y = seen(a, other, start);
  return x.low == y.low && x.high == y.high && (!a.nodes || a.paths[pair] == a.paths[other]);
}

// Scores of nodes [first, first + kPartition) go to the lanes of those who see them.
inline void spread(const Attend& a, const Span& span, int start, int first, const float* from,
                   float* scores) {
  const int lane = common_lanes(a, start);
  for (int i = span.from; i < span.to; ++i) {
    const Lanes mine = seen(a, i, start);
    const float* node_scores = from + (size_t)(i - span.from) * kPartition;
    float* to = scores + (size_t)(i - span.from) * kPartition;
    for (int l = lane > mine.low ? lane : mine.low; l < mine.high; ++l) {
      const int node = a.paths[i][start + l - a.own] - first;
      if (node >= 0 && node < kPartition) to[l] = node_scores[node];
    }
  }
}

// The keys and values that are read next: brought near during the work before, and into the first
// cache: loads from the second would queue up behind these.
struct Ahead {
  const int64_t* slots = nullptr;
  const uint8_t *keys, *values;
  int lanes = 0;
};

inline Ahead ahead_at(const Attend& a, int number, int head, int highest) {
  Ahead next;
  next.slots = a.slots + (size_t)(number - a.begin) * kPartition;
  next.keys = a.keys + head * a.head_bytes;
  next.values = a.values + head * a.head_bytes;
  const int left = highest - number * kPartition;
  next.lanes = left < kPartition ? left : kPartition;
  return next;
}

inline Ahead ahead_of(const Attend& a, int number, int head, int highest) {
  if (++head == a.kv_heads) head = 0, ++number;
  return number < a.end ? ahead_at(a, number, head, highest) : Ahead();
}

inline void bring(const Attend& a, const Ahead& next, int block) {
  const int to = 16 * block + 16 < next.lanes ? 16 * block + 16 : next.lanes;
  for (int l = 16 * block; l < to; ++l) {
    const size_t at = next.slots[l] * a.slot_bytes;
    for (size_t b = 0; b < a.head_bytes; b += 64) {
      prefetch(next.keys + at + b);
      prefetch(next.values + at + b);
    }
  }
}

inline void bring_first(const Attend& a, int highest) {
  const Ahead first = ahead_at(a, a.begin, 0, highest);
  for (int block = 0; block < kPartition / 16; ++block) bring(a, first, block);
}
