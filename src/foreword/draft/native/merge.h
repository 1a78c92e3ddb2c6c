// draft/_merge.py in compiled code. Sources and owners are numbers here.
#pragma once
#include <utility>
#include <vector>

#include "calibration.h"
#include "found.h"

namespace foreword::draft {

class Merged {
 public:
  // One guess: returns its node. `parent`: a node, -1 = the root.
  int add(int parent, int token, int source, int owner, int kind, int evidence, double score,
          const Calibration& calibration, const Trust& trust);
  // Once every guess has been added. mix, chosen: the numbers under which combined chances, and
  // those of verified nodes, are calibrated.
  void combine(int kind, int mix, int chosen, const Calibration& calibration, const Trust& trust);
  // The `budget` nodes of highest reach; evidence: the number of the surest source.
  Found best(int budget) const;
  // The target emitted these tokens; the tree that was verified, node 0 its root.
  void learn(const std::vector<int>& emitted, const std::vector<int>& tree_tokens,
             const std::vector<int>& tree_parents, int chosen, Calibration& calibration,
             Trust& trust) const;
  // Shares of the emitted tokens that were guessed, by owner, in order of the first.
  std::vector<std::pair<int, double>> credit(const std::vector<int>& emitted) const;

 private:
  struct Vote {
    int source, owner;
    double score;
    Chance said;
  };
  struct Node {
    int token, parent, depth;
    std::vector<Vote> votes;
    std::vector<int> children;
    double mixed = 0.0;       // combined chance
    Chance said{0.0, {}};     // calibrated
    Chance chosen{0.0, {}};   // and once more, as what it is if it is verified
  };

  const std::vector<int>& children(int node) const {
    return node < 0 ? top_ : nodes_[node].children;
  }
  int child(int node, int token) const;
  void order(std::vector<int>& siblings, int kind, int mix, const Calibration& calibration);

  std::vector<Node> nodes_;
  std::vector<int> top_;  // children of the root
};

}  // namespace foreword::draft
