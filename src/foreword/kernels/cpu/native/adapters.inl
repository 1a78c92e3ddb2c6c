// What adapters add. Every number is one sum in a fixed order; rows, ranks and panels side by side
// only hide its latency.

struct WideNumbers {
  static F load(const uint8_t* p, size_t at) { return f_load((const float*)p + at); }
};
struct HalfNumbers {
  static F load(const uint8_t* p, size_t at) { return f_from_half((const uint16_t*)p + at); }
};
struct BrainNumbers {
  static F load(const uint8_t* p, size_t at) { return f_from_bf16((const uint16_t*)p + at); }
};

void round_line(const float* x, int n, bool wide, float* out) {
  for (int k = 0; k < n; k += 16) {
    const F v = fetch(x, n, k);
    f_store(out + k, wide ? v : round_bf16(v));
  }
}

constexpr int kMany = kTile >= 16 ? 4 : 2;  // rows, or ranks, side by side

template <class N, int M, int R>
inline void lower_tile(const Delta& delta, const float* x, size_t stride, int first, float* u,
                       size_t u_stride) {
  F acc[M][R];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int r = 0; r < R; ++r) acc[m][r] = f_zero();
  const size_t start = (size_t)first * delta.padded;
  for (int k = 0; k < delta.padded; k += 16) {
    F line[R];
    FOREWORD_UNROLL
    for (int r = 0; r < R; ++r) line[r] = f_load(x + r * stride + k);
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m) {
      const F v = N::load(delta.down, start + (size_t)m * delta.padded + k);
      FOREWORD_UNROLL
      for (int r = 0; r < R; ++r) acc[m][r] = f_fma(line[r], v, acc[m][r]);
    }
  }
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m)
    FOREWORD_UNROLL
    for (int r = 0; r < R; ++r) u[r * u_stride + first + m] = delta.scale * f_sum(acc[m][r]);
}

template <class N, int M, int R>
inline void lower_rows(const Delta& delta, const float* x, size_t stride, float* u,
                       size_t u_stride) {
  int rank = 0;
  for (; rank + M <= delta.rank; rank += M)
    lower_tile<N, M, R>(delta, x, stride, rank, u, u_stride);
  for (; rank < delta.rank; ++rank) lower_tile<N, 1, R>(delta, x, stride, rank, u, u_stride);
}

template <class N>
void lower_as(const Delta& delta, const float* x, size_t stride, int rows, float* u,
              size_t u_stride) {
  int row = 0;
  for (; row + kMany <= rows; row += kMany)
    lower_rows<N, kMany, kMany>(delta, x + row * stride, stride, u + row * u_stride, u_stride);
  for (; row < rows; ++row)
    lower_rows<N, 2 * kMany, 1>(delta, x + row * stride, stride, u + row * u_stride, u_stride);
}

void lower(const Delta& delta, const float* x, size_t stride, int rows, float* u,
           size_t u_stride) {
  if (delta.down_format == Format::kFloat32)
    return lower_as<WideNumbers>(delta, x, stride, rows, u, u_stride);
  if (delta.down_format == Format::kFloat16)
    return lower_as<HalfNumbers>(delta, x, stride, rows, u, u_stride);
  lower_as<BrainNumbers>(delta, x, stride, rows, u, u_stride);
}

template <class N, int M>
inline void raise_rows(const Delta& delta, const float* u, size_t u_stride, int panel, float* out,
                       size_t stride) {
  F acc[M];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = f_zero();
  const size_t start = (size_t)panel * delta.rank * kPanel;
  for (int rank = 0; rank < delta.rank; ++rank) {
    const F column = N::load(delta.up, start + (size_t)rank * kPanel);
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m) acc[m] = f_fma(f_set(u[m * u_stride + rank]), column, acc[m]);
  }
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) {
    float* place = out + m * stride + panel * kPanel;
    f_store(place, f_add(f_load(place), acc[m]));
  }
}

template <class N>
void raise_as(const Delta& delta, const float* u, size_t u_stride, int rows, int begin, int end,
              float* out, size_t stride) {
  for (int panel = begin; panel < end; ++panel) {
    int row = 0;
    for (; row + 4 <= rows; row += 4)
      raise_rows<N, 4>(delta, u + row * u_stride, u_stride, panel, out + row * stride, stride);
    for (; row < rows; ++row)
      raise_rows<N, 1>(delta, u + row * u_stride, u_stride, panel, out + row * stride, stride);
  }
}

void raise(const Delta& delta, const float* u, size_t u_stride, int rows, int begin, int end,
           float* out, size_t stride) {
  if (delta.up_format == Format::kFloat32)
    return raise_as<WideNumbers>(delta, u, u_stride, rows, begin, end, out, stride);
  if (delta.up_format == Format::kFloat16)
    return raise_as<HalfNumbers>(delta, u, u_stride, rows, begin, end, out, stride);
  raise_as<BrainNumbers>(delta, u, u_stride, rows, begin, end, out, stride);
}
