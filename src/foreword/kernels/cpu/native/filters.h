// Which ids of a processed row may be chosen, as sample/sampler.kept.
#pragma once
#include "items.h"
#include "processed.h"

namespace foreword {

// What one row is asked. The fields have the meaning and the ranges of types.SamplingParams.
struct Ask {
  const float* values;  // before its edits
  const float* raw;     // the target's own, for log-probabilities
  double temperature;
  double top_p;
  double min_p;
  double typical_p;
  double xtc_probability;
  double xtc_threshold;
  double mu;  // mirostat's; infinity: off
  int64_t top_k;
  uint64_t seed;
  uint64_t position;
  int64_t logprobs;  // how many of the highest; -1 for none at all, the chosen id's included
  int64_t first_edit;
  int64_t num_edits;
};

// Every filter keeps an interval of the order, and min-p a weight: keys in [first, last] whose
// weight is at least min_p. `first` is 0 or the key of the first id that is kept.
struct Kept {
  Key first = 0;
  Key last = kLastKey;
  double min_p = 0.0;
};

// temperature > 0, a row without fault.
Kept kept(const LogitRow& row, const Ask& ask);

// The kept ids, ascending, with their weights.
std::vector<Item> kept_items(const LogitRow& row, double temperature, const Kept& kept);

// Bits of `token` among the kept ids, as sample/mirostat.surprise.
double surprise(const LogitRow& row, double temperature, const Kept& kept, int token);

}  // namespace foreword
