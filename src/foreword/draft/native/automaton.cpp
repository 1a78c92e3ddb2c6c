#include "automaton.h"

#include <utility>

namespace foreword::draft {
namespace {

constexpr int COUNTED = 24;  // links walked per token, as in _automaton.py

}  // namespace

int SuffixAutomaton::extend(int last, int token) {
  int current;
  if (find(last, token)) {
    current = exact(last, token);
  } else {
    current = add(size_[last] + 1, {}, ROOT);
    int state = last;
    while (state >= 0 && !find(state, token)) {
      insert(state, token, current);
      state = link_[state];
    }
    if (state >= 0) {
      const int other = exact(state, token);
      link_[current] = other;
    }
  }
  ++num_tokens_;
  count_ends(last, current, token);
  return current;
}

Match SuffixAutomaton::step(Match from, int token) const {
  const Edge* edge = find(from.state, token);
  while (from.state > ROOT && !edge) {
    from.state = link_[from.state];
    from.length = size_[from.state];
    edge = find(from.state, token);
  }
  return edge ? Match{edge->state, from.length + 1} : Match{};
}

int SuffixAutomaton::add(int size, std::vector<Edge> following, int link) {
  edges_.push_back(std::move(following));
  link_.push_back(link);
  size_.push_back(size);
  count_.push_back(0);
  return num_states() - 1;
}

int SuffixAutomaton::exact(int state, int token) {
  const int after = find(state, token)->state;
  const int size = size_[state] + 1;
  if (size_[after] == size) return after;
  const int split = add(size, edges_[after], link_[after]);
  count_[split] = count_[after];
  link_[after] = split;
  while (state >= 0) {
    Edge* edge = find(state, token);
    if (!edge || edge->state != after) break;
    edge->state = split;
    state = link_[state];
  }
  return split;
}

void SuffixAutomaton::count_ends(int last, int current, int token) {
  for (int left = COUNTED; current > ROOT && left; --left) {
    ++count_[current];
    current = link_[current];
  }
  for (int left = COUNTED; last >= ROOT && left; --left) {
    if (edges_[last].size() > 1) find(last, token)->stamp = ++clock_;
    last = link_[last];
  }
}

const Edge* SuffixAutomaton::find(int state, int token) const {
  const std::vector<Edge>& edges = edges_[state];
  if (state == ROOT) {
    const auto found = from_root_.find(token);
    return found == from_root_.end() ? nullptr : &edges[found->second];
  }
  for (const Edge& edge : edges)
    if (edge.token == token) return &edge;
  return nullptr;
}

void SuffixAutomaton::insert(int state, int token, int after) {
  if (state == ROOT) from_root_.emplace(token, static_cast<int>(edges_[ROOT].size()));
  edges_[state].push_back({token, after, ++clock_});
}

}  // namespace foreword::draft
