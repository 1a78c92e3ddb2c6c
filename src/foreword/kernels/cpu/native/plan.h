// What Python hands over: weights packed in panels of 16 output columns, and the rows of a pass.
// Raw pointers and sizes only; whoever made the arrays keeps them alive. Functions here are static:
// units of different instruction sets must not share code that the linker could merge.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Loops over register tiles must unroll, else the tiles live in memory.
#if defined(FOREWORD_UNIT_PORTABLE)
#define FOREWORD_UNROLL  // its vectors are arrays, in memory anyhow
#elif defined(__clang__)
#define FOREWORD_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define FOREWORD_UNROLL _Pragma("GCC unroll 16")
#else
#define FOREWORD_UNROLL
#endif

namespace foreword {

constexpr int kPanel = 16;      // output columns in a panel, lanes of every vector
constexpr int kRowBlock = 16;   // rows that lie together in the layout of activations
constexpr int kPartition = 64;  // keys in an attention partition

static inline int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// float32, float16, bfloat16: [k][16]; k padded to 16.   pairs: bfloat16 [k / 2][16][2], k to 32.
// grouped: see GroupedPanel in pack.h.
enum class Format : int { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kPairs = 3, kGrouped = 4 };

// What a product reads of its input rows: floats as they are, rounded to bfloat16, int8 with a
// scale per group, or (a16) rounded to bfloat16 with a sum per group.
enum class Activation : int { kFloat32 = 0, kBfloat16 = 1, kA8 = 2, kA16 = 3 };

// y = x W^T (+ bias). Panels are contiguous and panel_bytes long.
struct Linear {
  Format format;
  Activation activation;
  int outputs;
  int inputs;  // as the model has them
  int padded;  // as packed
  // Grouped only. q is stored unsigned as q + zero; `block` values of k are unpacked together.
  int bits, group, block, unit_groups, zero;
  bool two_level, has_offset, signed_scale, signed_offset, wide_scale, wide_offset;
  bool integer_zero;  // offset = -(scale * a byte)
  size_t header_bytes, group_bytes, unit_bytes;
  size_t panel_bytes;
  const uint8_t* data;
  const float* bias;  // [outputs padded to 16] or null
};

static inline int panels_of(const Linear& linear) {
  return (linear.outputs + kPanel - 1) / kPanel;
}
static inline int groups_of(const Linear& linear) { return linear.padded / linear.group; }

// Bytes of the 16 scales, or offsets, of a group.
static inline int scale_bytes(const Linear& linear) {
  return linear.two_level ? 16 : linear.wide_scale ? 64 : 32;
}
static inline int offset_bytes(const Linear& linear) {
  return linear.two_level || linear.integer_zero ? 16 : linear.wide_offset ? 64 : 32;
}

// Input rows of products. values: [row block][chunk][16 rows][chunk_bytes], a row block starting a
// page. Per group: scale and sum, [row block][group][16 rows].
struct Rows {
  Activation kind;
  int rows;
  int padded;  // values of k
  int group, block;
  uint8_t* values;
  float* scales;   // a8
  float* sums;     // a8: of the integers; a16: of the rounded values
  int32_t* isums;  // a8
};

static inline size_t value_bytes(Activation kind) {
  return kind == Activation::kA8 ? 1 : kind == Activation::kBfloat16 ? 2 : 4;
}
// From a row block to the next, in `values`.
static inline size_t row_block_bytes(Activation kind, int padded) {
  return ((size_t)padded * kRowBlock * value_bytes(kind) + 4095) / 4096 * 4096;
}
static inline bool is_grouped(Activation kind) {
  return kind == Activation::kA8 || kind == Activation::kA16;
}

// One partition of keys for some (row, head) pairs that share a KV head.
struct Attend {
  int count;  // pairs
  int dim, padded_dim;
  float scale;
  bool kv_bfloat16;
  const float* const* queries;  // [count], each [dim]
  const int64_t* slots;         // [kPartition] of the lanes; only visible ones are read
  const int* low;               // [count] first visible lane
  const int* high;              // [count] one past the last
  const uint8_t* keys;          // of slot 0 and this KV head
  const uint8_t* values;
  size_t slot_bytes;
  float* tops;    // [count]
  float* totals;  // [count]
  float* sums;    // [count][padded_dim]
  uint8_t* scratch;
};

static inline size_t attend_scratch(int padded_dim, int count) {
  return sizeof(float) * kPartition * (2 * (size_t)padded_dim + (size_t)count) + 8192;
}

// Kernels of one instruction set.
struct Ops {
  const char* name;
  // out = x * rsqrt(mean(x^2) + eps) * weight; n values, x and out readable up to 16.
  void (*norm)(const float* x, const float* weight, int n, float eps, float* out);
  // Puts row `row` into its place in the layout.
  void (*prepare)(const float* x, int n, int row, const Rows& rows);
  // Panels [begin, end) for all rows; out[row * stride + column], added to what is there if `add`.
  void (*product)(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                  size_t stride, bool add, uint8_t* scratch);
  void (*gate)(float* gate, const float* up, int n);  // gate = silu(gate) * up
  void (*rotate)(float* head, const float* cos, const float* sin, int dim);
  void (*store_kv)(const float* values, uint8_t* place, int n, bool bfloat16);
  void (*attend)(const Attend& work);
  // The partition `part` merged into the running state, which lies before it.
  void (*merge)(int count, int padded_dim, float* tops, float* totals, float* sums,
                const float* part_tops, const float* part_totals, const float* part_sums);
  void (*divide)(const float* sums, float total, float* out, int dim);
  void (*embed)(const Linear& table, int64_t token, float* out);
};

size_t product_scratch(int padded, int groups);

const Ops& ops_portable();
#if defined(FOREWORD_X86)
const Ops& ops_avx2();
const Ops& ops_avx512();
const Ops& ops_amx();
#endif

}  // namespace foreword
