#include "merge.h"

#include <algorithm>
#include <numeric>

namespace foreword::draft {
namespace {

// As in _merge.py, which says what they mean.
constexpr double SURE = 0.98;
constexpr int AGREEING = 3, PLACES = 4;

}  // namespace

int Merged::add(int parent, int token, int source, int owner, int kind, int evidence, double score,
                const Calibration& calibration, const Trust& trust) {
  int node = child(parent, token);
  if (node < 0) {
    node = static_cast<int>(nodes_.size());
    (parent < 0 ? top_ : nodes_[parent].children).push_back(node);
    Node fresh;
    fresh.token = token;
    fresh.parent = parent;
    fresh.depth = parent < 0 ? 1 : nodes_[parent].depth + 1;
    nodes_.push_back(std::move(fresh));
  }
  const Chance said = calibration.chance(source, kind, nodes_[node].depth, evidence, score,
                                         trust.of(source));
  nodes_[node].votes.push_back({source, owner, score, said});
  return node;
}

void Merged::combine(int kind, int mix, int chosen, const Calibration& calibration,
                     const Trust& trust) {
  for (Node& node : nodes_) {
    node.mixed = node.votes[0].said.chance;
    for (const Vote& vote : node.votes) node.mixed = std::max(node.mixed, vote.said.chance);
  }
  order(top_, kind, mix, calibration);
  for (Node& node : nodes_) order(node.children, kind, mix, calibration);
  for (Node& node : nodes_)
    node.chosen =
        calibration.chance(chosen, kind, node.depth, 0, node.said.chance, trust.of(chosen));
}

void Merged::order(std::vector<int>& siblings, int kind, int mix, const Calibration& calibration) {
  if (siblings.size() > 1) {
    double total = 0.0;
    for (const int node : siblings) total += nodes_[node].mixed;
    if (total > SURE)
      for (const int node : siblings) nodes_[node].mixed *= SURE / total;
    std::stable_sort(siblings.begin(), siblings.end(),
                     [&](int a, int b) { return nodes_[a].mixed > nodes_[b].mixed; });
  }
  for (int place = 0; place < static_cast<int>(siblings.size()); ++place) {
    Node& node = nodes_[siblings[place]];
    const int agreeing = std::min(static_cast<int>(node.votes.size()), AGREEING);
    node.said = calibration.chance(mix, 2 * agreeing + kind, node.depth, std::min(place, PLACES),
                                   node.mixed, 1.0);
  }
}

Found Merged::best(int budget) const {
  const int size = static_cast<int>(nodes_.size());
  std::vector<double> reach(size);
  for (int node = 0; node < size; ++node) {
    const Node& one = nodes_[node];
    reach[node] = one.chosen.chance * (one.parent < 0 ? 1.0 : reach[one.parent]);
  }
  std::vector<int> kept(size);
  std::iota(kept.begin(), kept.end(), 0);
  if (size > budget) {
    std::stable_sort(kept.begin(), kept.end(),
                     [&](int a, int b) { return reach[a] > reach[b]; });
    kept.resize(std::max(budget, 0));
    std::sort(kept.begin(), kept.end());
  }
  Found found;
  std::vector<int> moved(size, -1);
  for (const int node : kept) {
    const Node& one = nodes_[node];
    const Vote* surest = &one.votes[0];
    for (const Vote& vote : one.votes)
      if (vote.said.chance > surest->said.chance) surest = &vote;
    moved[node] = found.add(one.parent < 0 ? -1 : moved[one.parent], one.token, one.chosen.chance,
                            surest->source);
  }
  return found;
}

void Merged::learn(const std::vector<int>& emitted, const std::vector<int>& tree_tokens,
                   const std::vector<int>& tree_parents, int chosen, Calibration& calibration,
                   Trust& trust) const {
  int node = -1, place = 0;  // in the tree, -1 = no longer there
  for (const int token : emitted) {
    int next = -1;
    for (const int one : children(node)) {
      const Node& guess = nodes_[one];
      const bool right = guess.token == token;
      for (const Vote& vote : guess.votes) {
        calibration.learn(vote.said.cell, vote.score, vote.said.chance, right);
        calibration.adapt(trust, vote.source, vote.said.chance, right);
      }
      calibration.learn(guess.said.cell, guess.mixed, guess.said.chance, right);
      for (int at = 1; place >= 0 && at < static_cast<int>(tree_tokens.size()); ++at)
        if (tree_parents[at] == place && tree_tokens[at] == guess.token) {
          calibration.learn(guess.chosen.cell, guess.said.chance, guess.chosen.chance, right);
          calibration.adapt(trust, chosen, guess.chosen.chance, right);
          if (right) next = at;
          break;
        }
    }
    node = child(node, token);
    place = next;
    if (node < 0) return;
  }
}

std::vector<std::pair<int, double>> Merged::credit(const std::vector<int>& emitted) const {
  std::vector<std::pair<int, double>> shares;
  int node = -1;
  for (const int token : emitted) {
    node = child(node, token);
    if (node < 0) break;
    const std::vector<Vote>& votes = nodes_[node].votes;
    for (const Vote& vote : votes) {
      auto known = std::find_if(shares.begin(), shares.end(),
                                [&](const auto& share) { return share.first == vote.owner; });
      if (known == shares.end()) known = shares.insert(known, {vote.owner, 0.0});
      known->second += 1.0 / static_cast<double>(votes.size());
    }
  }
  return shares;
}

int Merged::child(int node, int token) const {
  for (const int one : children(node))
    if (nodes_[one].token == token) return one;
  return -1;
}

}  // namespace foreword::draft
