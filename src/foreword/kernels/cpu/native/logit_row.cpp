#include "logit_row.h"

#include <algorithm>

namespace foreword {

void Split::ranges(int count, bool heavy, const std::function<void(int, int, int)>& body) const {
  if (!heavy) return body(0, 0, count);
  const int64_t all = parts();
  run([&](int part) {
    body(part, static_cast<int>(count * part / all), static_cast<int>(count * (part + 1) / all));
  });
}

LogitRow::LogitRow(const Loops& loops, const Split& split, const float* values, int size)
    : loops(loops), split(split), values(values), size(size), maxima((size + kGroup - 1) / kGroup) {
  std::vector<char> sound(split.parts(), 1);
  split.ranges(groups(), size >= kAlone, [&](int part, int first, int last) {
    sound[part] = loops.maxima(values, size, first, last, maxima.data());
  });
  if (std::count(sound.begin(), sound.end(), 1) != split.parts()) {
    fault = Fault::kNonFinite;
    return;
  }
  peak = *std::max_element(maxima.begin(), maxima.end());
  if (peak == kMasked) fault = Fault::kAllMasked;
}

int LogitRow::best() const {
  const auto group = std::find(maxima.begin(), maxima.end(), peak) - maxima.begin();
  return static_cast<int>(std::find(values + group * kGroup, values + size, peak) - values);
}

std::vector<Key> LogitRow::collect(float lowest, Key last) const {
  std::vector<Key> keys;
  for (int group = 0; group < groups(); ++group) {
    if (maxima[group] < lowest) continue;
    const int stop = std::min(size, (group + 1) * kGroup);
    for (int id = group * kGroup; id < stop; ++id) {
      if (values[id] < lowest || values[id] == kMasked) continue;
      const Key key = key_of(values[id], id);
      if (key <= last) keys.push_back(key);
    }
  }
  return keys;
}

// The k-th highest of the groups' maxima is a floor: k ids at least are not below it.
Key LogitRow::first(int64_t k) const {
  float lowest = kMasked;
  if (k <= groups()) {
    std::vector<float> order = maxima;
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
    lowest = order[k - 1];
  }
  std::vector<Key> keys = collect(lowest, kLastKey);
  if (static_cast<int64_t>(keys.size()) < k) return kLastKey;
  std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
  return keys[k - 1];
}

double LogitRow::total(double temperature) const {
  std::vector<double> sums((size + kBlock - 1) / kBlock);
  split.ranges(static_cast<int>(sums.size()), true, [&](int, int first, int last) {
    loops.block_sums(values, size, first, last, peak, temperature, sums.data());
  });
  double total = sums[0];
  for (size_t block = 1; block < sums.size(); ++block) total += sums[block];
  return total;
}

double LogitRow::rough_total(double temperature) const {
  const float inverse = static_cast<float>(1.0 / std::max(temperature, 1e-30));
  std::vector<double> sums(split.parts());
  split.ranges(size, size >= kAlone, [&](int part, int first, int last) {
    sums[part] = loops.rough(values + first, last - first, peak, inverse);
  });
  double total = 0.0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace foreword
