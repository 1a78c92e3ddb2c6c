// Queries, keys and values of a partition, laid out as tiles of the matrix unit.

struct TilePool {  // one call's operands in tile layout
  int chunks;         // of 32 dimensions
  bool few;           // at most 8 pairs: both halves of the queries in one tile
  uint16_t* queries;  // [kv_heads][tiles of 16 pairs][chunks][high, low][16 dim pairs][16][2]
                      // few: [kv_heads][chunks][16 dim pairs][8 high, 8 low][2]
  uint16_t* keys;     // [kPartition / 16][chunks][16 lanes][32 dims], where they are copied
  uint16_t* values;   // [kPartition / 32][2 chunks][16 lane pairs][16][2]
  uint16_t* weights;  // [tiles of 8 pairs][kPartition / 32][8 high, 8 low][32 lanes]
  float* scores;      // [pairs padded to 16][kPartition]
  float* tiles;       // [4][16][16]
  float* zeros;       // [16][16]: products into a tile that _tile_zero cleared are slow
  float* node_scores;   // [pairs padded to 16][kPartition]
  float* key_scales;    // [kPartition] of a score
  float* value_scales;  // [kPartition], int8 only
  float* node_key_scales;  // [kPartition]
};

inline TilePool tile_pool(const Attend& a) {
  TilePool t;
  t.chunks = (a.dim + 31) / 32;
  t.few = a.count <= 8;
  const size_t pairs = (size_t)(a.count + 15) / 16 * 16;
  uint16_t* at = (uint16_t*)a.scratch;
  t.tiles = (float*)at, at += 2048;
  t.zeros = (float*)at, at += 512;
  t.key_scales = (float*)at, at += 2 * kPartition;
  t.value_scales = (float*)at, at += 2 * kPartition;
  t.node_key_scales = (float*)at, at += 2 * kPartition;
  t.queries = at, at += (size_t)a.kv_heads * pairs * t.chunks * 64;
  t.keys = at, at += (size_t)kPartition * t.chunks * 32;
  t.values = at, at += (size_t)kPartition * t.chunks * 32;
  t.weights = at, at += pairs * kPartition * 2;
  t.scores = (float*)at, at += pairs * kPartition * 2;
  t.node_scores = (float*)at;
  return t;
}

inline F high_part(F v) { return f_of_bits(i_and(f_bits(v), i_set((int)0xffff0000))); }
inline __m512i pack_two(F first, F second) {
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// 32 dimensions of a query, split.
inline void split_query(const float* q, int left, F& high, F& low) {
  float part[32] = {0};
  if (left < 32) memcpy(part, q, sizeof(float) * left), q = part;
  const F x = f_load(q), y = f_load(q + 16), x_high = high_part(x), y_high = high_part(y);
  high = f_of_bits(pack_two(x_high, y_high));
  low = f_of_bits(pack_two(f_sub(x, x_high), f_sub(y, y_high)));
}

inline void pack_queries(const Attend& a, const TilePool& t) {
  float* to = (float*)t.queries;
  const int tile = t.few ? 8 : 16;
  for (int head = 0; head < a.kv_heads; ++head)
    for (int first = 0; first < a.count; first += tile)
      for (int c = 0; c < t.chunks; ++c) {
        F high[16], low[16];
        for (int i = 0; i < 16; ++i) high[i] = low[i] = f_zero();
        for (int i = 0; i < tile && first + i < a.count; ++i)
          split_query(a.queries[head * a.count + first + i] + 32 * c, a.dim - 32 * c, high[i],
                      low[i]);
        for (int i = 0; i < 8 && t.few; ++i) high[8 + i] = low[i];
        f_transpose(high);
        for (int i = 0; i < 16; ++i, to += 16) f_store(to, high[i]);
        if (t.few) continue;
        f_transpose(low);
        for (int i = 0; i < 16; ++i, to += 16) f_store(to, low[i]);
      }
}

// 32 numbers of a head as bfloat16; those of `mask`, zeros elsewhere.
inline __m512i fetch_pairs(const uint8_t* head, int k, __mmask32 mask, Kv format) {
  if (format == Kv::kBfloat16) return _mm512_maskz_loadu_epi16(mask, head + 2 * k);
  const __m256i q = _mm256_maskz_loadu_epi8(mask, head + k);
  const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(q));
  const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(q, 1));
  return pack_two(_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high));
}

inline __mmask32 chunk_mask(int dim, int c) {
  const int left = dim - 32 * c;
  return left >= 32 ? ~0u : (1u << left) - 1;
}

// Scales of 32 lanes of scores, or with FACTOR 1 of values; zero where they are not seen.
inline void fetch_scales(const Attend& a, const int64_t* slots, const uint8_t* base, Lanes lanes,
                         int l, float factor, float* to) {
  for (int i = l; i < l + 32; ++i) {
    float scale = 0.0f;
    if (i >= lanes.low && i < lanes.high) memcpy(&scale, base + slots[i] * a.slot_bytes + a.dim, 4);
    to[i] = scale * factor;
  }
}

struct KeyBlock {  // 16 lanes as tile rows
  const uint16_t* rows;
  size_t stride, step;  // bytes from row to row, numbers from chunk to chunk
};

// As they lie when their slots follow one another and all are seen, else a copy with zeros.
inline KeyBlock key_block(const Attend& a, const TilePool& t, const int64_t* slots,
                          const uint8_t* base, Lanes lanes, int l) {
  bool together = lanes.low <= l && l + 16 <= lanes.high && a.dim % 32 == 0 &&
                  a.format == Kv::kBfloat16;
  for (int i = 1; i < 16 && together; ++i) together = slots[l + i] == slots[l] + i;
  if (together)
    return {(const uint16_t*)(base + slots[l] * a.slot_bytes), a.slot_bytes, 32};
  uint16_t* to = t.keys + (size_t)l * t.chunks * 32;
  for (int i = 0; i < 16; ++i) {
    const bool visible = l + i >= lanes.low && l + i < lanes.high;
    const uint8_t* row = visible ? base + slots[l + i] * a.slot_bytes : nullptr;
    for (int c = 0; c < t.chunks; ++c)
      _mm512_store_si512(to + (c * 16 + i) * 32,
                         visible ? fetch_pairs(row, 32 * c, chunk_mask(a.dim, c), a.format)
                                 : _mm512_setzero_si512());
  }
  return {to, 64, 512};
}

inline void put_values(uint16_t* tile, __m512i even, __m512i odd) {
  _mm512_store_si512(tile, _mm512_unpacklo_epi16(even, odd));
  _mm512_store_si512(tile + 512, _mm512_unpackhi_epi16(even, odd));
}

// 32 lanes of values as pairs of rows, zeros outside `lanes`: tile 2 c holds dimensions 0-3, 8-11,
// 16-19, 24-27 of chunk c, tile 2 c + 1 the others. Whether a number is not finite.
inline bool pack_values(const Attend& a, const TilePool& t, const int64_t* slots,
                        const uint8_t* base, Lanes lanes, int l) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 strange = 0;
  uint16_t* tile = t.values + (size_t)l * t.chunks * 32;
  for (int i = 0; i < 16; ++i, l += 2, tile += 32) {
    const bool first = l >= lanes.low && l < lanes.high;
    const bool second = l + 1 >= lanes.low && l + 1 < lanes.high;
    const uint8_t* even = base + (first ? slots[l] * a.slot_bytes : 0);
    const uint8_t* odd = base + (second ? slots[l + 1] * a.slot_bytes : 0);
    for (int c = 0; c < t.chunks; ++c) {
      const __mmask32 mask = chunk_mask(a.dim, c);
      const __m512i x = fetch_pairs(even, 32 * c, first ? mask : 0, a.format);
      const __m512i y = fetch_pairs(odd, 32 * c, second ? mask : 0, a.format);
      strange |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
      strange |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(y, exponent), exponent);
      put_values(tile + 1024 * c, x, y);
    }
  }
  return strange != 0;
}

// The same for 32 lanes that everyone sees, of heads of whole chunks.
inline void pack_whole_values(const Attend& a, const TilePool& t, const int64_t* slots,
                              const uint8_t* base, int l) {
  const int chunks = t.chunks;
  uint16_t* tile = t.values + (size_t)l * chunks * 32;
  for (int i = 0; i < 16; ++i, l += 2, tile += 32) {
    const uint8_t* even = base + slots[l] * a.slot_bytes;
    const uint8_t* odd = base + slots[l + 1] * a.slot_bytes;
    for (int c = 0; c < chunks; ++c)
      put_values(tile + c * 1024, fetch_pairs(even, 32 * c, ~0u, a.format),
                 fetch_pairs(odd, 32 * c, ~0u, a.format));
  }
}
