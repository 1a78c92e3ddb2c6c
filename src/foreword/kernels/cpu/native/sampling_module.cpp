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

// kernels/cpu/sampling.py packs them: struct format "=QdddqQQq".
std::vector<Ask> unpack(const nb::bytes& packed) {
  static_assert(sizeof(Ask) == 64 && sizeof(void*) == 8, "the packed form of an Ask");
  std::vector<Ask> asks(packed.size() / sizeof(Ask));
  std::memcpy(static_cast<void*>(asks.data()), packed.data(), asks.size() * sizeof(Ask));
  return asks;
}

// Per ask (fault, token, logprob, top).
nb::list choose(const std::string& isa, Pool& pool, int size, const nb::bytes& packed) {
  const Loops& loops = loops_of(isa);
  const std::vector<Ask> asks = unpack(packed);
  std::vector<Answer> answers;
  {
    nb::gil_scoped_release unlocked;
    answers = choose_rows(loops, pool, asks, size);
  }
  nb::list result;
  for (const Answer& answer : answers)
    result.append(nb::make_tuple(static_cast<int>(answer.fault), answer.token, answer.logprob,
                                 answer.top));
  return result;
}

// (fault, [(id, score)]).
nb::tuple rank(const std::string& isa, Pool& pool, int size, const nb::bytes& packed, int count) {
  const Loops& loops = loops_of(isa);
  const Ask ask = unpack(packed).at(0);
  std::vector<std::pair<int, double>> result;
  Fault fault;
  {
    nb::gil_scoped_release unlocked;
    FloatState state;
    const LogitRow row(loops, Split(&pool), ask.values, size);
    for (const Scored& found : strongest(row, ask, count))
      result.emplace_back(found.id, found.score);
    fault = row.fault;
  }
  return nb::make_tuple(static_cast<int>(fault), result);
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
  m.def("rank_row", &rank);
  m.def("top_k", &top);
  m.def("log_softmax", &softmax);
  m.def("gumbel", &noise);
}
