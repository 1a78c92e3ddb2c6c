#include "choice.h"

#include <algorithm>
#include <tuple>

namespace foreword::draft {
namespace {

struct Candidate {
  double worth;  // negative
  int depth, token, root, row, node;

  bool operator<(const Candidate& other) const {
    return std::tie(worth, depth, token, root, row, node) <
           std::tie(other.worth, other.depth, other.token, other.root, other.row, other.node);
  }
};

std::vector<Candidate> ranked(const std::vector<Candidates>& batch, int total) {
  std::vector<Candidate> found;
  for (int row = 0; row < static_cast<int>(batch.size()); ++row) {
    const Candidates& one = batch[row];
    if (one.limit < 1 || total < 1) continue;
    const size_t first = found.size();
    for (int node = 0; node < static_cast<int>(one.tokens.size()); ++node) {
      const int parent = one.parents[node];
      const double above = parent < 0 ? -one.weight : found[first + parent].worth;
      const int depth = parent < 0 ? 1 : found[first + parent].depth + 1;
      found.push_back({above * one.scores[node], depth, one.tokens[node], one.root, row, node});
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

size_t best_size(const std::vector<Candidate>& order, const std::vector<Candidates>& batch,
                 const Prices& prices) {
  if (prices.costs.empty()) return order.size();
  double tokens = 0.0, extra = 0.0;
  for (const Candidates& one : batch) tokens += one.weight;
  double rate = std::max(prices.rate, tokens / prices.costs[0]);
  double best = tokens - rate * prices.costs[0];
  size_t size = 0;
  for (size_t count = 1; count <= order.size(); ++count) {
    const Candidate& next = order[count - 1];
    tokens -= next.worth;
    if (!prices.row_costs.empty()) extra += prices.row_costs[next.row];
    const double seconds = prices.costs[count] + extra;
    if (prices.rate == 0.0 && tokens > rate * seconds) {
      best = 0.0;
      size = count;
      rate = tokens / seconds;
    } else if (prices.rate != 0.0 && tokens - rate * seconds > best) {
      best = tokens - rate * seconds;
      size = count;
    }
  }
  return size;
}

}  // namespace

std::vector<std::pair<int, int>> choose_nodes(const std::vector<Candidates>& batch,
                                              const Prices& prices) {
  std::vector<Candidate> order = ranked(batch, prices.total);
  std::vector<int> left;
  for (const Candidates& one : batch) left.push_back(one.limit);
  std::vector<Candidate> kept;
  for (const Candidate& next : order) {
    if (static_cast<int>(kept.size()) == prices.total) break;
    if (!left[next.row]) continue;  // once full it takes nothing more
    --left[next.row];
    kept.push_back(next);
  }
  kept.resize(best_size(kept, batch, prices));
  std::vector<std::pair<int, int>> chosen;
  for (const Candidate& one : kept) chosen.emplace_back(one.row, one.node);
  return chosen;
}

}  // namespace foreword::draft
