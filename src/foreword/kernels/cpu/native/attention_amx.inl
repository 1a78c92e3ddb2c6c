// Attention over bfloat16 or int8 keys and values on the matrix unit (an int8 number is exact in
// bfloat16; its scale goes to the score, or to the weight). Queries and weights are split into
// two bfloat16 numbers, high and low, whose sum has 16 good bits; both halves are multiplied. Keys
// are the rows of a tile as they lie in the pool. An element of a tile product depends on its own
// row and column only, so how many pairs share the tiles changes no bit.

// Scores of 32 lanes for a tile of 16 pairs: sums with the high halves, then with the low ones.
inline void tile_scores(const TilePool& t, const KeyBlock& x, const KeyBlock& y,
                        const uint16_t* queries, const float* scales, float* scores) {
  _tile_loadd(0, t.zeros, 64);
  _tile_loadd(1, t.zeros, 64);
  _tile_loadd(2, t.zeros, 64);
  _tile_loadd(3, t.zeros, 64);
  for (int c = 0; c < t.chunks; ++c, queries += 1024) {
    _tile_loadd(4, x.rows + c * x.step, x.stride);
    _tile_loadd(6, queries, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, queries + 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, y.rows + c * y.step, y.stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, t.tiles, 64);
  _tile_stored(1, t.tiles + 256, 64);
  _tile_stored(2, t.tiles + 512, 64);
  _tile_stored(3, t.tiles + 768, 64);
  asm volatile("" ::: "memory");
  for (int half = 0; half < 2; ++half, scores += 16) {
    const F scale = f_load(scales + 16 * half);
    F r[16];
    const float* high = t.tiles + 512 * half;
    FOREWORD_UNROLL
    for (int i = 0; i < 16; ++i)
      r[i] = f_add(f_load(high + 16 * i), f_load(high + 256 + 16 * i));
    f_transpose(r);
    FOREWORD_UNROLL
    for (int i = 0; i < 16; ++i) f_store(scores + i * kPartition, f_mul(r[i], scale));
  }
}

// Lane r of every 4th of 16 tile rows: 4 columns of rows r, r + 4, r + 8, r + 12.
inline F four_rows(const float* tile, int r) {
  __m512 v = _mm512_castps128_ps512(_mm_load_ps(tile + 16 * r));
  v = _mm512_insertf32x4(v, _mm_load_ps(tile + 16 * (r + 4)), 1);
  v = _mm512_insertf32x4(v, _mm_load_ps(tile + 16 * (r + 8)), 2);
  return _mm512_insertf32x4(v, _mm_load_ps(tile + 16 * (r + 12)), 3);
}

// The same for at most 8 pairs, 4 at a time.
inline void few_products(const TilePool& t, const KeyBlock& x, const KeyBlock& y,
                         const uint16_t* queries) {
  _tile_loadd(0, t.zeros, 64);
  _tile_loadd(1, t.zeros, 64);
  for (int c = 0; c < t.chunks; ++c, queries += 512) {
    _tile_loadd(6, queries, 64);
    _tile_loadd(4, x.rows + c * x.step, x.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, y.rows + c * y.step, y.stride);
    _tile_dpbf16ps(1, 5, 6);
  }
  _tile_stored(0, t.tiles, 64);
  _tile_stored(1, t.tiles + 256, 64);
  asm volatile("" ::: "memory");
}

inline void few_scores(const TilePool& t, int count, const float* scales, float* scores) {
  for (int half = 0; half < 2; ++half)
    for (int pair = 0; pair < count; pair += 4) {
      const F scale = f_load(scales + 16 * half);
      const float* tile = t.tiles + 256 * half + pair;
      F s[4], u[4];
      FOREWORD_UNROLL
      for (int r = 0; r < 4; ++r)
        s[r] = f_add(four_rows(tile, r), four_rows(tile + 8, r));
      u[0] = _mm512_unpacklo_ps(s[0], s[1]), u[1] = _mm512_unpackhi_ps(s[0], s[1]);
      u[2] = _mm512_unpacklo_ps(s[2], s[3]), u[3] = _mm512_unpackhi_ps(s[2], s[3]);
      float* to = scores + pair * kPartition + 16 * half;
      f_store(to, f_mul(_mm512_shuffle_ps(u[0], u[2], 0x44), scale));
      f_store(to + kPartition, f_mul(_mm512_shuffle_ps(u[0], u[2], 0xee), scale));
      f_store(to + 2 * kPartition, f_mul(_mm512_shuffle_ps(u[1], u[3], 0x44), scale));
      f_store(to + 3 * kPartition, f_mul(_mm512_shuffle_ps(u[1], u[3], 0xee), scale));
    }
}

// The lanes of vector v of a partition that a pair sees.
inline __mmask16 visible(Lanes mine, int v) {
  const __m512i lane =
      _mm512_add_epi32(_mm512_set1_epi32(16 * v), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                                                    10, 11, 12, 13, 14, 15));
  return _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(mine.high)) &
         _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(mine.low));
}

// The highest score of a pair. FULL: it sees the whole partition.
template <bool FULL>
inline float tile_top(Lanes mine, int begin, int end, const float* scores) {
  F top[2] = {f_set(-INFINITY), f_set(-INFINITY)};
  FOREWORD_UNROLL
  for (int v = FULL ? 0 : 2 * begin; v < (FULL ? kPartition / 16 : 2 * end); ++v) {
    F s = f_load(scores + 16 * v);
    if (!FULL) s = _mm512_mask_mov_ps(f_set(-INFINITY), visible(mine, v), s);
    top[v % 2] = f_max(top[v % 2], s);
  }
  return f_top(f_max(top[0], top[1]));
}

// As `soften`, with the weights split into their places in the tiles of 8 pairs. The top is in
// `part` already. SCALED: values have scales.
template <bool FULL, bool SCALED>
inline void tile_weights(const TilePool& t, Lanes mine, int begin, int end, int pair,
                         const float* scores, float* part, int padded_dim) {
  const F highest = f_set(part[padded_dim]);
  F total = f_zero();
  uint16_t* to = t.weights + (size_t)(pair / 8) * kPartition * 16 + pair % 8 * 32;
  FOREWORD_UNROLL
  for (int b = FULL ? 0 : begin; b < (FULL ? kPartition / 32 : end); ++b) {
    F w[2];
    FOREWORD_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int v = 2 * b + h;
      F e = power_of_two(f_sub(f_load(scores + 16 * v), highest));
      if (!FULL) e = _mm512_maskz_mov_ps(visible(mine, v), e);
      total = f_add(total, e);
      if (SCALED) e = f_mul(e, f_load(t.value_scales + 16 * v));
      // Once more: a scale may be not finite.
      w[h] = SCALED && !FULL ? _mm512_maskz_mov_ps(visible(mine, v), e) : e;
    }
    const F x = high_part(w[0]), y = high_part(w[1]);
    _mm512_store_si512(to + b * 512, pack_two(x, y));
    _mm512_store_si512(to + b * 512 + 256, pack_two(f_sub(w[0], x), f_sub(w[1], y)));
  }
  part[padded_dim + 1] = f_sum(total);
}

// Weighted values of 8 pairs, for one chunk of dimensions or two: [chunk][two tiles] in t.tiles.
inline void tile_values(const TilePool& t, const uint16_t* weights, Lanes lanes, int c, bool both) {
  _tile_loadd(0, t.zeros, 64);
  _tile_loadd(1, t.zeros, 64);
  if (both) {
    _tile_loadd(2, t.zeros, 64);
    _tile_loadd(3, t.zeros, 64);
  }
  for (int b = lanes.low / 32; b * 32 < lanes.high; ++b) {
    const uint16_t* v = t.values + ((size_t)b * t.chunks + c) * 1024;
    _tile_loadd(4, weights + b * 512, 64);
    _tile_loadd(6, v, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, v + 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (both) {
      _tile_loadd(6, v + 1024, 64);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, v + 1536, 64);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, t.tiles, 64);
  _tile_stored(1, t.tiles + 256, 64);
  if (both) {
    _tile_stored(2, t.tiles + 512, 64);
    _tile_stored(3, t.tiles + 768, 64);
  }
  asm volatile("" ::: "memory");
}

// Sums of pairs [begin, end) of a KV head, all in one tile of 8.
inline void weigh_values(const Attend& a, const TilePool& t, int begin, int end, Lanes lanes,
                         float* const* parts, int number) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const uint16_t* weights = t.weights + (size_t)(begin / 8) * kPartition * 16;
  for (int c = 0; c < t.chunks; c += 2) {
    const bool both = c + 1 < t.chunks;
    tile_values(t, weights, lanes, c, both);
    for (int pair = begin; pair < end; ++pair) {
      const Lanes mine = seen(a, pair, number * kPartition);
      if (mine.low >= mine.high) continue;
      float* out = parts[pair] + (size_t)number * part_floats(a.padded_dim) + 32 * c;
      const int left = a.padded_dim - 32 * c, m = pair % 8 * 16;
      for (int half = 0; half < 2 && half * 32 < left; ++half) {
        const float* x = t.tiles + 512 * half + m;
        // Adding +0 last: a sum of nothing has one sign whatever it was made of.
        const F lo = f_add(f_add(f_load(x), f_load(x + 128)), f_zero());
        const F hi = f_add(f_add(f_load(x + 256), f_load(x + 384)), f_zero());
        f_store(out + 32 * half, _mm512_permutex2var_ps(lo, first, hi));
        if (left > 32 * half + 16)
          f_store(out + 32 * half + 16, _mm512_permutex2var_ps(lo, second, hi));
      }
    }
  }
}

// Scores of 32 keys for all pairs in `span`.
inline void block_scores(const Attend& a, const TilePool& t, const Span& span, const KeyBlock& x,
                         const KeyBlock& y, const uint16_t* queries, const float* scales,
                         float* scores) {
  if (t.few) return few_scores(t, a.count, scales, scores);  // after few_products
  for (int i = span.from / 16; i * 16 < span.to; ++i)
    tile_scores(t, x, y, queries + (size_t)i * t.chunks * 1024, scales,
                scores + (size_t)i * 16 * kPartition);
}

// Scores of nodes, to the lanes of those who see them.
inline void tile_nodes(const Attend& a, const TilePool& t, const Span& span, int start,
                       const uint8_t* base, const uint16_t* queries) {
  for (int first = 0; first < a.nodes; first += kPartition) {
    const int64_t* slots = a.node_slots + first;
    const int left = a.nodes - first;
    const Lanes lanes = {0, left < kPartition ? left : kPartition};
    for (int l = 0; l < lanes.high; l += 32) {
      const KeyBlock x = key_block(a, t, slots, base, lanes, l);
      const KeyBlock y = key_block(a, t, slots, base, lanes, l + 16);
      if (a.format == Kv::kInt8)
        fetch_scales(a, slots, base, lanes, l, a.scale * kLog2E, t.node_key_scales);
      asm volatile("" ::: "memory");
      if (t.few) few_products(t, x, y, queries);
      block_scores(a, t, span, x, y, queries, t.node_key_scales + l, t.node_scores + l);
    }
    const size_t at = (size_t)span.from * kPartition;
    spread(a, span, start, first, t.node_scores + at, t.scores + at);
  }
}

inline void weigh_scores(const Attend& a, const TilePool& t, Lanes mine, int begin, int end, int pair,
                         float* part) {
  const float* scores = t.scores + (size_t)pair * kPartition;
  const bool full = mine.high - mine.low == kPartition, scaled = a.format == Kv::kInt8;
  if (full && scaled)
    tile_weights<true, true>(t, mine, begin, end, pair, scores, part, a.padded_dim);
  else if (full)
    tile_weights<true, false>(t, mine, begin, end, pair, scores, part, a.padded_dim);
  else if (scaled)
    tile_weights<false, true>(t, mine, begin, end, pair, scores, part, a.padded_dim);
  else
    tile_weights<false, false>(t, mine, begin, end, pair, scores, part, a.padded_dim);
}

inline void tile_part(const Attend& a, const TilePool& t, int number, int head, const Span& span,
                      const Ahead& next) {
  const int start = number * kPartition;
  const int64_t* slots = a.slots + (size_t)(number - a.begin) * kPartition;
  const uint8_t *base = a.keys + head * a.head_bytes, *value = a.values + head * a.head_bytes;
  float* const* parts = a.parts + head * a.count;
  const size_t tiles = (a.count + 15) / 16, offset = (size_t)number * part_floats(a.padded_dim);
  const uint16_t* queries = t.queries + head * t.chunks * (t.few ? 512 : tiles * 1024);
  const int begin = span.lanes.low / 32, end = (span.lanes.high + 31) / 32;
  const int common = common_lanes(a, start);
  const bool own = common < span.lanes.high;
  const int whole = own ? common / 32 : end;  // blocks before this one are the same for all pairs
  const Lanes lanes = {span.lanes.low, own ? common : span.lanes.high};
  bool strange = false;
  for (int b = 0; b < kPartition / 32; ++b) {
    bring(a, next, 2 * b);
    bring(a, next, 2 * b + 1);
    const int l = 32 * b;
    if (b < begin || l >= lanes.high) continue;
    const KeyBlock x = key_block(a, t, slots, base, lanes, l);
    const KeyBlock y = key_block(a, t, slots, base, lanes, l + 16);
    if (a.format == Kv::kInt8) {
      fetch_scales(a, slots, base, lanes, l, a.scale * kLog2E, t.key_scales);
      fetch_scales(a, slots, value, lanes, l, 1.0f, t.value_scales);
    }
    asm volatile("" ::: "memory");
    if (t.few) few_products(t, x, y, queries);  // which the values do not wait for
    if (b < whole && span.same && lanes.low <= l && l + 32 <= lanes.high && a.dim % 32 == 0)
      pack_whole_values(a, t, slots, value, l);
    else if (b < whole)
      strange |= pack_values(a, t, slots, value, lanes, l);
    block_scores(a, t, span, x, y, queries, t.key_scales + l, t.scores + l);
  }
  if (own) tile_nodes(a, t, span, start, base, queries);
  // Tops first: the long way to each of them overlaps with the others'.
  for (int i = span.from; i < span.to; ++i) {
    const Lanes mine = seen(a, i, start);
    const float* scores = t.scores + (size_t)i * kPartition;
    if (mine.low >= mine.high) continue;
    parts[i][offset + a.padded_dim] = mine.high - mine.low == kPartition
                                          ? tile_top<true>(mine, begin, end, scores)
                                          : tile_top<false>(mine, begin, end, scores);
  }
  for (int i = span.from; i < span.to; ++i) {
    const Lanes mine = seen(a, i, start);
    if (own && a.format == Kv::kInt8)
      for (int l = common; l < mine.high; ++l)
        memcpy(t.value_scales + l,
               value + slot_of(a, slots, i, start, l) * a.slot_bytes + a.dim, 4);
    if (mine.low < mine.high) weigh_scores(a, t, mine, begin, end, i, parts[i] + offset);
  }
  asm volatile("" ::: "memory");
  const bool apart = strange && !span.same;  // zero times that would not be zero
  for (int i = span.from; i < span.to;) {
    int to = (i / 8 + 1) * 8 < span.to ? (i / 8 + 1) * 8 : span.to;
    Lanes mine = span.lanes;
    if (apart || own) {  // with values of their own, which follow those of all
      const int last = to;
      for (to = i + 1; to < last && alike(a, i, to, start);) ++to;
      mine = seen(a, i, start);
      int64_t line[kPartition];
      for (int l = mine.low; l < mine.high; ++l) line[l] = slot_of(a, slots, i, start, l);
      for (int b = apart || mine.low / 32 > whole ? mine.low / 32 : whole; 32 * b < mine.high; ++b)
        pack_values(a, t, line, value, mine, 32 * b);
      asm volatile("" ::: "memory");
    }
    if (mine.low < mine.high) weigh_values(a, t, i, to, mine, parts, number);
    i = to;
  }
}

void amx_attend(const Attend& a) {
  const TilePool t = tile_pool(a);
  int highest = 0;
  for (int i = 0; i < a.count; ++i) highest = a.high[i] > highest ? a.high[i] : highest;
  configure(16, 64, 16);
  pack_queries(a, t);
  memset(t.zeros, 0, 1024);
  for (int l = 0; l < kPartition; ++l)
    t.key_scales[l] = t.node_key_scales[l] = a.scale * kLog2E;
  bring_first(a, highest);
  for (int number = a.begin; number < a.end; ++number) {
    const Span span = span_of(a, number * kPartition);
    if (span.from >= span.to) continue;
    for (int head = 0; head < a.kv_heads; ++head)
      tile_part(a, t, number, head, span, ahead_of(a, number, head, highest));
  }
  _tile_release();
}
