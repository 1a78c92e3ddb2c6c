// Grouped weights on the matrix unit, for a8 (int8 tiles) and a16 (bfloat16 tiles).
//
// A result tile goes on adding over all groups of a row and is stored after each: P[g] = dot of
// groups 0..g. (Starting one anew for every group would cost more than the products.)
//   a8   the dot of group g is P[g] - P[g - 1], exact modulo 2^32; the float part is finish_a8
//   a16  sum of scale[g] (P[g] - P[g - 1]) = sum of P[g] (scale[g] - scale[g + 1]), a sum by parts,
//        which takes one operation a group: y = y + delta[g] * P[g] + offset[g] * sum(x of g)
// A stretch of a panel's weights is unpacked into the nearest cache, then goes against every block
// of 16 rows; sums wait in memory between stretches. The float part runs a group behind the matrix unit.

constexpr int kStretchBytes = 16384;     // of unpacked weights
constexpr int kDots = 2;                 // results of as many groups are kept, at
constexpr int kDotStride = 8192;         // bytes from each other
constexpr size_t kSpanBytes = 1 << 20;   // of activations that one unpacking serves
constexpr int kSpanBlocks = 64;          // at most

// q -> what a16's tiles hold: bfloat16 of (index - zero).
struct Tables {
  B low, high;  // of indices 0..31 and 32..63
  F lift;       // 8 bits: 2^23 + zero
  B zero;       // a8
};

inline Tables make_tables(const Linear& linear) {
  uint16_t words[64];
  for (int i = 0; i < 64; ++i) {
    const float value = (float)((linear.bits == 4 ? i & 15 : linear.bits == 5 ? i & 31 : i) -
                                linear.zero);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    words[i] = (uint16_t)(bits >> 16);
  }
  return {_mm512_loadu_si512(words), _mm512_loadu_si512(words + 32),
          f_set(8388608.0f + (float)linear.zero), _mm512_set1_epi8((char)linear.zero)};
}

// [16 outputs][4 k] bytes -> two tile rows of pairs: (k, k + 2) and (k + 1, k + 3).
template <int BITS>
inline void put_pairs(B w, uint8_t* to, const Tables& t) {
  if (BITS <= 5) {
    b_store(to, _mm512_permutexvar_epi16(w, t.low));
    b_store(to + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(w, 8), t.low));
  } else if (BITS == 6) {
    b_store(to, _mm512_permutex2var_epi16(t.low, w, t.high));
    b_store(to + 64, _mm512_permutex2var_epi16(t.low, _mm512_srli_epi16(w, 8), t.high));
  } else {
    const I byte = i_set(255), lifted = i_set(0x4b000000), high = i_set((int)0xffff0000);
    auto real = [&](I v) {  // (v & 255) - zero
      return f_bits(f_sub(f_of_bits(_mm512_ternarylogic_epi32(v, byte, lifted, 0xea)), t.lift));
    };
    auto pair = [&](I a, I b) {
      return _mm512_ternarylogic_epi32(i_right<16>(real(a)), real(b), high, 0xf8);
    };
    b_store(to, pair(w, i_right<16>(w)));
    b_store(to + 64, pair(i_right<8>(w), i_right<24>(w)));
  }
}

using Unpack = const uint8_t* (*)(const uint8_t* q, uint8_t* to, const Tables& tables);

template <int BITS, int BLOCK>
const uint8_t* unpack_pairs(const uint8_t* q, uint8_t* to, const Tables& t) {
  constexpr int kQuads = BLOCK / 4;
  if (BITS == 4) {  // nibbles as they lie: what is above them does not choose
    FOREWORD_UNROLL
    for (int j = 0; j < kQuads / 2; ++j, q += 64) {
      const B v = b_load(q);
      put_pairs<4>(v, to + 128 * j, t);
      put_pairs<4>(_mm512_srli_epi16(v, 4), to + 128 * (j + kQuads / 2), t);
    }
    return q;
  }
  B w[kQuads];
  q = unpack<BITS, BLOCK>(q, w);
  FOREWORD_UNROLL
  for (int j = 0; j < kQuads; ++j) put_pairs<BITS>(w[j], to + 128 * j, t);
  return q;
}

template <int BITS, int BLOCK>
const uint8_t* unpack_bytes(const uint8_t* q, uint8_t* to, const Tables& t) {
  B w[BLOCK / 4];
  q = unpack<BITS, BLOCK>(q, w);
  FOREWORD_UNROLL
  for (int j = 0; j < BLOCK / 4; ++j) b_store(to + 64 * j, _mm512_sub_epi8(w[j], t.zero));
  return q;
}

template <int BITS>
Unpack choose_unpack(int block, bool bytes) {
  if (block == 16) return bytes ? unpack_bytes<BITS, 16> : unpack_pairs<BITS, 16>;
  if (block == 32) return bytes ? unpack_bytes<BITS, 32> : unpack_pairs<BITS, 32>;
  return bytes ? unpack_bytes<BITS, 64> : unpack_pairs<BITS, 64>;
}

// A stretch of a panel, unpacked.
struct Stretch {
  const Linear& linear;
  const bool a8;
  const Unpack unpack;
  const Tables tables;
  const size_t block_bytes, group_bytes;  // unpacked, of a block; packed, of a group
  int length;      // groups of a stretch; the last may have fewer
  float* scales;   // [groups][scale (a16: delta), offset][16]
  uint8_t* values;
  const uint8_t* coming;  // what will be unpacked next

  Stretch(const Linear& weight, uint8_t* scratch)
      : linear(weight),
        a8(weight.activation == Activation::kA8),
        unpack(weight.bits == 4   ? choose_unpack<4>(weight.block, a8)
               : weight.bits == 5 ? choose_unpack<5>(weight.block, a8)
               : weight.bits == 6 ? choose_unpack<6>(weight.block, a8)
                                  : choose_unpack<8>(weight.block, a8)),
        tables(make_tables(weight)),
        block_bytes((size_t)weight.block * (a8 ? 16 : 32)),
        group_bytes(weight.unit_bytes / weight.unit_groups),
        scales((float*)scratch) {
    const int groups = groups_of(weight);
    const int most = (int)(kStretchBytes / (block_bytes * (weight.group / weight.block)));
    const int count = most < 1 ? groups : (groups + most - 1) / most;
    length = (groups + count - 1) / count;
    values = scratch + ((size_t)length * 128 + 4095) / 4096 * 4096;
  }

  // The weights of a stretch that begins with this group: at the place in a page that its
  // activations have.
  uint8_t* at(int begin) const {
    return values + (size_t)begin * linear.group * 16 * (a8 ? 1 : 2) % 4096;
  }

  // Groups [begin, end), where the cursor stands. The delta of the last takes a look beyond.
  void fill(Cursor& cursor, int begin, int end) {
    uint8_t* to = at(begin);
    float* place = scales;
    for (int g = begin; g < end; ++g, place += 32, cursor.next()) {
      const Scales s = cursor.scales();
      if (!a8 && g > begin) f_store(place - 32, f_sub(f_load(place - 32), s.scale));
      f_store(place, s.scale);
      f_store(place + 16, s.offset);
      const uint8_t* q = cursor.values();
      for (int k = 0; k < linear.group; k += linear.block, to += block_bytes) {
        q = unpack(q, to, tables);
      }
    }
    coming = cursor.header;
    if (!a8 && end < groups_of(linear))
      f_store(place - 32, f_sub(f_load(place - 32), cursor.scales().scale));
  }
};

// What a block of rows carries from stretch to stretch.
struct Carried {
  float acc[16][16];
  int32_t dots[16][16];
};

// One block of k for up to 16 rows. The intrinsics are macros that spell register numbers, so they
// want literals: turns are taken between two pairs of tiles.
#define FOREWORD_STEP(PRODUCT, BYTES, X, W)      \
  do {                                           \
    if (turn ^= 1) {                             \
      _tile_loadd(4, X, BYTES);                  \
      _tile_loadd(6, W, 64);                     \
      PRODUCT(0, 4, 6);                          \
    } else {                                     \
      _tile_loadd(5, X, BYTES);                  \
      _tile_loadd(7, W, 64);                     \
      PRODUCT(0, 5, 7);                          \
    }                                            \
  } while (0)

// The float part of one group for M rows.
template <bool A8, bool OFFSET, int M>
inline void finish_group(F* acc, const uint8_t* after, const uint8_t* before, const float* scales,
                         const float* sums, const float* steps) {
  const Scales s = {f_load(scales), f_load(scales + 16)};
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) {
    if (A8) {
      const I dot =
          i_sub(i_load((const int32_t*)after + 16 * m), i_load((const int32_t*)before + 16 * m));
      acc[m] = finish_a8<OFFSET>(acc[m], dot, s, 0, sums[m], 0, steps[m]);
    } else {
      acc[m] = f_fma(f_load((const float*)after + 16 * m), s.scale, acc[m]);
      if (OFFSET) acc[m] = f_fma(f_set(sums[m]), s.offset, acc[m]);
    }
  }
}

// Rows [16 block, +M) against groups [begin, end).
template <bool A8, bool OFFSET, int M>
void tile_rows(const Stretch& stretch, const Rows& rows, int block, int begin, int end,
               Carried& carried, uint8_t* dots, const uint8_t* coming) {
  const Linear& linear = stretch.linear;
  const int groups = groups_of(linear);
  const size_t row_bytes = (size_t)linear.block * (A8 ? 1 : 2);  // of a block of k
  const size_t bytes = row_bytes < 64 ? row_bytes : 64, group_blocks = linear.group / linear.block;
  const size_t packed = stretch.group_bytes * bytes / (group_blocks * row_bytes);
  const bool is_signed = linear.zero != 0;
  const uint8_t* x =
      row_block(rows, block) + (size_t)begin * linear.group * 16 * (A8 ? 1 : 2);
  const uint8_t* w = stretch.at(begin);
  const size_t at = ((size_t)block * groups + begin) * 16;
  const float *sums = rows.sums + at, *steps = rows.scales + at, *scales = stretch.scales;
  const uint8_t* after = nullptr;
  const uint8_t* before = (const uint8_t*)carried.dots;
  F acc[M];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = f_load(carried.acc[m]);
  int turn = 0;
  _tile_loadd(0, carried.dots, 64);
  for (int g = 0; g <= end - begin; ++g) {
    if (g < end - begin) {
      for (size_t part = 0; part < group_blocks * row_bytes; part += bytes) {
        if (!A8)
          FOREWORD_STEP(_tile_dpbf16ps, bytes, x, w);
        else if (is_signed)
          FOREWORD_STEP(_tile_dpbssd, bytes, x, w);
        else
          FOREWORD_STEP(_tile_dpbsud, bytes, x, w);
        x += 16 * bytes, w += 16 * bytes;
        // Asked for a few lines at a time: a burst of requests would hold up the loads here.
        if (coming) {
          for (size_t ahead = 0; ahead < packed; ahead += 64) 
            _mm_prefetch((const char*)(coming + ahead), _MM_HINT_T1);
          coming += packed;
        }
      }
    }
    if (g) {  // the float part of the group before
      finish_group<A8, OFFSET, M>(acc, after, before, scales, sums, steps);
      before = after, scales += 32, sums += 16, steps += 16;
    }
    // A load waits for a store before it that has the same place in a page: results go just behind
    // what has been read of x, where w has its place, too.
    after = dots + (g & (kDots - 1)) * kDotStride + (((uintptr_t)x + 3072) & 4095);
    _tile_stored(0, (void*)after, 64);
    asm volatile("" ::: "memory");
  }
  _tile_stored(0, carried.dots, 64);
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) f_store(carried.acc[m], acc[m]);
}

template <bool A8, int M>
void tile_panels(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                 size_t stride, bool add, uint8_t* scratch) {
  const int all = (rows.rows + 15) / 16, groups = groups_of(linear);
  const size_t block_bytes = (size_t)linear.padded * 16 * (A8 ? 1 : 2);
  const int fit = (int)(kSpanBytes / block_bytes);
  const int span = fit < 4 ? 4 : fit > kSpanBlocks ? kSpanBlocks : fit;
  uint8_t* dots = scratch;
  Carried* carried = (Carried*)(scratch + kDots * kDotStride);
  Stretch stretch(linear, (uint8_t*)(carried + (all < span ? all : span)));
  for (int first = 0; first < all; first += span) {
    const int last = all < first + span ? all : first + span;
    for (int panel = begin; panel < end; ++panel) {
      memset(carried, 0, (last - first) * sizeof(Carried));
      Cursor cursor(linear, linear.data + (size_t)panel * linear.panel_bytes);
      for (int g = 0; g < groups; g += stretch.length) {
        const int to = groups < g + stretch.length ? groups : g + stretch.length;
        stretch.fill(cursor, g, to);
        asm volatile("" ::: "memory");
        for (int block = first; block < last; ++block) {
          const uint8_t* coming = block == first ? stretch.coming : nullptr;
          Carried& sums = carried[block - first];
          if (linear.has_offset)
            tile_rows<A8, true, M>(stretch, rows, block, g, to, sums, dots, coming);
          else
            tile_rows<A8, false, M>(stretch, rows, block, g, to, sums, dots, coming);
        }
      }
      for (int row = first * 16; row < last * 16 && row < rows.rows; ++row)
        put(out + row * stride, f_load(carried[row / 16 - first].acc[row % 16]), linear, panel,
            add);
    }
  }
}

template <bool A8>
void amx_grouped(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                 size_t stride, bool add, uint8_t* scratch) {
  const int count = rows.rows, most = count > 8 ? 16 : count > 4 ? 8 : 4;
  const int bytes = linear.block * (A8 ? 1 : 2);
  configure(most, bytes < 64 ? bytes : 64, bytes < 64 ? bytes / 4 : 16);
  if (most == 16)
    tile_panels<A8, 16>(linear, rows, begin, end, out, stride, add, scratch);
  else if (most == 8)
    tile_panels<A8, 8>(linear, rows, begin, end, out, stride, add, scratch);
  else
    tile_panels<A8, 4>(linear, rows, begin, end, out, stride, add, scratch);
  _tile_release();
}
