#include "suffix.h"

#include <algorithm>
#include <queue>

namespace foreword::draft {
namespace {

// As in _ways.py and suffix.py, which say what they mean.
constexpr double TRUST[] = {0.0,  0.36, 0.57, 0.66, 0.72, 0.78, 0.81, 0.85, 0.87,
                            0.88, 0.89, 0.9,  0.91, 0.92, 0.93, 0.94, 0.95};
constexpr int LONGEST = 16;
constexpr int MOST = 31;
constexpr double SHORTER = 0.6;
constexpr int CONTEXTS = 3;
constexpr int WAYS = 8;
constexpr double WORTH = 0.03;
constexpr double STRANGER = 0.6;
constexpr double LOWEST = 1e-3;

struct Way {
  int token;
  double score;
  Match after;
  bool taken = false;  // by a way of the own text
};

void give(std::vector<Way>& ways, int token, double score, Match after) {
  for (Way& way : ways)
    if (way.token == token) {
      way.score += score;
      return;
    }
  ways.push_back({token, score, after});
}

// ways_on of _ways.py.
void ways_on(const SuffixAutomaton& automaton, Match match, std::vector<Way>& ways) {
  ways.clear();
  std::vector<Edge> latest;
  double left = 1.0;
  int contexts = CONTEXTS, state = match.state, matched = match.length;
  while (state > ROOT) {
    const std::vector<Edge>& following = automaton.following(state);
    if (!following.empty()) {
      const double trust = TRUST[std::min(matched, LONGEST)];
      const double share = left * trust;
      if (following.size() == 1) {
        give(ways, following[0].token, share, {following[0].state, matched + 1});
      } else {
        long total = 0;
        for (const Edge& edge : following) total += automaton.count(edge.state);
        if (!total) total = 1;
        latest = following;
        const size_t looked = std::min<size_t>(WAYS, latest.size());
        std::partial_sort(latest.begin(), latest.begin() + looked, latest.end(),
                          [](const Edge& a, const Edge& b) { return a.stamp > b.stamp; });
        for (size_t at = 0; at < looked; ++at)
          give(ways, latest[at].token,
               share * automaton.count(latest[at].state) / static_cast<double>(total),
               {latest[at].state, matched + 1});
      }
      left *= SHORTER * (1.0 - trust);
      if (!--contexts || left < WORTH) break;
    }
    state = automaton.link(state);
    matched = automaton.size(state);
  }
}

struct Entry {
  double likely;
  int order;  // of discovery
  int parent, level, token;
  double score;
  Match own, there;  // after the token
};

struct Later {
  bool operator()(const Entry& a, const Entry& b) const {
    return a.likely != b.likely ? a.likely < b.likely : a.order > b.order;
  }
};

}  // namespace

Found suffix_draft(const SuffixAutomaton& own, int state, const SuffixAutomaton* others,
                   const std::vector<int>& recent, int budget, int depth, int vocabulary) {
  Found found;
  Match here{state, own.size(state)}, there;
  if (others)
    for (const int token : recent) there = others->step(there, token);
  int order = 0, node = -1, level = 0;
  double reach = 1.0;
  std::priority_queue<Entry, std::vector<Entry>, Later> frontier;
  std::vector<Way> ways, theirs;
  while (true) {
    if (level < depth) {
      ways_on(own, here, ways);
      if (others) ways_on(*others, there, theirs);
      for (const Way& way : ways) {
        Match beyond;
        double score = way.score;
        for (Way& their : theirs)
          if (their.token == way.token) {
            their.taken = true;
            beyond = their.after;
            score = std::max(score, STRANGER * their.score);
            break;
          }
        const double likely = reach * score;
        if (likely >= LOWEST && way.token < vocabulary)
          frontier.push({likely, ++order, node, level, way.token, score, way.after, beyond});
      }
      for (const Way& their : theirs) {
        const double likely = reach * their.score * STRANGER;
        if (!their.taken && likely >= LOWEST && their.token < vocabulary)
          frontier.push({likely, ++order, node, level, their.token, their.score * STRANGER,
                         Match{}, their.after});
      }
    }
    if (frontier.empty() || found.size() == budget) return found;
    const Entry entry = frontier.top();
    frontier.pop();
    here = entry.own;
    there = entry.there;
    const int evidence =
        here.length ? std::min(here.length - 1, MOST) : std::min(there.length - 1, MOST) + 32;
    node = found.add(entry.parent, entry.token, entry.score, evidence);
    reach = entry.likely;
    level = entry.level + 1;
  }
}

}  // namespace foreword::draft
