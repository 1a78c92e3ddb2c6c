// The Python module: addresses and sizes in, a finished pass out. Only the *module.cpp files know
// Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "adapters.h"
#include "float_state.h"
#include "isa.h"
#include "machine.h"
#include "pack.h"
#include "pass.h"

namespace nb = nanobind;
using namespace foreword;
using Address = uintptr_t;

namespace {

template <class T>
const T* at(Address address) {
  return reinterpret_cast<const T*>(address);
}

// A packed weight and the memory it lies in.
struct Weight {
  Linear linear{};
  std::shared_ptr<Store> store;
};

const float* keep_floats(Store& store, Address values, int count) {
  if (!values) return nullptr;
  float* place = reinterpret_cast<float*>(store.take(sizeof(float) * round_up(count, 16)));
  std::memcpy(place, at<float>(values), sizeof(float) * count);
  return place;
}

Weight float_weight(std::shared_ptr<Store> store, Pool& pool, int format, int activation,
                    int outputs, int inputs, Address values, Address bias) {
  Weight made;
  Linear& linear = made.linear;
  linear.format = static_cast<Format>(format);
  linear.activation = static_cast<Activation>(activation);
  linear.outputs = outputs;
  linear.inputs = inputs;
  linear.padded = round_up(inputs, linear.format == Format::kPairs ? 32 : 16);
  linear.bias = keep_floats(*store, bias, outputs);
  nb::gil_scoped_release unlocked;
  pack_floats(linear, at<uint8_t>(values), *store, pool);
  made.store = std::move(store);
  return made;
}

// scale, offset: (address, bytes of an element, address of the super level or 0, signed).

Weight grouped_weight(std::shared_ptr<Store> store, Pool& pool, int activation, int outputs,
                      int inputs, int bits, int group, int unit_groups, int zero, Address q,
                      nb::tuple scale, std::optional<nb::tuple> offset, Address bias) {
  auto level = [](const nb::tuple& t) {
    return Level{at<uint8_t>(nb::cast<Address>(t[0])), nb::cast<int>(t[1]),
                 at<uint8_t>(nb::cast<Address>(t[2]))};
  };
  Weight made;
  Linear& linear = made.linear;
  linear.format = Format::kGrouped;
  linear.activation = static_cast<Activation>(activation);
  linear.outputs = outputs;
  linear.inputs = inputs;
  linear.padded = round_up(inputs, group);
  linear.bits = bits;
  linear.group = group;
  linear.unit_groups = unit_groups;
  linear.zero = zero;
  const Level scales = level(scale);
  Level offsets{nullptr, 0, nullptr};
  linear.two_level = scales.supers != nullptr;
  linear.signed_scale = nb::cast<bool>(scale[3]);
  linear.wide_scale = scales.size == 4;
  if (offset) {
    offsets = level(*offset);
    linear.has_offset = true;
    linear.signed_offset = nb::cast<bool>((*offset)[3]);
    linear.wide_offset = offsets.size == 4;
    linear.integer_zero = offsets.size == 1 && !offsets.supers;
  }
  plan_grouped(linear);
  linear.bias = keep_floats(*store, bias, outputs);
  nb::gil_scoped_release unlocked;
  pack_grouped(linear, at<uint8_t>(q), scales, offsets, *store, pool);
  made.store = std::move(store);
  return made;
}

// The first `outputs` output columns of a weight, on the same memory.
Weight narrow(const Weight& whole, int outputs) {
  Weight made = whole;
  made.linear.outputs = outputs;
  return made;
}

struct Network {  // a model and what keeps its parts alive
  Network() = default;
  Network(const Network&) = delete;
  Model model{};
  std::shared_ptr<Store> store;
  std::vector<std::unique_ptr<Linear>> linears;
  Arena arena;
  std::mutex one_pass;  // the arena serves one at a time

  const Linear* keep(const Weight& weight) {
    linears.push_back(std::make_unique<Linear>(weight.linear));
    return linears.back().get();
  }
};

void add_layer(Network& self, Address attention_norm, const Weight& query, const Weight& key,
               const Weight& value, Address query_norm, Address key_norm, const Weight& output,
               Address mlp_norm, const Weight& gate, const Weight& up, const Weight& down,
               int window) {
  Store& store = *self.store;
  const Model& model = self.model;
  Layer layer;
  layer.attention_norm = keep_floats(store, attention_norm, model.hidden);
  layer.query = self.keep(query);
  layer.key = self.keep(key);
  layer.value = self.keep(value);
  layer.query_norm = keep_floats(store, query_norm, model.dim);
  layer.key_norm = keep_floats(store, key_norm, model.dim);
  layer.output = self.keep(output);
  layer.mlp_norm = keep_floats(store, mlp_norm, model.hidden);
  layer.gate = self.keep(gate);
  layer.up = self.keep(up);
  layer.down = self.keep(down);
  layer.window = window;
  self.model.layers.push_back(layer);
}

void set_ends(Network& self, const Weight& embedding, Address norm, const Weight& head, Address cos,
              Address sin) {
  self.model.embedding = self.keep(embedding);
  self.model.norm = keep_floats(*self.store, norm, self.model.hidden);
  self.model.head = self.keep(head);
  self.model.cos = at<float>(cos);
  self.model.sin = at<float>(sin);
}

const Ops& ops_of(const std::string& isa) {
  const Ops* ops = find_ops(isa.c_str());
  if (!ops) throw std::invalid_argument("this machine has no " + isa);
  return *ops;
}

// rows: [tokens, positions, slots] addresses of int64 [count]. segments: flat int64
// (first, rows, cached, address of slots, address of int32 parents) each. skip: units left out, 2 i
// for the attention of layer i and 2 i + 1 for its MLP. adapters: one or None for each segment; empty
// when there is none.
void run(Network& self, const std::string& isa, Pool& pool, int count, Address tokens,
         Address positions, Address slots, int wanted, Address logit_rows,
         const std::vector<Address>& segments, const std::vector<Address>& keys,
         const std::vector<Address>& values, int kv_format, Address logits,
         const std::vector<int>& skip, const nb::list& adapters) {
  Batch batch;
  batch.rows = count;
  batch.wanted = wanted;
  batch.tokens = at<int64_t>(tokens);
  batch.positions = at<int64_t>(positions);
  batch.slots = at<int64_t>(slots);
  batch.logit_rows = at<int64_t>(logit_rows);
  for (size_t i = 0; i + 5 <= segments.size(); i += 5)
    batch.segments.push_back({static_cast<int>(segments[i]), static_cast<int>(segments[i + 1]),
                              static_cast<int>(segments[i + 2]), at<int64_t>(segments[i + 3]),
                              at<int32_t>(segments[i + 4]), nullptr});
  for (size_t i = 0; i < adapters.size(); ++i)
    if (!adapters[i].is_none()) batch.segments.at(i).adapter = nb::cast<Adapter*>(adapters[i]);
  for (Address address : keys) batch.keys.push_back(reinterpret_cast<uint8_t*>(address));
  for (Address address : values) batch.values.push_back(reinterpret_cast<uint8_t*>(address));
  const Ops& ops = ops_of(isa);
  nb::gil_scoped_release unlocked;
  std::lock_guard<std::mutex> alone(self.one_pass);
  self.model.kv_format = static_cast<Kv>(kv_format);
  if (skip.empty()) {
    run_pass(ops, self.model, batch, reinterpret_cast<float*>(logits), pool, self.arena);
    return;
  }
  Model part = self.model;  // pointers to the same weights
  for (int unit : skip) {
    Layer& layer = part.layers.at(unit / 2);
    (unit % 2 ? layer.gate : layer.query) = nullptr;
  }
  run_pass(ops, part, batch, reinterpret_cast<float*>(logits), pool, self.arena);
}

// One product alone, for tests: x float32 [rows][inputs], out float32 [rows][outputs].
void product(const Weight& weight, const std::string& isa, Pool& pool, int rows, Address x,
             Address out) {
  const Linear& linear = weight.linear;
  const Ops& ops = ops_of(isa);
  const size_t blocks = round_up(rows, 16);
  const int groups = linear.group ? groups_of(linear) : 0;
  const size_t values = blocks / kRowBlock * row_block_bytes(linear.activation, linear.padded),
               per_group = blocks * groups * 4 + 64;
  const size_t scratch = product_scratch(linear.padded, groups);
  const size_t line_bytes = round_up(linear.inputs, 16) * sizeof(float);
  Arena arena;
  arena.reset(values + 3 * per_group + scratch + line_bytes + 6 * 4096);
  Rows made{linear.activation, rows, linear.padded, linear.group, linear.block, nullptr, nullptr,
            nullptr, nullptr};
  made.values = static_cast<uint8_t*>(arena.take(values));
  made.scales = static_cast<float*>(arena.take(per_group));
  made.sums = static_cast<float*>(arena.take(per_group));
  made.isums = static_cast<int32_t*>(arena.take(per_group));
  float* line = static_cast<float*>(arena.take(line_bytes));
  uint8_t* place = static_cast<uint8_t*>(arena.take(scratch));
  nb::gil_scoped_release unlocked;
  pool.run([&](int thread) {
    if (thread) return;
    FloatState state(true);
    for (int row = 0; row < rows; ++row) {
      std::memcpy(line, at<float>(x) + static_cast<size_t>(row) * linear.inputs,
                  sizeof(float) * linear.inputs);
      ops.prepare(line, linear.inputs, 0, linear.padded, row, made);
    }
    ops.product(linear, made, 0, panels_of(linear), reinterpret_cast<float*>(out), linear.outputs,
                false, place);
  });
}

void embed(const Weight& weight, const std::string& isa, int64_t token, Address out) {
  ops_of(isa).embed(weight.linear, token, reinterpret_cast<float*>(out));
}

double time_product(const Weight& weight, const std::string& isa, Pool& pool, int rows,
                    int times) {
  const Ops& ops = ops_of(isa);
  nb::gil_scoped_release unlocked;
  return product_seconds(ops, weight.linear, pool, rows, times);
}

}  // namespace

void bind_adapters(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_drafting(nb::module_& m);

NB_MODULE(_native, m) {
  bind_adapters(m);
  bind_sampling(m);
  bind_drafting(m);
  m.def("best_isa", &best_isa);
  m.def("has_isa", [](const std::string& name) { return find_ops(name.c_str()) != nullptr; });

  nb::class_<Pool>(m, "Pool").def(nb::init<int>()).def_prop_ro("threads", &Pool::size);
  nb::class_<Store>(m, "Store").def(nb::new_([] { return std::make_shared<Store>(); }))
      .def_prop_ro("num_bytes", &Store::bytes);
  nb::class_<Weight>(m, "Weight")
      .def("narrow", &narrow)
      .def_prop_ro("num_bytes", [](const Weight& self) {
        return self.linear.panel_bytes * panels_of(self.linear);
      });
  m.def("float_weight", &float_weight);
  m.def("grouped_weight", &grouped_weight, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg());
  m.def("product", &product);
  m.def("embed", &embed);
  m.def("time_product", &time_product);
  nb::class_<ReadProbe>(m, "ReadProbe")
      .def(nb::init<size_t, Pool&>())
      .def_prop_ro("num_bytes", &ReadProbe::bytes)
      .def("seconds", &ReadProbe::seconds, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Network>(m, "Network")
      .def("__init__",
           [](Network* self, std::shared_ptr<Store> store, int hidden, int intermediate, int heads,
              int kv_heads, int dim, float eps) {
             new (self) Network();
             self->store = std::move(store);
             self->model.hidden = hidden;
             self->model.intermediate = intermediate;
             self->model.heads = heads;
             self->model.kv_heads = kv_heads;
             self->model.dim = dim;
             self->model.eps = eps;
           })
      .def("add_layer", &add_layer)
      .def("set_ends", &set_ends)
      .def("run", &run);
}
