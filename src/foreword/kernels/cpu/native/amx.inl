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

template <int BITS, int BLOCK>
void unpack_panel(const Linear& linear, const uint8_t* panel, uint8_t* to, float* scales) {
  for (int g = 0; g < groups_of(linear); ++g) {
    const Scales s = group_scales(linear, panel, g);
    f_store(scales + 32 * g, s.scale);
    f_store(scales + 32 * g + 16, s.offset);
    const uint8_t* q = group_values(linear, panel, g);
    for (int b = 0; b < linear.group / BLOCK; ++b) {
      B w[BLOCK / 4];
      q = unpack<BITS, BLOCK>(q, w);
      FOREWORD_UNROLL
      for (int j = 0; j < BLOCK / 4; ++j, to += 64) b_store(to, w[j]);
    }
  }
}

// The intrinsics are macros that spell register numbers, so they want literals.
#define FOREWORD_DOT(T, A, W, X, Q)                                          \
  do {                                                                       \
    const uint8_t *x_ = (X), *q_ = (Q);                                      \
    _tile_zero(T);                                                           \
    for (int b = 0; b < blocks; ++b, x_ += 16 * BLOCK, q_ += 16 * BLOCK) {   \
      _tile_loadd(A, x_, BLOCK);                                             \
      _tile_loadd(W, q_, 64);                                                \
      _tile_dpbsud(T, A, W);                                                 \
    }                                                                        \
  } while (0)

// M rows of a row block. Two groups are on the matrix unit while the float part of the two before
// runs on the vector units; `dots` has room for both.
template <int KIND, int BLOCK, int M>
inline void a8_block(const Linear& linear, const Rows& rows, int block, const uint8_t* w,
                     const float* scales, int32_t* dots, F (&acc)[M]) {
  const int groups = groups_of(linear), blocks = linear.group / BLOCK, zero = linear.zero;
  const size_t step = (size_t)linear.group * 16;
  const uint8_t* x = rows.values + (size_t)block * groups * step;
  size_t at = (size_t)block * groups * 16;
  FOREWORD_DOT(0, 4, 6, x, w);
  if (groups > 1) FOREWORD_DOT(1, 5, 7, x + step, w + step);
  _tile_stored(0, dots, 64);
  if (groups > 1) _tile_stored(1, dots + 256, 64);
  for (int g = 0; g < groups; g += 2) {
    const int next = groups - g - 2;
    int32_t* ready = dots + (g & 2) * 256;
    int32_t* coming = dots + (2 - (g & 2)) * 256;
    x += 2 * step, w += 2 * step;
    if (next > 0) FOREWORD_DOT(2, 4, 6, x, w);
    if (next > 1) FOREWORD_DOT(3, 5, 7, x + step, w + step);
    asm volatile("" ::: "memory");
    for (int t = 0; t < 2 && g + t < groups; ++t, at += 16, scales += 32) {
      const Scales s = {f_load(scales), f_load(scales + 16)};
      FOREWORD_UNROLL
      for (int m = 0; m < M; ++m)
        acc[m] = finish_a8<KIND>(acc[m], i_load(ready + 256 * t + 16 * m), s, zero,
                                 rows.sums[at + m], rows.isums[at + m], rows.scales[at + m]);
    }
    if (next > 0) _tile_stored(2, coming, 64);
    if (next > 1) _tile_stored(3, coming + 256, 64);
  }
}

template <int BLOCK, int M>
inline void a8_rows(const Linear& linear, const Rows& rows, int block, int panel, const uint8_t* w,
                    const float* scales, int32_t* dots, float* out, size_t stride, bool add) {
  F acc[M];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = f_zero();
  const int kind = kind_of(linear);
  if (kind == 0)
    a8_block<0, BLOCK, M>(linear, rows, block, w, scales, dots, acc);
  else if (kind == 1)
    a8_block<1, BLOCK, M>(linear, rows, block, w, scales, dots, acc);
  else
    a8_block<2, BLOCK, M>(linear, rows, block, w, scales, dots, acc);
  const int left = rows.rows - block * 16;
  for (int m = 0; m < M && m < left; ++m)
    put(out + ((size_t)block * 16 + m) * stride, acc[m], linear, panel, add);
}

template <int BITS, int BLOCK>
void a8_panels(const Linear& linear, const Rows& rows, int begin, int end, float* out,
               size_t stride, bool add, uint8_t* scratch) {
  int32_t* dots = (int32_t*)scratch;
  float* scales = (float*)(scratch + 4096);
  uint8_t* w = scratch + 4096 + (size_t)groups_of(linear) * 128;
  configure(rows.rows <= 8 ? 8 : 16, BLOCK, BLOCK / 4);
  for (int panel = begin; panel < end; ++panel) {
    const uint8_t* data = linear.data + (size_t)panel * linear.panel_bytes;
    unpack_panel<BITS, BLOCK>(linear, data, w, scales);
    for (int block = 0; block * 16 < rows.rows; ++block)
      if (rows.rows <= 8)
        a8_rows<BLOCK, 8>(linear, rows, block, panel, w, scales, dots, out, stride, add);
      else
        a8_rows<BLOCK, 16>(linear, rows, block, panel, w, scales, dots, out, stride, add);
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
