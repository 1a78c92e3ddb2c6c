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
constexpr int kPartition = 128;  // keys in an attention partition

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

// How the pool holds a head's row. int8: `dim` integers, then the bytes of their float32 scale.
enum class Kv : int { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

static inline size_t kv_head_bytes(Kv format, int dim) {
  return format == Kv::kInt8 ? dim + 4 : (size_t)dim * (format == Kv::kBfloat16 ? 2 : 4);
}

// So many columns of a row are prepared at once, or a multiple.
static inline int columns_together(const Rows& rows) {
  return is_grouped(rows.kind) ? (rows.group > rows.block ? rows.group : rows.block) : 32;
}

// Some (row, head) pairs and the partitions of keys they read. Pairs of one KV head lie together:
// `count` for each of `kv_heads` heads that follow one another in the pool. Positions below `own`
// mean the same keys to all pairs; what is at position own + i of a pair is node paths[pair][i].
struct Attend {
  int kv_heads, count;
  int dim, padded_dim;  // padded to 16
  float scale;
  Kv format;
  int begin, end;               // partitions
  const float* const* queries;  // [kv_heads][count], each [dim]
  const int* low;               // [count] first visible position
  const int* high;              // [count] one past the last
  const int64_t* slots;  // of positions from begin * kPartition on; only visible ones are read
  const uint8_t* keys;   // of slot 0 and the first KV head
  const uint8_t* values;
  size_t slot_bytes, head_bytes;
  int own, nodes;
  const int64_t* node_slots;     // [nodes]
  const int32_t* const* paths;   // [count], if there are nodes
  float* const* parts;  // [kv_heads][count] where partition 0 of the pair goes, if it had one
  uint8_t* scratch;     // aligned to 64 bytes
};

// A pair's result for one partition, in floats: weighted values, top score, total of the weights.
static inline int part_floats(int padded_dim) { return padded_dim + 16; }

// Keys and values as float32 at most, scores, and 8 KiB for tiles; per pair queries, weights, and
// scores of nodes.
static inline size_t attend_scratch(int padded_dim, int count) {
  return 16384 + sizeof(float) * kPartition * 2 * (size_t)(padded_dim + 16) +
         16 * kPartition +
         (size_t)(count + 16) * (12 * kPartition + 4 * (size_t)(padded_dim + 16));
}

// Kernels of one instruction set.
struct Ops {
  const char* name;
  // out = x * rsqrt(mean(x^2) + eps) * weight; n values, x and out readable up to 16.
  void (*norm)(const float* x, const float* weight, int n, float eps, float* out);
  // Puts columns [from, to) of row `row` into their place in the layout: multiples of
  // `columns_together`, or the end.
  void (*prepare)(const float* x, int n, int from, int to, int row, const Rows& rows);
  // Panels [begin, end) for all rows; out[row * stride + column], added to what is there if `add`.
  void (*product)(const Linear& linear, const Rows& rows, int begin, int end, float* out,
                  size_t stride, bool add, uint8_t* scratch);
  void (*gate)(float* gate, const float* up, int n);  // gate = silu(gate) * up
  void (*rotate)(float* head, const float* cos, const float* sin, int dim);
  void (*store_kv)(const float* values, uint8_t* place, int n, Kv format);
  void (*attend)(const Attend& work);
  // Merges `count` partitions of a pair in ascending order, and divides by their total.
  void (*join)(const float* parts, int count, int padded_dim, float* out, int dim);
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
