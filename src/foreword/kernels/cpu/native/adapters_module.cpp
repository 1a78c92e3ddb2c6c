// Adapters for Python: addresses and sizes in.
#include <nanobind/nanobind.h>

#include "adapters.h"

namespace nb = nanobind;
using namespace foreword;

namespace {

// formats: of the numbers of A and B, as Format counts them.
void set(Adapter& self, int layer, int part, int rank, int inputs, int outputs, float scale,
         int down_format, uintptr_t down, int up_format, uintptr_t up) {
  Delta delta{};
  delta.rank = rank;
  delta.inputs = inputs;
  delta.outputs = outputs;
  delta.down_format = static_cast<Format>(down_format);
  delta.up_format = static_cast<Format>(up_format);
  delta.scale = scale;
  self.set(layer, static_cast<Part>(part), delta, reinterpret_cast<const uint8_t*>(down),
           reinterpret_cast<const uint8_t*>(up));
}

}  // namespace

void bind_adapters(nb::module_& m) {
  nb::class_<Adapter>(m, "Adapter")
      .def(nb::init<int>())
      .def("set", &set)
      .def_prop_ro("num_bytes", &Adapter::bytes);
}
