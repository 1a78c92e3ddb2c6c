// From logit rows to tokens, bit for bit as sample/sampler.py says.
#pragma once
#include <utility>
#include <vector>

#include "filters.h"

namespace foreword {

// The loops for an instruction set by name; null when this machine lacks it.
const Loops* find_loops(const char* isa);

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
                                const std::vector<Edit>& edits, int size);

// Up to `count` ids by (perturbed score descending, id ascending) among those the filters keep;
// temperature > 0.
Fault rank(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size,
           int count, std::vector<Scored>& found);

// The processed row, -inf at every id that the filters drop: out [size].
Fault open_row(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size,
               float* out);

// Bits of `token`, as sample/mirostat.surprise.
Fault surprise(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size,
               int token, double& bits);

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
