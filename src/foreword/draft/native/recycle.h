// draft/_table.py and the search of draft/recycle.py in compiled code.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "found.h"

namespace foreword::draft {

constexpr int MOST_IDS = 16;  // of a row

// What the target would have said, best first.
struct Row {
  int count = 0;
  std::array<int, MOST_IDS> ids;
  std::array<float, MOST_IDS> shares;
};

// Numbers of a context: its last token, its last two, its last three.
struct Keys {
  int count = 0;
  std::array<uint64_t, 3> of{};

  Keys follow(int token) const;
};

class ContextTable {
 public:
  explicit ContextTable(int capacity) : rows_(capacity), contexts_(capacity) {}

  void learn(const Keys& context, const Row& row);
  // Tokens of the longest known context, 0 = none; its row.
  int find(const Keys& context, Row& row) const;

 private:
  std::vector<Row> rows_;
  std::vector<Keys> contexts_;
  std::unordered_map<uint64_t, int> places_;
  size_t next_ = 0;
};

// The noise of some ids at a position after the output; empty: no noise.
using Noise = std::function<std::vector<double>(int level, const std::vector<int>& ids)>;

struct Recycling {
  const ContextTable* table;     // or null
  const int32_t* cold_ids;       // [known, width]: bigrams
  const float* cold_shares;      // [known, width]
  int64_t known;
  int width;
  double temperature;
  Noise noise;
};

// The `budget` nodes of highest reach after a history that ends with `last` (up to three tokens).
Found recycle_draft(const Recycling& from, const std::vector<int>& last, int budget, int depth);

}  // namespace foreword::draft
