// Products with grouped integers: a8 (integer dots) and a16 (bfloat16 activations in float32).

constexpr int kAhead = 4096;  // bytes between what is read and what is asked for from memory

struct Scales {
  F scale, offset;
};

inline F one_scale(const uint8_t* p, bool two_level, bool is_signed, bool wide) {
  if (two_level) return is_signed ? f_from_i8(p) : f_from_u8(p);
  return wide ? f_load((const float*)p) : f_from_half((const uint16_t*)p);
}

// Walks over the groups of a panel, in order.
struct Cursor {
  const Linear& linear;
  const uint8_t* header;  // of the unit
  int inside;             // group in the unit
  int step, other;        // bytes of a group's scales and offsets

  Cursor(const Linear& weight, const uint8_t* panel)
      : linear(weight),
        header(panel),
        inside(0),
        step(scale_bytes(weight)),
        other(offset_bytes(weight)) {}

  void next() {
    if (++inside < linear.unit_groups) return;
    inside = 0;
    header += linear.unit_bytes;
  }
  const uint8_t* values() const {
    return header + linear.header_bytes + inside * linear.group_bytes;
  }
  inline Scales scales() const;
};

inline Scales Cursor::scales() const {
  const uint8_t* p = header;
  if (linear.two_level) p += linear.has_offset ? 64 : 32;
  Scales found;
  found.scale = one_scale(p + inside * step, linear.two_level, linear.signed_scale,
                          linear.wide_scale);
  if (linear.two_level) found.scale = f_mul(f_from_half((const uint16_t*)header), found.scale);
  found.offset = f_zero();
  if (!linear.has_offset) return found;
  p += linear.unit_groups * step + inside * other;
  if (linear.integer_zero) {
    found.offset = f_sub(f_zero(), f_mul(found.scale, f_from_u8(p)));
    return found;
  }
  found.offset = one_scale(p, linear.two_level, linear.signed_offset, linear.wide_offset);
  if (linear.two_level)
    found.offset = f_mul(f_from_half((const uint16_t*)(header + 32)), found.offset);
  return found;
}

// BLOCK values of k as BLOCK / 4 vectors [16 outputs][4 k].
template <int BITS, int BLOCK>
inline const uint8_t* unpack(const uint8_t* q, B* w) {
  constexpr int kQuads = BLOCK / 4, kHalf = kQuads / 2;
  if (BITS == 8) {
    FOREWORD_UNROLL
    for (int j = 0; j < kQuads; ++j) w[j] = b_load(q + 64 * j);
    return q + 64 * kQuads;
  }
  FOREWORD_UNROLL
  for (int j = 0; j < kHalf; ++j) {
    const B v = b_load(q + 64 * j);
    w[j] = b_low4(v);
    w[j + kHalf] = b_high4(v);
  }
  q += 64 * kHalf;
  if (BITS == 5)
    FOREWORD_UNROLL
    for (int j = 0; j < kQuads; j += 8, q += 64) {
      const B v = b_load(q);
      w[j] = b_or(w[j], b_plane<0, 1>(v));
      w[j + 1] = b_or(w[j + 1], b_plane<1, 1>(v));
      w[j + 2] = b_or(w[j + 2], b_plane<2, 1>(v));
      w[j + 3] = b_or(w[j + 3], b_plane<3, 1>(v));
      if (kQuads >= 8) {
        constexpr int k4 = kQuads >= 8 ? 4 : 0;
        w[j + k4] = b_or(w[j + k4], b_plane<4, 1>(v));
        w[j + k4 + 1] = b_or(w[j + k4 + 1], b_plane<5, 1>(v));
        w[j + k4 + 2] = b_or(w[j + k4 + 2], b_plane<6, 1>(v));
        w[j + k4 + 3] = b_or(w[j + k4 + 3], b_plane<7, 1>(v));
      }
    }
  if (BITS == 6)
    FOREWORD_UNROLL
    for (int j = 0; j < kQuads; j += 4, q += 64) {
      const B v = b_load(q);
      w[j] = b_or(w[j], b_plane<0, 3>(v));
      w[j + 1] = b_or(w[j + 1], b_plane<2, 3>(v));
      w[j + 2] = b_or(w[j + 2], b_plane<4, 3>(v));
      w[j + 3] = b_or(w[j + 3], b_plane<6, 3>(v));
    }
  return q;
}

// The float part of a8, the same for every width and way of computing the dot. KIND: bit 0 = has an
// offset, bit 1 = has a zero.
template <int KIND>
inline F finish_a8(F acc, I dot, Scales s, int zero, float sum, int32_t isum, float scale) {
  if (KIND & 2) dot = i_sub(dot, i_set(zero * isum));
  F t = f_mul(f_from_int(dot), s.scale);
  if (KIND & 1) t = f_fma(f_set(sum), s.offset, t);
  return f_fma(t, f_set(scale), acc);
}
inline int kind_of(const Linear& linear) { return (linear.has_offset ? 1 : 0) + (linear.zero ? 2 : 0); }

// The four integers of every lane's bytes as floats.
template <int BITS>
struct Integers {
  const I zero;
  explicit Integers(int value) : zero(i_set(value)) {}
  void get(B w, F (&v)[4]) const {
    v[0] = b_float<0>(w, zero);
    v[1] = b_float<1>(w, zero);
    v[2] = b_float<2>(w, zero);
    v[3] = b_float<3>(w, zero);
  }
};

// M rows of one row block against one panel.
template <int KIND, int BITS, int BLOCK, int M>
inline void a8_tile(const Linear& linear, const Rows& rows, int row, const uint8_t* panel, F* acc) {
  const int groups = groups_of(linear), blocks = linear.group / BLOCK;
  const size_t packed = linear.group_bytes / blocks;  // of a block
  const uint8_t* x = row_block(rows, row / 16) + grouped_place(rows, row, 0);
  size_t at = (size_t)(row / 16) * groups * 16 + row % 16;
  Cursor cursor(linear, panel);
  for (int g = 0; g < groups; ++g, at += 16, cursor.next()) {
    const Scales s = cursor.scales();
    const uint8_t* q = cursor.values();
    I even[M], odd[M];
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m) even[m] = odd[m] = i_zero();
    for (int b = 0; b < blocks; ++b, x += 16 * BLOCK) {
      if (row == 0)
        for (size_t ahead = 0; ahead < packed + 64; ahead += 64) prefetch(q + kAhead + ahead);
      B w[BLOCK / 4];
      q = unpack<BITS, BLOCK>(q, w);
      FOREWORD_UNROLL
      for (int j = 0; j < BLOCK / 4; j += 2)
        FOREWORD_UNROLL
        for (int m = 0; m < M; ++m) {
          even[m] = b_dot(even[m], w[j], x + m * BLOCK + 4 * j);
          odd[m] = b_dot(odd[m], w[j + 1], x + m * BLOCK + 4 * j + 4);
        }
    }
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m)
      acc[m] = finish_a8<KIND>(acc[m], i_add(even[m], odd[m]), s, linear.zero, rows.sums[at + m],
                               rows.isums[at + m], rows.scales[at + m]);
  }
}

#if defined(FOREWORD_TABLES)
template <>
struct Integers<4> {
  Table16 table;
  explicit Integers(int zero) : table(zero) {}
  void get(B w, F (&v)[4]) const {
    v[0] = table.get(w);
    v[1] = table.get(i_right<8>(w));
    v[2] = table.get(i_right<16>(w));
    v[3] = table.get(i_right<24>(w));
  }
};
#endif

// M rows of one row block against one panel, in the order of the matrix unit's bfloat16 product:
// a piece of up to 32 values of k is two chains, over k = 0, 1, 4, 5, ... and 2, 3, 6, 7, ..., whose
// sum is added to the running dot P. And scale[g] (P[g] - P[g - 1]), summed by parts, is
// P[g] (scale[g] - scale[g + 1]).
template <int BITS, int BLOCK, int M>
inline void a16_tile(const Linear& linear, const Rows& rows, int row, const uint8_t* panel,
                     F* acc) {
  constexpr int kPiece = BLOCK < 32 ? BLOCK : 32;
  const int groups = groups_of(linear), blocks = linear.group / BLOCK;
  const size_t packed = linear.group_bytes / blocks;  // of a block
  const float* x = (const float*)row_block(rows, row / 16) + grouped_place(rows, row, 0);
  size_t at = (size_t)(row / 16) * groups * 16 + row % 16;
  const Integers<BITS> integers(linear.zero);
  Cursor cursor(linear, panel);
  F running[M];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) running[m] = f_zero();
  Scales s = cursor.scales();
  for (int g = 0; g < groups; ++g, at += 16) {
    const uint8_t* q = cursor.values();
    for (int b = 0; b < blocks; ++b, x += 16 * BLOCK) {
      if (M <= 2)
        for (size_t ahead = 0; ahead < packed + 64; ahead += 64) prefetch(q + kAhead + ahead);
      B w[BLOCK / 4];
      q = unpack<BITS, BLOCK>(q, w);
      FOREWORD_UNROLL
      for (int piece = 0; piece < BLOCK; piece += kPiece) {
        F even[M], odd[M];
        FOREWORD_UNROLL
        for (int m = 0; m < M; ++m) even[m] = odd[m] = f_zero();
        FOREWORD_UNROLL
        for (int k = piece; k < piece + kPiece; k += 4) {
          F v[4];
          integers.get(w[k / 4], v);
          FOREWORD_UNROLL
          for (int m = 0; m < M; ++m) {
            const float* mine = x + m * BLOCK + k;
            even[m] = f_fma(f_set(mine[0]), v[0], even[m]);
            even[m] = f_fma(f_set(mine[1]), v[1], even[m]);
            odd[m] = f_fma(f_set(mine[2]), v[2], odd[m]);
            odd[m] = f_fma(f_set(mine[3]), v[3], odd[m]);
          }
        }
        FOREWORD_UNROLL
        for (int m = 0; m < M; ++m) running[m] = f_add(running[m], f_add(even[m], odd[m]));
      }
    }
    cursor.next();
    const bool more = g + 1 < groups;
    const Scales next = more ? cursor.scales() : Scales{f_zero(), f_zero()};
    const F delta = more ? f_sub(s.scale, next.scale) : s.scale;
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m) {
      acc[m] = f_fma(running[m], delta, acc[m]);
      if (linear.has_offset) acc[m] = f_fma(f_set(rows.sums[at + m]), s.offset, acc[m]);
    }
    s = next;
  }
}

// Rows row .. row + M - 1, of which the first `count` are wanted. What lies in the others is computed
// along: a tile of four takes hardly more than one of two and one of one.
template <int BITS, int BLOCK, int M>
inline void grouped_tile(const Linear& linear, const Rows& rows, int row, int count, int panel,
                         float* out, size_t stride, bool add) {
  const uint8_t* data = linear.data + (size_t)panel * linear.panel_bytes;
  F acc[M];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = f_zero();
  const int kind = kind_of(linear);
  if (rows.kind == Activation::kA8 && kind == 0)
    a8_tile<0, BITS, BLOCK, M>(linear, rows, row, data, acc);
  else if (rows.kind == Activation::kA8 && kind == 1)
    a8_tile<1, BITS, BLOCK, M>(linear, rows, row, data, acc);
  else if (rows.kind == Activation::kA8)
    a8_tile<2, BITS, BLOCK, M>(linear, rows, row, data, acc);
  else if constexpr (M <= 4)  // more do not fit in registers
    a16_tile<BITS, BLOCK, M>(linear, rows, row, data, acc);
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    if (m < count) put(out + (row + m) * stride, acc[m], linear, panel, add);
}

template <int BITS, int BLOCK>
void grouped_panels(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                    size_t stride, bool add) {
  constexpr int kMost = kTile >= 16 ? 8 : 4;
  for (int panel = begin; panel < end; ++panel)
    for (int row = 0; row < rows.rows;) {
      const int left = rows.rows - row;
      if (left > 4 && kMost == 8 && rows.kind == Activation::kA8)
        grouped_tile<BITS, BLOCK, kMost>(linear, rows, row, left, panel, out, stride, add),
            row += kMost;
      else if (left > 2)
        grouped_tile<BITS, BLOCK, 4>(linear, rows, row, left, panel, out, stride, add), row += 4;
      else if (left == 2)
        grouped_tile<BITS, BLOCK, 2>(linear, rows, row, left, panel, out, stride, add), row += 2;
      else
        grouped_tile<BITS, BLOCK, 1>(linear, rows, row, left, panel, out, stride, add), row += 1;
    }
}

template <int BITS>
void grouped_bits(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                  size_t stride, bool add) {
  if (linear.block == 16)
    grouped_panels<BITS, 16>(linear, rows, begin, end, out, stride, add);
  else if (linear.block == 32)
    grouped_panels<BITS, 32>(linear, rows, begin, end, out, stride, add);
  else
    grouped_panels<BITS, 64>(linear, rows, begin, end, out, stride, add);
}

void product_grouped(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                     size_t stride, bool add) {
  if (linear.bits == 4) return grouped_bits<4>(linear, rows, begin, end, out, stride, add);
  if (linear.bits == 5) return grouped_bits<5>(linear, rows, begin, end, out, stride, add);
  if (linear.bits == 6) return grouped_bits<6>(linear, rows, begin, end, out, stride, add);
  grouped_bits<8>(linear, rows, begin, end, out, stride, add);
}

// One row of a grouped table as floats: scale * q, then + offset.
template <int BITS, int BLOCK>
void embed_grouped(const Linear& table, const uint8_t* panel, int lane, float* out) {
  const I zero = i_set(table.zero);
  float parts[4][16];
  Cursor cursor(table, panel);
  for (int g = 0; g < groups_of(table); ++g, cursor.next()) {
    const Scales s = cursor.scales();
    const uint8_t* q = cursor.values();
    for (int b = 0; b < table.group / BLOCK; ++b) {
      B w[BLOCK / 4];
      q = unpack<BITS, BLOCK>(q, w);
      FOREWORD_UNROLL
      for (int j = 0; j < BLOCK / 4; ++j) {
        const F v[4] = {b_float<0>(w[j], zero), b_float<1>(w[j], zero), b_float<2>(w[j], zero),
                        b_float<3>(w[j], zero)};
        FOREWORD_UNROLL
        for (int k = 0; k < 4; ++k)
          f_store(parts[k], table.has_offset ? f_add(f_mul(s.scale, v[k]), s.offset)
                                             : f_mul(s.scale, v[k]));
        FOREWORD_UNROLL
        for (int k = 0; k < 4; ++k) {
          const int place = g * table.group + b * BLOCK + 4 * j + k;
          if (place < table.inputs) out[place] = parts[k][lane];
        }
      }
    }
  }
}

template <int BITS>
void embed_bits(const Linear& table, const uint8_t* panel, int lane, float* out) {
  if (table.block == 16) return embed_grouped<BITS, 16>(table, panel, lane, out);
  if (table.block == 32) return embed_grouped<BITS, 32>(table, panel, lane, out);
  embed_grouped<BITS, 64>(table, panel, lane, out);
}

void embed(const Linear& table, int64_t token, float* out) {
  const uint8_t* panel = table.data + (size_t)(token / 16) * table.panel_bytes;
  const int lane = (int)(token % 16);
  float part[16];
  if (table.format == Format::kGrouped) {
    if (table.bits == 4) return embed_bits<4>(table, panel, lane, out);
    if (table.bits == 5) return embed_bits<5>(table, panel, lane, out);
    if (table.bits == 6) return embed_bits<6>(table, panel, lane, out);
    return embed_bits<8>(table, panel, lane, out);
  }
  for (int k = 0; k < table.inputs; ++k) {
    if (table.format == Format::kPairs) {
      const uint16_t* at = (const uint16_t*)panel + (k / 2) * 32 + lane * 2 + k % 2;
      const uint32_t bits = (uint32_t)*at << 16;
      memcpy(out + k, &bits, 4);
    } else if (table.format == Format::kFloat32) {
      out[k] = ((const float*)panel)[k * 16 + lane];
    } else {
      const uint16_t* at = (const uint16_t*)panel + k * 16;
      f_store(part, table.format == Format::kFloat16 ? f_from_half(at) : f_from_bf16(at));
      out[k] = part[lane];
    }
  }
}
