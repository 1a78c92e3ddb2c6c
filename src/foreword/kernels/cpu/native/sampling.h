// From logit rows to tokens, bit for bit as sample/sampler.py says.
#pragma once
#include <utility>
#include <vector>

#include "logit_row.h"

namespace foreword {

// The loops for an instruction set by name; null when this machine lacks it.
const Loops* find_loops(const char* isa);

// What one row is asked. The fields have the meaning and the ranges of types.SamplingParams.
struct Ask {
  const float* values;
  double temperature;
  double top_p;
  double min_p;
  int64_t top_k;
  uint64_t seed;
  uint64_t position;
  int64_t logprobs;  // how many of the highest; -1 for none at all, the chosen id's included
};

struct Scored {
  double score;
  int id;
};

struct Answer {
  Fault fault = Fault::kNone;
  int token = -1;
  double logprob = 0.0;
  std::vector<std::pair<int, double>> top;  // id, logprob
};

// One answer for each of the asks, over rows of `size` values.
std::vector<Answer> choose_rows(const Loops& loops, Pool& pool, const std::vector<Ask>& asks,
                                int size);

// Up to `count` ids by (perturbed score descending, id ascending) among those the filters keep;
// temperature > 0. A row with a fault has none.
std::vector<Scored> strongest(const LogitRow& row, const Ask& ask, int count);

// For each row the first k of the order, masked ids after all others: ids [rows][k], values
// [rows][k]. Returns the first row that holds NaN, or -1.
int top_k(const Loops& loops, Pool& pool, const float* values, int rows, int size, int k,
          int32_t* ids, float* out);

// The noise of single ids at one position: out [count].
void gumbel_noise(uint64_t seed, uint64_t position, const int64_t* ids, size_t count, double* out);

// log-softmax of one id a row, NaN for a row with a fault: out [rows].
void log_softmax(const Loops& loops, Pool& pool, const float* values, int rows, int size,
                 const int64_t* ids, double* out);

}  // namespace foreword
