#include "recycle.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>

namespace foreword::draft {
namespace {

// As in recycle.py and _noise.py, which say what they mean.
constexpr double TRUST[] = {0.35, 0.6, 0.75, 0.85};
constexpr double OTHERS = 0.1;
constexpr double LOWEST = 1e-4;
constexpr uint64_t BASE = 1u << 21;
const double MEDIAN = 1.0 / std::log(2.0);

struct Ways {
  int count = 0;
  std::array<int, MOST_IDS> ids;
  std::array<double, MOST_IDS> scores;
};

struct Entry {
  double likely;
  int order;  // of discovery
  int parent, level;
  Keys above;
  double outer;  // reach of the parent
  const Ways* ways;
  int evidence;
};

struct Later {
  bool operator()(const Entry& a, const Entry& b) const {
    return a.likely != b.likely ? a.likely < b.likely : a.order > b.order;
  }
};

void cool(Ways& ways, double temperature) {
  double top = 0.0, total = 0.0;
  for (int at = 0; at < ways.count; ++at) top = std::max(top, ways.scores[at]);
  if (temperature == 1.0 || top <= 0.0) return;
  for (int at = 0; at < ways.count; ++at)
    total += ways.scores[at] = std::pow(ways.scores[at] / top, 1.0 / temperature);
  for (int at = 0; at < ways.count; ++at) ways.scores[at] *= 1.0 / total;
}

// under_noise of _noise.py, then the likeliest first.
void rank(Ways& ways, const Noise& noise, int level) {
  const std::vector<int> ids(ways.ids.begin(), ways.ids.begin() + ways.count);
  const std::vector<double> heights = noise(level, ids);
  std::vector<double> chances(ways.count);
  double total = 0.0;
  for (int at = 0; at < ways.count; ++at)
    total += chances[at] = ways.scores[at] * (1.0 - OTHERS) * std::exp(heights[at]);
  total += MEDIAN * OTHERS;
  std::vector<int> order(ways.count);
  for (int at = 0; at < ways.count; ++at) {
    chances[at] = total > 0.0 ? chances[at] / total : ways.scores[at] * (1.0 - OTHERS);
    order[at] = at;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return chances[a] > chances[b]; });
  for (int at = 0; at < ways.count; ++at) {
    ways.ids[at] = ids[order[at]];
    ways.scores[at] = chances[order[at]];
  }
}

// What may follow, and how many tokens of the context say so; no ways: nothing is known.
Ways ways_on(const Recycling& from, const Keys& keys, int token, int level, int& size) {
  Row row;
  size = from.table ? from.table->find(keys, row) : 0;
  Ways ways;
  if (size) {
    ways.count = row.count;
    std::copy_n(row.ids.begin(), row.count, ways.ids.begin());
    std::copy_n(row.shares.begin(), row.count, ways.scores.begin());
  } else if (token < from.known) {
    ways.count = from.width;
    std::copy_n(from.cold_ids + token * from.width, from.width, ways.ids.begin());
    std::copy_n(from.cold_shares + token * from.width, from.width, ways.scores.begin());
  }
  if (!ways.count) return ways;
  if (from.temperature > 0.0) {
    cool(ways, from.temperature);
    if (from.noise) rank(ways, from.noise, level);
  }
  for (int at = 0; at < ways.count; ++at) ways.scores[at] *= TRUST[size];
  return ways;
}

}  // namespace

Keys Keys::follow(int token) const {
  const uint64_t digit = static_cast<uint64_t>(token) + 1;
  Keys next;
  next.of[0] = digit;
  next.count = std::min(count + 1, 3);
  for (int at = 1; at < next.count; ++at) next.of[at] = of[at - 1] * BASE + digit;
  return next;
}

void ContextTable::learn(const Keys& context, const Row& row) {
  const int place = static_cast<int>(next_);
  Keys& old = contexts_[next_];
  for (int at = 0; at < old.count; ++at) {
    const auto known = places_.find(old.of[at]);
    if (known != places_.end() && known->second == place) places_.erase(known);
  }
  for (int at = 0; at < context.count; ++at) places_[context.of[at]] = place;
  old = context;
  rows_[next_] = row;
  next_ = (next_ + 1) % rows_.size();
}

int ContextTable::find(const Keys& context, Row& row) const {
  for (int size = context.count; size > 0; --size) {
    const auto known = places_.find(context.of[size - 1]);
    if (known != places_.end()) {
      row = rows_[known->second];
      return size;
    }
  }
  return 0;
}

Found recycle_draft(const Recycling& from, const std::vector<int>& last, int budget, int depth) {
  Found found;
  Keys keys;
  for (const int token : last) keys = keys.follow(token);
  int token = last.back(), order = 0, node = -1, level = 0;
  double reach = 1.0;
  std::deque<Ways> kept;  // entries point into it
  std::priority_queue<Entry, std::vector<Entry>, Later> frontier;
  while (true) {
    if (level < depth) {
      int size = 0;
      Ways ways = ways_on(from, keys, token, level, size);
      if (ways.count) {
        kept.push_back(ways);
        frontier.push({reach * ways.scores[0], ++order, node, level, keys, reach, &kept.back(),
                       16 * size});
      }
    }
    if (frontier.empty() || found.size() == budget) return found;
    Entry entry = frontier.top();
    frontier.pop();
    const int place = entry.evidence % 16;
    token = entry.ways->ids[place];
    node = found.add(entry.parent, token, entry.ways->scores[place], entry.evidence);
    reach = entry.likely;
    level = entry.level + 1;
    keys = entry.above.follow(token);
    if (place + 1 < entry.ways->count && entry.ways->scores[place + 1] >= LOWEST) {
      entry.likely = entry.outer * entry.ways->scores[place + 1];
      entry.order = ++order;
      ++entry.evidence;
      frontier.push(entry);
    }
  }
}

}  // namespace foreword::draft
