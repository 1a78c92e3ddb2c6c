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
  const float* zeros = tiles + 1024;
  const uint8_t* w = linear.data + (size_t)panel * linear.panel_bytes;
  _tile_loadd(0, zeros, 64);
  _tile_loadd(1, zeros, 64);
  _tile_loadd(2, zeros, 64);
  _tile_loadd(3, zeros, 64);
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
  const float* zeros = tiles + 1024;
  const uint8_t* w = linear.data + (size_t)panel * linear.panel_bytes;
  const size_t step = linear.panel_bytes;
  _tile_loadd(0, zeros, 64);
  _tile_loadd(1, zeros, 64);
  _tile_loadd(2, zeros, 64);
  _tile_loadd(3, zeros, 64);
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
  const float* zeros = tiles + 1024;
  const uint8_t* w = linear.data + (size_t)panel * linear.panel_bytes;
  _tile_loadd(0, zeros, 64);
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
  const size_t next = row_block_bytes(rows.kind, rows.padded);
  float* tiles = (float*)scratch;
  // Not _tile_zero: products into a tile that it cleared run at a third of their rate.
  memset(tiles + 1024, 0, 1024);
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
