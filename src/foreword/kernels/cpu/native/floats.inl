// Products in float arithmetic. Every output is one chain over K; rows and panels side by side only
// hide its latency.

inline void put(float* out, F v, const Linear& linear, int panel, bool add) {
  const int column = panel * kPanel, count = linear.outputs - column;
  if (linear.bias) v = f_add(v, f_load(linear.bias + column));
  out += column;
  if (count >= kPanel) {
    f_store(out, add ? f_add(f_load(out), v) : v);
    return;
  }
  float part[16];
  f_store(part, v);
  for (int i = 0; i < count; ++i) out[i] = add ? out[i] + part[i] : part[i];
}

struct Wide {  // float32 weights
  using W = F;
  static constexpr int kBytes = 64;
  static W load(const uint8_t* p) { return f_load((const float*)p); }
  static W set(const uint8_t* x) { return f_set(*(const float*)x); }
  static F step(F acc, W x, W w) { return f_fma(x, w, acc); }
};
struct Half : Wide {
  static constexpr int kBytes = 32;
  static W load(const uint8_t* p) { return f_from_half((const uint16_t*)p); }
};
struct Brain : Wide {
  static constexpr int kBytes = 32;
  static W load(const uint8_t* p) { return f_from_bf16((const uint16_t*)p); }
};
struct Pairs {
  using W = Pair;
  static constexpr int kBytes = 64;
  static W load(const uint8_t* p) { return pair_load(p); }
  static W set(const uint8_t* x) { return pair_set(x); }
  static F step(F acc, W x, W w) { return pair_step(acc, x, w); }
};

template <class T, int M, int P>
inline void float_tile(const Linear& linear, const uint8_t* x, int chunks, int panel, float* out,
                       size_t stride, bool add) {
  const uint8_t* w = linear.data + (size_t)panel * linear.panel_bytes;
  F acc[M][P];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int p = 0; p < P; ++p) acc[m][p] = f_zero();
  for (int c = 0; c < chunks; ++c, x += 1024)
    for (int s = 0; s < 16; ++s, w += T::kBytes) {
      typename T::W v[P];
      FOREWORD_UNROLL
      for (int p = 0; p < P; ++p) v[p] = T::load(w + p * linear.panel_bytes);
      FOREWORD_UNROLL
      for (int m = 0; m < M; ++m) {
        const typename T::W b = T::set(x + m * 64 + s * 4);
        FOREWORD_UNROLL
        for (int p = 0; p < P; ++p) acc[m][p] = T::step(acc[m][p], b, v[p]);
      }
    }
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int p = 0; p < P; ++p) put(out + m * stride, acc[m][p], linear, panel + p, add);
}

template <class T, int M>
inline void float_rows(const Linear& linear, const uint8_t* x, int chunks, int begin, int end,
                       float* out, size_t stride, bool add) {
  constexpr int P = kTile / M < 4 ? kTile / M : 4;
  int panel = begin;
  for (; panel + P <= end; panel += P)
    float_tile<T, M, P>(linear, x, chunks, panel, out, stride, add);
  for (; panel < end; ++panel) float_tile<T, M, 1>(linear, x, chunks, panel, out, stride, add);
}

template <class T>
void product_floats(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                    size_t stride, bool add) {
  constexpr int kMost = kTile >= 16 ? 8 : 4;
  const int chunks = rows.padded / (rows.kind == Activation::kFloat32 ? 16 : 32);
  for (int from = begin; from < end; from += 4) {
    const int to = from + 4 < end ? from + 4 : end;
    for (int row = 0; row < rows.rows;) {
      const int left = rows.rows - row;
      const uint8_t* x =
          row_block(rows, row / 16) + row % 16 * 64;
      float* place = out + row * stride;
      if (left >= 8 && kMost == 8) {
        float_rows<T, kMost>(linear, x, chunks, from, to, place, stride, add), row += kMost;
      } else if (left >= 4) {
        float_rows<T, 4>(linear, x, chunks, from, to, place, stride, add), row += 4;
      } else if (left >= 2) {
        float_rows<T, 2>(linear, x, chunks, from, to, place, stride, add), row += 2;
      } else {
        float_rows<T, 1>(linear, x, chunks, from, to, place, stride, add), row += 1;
      }
    }
  }
}
