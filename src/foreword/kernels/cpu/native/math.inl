// Row-wise pieces: exponential, norm, rotary, rounding, and the layouts of activations.

// e^x, relative error below 2e-7 on [-87, 88], clamped outside; NaN stays NaN.
inline F f_exp(F x) {
  x = f_max(f_set(-87.0f), f_min(f_set(88.0f), x));
  const I n = f_to_int(f_mul(x, f_set(1.44269504f)));
  const F whole = f_from_int(n);
  F r = f_fma(whole, f_set(-0.693359375f), x);
  r = f_fma(whole, f_set(2.12194440e-4f), r);
  F y = f_set(1.9875691500e-4f);
  y = f_fma(y, r, f_set(1.3981999507e-3f));
  y = f_fma(y, r, f_set(8.3334519073e-3f));
  y = f_fma(y, r, f_set(4.1665795894e-2f));
  y = f_fma(y, r, f_set(1.6666665459e-1f));
  y = f_fma(y, r, f_set(5.0000001201e-1f));
  y = f_add(f_fma(y, f_mul(r, r), r), f_set(1.0f));
  return f_mul(y, f_of_bits(i_left<23>(i_add(n, i_set(127)))));
}

void norm(const float* x, const float* weight, int n, float eps, float* out) {
  F squares = f_zero();
  for (int k = 0; k < n; k += 16) {
    const F v = fetch(x, n, k);
    squares = f_fma(v, v, squares);
  }
  const F scale = f_set(1.0f / sqrtf(f_sum(squares) / (float)n + eps));
  for (int k = 0; k < n; k += 16)
    f_store(out + k, f_mul(f_mul(fetch(x, n, k), scale), fetch(weight, n, k)));
}

void rotate(float* head, const float* cos, const float* sin, int dim) {
  const int half = dim / 2;
  float *low = head, *high = head + half;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const F c = f_load(cos + i), s = f_load(sin + i), a = f_load(low + i), b = f_load(high + i);
    f_store(low + i, f_sub(f_mul(a, c), f_mul(b, s)));
    f_store(high + i, f_add(f_mul(b, c), f_mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cos[i] - b * sin[i];
    high[i] = b * cos[i] + a * sin[i];
  }
}

// The scale of one token's head is amax / 127; integers to nearest even. A row that is not finite
// keeps that in its scale.
void store_int8(const float* values, uint8_t* place, int n) {
  I largest = i_zero();
  for (int k = 0; k < n; k += 16)
    largest = i_max(largest, i_and(f_bits(fetch(values, n, k)), i_set(0x7fffffff)));
  const int32_t bits = i_top(largest);
  float amax;
  memcpy(&amax, &bits, 4);
  const float scale = amax / 127.0f;
  const bool plain = scale > 0.0f && scale < INFINITY;
  const F divisor = f_set(plain ? scale : 1.0f);
  for (int k = 0; k < n; k += 16) {
    I q = plain ? f_to_int(f_div(fetch(values, n, k), divisor)) : i_zero();
    q = i_max(i_set(-127), i_min(i_set(127), q));
    uint8_t part[16];
    i_store_i8(part, q);
    memcpy(place + k, part, n - k < 16 ? n - k : 16);
  }
  memcpy(place + n, &scale, 4);
}

void store_kv(const float* values, uint8_t* place, int n, Kv format) {
  if (format == Kv::kInt8) return store_int8(values, place, n);
  if (format == Kv::kFloat32) {
    memcpy(place, values, sizeof(float) * n);
    return;
  }
  for (int k = 0; k < n; k += 16) {
    uint16_t part[16];
    i_store_low16(part, bf16_bits(fetch(values, n, k)));
    memcpy(place + 2 * k, part, 2 * (n - k < 16 ? n - k : 16));
  }
}

void gate(float* left, const float* right, int n) {
  for (int k = 0; k < n; k += 16) {
    const F g = f_load(left + k), one = f_set(1.0f);
    const F sigmoid = f_div(one, f_add(one, f_exp(f_sub(f_zero(), g))));
    f_store(left + k, f_mul(f_mul(g, sigmoid), f_load(right + k)));
  }
}

// Rows of a grouped product that stay on the vector units.
constexpr int kFewRows = 2, kFewRowsA8 = 4;

inline uint8_t* row_block(const Rows& rows, int block) {
  return rows.values + block * row_block_bytes(rows.kind, rows.padded);
}

void prepare_floats(const float* x, int n, int from, int to, int row, const Rows& rows) {
  const bool wide = rows.kind == Activation::kFloat32;
  const int per_chunk = wide ? 16 : 32;
  uint8_t* place = row_block(rows, row / 16) + from / per_chunk * 1024 + row % 16 * 64;
  for (int k = from; k < to; k += per_chunk, place += 1024) {
    if (wide) {
      f_store((float*)place, fetch(x, n, k));
    } else {
      i_store_low16((uint16_t*)place, bf16_bits(fetch(x, n, k)));
      i_store_low16((uint16_t*)place + 16, bf16_bits(fetch(x, n, k + 16)));
    }
  }
}

// Where value k of a row lies, in the values of its row block. A block is 16, 32 or 64 values.
inline size_t grouped_place(const Rows& rows, int row, int k) {
  const int within = k & (rows.block - 1);
  return (size_t)(k - within) * 16 + (size_t)(row % 16) * rows.block + within;
}

// value / divisor, rounded to integers. The product with the inverse is within 127 * 2^-22 of the
// quotient, so where it is farther than that from every half both round alike, and a division,
// which takes as long as ten products, is left out.
inline I nearest(F value, F divisor, F inverse) {
  const F product = f_mul(value, inverse);
  const I q = f_to_int(product);
  const F rest = f_sub(product, f_from_int(q));
  if (f_all_within(rest, 0.4995f)) return q;
  return f_to_int(f_div(value, divisor));
}

// Scale amax / 127; integers to nearest even. A row with a NaN or an infinity keeps it in its
// scale.
void prepare_a8(const float* x, int n, int begin, int end, int row, const Rows& rows) {
  const int groups = rows.padded / rows.group;
  const size_t first = (size_t)(row / 16) * groups * 16 + row % 16;
  const I sign = i_set(0x7fffffff);
  uint8_t* values = row_block(rows, row / 16);
  for (int g = begin / rows.group; g * rows.group < end; ++g) {
    const int from = g * rows.group, to = from + rows.group;
    I largest = i_zero();
    for (int k = from; k < to; k += 16)
      largest = i_max(largest, i_and(f_bits(fetch(x, n, k)), sign));
    const int32_t bits = i_top(largest);
    float amax;
    memcpy(&amax, &bits, 4);
    const float scale = amax / 127.0f;
    const F divisor = f_set(scale == 0.0f ? 1.0f : scale);
    const F inverse = f_set(scale == 0.0f ? 0.0f : 1.0f / scale);
    I sum = i_zero();
    for (int k = from; k < to; k += 16) {
      const F value = fetch(x, n, k);
      I q = nearest(value, divisor, inverse);
      q = i_max(i_set(-127), i_min(i_set(127), q));
      i_store_i8(values + grouped_place(rows, row, k), q);
      sum = i_add(sum, q);
    }
    const int32_t total = i_sum(sum);
    rows.scales[first + (size_t)g * 16] = scale;
    rows.isums[first + (size_t)g * 16] = total;
    rows.sums[first + (size_t)g * 16] = (float)total;
  }
}

// As floats; for the matrix unit as tiles of bfloat16, [row block][piece][16 rows][piece], pieces of
// up to 32 values, in each quad of which the middle two change places (amx_grouped.inl's pairs).
inline void put_a16(F rounded, int row, int k, const Rows& rows) {
#if defined(FOREWORD_UNIT_AMX)
  if (rows.rows <= kFewRows) {
    f_store((float*)row_block(rows, row / 16) + grouped_place(rows, row, k), rounded);
    return;
  }
  const int piece = rows.block < 32 ? rows.block : 32;
  uint16_t* to = (uint16_t*)row_block(rows, row / 16) +
                 ((size_t)(k / piece) * 16 + row % 16) * piece + k % piece;
  i_store_low16(to, _mm512_shuffle_epi32(i_right<16>(f_bits(rounded)), (_MM_PERM_ENUM)0xd8));
#else
  f_store((float*)row_block(rows, row / 16) + grouped_place(rows, row, k), rounded);
#endif
}

void prepare_a16(const float* x, int n, int begin, int end, int row, const Rows& rows) {
  const int groups = rows.padded / rows.group;
  const size_t first = (size_t)(row / 16) * groups * 16 + row % 16;
  for (int g = begin / rows.group; g * rows.group < end; ++g) {
    F sum = f_zero();
    for (int k = g * rows.group; k < (g + 1) * rows.group; k += 16) {
      const F rounded = round_bf16(fetch(x, n, k));
      put_a16(rounded, row, k, rows);
      sum = f_add(sum, rounded);
    }
    rows.sums[first + (size_t)g * 16] = f_sum(sum);
  }
}

void prepare(const float* x, int n, int from, int to, int row, const Rows& rows) {
  if (rows.kind == Activation::kA8) return prepare_a8(x, n, from, to, row, rows);
  if (rows.kind == Activation::kA16) return prepare_a16(x, n, from, to, row, rows);
  prepare_floats(x, n, from, to, row, rows);
}
