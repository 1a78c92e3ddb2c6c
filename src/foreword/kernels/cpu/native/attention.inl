// Attention over one partition of keys. Scores: one chain over the head's dimensions per (row,
// key); values: one chain over visible keys, ascending. Invisible lanes are never read.

inline F kv_fetch(const uint8_t* head, int n, int k, bool bfloat16) {
  if (k + 16 <= n)
    return bfloat16 ? f_from_bf16((const uint16_t*)head + k) : f_load((const float*)head + k);
  uint8_t part[64] = {0};
  const int size = bfloat16 ? 2 : 4;
  memcpy(part, head + k * size, (n - k) * size);
  return bfloat16 ? f_from_bf16((const uint16_t*)part) : f_load((const float*)part);
}

// keys: [padded_dim][kPartition], transposed. Lanes outside [low, high) are zeros.
inline void gather_keys(const Attend& a, int low, int high, int lanes, float* keys) {
  for (int l = 0; l < lanes; l += 16)
    for (int d = 0; d < a.padded_dim; d += 16) {
      F r[16];
      for (int i = 0; i < 16; ++i)
        r[i] = l + i < low || l + i >= high
                   ? f_zero()
                   : kv_fetch(a.keys + a.slots[l + i] * a.slot_bytes, a.dim, d, a.kv_bfloat16);
      f_transpose(r);
      for (int i = 0; i < 16; ++i) f_store(keys + (d + i) * kPartition + l, r[i]);
    }
}

// values: [kPartition][padded_dim]
inline void gather_values(const Attend& a, int low, int high, float* values) {
  for (int l = low; l < high; ++l) {
    const uint8_t* head = a.values + a.slots[l] * a.slot_bytes;
    for (int d = 0; d < a.padded_dim; d += 16)
      f_store(values + l * a.padded_dim + d, kv_fetch(head, a.dim, d, a.kv_bfloat16));
  }
}

template <int M, int V>
inline void score_tile(const Attend& a, int first, const float* keys, float* scores) {
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
      const F q = f_set(a.queries[first + m][d]);
      FOREWORD_UNROLL
      for (int v = 0; v < V; ++v) acc[m][v] = f_fma(q, k[v], acc[m][v]);
    }
  }
  const F scale = f_set(a.scale);
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int v = 0; v < V; ++v)
      f_store(scores + (first + m) * kPartition + 16 * v, f_mul(acc[m][v], scale));
}

template <int V>
inline void score_all(const Attend& a, const float* keys, float* scores) {
  constexpr int kMost = kTile >= 16 ? 6 : 1;
  int i = 0;
  for (; i + kMost <= a.count; i += kMost) score_tile<kMost, V>(a, i, keys, scores);
  if (kMost == 6 && i + 3 <= a.count) score_tile<3, V>(a, i, keys, scores), i += 3;
  for (; i < a.count; ++i) score_tile<1, V>(a, i, keys, scores);
}

// Scores of one pair become weights; its top and total.
inline void soften(const Attend& a, int i, int vectors, float* scores) {
  const F least = f_set(-INFINITY);
  F s[4], top = least;
  for (int v = 0; v < vectors; ++v) {
    s[v] = f_range(f_load(scores + 16 * v), least, a.low[i] - 16 * v, a.high[i] - 16 * v);
    top = f_max(top, s[v]);
  }
  const float highest = f_top(top);
  F total = f_zero();
  for (int v = 0; v < vectors; ++v) {
    const F e = f_range(f_exp(f_sub(s[v], f_set(highest))), f_zero(), a.low[i] - 16 * v,
                        a.high[i] - 16 * v);
    f_store(scores + 16 * v, e);
    total = f_add(total, e);
  }
  a.tops[i] = highest;
  a.totals[i] = f_sum(total);
}

// M pairs with the same visible lanes, D vectors of dimensions.
template <int M, int D>
inline void value_tile(const Attend& a, int first, int d, const float* values,
                       const float* weights) {
  F acc[M][D];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int v = 0; v < D; ++v) acc[m][v] = f_zero();
  for (int l = a.low[first]; l < a.high[first]; ++l) {
    F x[D];
    FOREWORD_UNROLL
    for (int v = 0; v < D; ++v) x[v] = f_load(values + l * a.padded_dim + d + 16 * v);
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m) {
      const F w = f_set(weights[(first + m) * kPartition + l]);
      FOREWORD_UNROLL
      for (int v = 0; v < D; ++v) acc[m][v] = f_fma(w, x[v], acc[m][v]);
    }
  }
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int v = 0; v < D; ++v)
      f_store(a.sums + (size_t)(first + m) * a.padded_dim + d + 16 * v, acc[m][v]);
}

template <int M>
inline void value_rows(const Attend& a, int first, const float* values, const float* weights) {
  constexpr int kWide = kTile >= 16 ? 4 : 2;
  int d = 0;
  for (; d + 16 * kWide <= a.padded_dim; d += 16 * kWide)
    value_tile<M, kWide>(a, first, d, values, weights);
  for (; d < a.padded_dim; d += 16) value_tile<M, 1>(a, first, d, values, weights);
}

void attend(const Attend& a) {
  int low = kPartition, high = 0;
  for (int i = 0; i < a.count; ++i) {
    low = a.low[i] < low ? a.low[i] : low;
    high = a.high[i] > high ? a.high[i] : high;
  }
  const int vectors = high <= 32 ? 2 : 4;
  float* keys = (float*)a.scratch;
  float* values = keys + kPartition * a.padded_dim;
  float* scores = values + kPartition * a.padded_dim;
  gather_keys(a, low, high, 16 * vectors, keys);
  gather_values(a, low, high, values);
  if (vectors == 2)
    score_all<2>(a, keys, scores);
  else
    score_all<4>(a, keys, scores);
  for (int i = 0; i < a.count; ++i) soften(a, i, vectors, scores + i * kPartition);
  constexpr int kMost = kTile >= 16 ? 6 : 1;
  for (int i = 0; i < a.count;) {
    int same = 1;
    while (same < kMost && i + same < a.count && a.low[i + same] == a.low[i] &&
           a.high[i + same] == a.high[i])
      ++same;
    if (same >= 6 && kMost >= 6)
      value_rows<kMost>(a, i, values, scores), i += kMost;
    else if (same >= 3 && kMost >= 3)
      value_rows<kMost >= 3 ? 3 : 1>(a, i, values, scores), i += 3;
    else
      value_rows<1>(a, i, values, scores), i += 1;
  }
}

void merge(int count, int padded_dim, float* tops, float* totals, float* sums,
           const float* part_tops, const float* part_totals, const float* part_sums) {
  for (int i = 0; i < count; ++i) {
    const F old_top = f_set(tops[i]), part_top = f_set(part_tops[i]);
    const F top = f_max(old_top, part_top);
    const F old = f_exp(f_sub(old_top, top)), part = f_exp(f_sub(part_top, top));
    float lanes[16];
    f_store(lanes, top);
    tops[i] = lanes[0];
    f_store(lanes, f_fma(f_set(totals[i]), old, f_mul(f_set(part_totals[i]), part)));
    totals[i] = lanes[0];
    float* mine = sums + (size_t)i * padded_dim;
    const float* theirs = part_sums + (size_t)i * padded_dim;
    for (int d = 0; d < padded_dim; d += 16)
      f_store(mine + d, f_fma(f_load(mine + d), old, f_mul(f_load(theirs + d), part)));
  }
}

void divide(const float* sums, float total, float* out, int dim) {
  const F divisor = f_set(total);
  for (int d = 0; d < dim; d += 16) {
    float part[16];
    f_store(part, f_div(f_load(sums + d), divisor));
    memcpy(out + d, part, sizeof(float) * (dim - d < 16 ? dim - d : 16));
  }
}
