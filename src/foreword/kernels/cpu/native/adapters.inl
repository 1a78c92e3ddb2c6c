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

template <class N, int M>
inline void lower_ranks(const Delta& delta, const float* x, int first, float* u) {
  F acc[M];
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) acc[m] = f_zero();
  const size_t start = (size_t)first * delta.padded;
  for (int k = 0; k < delta.padded; k += 16) {
    const F v = f_load(x + k);
    FOREWORD_UNROLL
    for (int m = 0; m < M; ++m)
      acc[m] = f_fma(v, N::load(delta.down, start + (size_t)m * delta.padded + k), acc[m]);
  }
  FOREWORD_UNROLL
  for (int m = 0; m < M; ++m) u[first + m] = delta.scale * f_sum(acc[m]);
}

template <class N>
void lower_as(const Delta& delta, const float* x, float* u) {
  int rank = 0;
  for (; rank + 4 <= delta.rank; rank += 4) lower_ranks<N, 4>(delta, x, rank, u);
  for (; rank < delta.rank; ++rank) lower_ranks<N, 1>(delta, x, rank, u);
}

void lower(const Delta& delta, const float* x, float* u) {
  if (delta.down_format == Format::kFloat32) return lower_as<WideNumbers>(delta, x, u);
  if (delta.down_format == Format::kFloat16) return lower_as<HalfNumbers>(delta, x, u);
  lower_as<BrainNumbers>(delta, x, u);
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
