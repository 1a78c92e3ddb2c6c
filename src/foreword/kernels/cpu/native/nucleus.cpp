// As sample/filters.nucleus: approximate sums decide where their error cannot matter, the sums of
// the definition where it could.
#include "nucleus.h"

#include <algorithm>
#include <cmath>

#include "items.h"

namespace foreword {
namespace {

constexpr double kHeads[] = {6.0, 8.0, 10.0, 14.0, HUGE_VAL};  // nats below the highest
constexpr double kClose = 1e-9;  // error of an exact total summed in another order, and room

constexpr size_t kMany = 4096;   // items worth a pass that spares others

double sum_of(const std::vector<Item>& items, size_t first, size_t last) {
  double sum = 0.0;
  for (size_t i = first; i < last; ++i) sum += items[i].weight;
  return sum;
}

// Brings the items of the range of keys in which the weights reach `goal` to the front of all;
// returns how many, and the weight of all before them. One pass over many items, where a selection
// would take several.
size_t bracket(std::vector<Item>& items, double goal, double& before) {
  constexpr int kBits = 11;
  Key low = kLastKey, high = 0;
  for (const Item& item : items) low = std::min(low, item.key), high = std::max(high, item.key);
  int shift = 0;
  while ((high - low) >> shift >> kBits) ++shift;
  double sums[1 << kBits] = {0.0};
  for (const Item& item : items) sums[(item.key - low) >> shift] += item.weight;
  Key bucket = 0;
  before = 0.0;
  while (bucket + 1 < (1 << kBits) && before + sums[bucket] < goal) before += sums[bucket++];
  return std::partition(items.begin(), items.end(),
                        [&](const Item& item) { return (item.key - low) >> shift == bucket; }) -
         items.begin();
}

// The first key at which the weights, in the order, reach `goal`; kLastKey if an error of `slack`
// could move it. Reorders the items: a selection, not a sort.
Key clear_cut(std::vector<Item>& items, double goal, double slack) {
  size_t low = 0, high = items.size();
  double before = 0.0;  // weight of [0, low)
  if (items.size() > kMany) high = bracket(items, goal, before);
  const auto earlier = [](const Item& x, const Item& y) { return x.key < y.key; };
  while (low < high) {
    std::swap(items[low + (high - low) / 2], items[high - 1]);
    const Item pivot = items[high - 1];
    const auto begin = items.begin();
    const size_t middle = std::partition(begin + low, begin + high - 1,
                                         [&](const Item& x) { return earlier(x, pivot); }) -
                          begin;
    std::swap(items[middle], items[high - 1]);
    const double reached = before + sum_of(items, low, middle);
    if (reached >= goal) {
      high = middle;
    } else if (reached + pivot.weight >= goal) {
      const bool clear = reached < goal * (1.0 - slack) &&
                         reached + pivot.weight >= goal * (1.0 + slack);
      return clear ? pivot.key : kLastKey;
    } else {
      before = reached + pivot.weight;
      low = middle + 1;
    }
  }
  return kLastKey;
}

// The definition.
Key exact_cut(std::vector<Item>& items, double total, double top_p) {
  std::sort(items.begin(), items.end(),
            [](const Item& x, const Item& y) { return x.key < y.key; });
  double running = 0.0;
  for (const Item& item : items) {
    running += item.weight / total;
    if (running >= top_p) return item.key;
  }
  return items.back().key;
}

}  // namespace

float within(double peak, double temperature, double nats) {
  const double lowest = peak - temperature * nats - std::fabs(peak) * 1e-12;
  if (!(lowest >= -3e38)) return kMasked;
  return std::nextafter(static_cast<float>(lowest), kMasked);
}

Key nucleus(const LogitRow& row, double temperature, double top_p, Key last, double least) {
  std::vector<Item> items;
  double total, slack = kClose;
  if (last != kLastKey) {
    items = weigh(row, row.collect(value_of(last), last), temperature);
    total = sparse_total(items);
  } else {
    const bool hot = temperature > kHottest;
    total = hot ? row.total(temperature) : row.rough_total(temperature);
    slack = hot ? kClose : kRough;
    if (least > 0.0) {
      const float lowest = within(row.peak, temperature, -std::log(least) + 1e-6);
      items = weigh(row, row.collect(lowest, kLastKey), temperature);
      if (sum_of(items, 0, items.size()) < top_p * total * (1.0 - 2.0 * kRough)) return last;
    }
    for (double nats : kHeads) {
      items = weigh(row, row.collect(within(row.peak, temperature, nats), kLastKey), temperature);
      // The prefix may be longer than this head, unless:
      if (sum_of(items, 0, items.size()) >= top_p * total * (1.0 + kRough)) break;
    }
    if (!hot && items.size() > kMany) {  // weights so small that a rough total settles nothing
      total = row.total(temperature);
      slack = kClose;
    }
  }
  Key cut = clear_cut(items, top_p * total, slack);
  if (cut == kLastKey && slack == kRough) {
    total = row.total(temperature);
    cut = clear_cut(items, top_p * total, kClose);
  }
  return cut == kLastKey ? exact_cut(items, total, top_p) : cut;
}

}  // namespace foreword
