// Attention over partitions of keys. A pair's result for a partition is a fixed sequence of float
// operations: scores by one chain over the head's dimensions per key, values by one chain over
// visible keys, ascending. Invisible lanes never reach it. Scores are in units of log 2.

constexpr float kLog2E = 1.44269504f;

// 2^x for x <= 0, relative error below 1e-7; below -125 as if it were -125; NaN stays NaN.
inline F power_of_two(F x) {
  x = f_max(f_set(-125.0f), x);
  const I n = f_to_int(x);
  const F r = f_sub(x, f_from_int(n));
  F y = f_set(1.5345810970757157e-4f);
  y = f_fma(y, r, f_set(1.3399930903688073e-3f));
  y = f_fma(y, r, f_set(9.618489071726799e-3f));
  y = f_fma(y, r, f_set(5.550328642129898e-2f));
  y = f_fma(y, r, f_set(2.4022646248340607e-1f));
  y = f_fma(y, r, f_set(6.931471824645996e-1f));
  y = f_fma(y, r, f_set(1.0f));
  return f_of_bits(i_add(f_bits(y), i_left<23>(n)));
}

inline F kv_load(const uint8_t* at, Kv format) {
  if (format == Kv::kBfloat16) return f_from_bf16((const uint16_t*)at);
  return format == Kv::kInt8 ? f_from_i8(at) : f_load((const float*)at);
}

// 16 of a head's n numbers from k on, zeros past the end.
inline F kv_fetch(const uint8_t* head, int n, int k, Kv format) {
  const int size = format == Kv::kInt8 ? 1 : format == Kv::kBfloat16 ? 2 : 4;
  F v;
  if (k + 16 <= n) {
    v = kv_load(head + k * size, format);
  } else {
    uint8_t part[64] = {0};
    memcpy(part, head + k * size, (n - k) * size);
    v = kv_load(part, format);
  }
  if (format != Kv::kInt8) return v;
  float scale;
  memcpy(&scale, head + n, 4);
  return f_mul(v, f_set(scale));
}

// 16 lanes of keys: [padded_dim][kPartition], transposed; zeros outside `lanes`.
inline void gather_keys(const Attend& a, const int64_t* slots, const uint8_t* base, Lanes lanes,
                        int l, float* keys) {
  int d = 0;
  F r[16];
  for (; a.format == Kv::kBfloat16 && d + 32 <= a.dim; d += 32) {  // two dimensions as one 32-bit number
    for (int i = 0; i < 16; ++i)
      r[i] = l + i < lanes.low || l + i >= lanes.high
                 ? f_zero()
                 : f_load((const float*)(base + slots[l + i] * a.slot_bytes + 2 * d));
    f_transpose(r);
    for (int i = 0; i < 16; ++i) {
      float* two = keys + (d + 2 * i) * kPartition + l;
      f_store(two, f_of_bits(i_left<16>(f_bits(r[i]))));
      f_store(two + kPartition, f_of_bits(i_and(f_bits(r[i]), i_set((int)0xffff0000))));
    }
  }
  for (; d < a.padded_dim; d += 16) {
    for (int i = 0; i < 16; ++i)
      r[i] = l + i < lanes.low || l + i >= lanes.high
                 ? f_zero()
                 : kv_fetch(base + slots[l + i] * a.slot_bytes, a.dim, d, a.format);
    f_transpose(r);
    for (int i = 0; i < 16; ++i) f_store(keys + (d + i) * kPartition + l, r[i]);
  }
}

// values: [kPartition][padded_dim]
inline void gather_values(const Attend& a, const int64_t* slots, const uint8_t* base, Lanes lanes,
                          float* values) {
  for (int l = lanes.low; l < lanes.high; ++l) {
    const uint8_t* head = base + slots[l] * a.slot_bytes;
    for (int d = 0; d < a.padded_dim; d += 16)
      f_store(values + l * a.padded_dim + d, kv_fetch(head, a.dim, d, a.format));
  }
}

template <int M, int V>
inline void score_tile(const Attend& a, const float* const* queries, const float* keys,
                       float* scores) {
  F acc[M][V];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int v = 0; v < V; ++v) acc[m][v] = f_zero();
  for (int d = 0; d < a.dim; ++d) {
    F k[V];
    FOREWORD_UNROLL
    for (int v = 0; v < V; ++v) k[v] = f_load(keys + d * kPartition + 16 * v);
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m) {
      const F q = f_set(queries[m][d]);
      FOREWORD_UNROLL
      for (int v = 0; v < V; ++v) acc[m][v] = f_fma(q, k[v], acc[m][v]);
    }
  }
  const F scale = f_set(a.scale * kLog2E);
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int v = 0; v < V; ++v)
      f_store(scores + m * kPartition + 16 * v, f_mul(acc[m][v], scale));
}

template <int V>
inline void score_pairs(const Attend& a, const float* const* queries, int count, const float* keys,
                        float* scores) {
  constexpr int kMost = kTile >= 16 ? 6 : 1;
  int i = 0;
  for (; i + kMost <= count; i += kMost)
    score_tile<kMost, V>(a, queries + i, keys, scores + i * kPartition);
  if (kMost == 6 && i + 3 <= count)
    score_tile<3, V>(a, queries + i, keys, scores + i * kPartition), i += 3;
  for (; i < count; ++i) score_tile<1, V>(a, queries + i, keys, scores + i * kPartition);
}

// Scores of one pair become weights, zero where it does not see; its top and total go to `part`.
inline void soften(Lanes mine, float* scores, float* part, int padded_dim) {
  const int first = mine.low / 16, last = (mine.high + 15) / 16;
  const F least = f_set(-INFINITY);
  F top = least;
  for (int v = first; v < last; ++v)
    top = f_max(top, f_range(f_load(scores + 16 * v), least, mine.low - 16 * v,
                             mine.high - 16 * v));
  const float highest = f_top(top);
  F total = f_zero();
  for (int v = first; v < last; ++v) {
    const F e = f_range(power_of_two(f_sub(f_load(scores + 16 * v), f_set(highest))), f_zero(),
                        mine.low - 16 * v, mine.high - 16 * v);
    f_store(scores + 16 * v, e);
    total = f_add(total, e);
  }
  part[padded_dim] = highest;
  part[padded_dim + 1] = f_sum(total);
}

struct Packed {  // values made float32 before
  const float* values;
  int padded_dim;
  F get(int l, int d) const { return f_load(values + l * padded_dim + d); }
};
struct Direct {  // as they lie in the pool
  const Attend& a;
  const int64_t* slots;
  const uint8_t* base;
  F get(int l, int d) const {
    return kv_fetch(base + slots[l] * a.slot_bytes, a.dim, d, a.format);
  }
};
struct Own {  // of a pair with nodes of its own
  const Attend& a;
  const int64_t* slots;
  const uint8_t* base;
  int pair, start;
  F get(int l, int d) const {
    const int64_t slot = slot_of(a, slots, pair, start, l);
    return kv_fetch(base + slot * a.slot_bytes, a.dim, d, a.format);
  }
};

// M pairs with the same visible lanes, D vectors of dimensions.
template <int M, int D, class Source>
inline void value_tile(const Source& source, Lanes lanes, int d, const float* weights,
                       float* const* parts) {
  F acc[M][D];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int v = 0; v < D; ++v) acc[m][v] = f_zero();
  for (int l = lanes.low; l < lanes.high; ++l) {
    F x[D];
    FOREWORD_UNROLL
    for (int v = 0; v < D; ++v) x[v] = source.get(l, d + 16 * v);
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m) {
      const F w = f_set(weights[m * kPartition + l]);
      FOREWORD_UNROLL
      for (int v = 0; v < D; ++v) acc[m][v] = f_fma(w, x[v], acc[m][v]);
    }
  }
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int v = 0; v < D; ++v) f_store(parts[m] + d + 16 * v, acc[m][v]);
}

template <int M, class Source>
inline void value_rows(const Attend& a, const Source& source, Lanes lanes, const float* weights,
                       float* const* parts) {
  constexpr int kWide = kTile >= 16 ? 4 : 2;
  int d = 0;
  for (; d + 16 * kWide <= a.padded_dim; d += 16 * kWide)
    value_tile<M, kWide>(source, lanes, d, weights, parts);
  for (; d < a.padded_dim; d += 16) value_tile<M, 1>(source, lanes, d, weights, parts);
}

inline void score_lanes(const Attend& a, const float* const* queries, int count, int first,
                        int last, const float* keys, float* scores) {
  int v = first;
  for (; v + 4 <= last; v += 4) score_pairs<4>(a, queries, count, keys + 16 * v, scores + 16 * v);
  for (; v + 2 <= last; v += 2) score_pairs<2>(a, queries, count, keys + 16 * v, scores + 16 * v);
  for (; v < last; ++v) score_pairs<1>(a, queries, count, keys + 16 * v, scores + 16 * v);
}

// Scores of nodes, kPartition at a time; `room`: [count][kPartition].
inline void score_nodes(const Attend& a, const float* const* queries, const Span& span, int start,
                        const uint8_t* base, float* keys, float* room, float* scores) {
  for (int first = 0; first < a.nodes; first += kPartition) {
    const int left = a.nodes - first;
    const Lanes lanes = {0, left < kPartition ? left : kPartition};
    const int vectors = (lanes.high + 15) / 16;
    for (int v = 0; v < vectors; ++v)
      gather_keys(a, a.node_slots + first, base, lanes, 16 * v, keys);
    score_lanes(a, queries, span.to - span.from, 0, vectors, keys, room);
    spread(a, span, start, first, room, scores);
  }
}

// One partition of one KV head, for pairs `span` of it.
inline void attend_part(const Attend& a, int number, int head, const Span& span,
                        const Ahead& next) {
  constexpr int kMost = kTile >= 16 ? 6 : 1;
  const int start = number * kPartition, count = span.to - span.from;
  const int64_t* slots = a.slots + (size_t)(number - a.begin) * kPartition;
  const uint8_t *base = a.keys + head * a.head_bytes, *value = a.values + head * a.head_bytes;
  const float* const* queries = a.queries + head * a.count + span.from;
  float* keys = (float*)a.scratch;
  float* values = keys + kPartition * a.padded_dim;
  float* scores = values + kPartition * a.padded_dim;
  const int common = common_lanes(a, start);
  const bool own = common < span.lanes.high;
  const Lanes lanes = {span.lanes.low, own ? common : span.lanes.high};
  const int first = lanes.low / 16, last = (lanes.high + 15) / 16;
  for (int v = first; v < last; ++v) {
    gather_keys(a, slots, base, lanes, 16 * v, keys);
    bring(a, next, v);
  }
  for (int v = 0; v < kPartition / 16; ++v)
    if (v < first || v >= last) bring(a, next, v);
  score_lanes(a, queries, count, first, last, keys, scores);
  if (own)
    score_nodes(a, queries, span, start, base, keys, scores + (size_t)a.count * kPartition, scores);

  const bool direct = count <= kMost;
  if (!direct && !own) gather_values(a, slots, value, lanes, values);
  const Packed packed = {values, a.padded_dim};
  const Direct loose = {a, slots, value};
  for (int i = 0; i < count;) {
    float* parts[kMost];
    const Lanes mine = seen(a, span.from + i, start);
    int same = 0;
    while (same < kMost && i + same < count && alike(a, span.from + i, span.from + i + same, start)) {
      parts[same] = a.parts[head * a.count + span.from + i + same] +
                    (size_t)number * part_floats(a.padded_dim);
      ++same;
    }
    if (mine.low >= mine.high) {
      i += same;
      continue;
    }
    if (same < 6 && same > 3) same = 3;
    if (same < 3) same = 1;
    float* weights = scores + i * kPartition;
    for (int m = 0; m < same; ++m) soften(mine, weights + m * kPartition, parts[m], a.padded_dim);
    constexpr int kThree = kMost >= 3 ? 3 : 1;
    auto weigh = [&](const auto& source) {
      if (same == 1)
        value_rows<1>(a, source, mine, weights, parts);
      else if (same == 3)
        value_rows<kThree>(a, source, mine, weights, parts);
      else
        value_rows<kMost>(a, source, mine, weights, parts);
    };
    if (own)
      weigh(Own{a, slots, value, span.from + i, start});
    else if (direct)
      weigh(loose);
    else
      weigh(packed);
    i += same;
  }
}

void vector_attend(const Attend& a) {
  int highest = 0;
  for (int i = 0; i < a.count; ++i) highest = a.high[i] > highest ? a.high[i] : highest;
  bring_first(a, highest);
  for (int number = a.begin; number < a.end; ++number) {
    const Span span = span_of(a, number * kPartition);
    if (span.from >= span.to) continue;
    for (int head = 0; head < a.kv_heads; ++head)
      attend_part(a, number, head, span, ahead_of(a, number, head, highest));
  }
}

// The weight of every partition against the highest top; then one chain over partitions per value.
void join(const float* parts, int count, int padded_dim, float* out, int dim) {
  const size_t stride = part_floats(padded_dim);
  F top = f_set(-INFINITY);
  for (int p = 0; p < count; ++p) top = f_max(top, f_set(parts[p * stride + padded_dim]));
  for (int d = 0; d < padded_dim; d += 64) {
    F total = f_zero(), sums[4] = {f_zero(), f_zero(), f_zero(), f_zero()};
    const int vectors = padded_dim - d < 64 ? (padded_dim - d) / 16 : 4;
    for (int p = 0; p < count; p += 16) {
      const int here = count - p < 16 ? count - p : 16;
      float tops[16] = {0}, weights[16];
      for (int i = 0; i < here; ++i) tops[i] = parts[(p + i) * stride + padded_dim];
      f_store(weights, power_of_two(f_sub(f_load(tops), top)));
      for (int i = 0; i < here; ++i) {
        const float* part = parts + (p + i) * stride;
        const F w = f_set(weights[i]);
        total = f_fma(f_set(part[padded_dim + 1]), w, total);
        for (int v = 0; v < vectors; ++v) sums[v] = f_fma(f_load(part + d + 16 * v), w, sums[v]);
      }
    }
    for (int v = 0; v < vectors; ++v) {
      float place[16];
      const int at = d + 16 * v, left = dim - at;
      f_store(place, f_div(sums[v], total));
      memcpy(out + at, place, sizeof(float) * (left < 16 ? left : 16));
    }
  }
}
