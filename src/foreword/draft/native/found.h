// What a source guesses, as the columns of a trie (types.Trie): topological, parent -1 = the root.
#pragma once
#include <vector>

namespace foreword::draft {

struct Found {
  std::vector<int> tokens, parents, evidence;
  std::vector<double> scores;

  int size() const { return static_cast<int>(tokens.size()); }
  int add(int parent, int token, double score, int reason) {
    tokens.push_back(token);
    parents.push_back(parent);
    scores.push_back(score < 1e-9 ? 1e-9 : score > 1.0 ? 1.0 : score);
    evidence.push_back(reason);
    return size() - 1;
  }
};

}  // namespace foreword::draft
