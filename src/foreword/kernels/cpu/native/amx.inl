// Products on the matrix unit. Rows beyond the last are computed on whatever lies there and
// dropped: rows of a tile do not see each other.

struct alignas(64) TileShape {
  uint8_t palette = 1, start_row = 0, reserved[14] = {0};
  uint16_t bytes[16] = {0};
  uint8_t rows[16] = {0};
};

// Tiles 0-3: results, 4-5: activations, 6-7: weights.
inline void configure(int rows, int bytes, int depth) {
  TileShape shape;
  for (int t = 0; t < 4; ++t) shape.rows[t] = (uint8_t)rows, shape.bytes[t] = 64;
  for (int t = 4; t < 6; ++t) shape.rows[t] = (uint8_t)rows, shape.bytes[t] = (uint16_t)bytes;
  for (int t = 6; t < 8; ++t) shape.rows[t] = (uint8_t)depth, shape.bytes[t] = 64;
  // GCC's tile intrinsics do not say that they read memory: keep the stores above.
  asm volatile("" ::: "memory");
  _tile_loadconfig(&shape);
}

inline void put_tile(const float* tile, int rows, const Linear& linear, int panel, float* out,
                     size_t stride, bool add) {
  for (int r = 0; r < rows; ++r) put(out + r * stride, f_load(tile + 16 * r), linear, panel, add);
}

// Row blocks `block` and block + 1 against two panels.
inline void pairs_two_by_two(const Linear& linear, const uint8_t* x, size_t next, int chunks,
                             int panel, float* tiles) {
  const uint8_t* w = linear.data + (size_t)panel * linear.panel_bytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int c = 0; c < chunks; ++c, x += 1024, w += 1024) {
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + linear.panel_bytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + next, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, tiles, 64);
  _tile_stored(1, tiles + 256, 64);
  _tile_stored(2, tiles + 512, 64);
  _tile_stored(3, tiles + 768, 64);
}

inline void pairs_one_by_four(const Linear& linear, const uint8_t* x, int chunks, int panel,
                              float* tiles) {
  const uint8_t* w = linear.data + (size_t)panel * linear.panel_bytes;
  const size_t step = linear.panel_bytes;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int c = 0; c < chunks; ++c, x += 1024, w += 1024) {
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + step, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, w + 2 * step, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, w + 3 * step, 64);
    _tile_dpbf16ps(3, 4, 7);
  }
  _tile_stored(0, tiles, 64);
  _tile_stored(1, tiles + 256, 64);
  _tile_stored(2, tiles + 512, 64);
  _tile_stored(3, tiles + 768, 64);
}

inline void pairs_one_by_one(const Linear& linear, const uint8_t* x, int chunks, int panel,
                             float* tiles) {
  const uint8_t* w = linear.data + (size_t)panel * linear.panel_bytes;
  _tile_zero(0);
  for (int c = 0; c < chunks; ++c, x += 1024, w += 1024) {
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, tiles, 64);
}

void amx_pairs(const Linear& linear, const Rows& rows, int begin, int end, float* out,
               size_t stride, bool add, uint8_t* scratch) {
  const int chunks = rows.padded / 32, blocks = (rows.rows + 15) / 16;
  const size_t next = (size_t)chunks * 1024;
  float* tiles = (float*)scratch;
  configure(rows.rows < 16 ? rows.rows : 16, 64, 16);
  for (int panel = begin; panel < end;) {
    const int width = end - panel >= 4 ? 4 : 1;
    for (int block = 0; block < blocks;) {
      const uint8_t* x = rows.values + block * next;
      float* place = out + (size_t)block * 16 * stride;
      const int left = rows.rows - block * 16, here = left < 16 ? left : 16;
      if (left > 16 && width == 4) {
        const int second = left - 16 < 16 ? left - 16 : 16;
        for (int p = panel; p < panel + 4; p += 2) {
          pairs_two_by_two(linear, x, next, chunks, p, tiles);
          asm volatile("" ::: "memory");
          for (int t = 0; t < 2; ++t) {
            put_tile(tiles + 256 * t, 16, linear, p + t, place, stride, add);
            put_tile(tiles + 512 + 256 * t, second, linear, p + t, place + 16 * stride, stride,
                     add);
          }
        }
        block += 2;
        continue;
      }
      if (width == 4)
        pairs_one_by_four(linear, x, chunks, panel, tiles);
      else
        pairs_one_by_one(linear, x, chunks, panel, tiles);
      asm volatile("" ::: "memory");
      for (int t = 0; t < width; ++t)
        put_tile(tiles + 256 * t, here, linear, panel + t, place, stride, add);
      ++block;
    }
    panel += width;
  }
  _tile_release();
}

// q as it is: signed bytes when it has a zero, else unsigned ones.
template <int BITS, int BLOCK>
void unpack_panel(const Linear& linear, const uint8_t* panel, uint8_t* to, float* scales) {
  const int groups = groups_of(linear);
  const B zero = _mm512_set1_epi8((char)linear.zero);
  Cursor cursor(linear, panel);
  for (int g = 0; g < groups; ++g, cursor.next()) {
    const Scales s = cursor.scales();
    f_store(scales + 32 * g, s.scale);
    f_store(scales + 32 * g + 16, s.offset);
    const uint8_t* q = cursor.values();
    for (size_t ahead = 0; ahead < linear.group_bytes + 64; ahead += 64)
      prefetch(q + linear.panel_bytes + ahead);
    for (int b = 0; b < linear.group / BLOCK; ++b) {
      B w[BLOCK / 4];
      q = unpack<BITS, BLOCK>(q, w);
      FOREWORD_UNROLL
      for (int j = 0; j < BLOCK / 4; ++j, to += 64) b_store(to, _mm512_sub_epi8(w[j], zero));
    }
  }
}

// Result tiles are never cleared: clearing one costs as much as three products. They go on adding,
// modulo 2^32, and a group's dots are what its tile held after it less what it held before. Group g
// of four has tile g; `dots` keeps two copies of each, the newest at `newest[g]`.
struct Tiles {
  int32_t* dots;  // [4][2][16 rows][16]
  int newest[4];
};

// The intrinsics are macros that spell register numbers, so they want literals.
#define FOREWORD_DOT(T, A, W)                                                \
  do {                                                                       \
    const uint8_t *x_ = x + T * step, *q_ = w + T * step;                    \
    for (int b = 0; b < blocks; ++b, x_ += 16 * BLOCK, q_ += 16 * BLOCK) {   \
      _tile_loadd(A, x_, BLOCK);                                             \
      _tile_loadd(W, q_, 64);                                                \
      if (KIND & 2)                                                          \
        _tile_dpbssd(T, A, W);                                               \
      else                                                                   \
        _tile_dpbsud(T, A, W);                                               \
    }                                                                        \
  } while (0)
#define FOREWORD_KEEP(T) \
  _tile_stored(T, tiles.dots + 512 * T + 256 * (tiles.newest[T] ^= 1), 64)

// M rows of a row block. Four groups are on the matrix unit while the float part of the four
// before runs on the vector units.
template <int KIND, int BLOCK, int M>
inline void a8_block(const Linear& linear, const Rows& rows, int block, const uint8_t* w,
                     const float* scales, Tiles& tiles, F (&acc)[M]) {
  const int groups = groups_of(linear), blocks = linear.group / BLOCK;
  const size_t step = (size_t)linear.group * 16;
  const uint8_t* x = rows.values + (size_t)block * groups * step;
  size_t at = (size_t)block * groups * 16;
  FOREWORD_DOT(0, 4, 6);
  if (groups > 1) FOREWORD_DOT(1, 5, 7);
  if (groups > 2) FOREWORD_DOT(2, 4, 6);
  if (groups > 3) FOREWORD_DOT(3, 5, 7);
  for (int left = groups; left > 0; left -= 4) {
    x += 4 * step, w += 4 * step;
    FOREWORD_KEEP(0);
    if (left > 4) FOREWORD_DOT(0, 4, 6);
    if (left > 1) FOREWORD_KEEP(1);
    if (left > 5) FOREWORD_DOT(1, 5, 7);
    if (left > 2) FOREWORD_KEEP(2);
    if (left > 6) FOREWORD_DOT(2, 4, 6);
    if (left > 3) FOREWORD_KEEP(3);
    if (left > 7) FOREWORD_DOT(3, 5, 7);
    asm volatile("" ::: "memory");
    for (int t = 0; t < 4 && t < left; ++t, at += 16, scales += 32) {
      const int32_t* after = tiles.dots + 512 * t + 256 * tiles.newest[t];
      const int32_t* before = tiles.dots + 512 * t + 256 * (tiles.newest[t] ^ 1);
      const Scales s = {f_load(scales), f_load(scales + 16)};
      FOREWORD_UNROLL
      for (int m = 0; m < M; ++m) {
        const I dot = i_sub(i_load(after + 16 * m), i_load(before + 16 * m));
        acc[m] = finish_a8<KIND & 1>(acc[m], dot, s, 0, rows.sums[at + m], 0, rows.scales[at + m]);
      }
    }
  }
}

template <int BLOCK, int M>
inline void a8_rows(const Linear& linear, const Rows& rows, int block, int panel, const uint8_t* w,
                    const float* scales, Tiles& tiles, float* out, size_t stride, bool add) {
  F acc[M];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = f_zero();
  const int kind = kind_of(linear);
  if (kind == 0)
    a8_block<0, BLOCK, M>(linear, rows, block, w, scales, tiles, acc);
  else if (kind == 1)
    a8_block<1, BLOCK, M>(linear, rows, block, w, scales, tiles, acc);
  else
    a8_block<2, BLOCK, M>(linear, rows, block, w, scales, tiles, acc);
  const int left = rows.rows - block * 16;
  for (int m = 0; m < M && m < left; ++m)
    put(out + ((size_t)block * 16 + m) * stride, acc[m], linear, panel, add);
}

template <int BITS, int BLOCK>
void a8_panels(const Linear& linear, const Rows& rows, int begin, int end, float* out,
               size_t stride, bool add, uint8_t* scratch) {
  Tiles tiles = {(int32_t*)scratch, {0, 0, 0, 0}};
  float* scales = (float*)(scratch + 8192);
  uint8_t* w = scratch + 8192 + (size_t)groups_of(linear) * 128;
  configure(rows.rows <= 8 ? 8 : 16, BLOCK, BLOCK / 4);
  memset(scratch, 0, 8192);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int panel = begin; panel < end; ++panel) {
    const uint8_t* data = linear.data + (size_t)panel * linear.panel_bytes;
    unpack_panel<BITS, BLOCK>(linear, data, w, scales);
    for (int block = 0; block * 16 < rows.rows; ++block)
      if (rows.rows <= 8)
        a8_rows<BLOCK, 8>(linear, rows, block, panel, w, scales, tiles, out, stride, add);
      else
        a8_rows<BLOCK, 16>(linear, rows, block, panel, w, scales, tiles, out, stride, add);
  }
  _tile_release();
}

template <int BITS>
void a8_bits(const Linear& linear, const Rows& rows, int begin, int end, float* out, size_t stride,
             bool add, uint8_t* scratch) {
  if (linear.block == 16)
    a8_panels<BITS, 16>(linear, rows, begin, end, out, stride, add, scratch);
  else if (linear.block == 32)
    a8_panels<BITS, 32>(linear, rows, begin, end, out, stride, add, scratch);
  else
    a8_panels<BITS, 64>(linear, rows, begin, end, out, stride, add, scratch);
}

void amx_a8(const Linear& linear, const Rows& rows, int begin, int end, float* out, size_t stride,
            bool add, uint8_t* scratch) {
  if (linear.bits == 4) return a8_bits<4>(linear, rows, begin, end, out, stride, add, scratch);
  if (linear.bits == 5) return a8_bits<5>(linear, rows, begin, end, out, stride, add, scratch);
  if (linear.bits == 6) return a8_bits<6>(linear, rows, begin, end, out, stride, add, scratch);
  a8_bits<8>(linear, rows, begin, end, out, stride, add, scratch);
}
