// One pass over the whole model: the phases of every layer, shared out to the pool's threads.
#pragma once
#include <cstdint>
#include <vector>

#include "arena.h"
#include "plan.h"
#include "threads.h"

namespace foreword {

class Adapter;

// Without a query the layer attends to nothing, without a gate it has no MLP.
struct Layer {
  const float* attention_norm;
  const Linear *query, *key, *value;
  const float *query_norm, *key_norm;  // or null
  const Linear* output;
  const float* mlp_norm;
  const Linear *gate, *up, *down;
  int window;  // 0 = all
};

struct Model {
  int hidden, intermediate, heads, kv_heads, dim;
  float eps;
  Kv kv_format;
  const Linear* embedding;
  std::vector<Layer> layers;
  const float* norm;
  const Linear* head;
  const float *cos, *sin;  // [positions][dim / 2]
};

// Rows of one sequence: `cached` slots of content 0.., then `rows` rows with parents inside.
struct Segment {
  int first, rows, cached;
  const int64_t* slots;    // [cached + rows]
  const int32_t* parents;  // [rows]
  const Adapter* adapter;  // or null
};

struct Batch {
  int rows, wanted;
  const int64_t *tokens, *positions, *slots;  // [rows]
  const int64_t* logit_rows;                  // [wanted]
  std::vector<Segment> segments;
  std::vector<uint8_t*> keys, values;  // per layer, slot 0
};

void run_pass(const Ops& ops, const Model& model, const Batch& batch, float* logits, Pool& pool,
              Arena& arena);

}  // namespace foreword
