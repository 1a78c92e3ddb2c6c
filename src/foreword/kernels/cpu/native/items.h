// Ids of a row with their weights, for filters that look at more than an order.
#pragma once
#include <algorithm>
#include <vector>

#include "logit_row.h"

namespace foreword {

struct Item {
  Key key;
  double weight;  // exp((value - peak) / temperature), the portable one
};

inline std::vector<Item> weigh(const LogitRow& row, const std::vector<Key>& keys,
                               double temperature) {
  std::vector<float> values(keys.size());
  std::transform(keys.begin(), keys.end(), values.begin(), value_of);
  std::vector<double> weights(keys.size());
  row.loops.weights(values.data(), static_cast<int>(keys.size()), row.peak, temperature,
                    weights.data());
  std::vector<Item> items(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) items[i] = {keys[i], weights[i]};
  return items;
}

// portable.block_sum of value(item) over items with ascending ids, all others being zero.
template <typename Value>
double sparse_sum(const std::vector<Item>& items, const Value& value) {
  double total = 0.0, sum = 0.0;
  int block = 0;
  for (const Item& item : items) {
    if (id_of(item.key) / kBlock != block) {
      total += sum;
      sum = 0.0;
      block = id_of(item.key) / kBlock;
    }
    sum += value(item);
  }
  return total + sum;
}

inline double sparse_total(const std::vector<Item>& items) {
  return sparse_sum(items, [](const Item& item) { return item.weight; });
}

}  // namespace foreword
