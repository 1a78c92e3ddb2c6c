// draft/_automaton.py in compiled code: see there for what a state is and what is counted.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace foreword::draft {

constexpr int ROOT = 0;

// A way on from a state. The latest of a state has the highest stamp.
struct Edge {
  int token;
  int state;
  uint64_t stamp;
};

struct Match {
  int state = ROOT;
  int length = 0;
};

class SuffixAutomaton {
 public:
  SuffixAutomaton() { add(0, {}, -1); }

  // The state of the text of state `last` and `token`.
  int extend(int last, int token);

  // From a context to the longest known one that ends with `token`.
  Match step(Match from, int token) const;

  const std::vector<Edge>& following(int state) const { return edges_[state]; }
  int link(int state) const { return link_[state]; }
  int size(int state) const { return size_[state]; }
  int count(int state) const { return count_[state]; }
  const std::vector<int>& counts() const { return count_; }
  int num_states() const { return static_cast<int>(link_.size()); }
  int num_tokens() const { return num_tokens_; }

 private:
  int add(int size, std::vector<Edge> following, int link);
  int exact(int state, int token);
  void count_ends(int last, int current, int token);
  const Edge* find(int state, int token) const;
  Edge* find(int state, int token) {
    return const_cast<Edge*>(static_cast<const SuffixAutomaton*>(this)->find(state, token));
  }
  void insert(int state, int token, int after);

  std::vector<std::vector<Edge>> edges_;
  std::vector<int> link_, size_, count_;
  std::unordered_map<int, int> from_root_;  // token -> place among the many ways on from the root
  uint64_t clock_ = 0;
  int num_tokens_ = 0;
};

}  // namespace foreword::draft
