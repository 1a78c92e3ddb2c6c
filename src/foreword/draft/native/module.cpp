// Python's way to the drafting loops: lists and tries in, lists out. Everything takes microseconds
// and keeps the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "automaton.h"
#include "calibration.h"
#include "choice.h"
#include "merge.h"
#include "recycle.h"
#include "suffix.h"

namespace nb = nanobind;
using namespace foreword::draft;

namespace {

// Names of sources as numbers, for as long as the process lives.
class Names {
 public:
  int number(nb::handle name) {
    const int size = static_cast<int>(texts_.size());
    for (int found = 0; found < size; ++found)
      if (objects_[found] == name.ptr()) return found;
    const std::string text = nb::cast<std::string>(name);
    for (int found = 0; found < size; ++found)
      if (texts_[found] == text) return found;
    if (size == MOST) throw std::length_error("more than 4000 names of drafting sources");
    texts_.push_back(text);
    objects_.push_back(name.inc_ref().ptr());  // held, so that its address stays its own
    return size;
  }
  const std::string& text(int number) const { return texts_.at(number); }

 private:
  static constexpr int MOST = 4000;
  std::vector<std::string> texts_;
  std::vector<PyObject*> objects_;
};

Names& names() {
  static Names* const all = new Names;  // outlives the interpreter's end
  return *all;
}

int mix() {
  static const int number = names().number(nb::str("mix"));
  return number;
}

int chosen() {
  static const int number = names().number(nb::str("chosen"));
  return number;
}

template <class Value>
std::vector<Value> column(nb::handle list) {
  std::vector<Value> values;
  values.reserve(nb::len(list));
  for (nb::handle one : list) values.push_back(nb::cast<Value>(one));
  return values;
}

nb::list listed(const std::vector<int>& values) {
  nb::list list;
  for (const int value : values) list.append(value);
  return list;
}

nb::list listed(const std::vector<double>& values) {
  nb::list list;
  for (const double value : values) list.append(value);
  return list;
}

// (tokens, parents, scores, evidence).
nb::tuple columns(const Found& found) {
  return nb::make_tuple(listed(found.tokens), listed(found.parents), listed(found.scores),
                        listed(found.evidence));
}

int grow(SuffixAutomaton& automaton, int state, nb::handle tokens, int from) {
  const Py_ssize_t size = static_cast<Py_ssize_t>(nb::len(tokens));
  for (Py_ssize_t at = from; at < size; ++at)
    state = automaton.extend(state, nb::cast<int>(tokens[at]));
  return state;
}

void add_trie(Merged& merged, nb::handle trie, nb::handle owner, int kind,
              const Calibration& calibration, const Trust& trust) {
  const nb::list parents = trie.attr("parents"), tokens = trie.attr("tokens");
  const nb::list scores = trie.attr("scores"), sources = trie.attr("sources");
  const nb::list evidence = trie.attr("evidence");
  const int owned = names().number(owner);
  const size_t size = tokens.size();
  std::vector<int> moved;
  moved.reserve(size);
  for (size_t at = 0; at < size; ++at) {
    const int parent = nb::cast<int>(parents[at]);
    moved.push_back(merged.add(parent < 0 ? -1 : moved.at(parent), nb::cast<int>(tokens[at]),
                               names().number(sources[at]), owned, kind,
                               nb::cast<int>(evidence[at]), nb::cast<double>(scores[at]),
                               calibration, trust));
  }
}

// (tokens, parents, scores, sources).
nb::tuple best(const Merged& merged, int budget) {
  const Found found = merged.best(budget);
  nb::list sources;
  nb::object name;
  int last = -1;
  for (const int number : found.evidence) {
    if (number != last) name = nb::str(names().text(number).c_str());
    last = number;
    sources.append(name);
  }
  return nb::make_tuple(listed(found.tokens), listed(found.parents), listed(found.scores), sources);
}

nb::dict credit(const Merged& merged, const std::vector<int>& emitted) {
  nb::dict shares;
  for (const auto& [owner, share] : merged.credit(emitted))
    shares[names().text(owner).c_str()] = share;
  return shares;
}

// name -> (counts, said, right).
nb::dict reliability(const Calibration& calibration) {
  nb::dict plots;
  for (const auto& [source, plot] : calibration.reliability()) {
    nb::list counts, said, right;
    for (int bin = 0; bin < BINS; ++bin) {
      counts.append(plot.counts[bin]);
      said.append(plot.said[bin]);
      right.append(plot.right[bin]);
    }
    plots[names().text(source).c_str()] = nb::make_tuple(counts, said, right);
  }
  return plots;
}

Keys keys_of(const std::vector<int>& tokens) {
  Keys keys;
  for (const int token : tokens) keys = keys.follow(token);
  return keys;
}

// Rows after a history that ends with `before` and after each node of a tree, `width` ids and
// logits a row (addresses of int32 and float32), best first.
void learn_tree(ContextTable& table, const std::vector<int>& before,
                const std::vector<int>& tokens, const std::vector<int>& parents, int width,
                uintptr_t ids, uintptr_t logits) {
  std::vector<Keys> contexts{keys_of(before)};
  for (size_t node = 1; node < tokens.size(); ++node)
    contexts.push_back(contexts.at(parents.at(node)).follow(tokens[node]));
  const int32_t* id = reinterpret_cast<const int32_t*>(ids);
  const float* value = reinterpret_cast<const float*>(logits);
  for (const Keys& context : contexts) {
    Row row;
    row.count = std::min(width, MOST_IDS);
    double total = 0.0;
    double terms[MOST_IDS];
    for (int at = 0; at < row.count; ++at) {
      const double term = std::exp(static_cast<double>(value[at]) - value[0]);
      total += terms[at] = std::isnan(term) ? 0.0 : term;  // -inf less -inf
      row.ids[at] = id[at];
    }
    for (int at = 0; at < row.count; ++at)
      row.shares[at] = total > 0.0 ? static_cast<float>(terms[at] / total) : 0.0f;
    table.learn(context, row);
    id += width;
    value += width;
  }
}

nb::tuple draft_recycle(const ContextTable* table, const std::vector<int>& last, int budget,
                        int depth, uintptr_t cold_ids, uintptr_t cold_shares, int64_t known,
                        int width, double temperature, nb::object noise) {
  Noise call;
  if (!noise.is_none())
    call = [&](int level, const std::vector<int>& ids) {
      return nb::cast<std::vector<double>>(noise(level, ids));
    };
  const Recycling from{table, reinterpret_cast<const int32_t*>(cold_ids),
                       reinterpret_cast<const float*>(cold_shares), known, width, temperature,
                       call};
  return columns(recycle_draft(from, last, budget, depth));
}

// [(row, node)] of the tries, in order of worth.
std::vector<std::pair<int, int>> choose(const std::vector<int>& roots, nb::list tries,
                                        nb::object budget) {
  Prices prices;
  prices.total = nb::cast<int>(budget.attr("total"));
  prices.rate = nb::cast<double>(budget.attr("rate"));
  prices.costs = column<double>(budget.attr("costs"));
  prices.row_costs = column<double>(budget.attr("row_costs"));
  const std::vector<int> limits = column<int>(budget.attr("per_sequence"));
  const std::vector<double> weights = column<double>(budget.attr("weights"));
  std::vector<Candidates> batch(roots.size());
  for (size_t row = 0; row < roots.size(); ++row) {
    Candidates& one = batch[row];
    one.root = roots[row];
    one.limit = limits.at(row);
    one.weight = weights.empty() ? 1.0 : weights.at(row);
    const nb::object trie = tries[row];
    one.parents = column<int>(trie.attr("parents"));
    one.tokens = column<int>(trie.attr("tokens"));
    one.scores = column<double>(trie.attr("scores"));
  }
  return choose_nodes(batch, prices);
}

}  // namespace

void bind_drafting(nb::module_& m) {
  nb::class_<SuffixAutomaton>(m, "SuffixAutomaton")
      .def(nb::init<>())
      .def("extend", &SuffixAutomaton::extend)
      .def("grow", &grow, nb::arg("state"), nb::arg("tokens"), nb::arg("start") = 0)
      .def("step",
           [](const SuffixAutomaton& self, int state, int matched, int token) {
             const Match match = self.step({state, matched}, token);
             return std::make_pair(match.state, match.length);
           })
      .def_prop_ro("count", &SuffixAutomaton::counts)
      .def_prop_ro("num_states", &SuffixAutomaton::num_states)
      .def_prop_ro("num_tokens", &SuffixAutomaton::num_tokens);
  m.def("draft_suffix",
        [](const SuffixAutomaton& own, int state, const SuffixAutomaton* others,
           const std::vector<int>& recent, int budget, int depth, int vocabulary) {
          return columns(suffix_draft(own, state, others, recent, budget, depth, vocabulary));
        },
        nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg());

  nb::class_<ContextTable>(m, "ContextTable").def(nb::init<int>()).def("learn_tree", &learn_tree);
  m.def("draft_recycle", &draft_recycle, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());

  nb::class_<Trust>(m, "Trust").def(nb::init<>());
  nb::class_<Calibration>(m, "Calibration")
      .def(nb::init<bool>())
      .def("reliability", &reliability);
  nb::class_<Merged>(m, "Merged")
      .def(nb::init<>())
      .def("add", &add_trie)
      .def("combine",
           [](Merged& self, int kind, const Calibration& calibration, const Trust& trust) {
             self.combine(kind, mix(), chosen(), calibration, trust);
           })
      .def("best", &best)
      .def("learn",
           [](const Merged& self, const std::vector<int>& emitted, const std::vector<int>& tokens,
              const std::vector<int>& parents, Calibration& calibration, Trust& trust) {
             self.learn(emitted, tokens, parents, chosen(), calibration, trust);
           })
      .def("credit", &credit);
  m.def("choose_nodes", &choose);
}
