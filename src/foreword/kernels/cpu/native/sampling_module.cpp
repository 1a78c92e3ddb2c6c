// Python's way to sampling.h: addresses, sizes and packed structs in, numbers out.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "float_state.h"
#include "sampling.h"

namespace nb = nanobind;
using namespace foreword;

namespace {

const Loops& loops_of(const std::string& isa) {
  const Loops* loops = find_loops(isa.c_str());
  if (!loops) throw std::invalid_argument("this machine has no " + isa);
  return *loops;
}

// kernels/cpu/sampling.py packs them: struct formats "=QQdddddddqQQqqq" and "=qQQqd".
template <typename Packed>
std::vector<Packed> unpack(const nb::bytes& packed) {
  std::vector<Packed> found(packed.size() / sizeof(Packed));
  std::memcpy(static_cast<void*>(found.data()), packed.data(), found.size() * sizeof(Packed));
  return found;
}
static_assert(sizeof(Ask) == 120 && sizeof(Edit) == 40 && sizeof(void*) == 8, "packed forms");

// One row and its edits.
struct One {
  One(const nb::bytes& asks, const nb::bytes& edits)
      : ask(unpack<Ask>(asks).at(0)), edits(unpack<Edit>(edits)) {}
  Ask ask;
  std::vector<Edit> edits;
};

// Per ask (fault, token, logprob, top).
nb::list choose(const std::string& isa, Pool& pool, int size, const nb::bytes& packed,
                const nb::bytes& changes) {
  const Loops& loops = loops_of(isa);
  const std::vector<Ask> asks = unpack<Ask>(packed);
  const std::vector<Edit> edits = unpack<Edit>(changes);
  std::vector<Answer> answers;
  {
    nb::gil_scoped_release unlocked;
    answers = choose_rows(loops, pool, asks, edits, size);
  }
  nb::list result;
  for (const Answer& answer : answers)
    result.append(nb::make_tuple(static_cast<int>(answer.fault), answer.token, answer.logprob,
                                 answer.top));
  return result;
}

// (fault, [(id, score)]).
nb::tuple rank_row(const std::string& isa, Pool& pool, int size, const nb::bytes& packed,
                   const nb::bytes& changes, int count) {
  const Loops& loops = loops_of(isa);
  const One one(packed, changes);
  std::vector<std::pair<int, double>> result;
  Fault fault;
  {
    nb::gil_scoped_release unlocked;
    FloatState state;
    std::vector<Scored> found;
    fault = rank(loops, Split(&pool), one.ask, one.edits.data(), size, count, found);
    for (const Scored& item : found) result.emplace_back(item.id, item.score);
  }
  return nb::make_tuple(static_cast<int>(fault), result);
}

int open(const std::string& isa, Pool& pool, int size, const nb::bytes& packed,
         const nb::bytes& changes, uintptr_t out) {
  const Loops& loops = loops_of(isa);
  const One one(packed, changes);
  nb::gil_scoped_release unlocked;
  FloatState state;
  return static_cast<int>(open_row(loops, Split(&pool), one.ask, one.edits.data(), size,
                                   reinterpret_cast<float*>(out)));
}

// (fault, bits).
nb::tuple bits_of(const std::string& isa, Pool& pool, int size, const nb::bytes& packed,
                  const nb::bytes& changes, int token) {
  const Loops& loops = loops_of(isa);
  const One one(packed, changes);
  double bits = 0.0;
  Fault fault;
  {
    nb::gil_scoped_release unlocked;
    FloatState state;
    fault = surprise(loops, Split(&pool), one.ask, one.edits.data(), size, token, bits);
  }
  return nb::make_tuple(static_cast<int>(fault), bits);
}

int top(const std::string& isa, Pool& pool, int rows, int size, int k, uintptr_t values,
        uintptr_t ids, uintptr_t out) {
  const Loops& loops = loops_of(isa);
  nb::gil_scoped_release unlocked;
  return top_k(loops, pool, reinterpret_cast<const float*>(values), rows, size, k,
               reinterpret_cast<int32_t*>(ids), reinterpret_cast<float*>(out));
}

std::vector<double> noise(uint64_t seed, uint64_t position, const std::vector<int64_t>& ids) {
  FloatState state;
  std::vector<double> result(ids.size());
  gumbel_noise(seed, position, ids.data(), ids.size(), result.data());
  return result;
}

void softmax(const std::string& isa, Pool& pool, int rows, int size, uintptr_t values,
             uintptr_t ids, uintptr_t out) {
  const Loops& loops = loops_of(isa);
  nb::gil_scoped_release unlocked;
  log_softmax(loops, pool, reinterpret_cast<const float*>(values), rows, size,
              reinterpret_cast<const int64_t*>(ids), reinterpret_cast<double*>(out));
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("choose_rows", &choose);
  m.def("rank_row", &rank_row);
  m.def("open_row", &open);
  m.def("surprise", &bits_of);
  m.def("top_k", &top);
  m.def("log_softmax", &softmax);
  m.def("gumbel", &noise);
}
