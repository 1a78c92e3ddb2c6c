// All kernels, written once over the 16-lane vectors of the including unit.
#include "lanes.inl"
#include "math.inl"
#include "floats.inl"
#include "grouped.inl"
#include "attention_lanes.inl"
#include "attention.inl"
#if defined(FOREWORD_UNIT_AMX)
#include "amx.inl"
#include "amx_grouped.inl"
#include "attention_tiles.inl"
#include "attention_amx.inl"
#endif

void product(const Linear& linear, const Rows& rows, int begin, int end, float* out, size_t stride,
             bool add, uint8_t* scratch) {
  (void)scratch;
  switch (linear.format) {
    case Format::kFloat32:
      return product_floats<Wide>(linear, rows, begin, end, out, stride, add);
    case Format::kFloat16:
      return product_floats<Half>(linear, rows, begin, end, out, stride, add);
    case Format::kBfloat16:
      return product_floats<Brain>(linear, rows, begin, end, out, stride, add);
    case Format::kPairs:
#if defined(FOREWORD_UNIT_AMX)
      return amx_pairs(linear, rows, begin, end, out, stride, add, scratch);
#else
      return product_floats<Pairs>(linear, rows, begin, end, out, stride, add);
#endif
    case Format::kGrouped:
#if defined(FOREWORD_UNIT_AMX)
      if (rows.rows > kFewRows && linear.activation == Activation::kA16)
        return amx_grouped<false>(linear, rows, begin, end, out, stride, add, scratch);
      if (rows.rows > kFewRowsA8 && linear.activation == Activation::kA8)
        return amx_grouped<true>(linear, rows, begin, end, out, stride, add, scratch);
#endif
      return product_grouped(linear, rows, begin, end, out, stride, add);
  }
}

void attend(const Attend& a) {
#if defined(FOREWORD_UNIT_AMX)
  if (a.format != Kv::kFloat32) return amx_attend(a);
#endif
  vector_attend(a);
}
