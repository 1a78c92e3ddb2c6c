#include "filters.h"

#include <cmath>

#include "nucleus.h"
#include "philox.h"

namespace foreword {
namespace {

constexpr uint64_t kXtcStream = 3;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kExpFloor = -708.0;
constexpr size_t kHead = 512;  // items sorted at first
constexpr double kReach[] = {3.0, 6.0, 12.0, HUGE_VAL};  // nats around the mean
constexpr double kRoom = 1e-6;  // for the rounding of a bound

double scaled(double value, double peak, double temperature) {
  return (value - peak) / temperature;
}

struct Distant {
  double distance;
  Key key;
  double weight;
  bool operator<(const Distant& other) const {
    return distance < other.distance || (distance == other.distance && key < other.key);
  }
};

// The distance of the last item of the shortest prefix, by distance, whose probabilities reach
// `goal`; infinity where none does. Sorts as many as it needs.
double reach(std::vector<Distant>& all, double total, double goal) {
  for (size_t head = kHead;; head *= 8) {
    const size_t count = std::min(head, all.size());
    if (count < all.size()) std::nth_element(all.begin(), all.begin() + count, all.end());
    std::sort(all.begin(), all.begin() + count);
    double running = 0.0;
    for (size_t i = 0; i < count; ++i) {
      running += all[i].weight / total;
      if (running >= goal) return all[i].distance;
    }
    if (count == all.size()) return HUGE_VAL;
  }
}

// Whether every unmasked id is kept, so that sums run over the row itself.
bool whole(const Kept& kept) { return !kept.first && kept.last == kLastKey && kept.min_p <= 0.0; }

// block_sum of the weights w of what is kept, and of w * -s.
struct Sums {
  double total = 0.0, pull = 0.0;
};

double pull_of(double weight, double shift) { return weight > 0.0 ? weight * -shift : 0.0; }

Sums sums_of(const LogitRow& row, double temperature, const Kept& kept) {
  Sums sums;
  if (!whole(kept)) {
    const std::vector<Item> items = kept_items(row, temperature, kept);
    sums.total = sparse_total(items);
    sums.pull = sparse_sum(items, [&](const Item& item) {
      return pull_of(item.weight, scaled(value_of(item.key), row.peak, temperature));
    });
    return sums;
  }
  for (int first = 0; first < row.size; first += kBlock) {
    const int count = std::min(kBlock, row.size - first);
    double weights[kBlock], total = 0.0, pull = 0.0;
    row.loops.weights(row.values + first, count, row.peak, temperature, weights);
    for (int i = 0; i < count; ++i) {
      total += weights[i];
      pull += pull_of(weights[i], scaled(row.values[first + i], row.peak, temperature));
    }
    sums.total += total;
    sums.pull += pull;
  }
  return sums;
}

// As sample/typical.py.
Kept typical(const LogitRow& row, double temperature, double typical_p, const Kept& before) {
  const Sums sums = sums_of(row, temperature, before);
  const double mean = -(sums.pull / sums.total);
  std::vector<Distant> near;
  double farthest = HUGE_VAL;
  for (double nats : kReach) {  // all ids that are at most so far from the mean
    Kept around = before;
    const float lowest = within(row.peak, temperature, nats - mean);
    if (lowest > kMasked) around.last = std::min(before.last, key_of(lowest, row.size));
    near.clear();
    for (const Item& item : kept_items(row, temperature, around)) {
      const double shift = scaled(value_of(item.key), row.peak, temperature);
      const double distance = std::fabs(shift - mean);
      if (distance <= nats - kRoom) near.push_back({distance, item.key, item.weight});
    }
    farthest = near.empty() ? HUGE_VAL : reach(near, sums.total, typical_p);
    if (farthest < HUGE_VAL) break;
  }
  Kept after{kLastKey, 0, 0.0};
  for (const Distant& one : near) {
    if (!(one.distance <= farthest)) continue;
    after.first = std::min(after.first, one.key);
    after.last = std::max(after.last, one.key);
  }
  return after;
}

// As sample/xtc.py. Where the highest id is kept, the total is at least its weight, 1.
Kept exclude(const LogitRow& row, double temperature, double threshold, Kept kept) {
  const double total = whole(kept) ? row.total(temperature)
                                   : sparse_total(kept_items(row, temperature, kept));
  Kept top = kept;
  const float lowest = within(row.peak, temperature, -std::log(threshold) + kRoom);
  if (!kept.first && lowest > kMasked) top.last = std::min(kept.last, key_of(lowest, row.size));
  int likely = 0;
  Key last = 0;
  for (const Item& item : kept_items(row, temperature, top)) {
    if (!(item.weight / total >= threshold)) continue;
    ++likely;
    last = std::max(last, item.key);
  }
  if (likely > 1) kept.first = last;
  return kept;
}

bool strikes(const Ask& ask) {
  if (!(ask.xtc_probability > 0.0)) return false;
  return uniform(stream_word(ask.seed, kXtcStream, ask.position)) < ask.xtc_probability;
}

// As sample/mirostat.kept.
Kept calm(const LogitRow& row, double temperature, double mu) {
  const double scale = portable_log(row.total(temperature));
  const double nats = mu * kLn2 - scale;
  const float lowest = within(row.peak, temperature, nats + std::fabs(nats) * 1e-9 + 1e-6);
  Kept found;
  found.last = key_of(row.peak, row.best());
  for (Key key : row.collect(lowest, kLastKey))
    if ((scale - scaled(value_of(key), row.peak, temperature)) / kLn2 <= mu)
      found.last = std::max(found.last, key);
  return found;
}

}  // namespace

Kept kept(const LogitRow& row, const Ask& ask) {
  if (ask.mu < HUGE_VAL) return calm(row, ask.temperature, ask.mu);
  Kept found;
  if (ask.top_k > 0 && ask.top_k < row.size) found.last = row.first(ask.top_k);
  if (ask.top_p < 1.0) found.last = nucleus(row, ask.temperature, ask.top_p, found.last, ask.min_p);
  found.min_p = ask.min_p;
  if (ask.typical_p < 1.0) found = typical(row, ask.temperature, ask.typical_p, found);
  if (strikes(ask)) found = exclude(row, ask.temperature, ask.xtc_threshold, found);
  return found;
}

std::vector<Item> kept_items(const LogitRow& row, double temperature, const Kept& kept) {
  const float lowest = kept.last == kLastKey ? kMasked : value_of(kept.last);
  std::vector<Key> keys = row.collect(lowest, kept.last);
  keys.erase(std::remove_if(keys.begin(), keys.end(), [&](Key key) { return key < kept.first; }),
             keys.end());
  std::vector<Item> items = weigh(row, keys, temperature);
  if (kept.min_p > 0.0)
    items.erase(std::remove_if(items.begin(), items.end(),
                               [&](const Item& item) { return !(item.weight >= kept.min_p); }),
                items.end());
  return items;
}

double surprise(const LogitRow& row, double temperature, const Kept& kept, int token) {
  const double scale = portable_log(sparse_total(kept_items(row, temperature, kept)));
  const double shifted = scaled(row.values[token], row.peak, temperature);
  return (scale - std::max(shifted, kExpFloor)) / kLn2;
}

}  // namespace foreword
