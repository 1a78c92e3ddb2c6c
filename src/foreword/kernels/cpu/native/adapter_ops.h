// What LoRA adapters add to the products of a layer, row by row: y + B u with u = scale * (A x).
//
// All in float32, in an order fixed by the shapes: A x over k in 16 lanes (lane l takes k = l,
// l + 16, ...), which are then added as in every sum of a vector; B u over the rank, ascending. A
// row without an adapter is not touched.
#pragma once
#include "plan.h"

namespace foreword {

// Of one product. A [rank][padded], zeros from `inputs` on; B [panel][rank][16].
struct Delta {
  int rank;  // 0: nothing is added
  int inputs, outputs, padded;
  Format down_format, up_format;  // of A and of B: kFloat32, kFloat16 or kBfloat16
  float scale;
  const uint8_t *down, *up;
};

static inline size_t float_bytes(Format format) { return format == Format::kFloat32 ? 4 : 2; }

struct AdapterOps {
  // n values, and zeros up to a multiple of 16; rounded to bfloat16 unless `wide`.
  void (*round)(const float* x, int n, bool wide, float* out);
  // u [rank] of some rounded lines; x[row * stride], u[row * u_stride].
  void (*lower)(const Delta& delta, const float* x, size_t stride, int rows, float* u,
                size_t u_stride);
  // Adds to columns of panels [begin, end) of some rows; u[row * u_stride], out[row * stride].
  void (*raise)(const Delta& delta, const float* u, size_t u_stride, int rows, int begin, int end,
                float* out, size_t stride);
};

const AdapterOps& adapter_ops_portable();
#if defined(FOREWORD_X86)
const AdapterOps& adapter_ops_avx2();
const AdapterOps& adapter_ops_avx512();
#endif

}  // namespace foreword
