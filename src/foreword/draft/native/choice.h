// The choice of tree/goodput.py in compiled code.
#pragma once
#include <utility>
#include <vector>

namespace foreword::draft {

// One sequence's candidates: parents (-1 = the root), scores and tokens of a trie.
struct Candidates {
  int root, limit;
  double weight;
  std::vector<int> parents, tokens;
  std::vector<double> scores;
};

// Seconds of a step with 0, 1, ... nodes (empty: free), and what a node of each row adds.
struct Prices {
  int total;
  std::vector<double> costs, row_costs;
  double rate;
};

// (row, node of its trie) in order of worth; parents before children.
std::vector<std::pair<int, int>> choose_nodes(const std::vector<Candidates>& batch,
                                              const Prices& prices);

}  // namespace foreword::draft
