#include "sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "float_state.h"
#include "isa.h"
#include "nucleus.h"
#include "philox.h"

namespace foreword {
namespace {

constexpr double kNoiseCeiling = 37.0;  // the highest noise is 36.74
constexpr double kCoolest = 1e-290;     // below it products with the noise lose bits

bool stronger(const Scored& x, const Scored& y) {
  return x.score > y.score || (x.score == y.score && x.id < y.id);
}

// The ids that can still win, given the score that has to be reached. Exact because noise rises
// with its word: with c the complement of a word's top 53 bits, 1 - u >= max(c, 1) / 2^53 and
// -log(u) >= 1 - u, so noise >= g needs max(c, 1) <= exp(-g) * 2^53. All rounding of the score is
// far below the allowances (score: half an ulp of it; noise: 1e-13).
struct Bar {
  Bar(double temperature, float lowest) : temperature(temperature), lowest(lowest) {}

  void raise(double score) {
    floor = score;
    const double bound = score - kNoiseCeiling * temperature - std::fabs(score) * 1e-15 - 1e-300;
    if (!(bound > -3e38)) return;
    lowest = std::max(lowest, std::nextafter(static_cast<float>(bound), kMasked));
  }

  // For ids of values up to `most`: the highest complement that may win; 0 for none.
  uint64_t limit(float most) const {
    if (temperature < kCoolest || temperature > kHottest || floor == -HUGE_VAL) return ~0ull;
    const double allowance = (std::fabs(floor) + std::fabs(most)) * 1e-15;
    const double noise = (floor - most - allowance) / temperature - 1e-9;
    if (noise <= 0.0) return ~0ull;
    return static_cast<uint64_t>(std::exp(-noise) * 0x1p53 * (1.0 + 1e-9));
  }

  double temperature;
  float lowest;  // a value below cannot win
  double floor = -HUGE_VAL;
};

// The strongest of groups [first, last), merged into `found` (at most `count`, in order).
void scan(const LogitRow& row, const Ask& ask, const Kept& kept, size_t count, int first, int last,
          float lowest, std::vector<Scored>& found) {
  Bar bar(ask.temperature, lowest);
  if (found.size() == count) bar.raise(found.back().score);
  const auto offer = [&](int id, uint64_t word) {
    const float value = row.values[id];
    if (value < bar.lowest || value == kMasked) return false;
    if (const Key key = key_of(value, id); key < kept.first || key > kept.last) return false;
    const Scored scored{static_cast<double>(value) + ask.temperature * gumbel(word), id};
    if (found.size() == count && !stronger(scored, found.back())) return false;
    if (kept.min_p > 0.0) {
      double weight;
      row.loops.weights(&value, 1, row.peak, ask.temperature, &weight);
      if (!(weight >= kept.min_p)) return false;
    }
    if (found.size() == count) found.pop_back();
    found.insert(std::upper_bound(found.begin(), found.end(), scored, stronger), scored);
    return found.size() == count;
  };
  for (int group = first; group < last; ++group) {
    if (row.maxima[group] < bar.lowest) continue;
    uint64_t limit = bar.limit(row.maxima[group]);
    const int stop = std::min(row.size, (group + 1) * kGroup);
    const auto consider = [&](int id, const Words& words) {
      for (int i = 0; i < 4 && id + i < stop; ++i)
        if ((~words.at[i] >> 11) <= limit && offer(id + i, words.at[i])) {
          bar.raise(found.back().score);
          limit = bar.limit(row.maxima[group]);
        }
    };
    for (int id = group * kGroup; limit && id < stop; id += 16) {
      // Four counters at a time hide the latency of their products; where few ids are left to
      // consider, only the counters that have one.
      const auto wanted = [&](int first) {
        for (int i = first; i < std::min(first + 4, stop); ++i)
          if (row.values[i] >= bar.lowest) return true;
        return false;
      };
      const bool one[4] = {wanted(id), wanted(id + 4), wanted(id + 8), wanted(id + 12)};
      const uint64_t block = static_cast<uint64_t>(id / 4);
      if (one[0] + one[1] + one[2] + one[3] > 2) {
        Words words[4];
        token_words(ask.seed, ask.position, block, words);
        for (int i = 0; i < 4; ++i) consider(id + 4 * i, words[i]);
        continue;
      }
      for (int i = 0; i < 4; ++i)
        if (one[i]) consider(id + 4 * i, token_words(ask.seed, ask.position, block + i));
    }
  }
}

// Calls body(row) for every row, rows shared among the threads.
void each_row(Pool& pool, size_t rows, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  pool.run([&](int) {
    for (size_t row; (row = next.fetch_add(1)) < rows;) body(row);
  });
}

// The first `count` unmasked keys, in the order.
std::vector<Key> first_unmasked(const LogitRow& row, int count) {
  const Key last = row.first(count);
  std::vector<Key> keys = row.collect(last == kLastKey ? kMasked : value_of(last), last);
  std::sort(keys.begin(), keys.end());
  return keys;
}

// The first `count` keys, in the order; masked ids come last, count <= size.
std::vector<Key> first_keys(const LogitRow& row, int count) {
  std::vector<Key> keys = first_unmasked(row, count);
  for (int id = 0; keys.size() < static_cast<size_t>(count); ++id)
    if (row.values[id] == kMasked) keys.push_back(key_of(kMasked, id));
  return keys;
}

// Raw log-probabilities, as sample/logprobs.py.
class Logprobs {
 public:
  explicit Logprobs(const LogitRow& row)
      : peak_(row.peak), scale_(portable_log(row.total(1.0))) {}
  double of(float value) const { return static_cast<double>(value) - peak_ - scale_; }

 private:
  double peak_, scale_;
};

// Up to `count` ids by (perturbed score descending, id ascending) among those the filters keep.
std::vector<Scored> strongest(const LogitRow& row, const Ask& ask, int count) {
  const Kept kept = foreword::kept(row, ask);
  float lowest = kept.last == kLastKey ? kMasked : value_of(kept.last);
  if (kept.min_p > 0.0)
    lowest = std::max(lowest, within(row.peak, ask.temperature, -std::log(kept.min_p) + 1e-6));
  // The first id that is kept passes every filter: its score is a first floor for all parts.
  const int best = kept.first ? id_of(kept.first) : row.best();
  const Words words = token_words(ask.seed, ask.position, static_cast<uint64_t>(best / 4));
  const Scored start{row.values[best] + ask.temperature * gumbel(words.at[best % 4]), best};
  std::vector<std::vector<Scored>> found(row.split.parts());
  const bool heavy = kept.last == kLastKey && kept.min_p <= 0.0;  // noise for most ids
  row.split.ranges(row.groups(), heavy, [&](int part, int first, int end) {
    if (count == 1) found[part].push_back(start);
    scan(row, ask, kept, count, first, end, lowest, found[part]);
  });
  std::vector<Scored> merged;
  for (const auto& part : found) merged.insert(merged.end(), part.begin(), part.end());
  std::sort(merged.begin(), merged.end(), stronger);
  merged.resize(std::min<size_t>(merged.size(), count));
  return merged;
}

bool changed(const Ask& ask) { return ask.num_edits || ask.values != ask.raw; }

// A row after its edits, whose own faults have names of their own.
LogitRow processed(const Loops& loops, const Split& split, const float* values, int size) {
  LogitRow row(loops, split, values, size);
  if (row.fault == Fault::kNonFinite) row.fault = Fault::kOverflowed;
  if (row.fault == Fault::kAllMasked) row.fault = Fault::kNoneLeft;
  return row;
}

// Calls body(raw row, row to choose from) unless one of them has a fault; returns it.
template <typename Body>
Fault with_rows(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size,
                const Body& body) {
  const LogitRow raw(loops, split, ask.raw, size);
  if (raw.fault != Fault::kNone) return raw.fault;
  if (!changed(ask)) {
    body(raw, raw);
    return Fault::kNone;
  }
  const float* values = edited(ask.values, size, edits + ask.first_edit, ask.num_edits);
  const LogitRow row = processed(loops, split, values, size);
  if (row.fault == Fault::kNone) body(raw, row);
  return row.fault;
}

Answer choose(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size) {
  Answer answer;
  answer.fault = with_rows(loops, split, ask, edits, size, [&](const LogitRow& raw,
                                                               const LogitRow& row) {
    answer.token = ask.temperature == 0.0 ? row.best() : strongest(row, ask, 1)[0].id;
    if (ask.logprobs < 0) return;
    const Logprobs logprobs(raw);
    answer.logprob = logprobs.of(raw.values[answer.token]);
    if (ask.logprobs > 0)
      for (Key key : first_unmasked(raw, static_cast<int>(std::min<int64_t>(ask.logprobs, size))))
        answer.top.emplace_back(id_of(key), logprobs.of(value_of(key)));
  });
  return answer;
}

}  // namespace

const Loops* find_loops(const char* isa) {
  const Ops* ops = find_ops(isa);
  if (!ops) return nullptr;
  if (ops == &ops_portable()) return &loops_portable();
#if defined(FOREWORD_AVX2)
  if (ops == &ops_avx2()) return &loops_avx2();
#endif
#if defined(FOREWORD_AVX512)
  return &loops_avx512();
#endif
  return &loops_portable();
}

std::vector<Answer> choose_rows(const Loops& loops, Pool& pool, const std::vector<Ask>& asks,
                                const std::vector<Edit>& edits, int size) {
  std::vector<Answer> answers(asks.size());
  if (asks.size() == 1) {
    FloatState state;
    answers[0] = choose(loops, Split(&pool), asks[0], edits.data(), size);
    return answers;
  }
  each_row(pool, asks.size(), [&](size_t row) {
    answers[row] = choose(loops, Split(nullptr), asks[row], edits.data(), size);
  });
  return answers;
}

Fault rank(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size,
           int count, std::vector<Scored>& found) {
  return with_rows(loops, split, ask, edits, size, [&](const LogitRow&, const LogitRow& row) {
    found = strongest(row, ask, count);
  });
}

Fault open_row(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size,
               float* out) {
  return with_rows(loops, split, ask, edits, size, [&](const LogitRow&, const LogitRow& row) {
    if (ask.temperature == 0.0) {
      std::copy(row.values, row.values + size, out);
      return;
    }
    std::fill(out, out + size, kMasked);
    for (const Item& item : kept_items(row, ask.temperature, kept(row, ask)))
      out[id_of(item.key)] = row.values[id_of(item.key)];
  });
}

Fault surprise(const Loops& loops, const Split& split, const Ask& ask, const Edit* edits, int size,
               int token, double& bits) {
  return with_rows(loops, split, ask, edits, size, [&](const LogitRow&, const LogitRow& row) {
    bits = surprise(row, ask.temperature, kept(row, ask), token);
  });
}

int top_k(const Loops& loops, Pool& pool, const float* values, int rows, int size, int k,
          int32_t* ids, float* out) {
  std::atomic<int> bad{-1};
  each_row(pool, rows, [&](size_t index) {
    const LogitRow row(loops, Split(nullptr), values + index * size, size);
    const auto nan = [](float value) { return std::isnan(value); };
    if (row.fault == Fault::kNonFinite && std::any_of(row.values, row.values + size, nan)) {
      int seen = bad;
      while ((seen < 0 || static_cast<int>(index) < seen) &&
             !bad.compare_exchange_weak(seen, static_cast<int>(index))) {
      }
      return;
    }
    size_t place = index * k;
    for (Key key : first_keys(row, k)) {
      ids[place] = id_of(key);
      out[place++] = row.values[id_of(key)];
    }
  });
  return bad;
}

void gumbel_noise(uint64_t seed, uint64_t position, const int64_t* ids, size_t count,
                  double* out) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t id = static_cast<uint64_t>(ids[i]);
    out[i] = gumbel(token_words(seed, position, id / 4).at[id % 4]);
  }
}

void log_softmax(const Loops& loops, Pool& pool, const float* values, int rows, int size,
                 const int64_t* ids, double* out) {
  each_row(pool, rows, [&](size_t index) {
    const LogitRow row(loops, Split(nullptr), values + index * size, size);
    out[index] = row.fault == Fault::kNone ? Logprobs(row).of(row.values[ids[index]]) : std::nan("");
  });
}

}  // namespace foreword
