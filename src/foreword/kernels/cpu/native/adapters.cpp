#include "adapters.h"

#include <algorithm>
#include <cstring>

#include "isa.h"

namespace foreword {

void Adapter::set(int layer, Part part, Delta delta, const uint8_t* down, const uint8_t* up) {
  delta.padded = round_up(delta.inputs, 16);
  const size_t down_size = float_bytes(delta.down_format), up_size = float_bytes(delta.up_format);
  const size_t panels = (delta.outputs + kPanel - 1) / kPanel;
  uint8_t* held = store_.take(down_size * delta.rank * delta.padded);
  for (int rank = 0; rank < delta.rank; ++rank)
    std::memcpy(held + down_size * rank * delta.padded, down + down_size * rank * delta.inputs,
                down_size * delta.inputs);
  delta.down = held;
  held = store_.take(up_size * panels * delta.rank * kPanel);
  for (int output = 0; output < delta.outputs; ++output)
    for (int rank = 0; rank < delta.rank; ++rank) {
      const size_t place = static_cast<size_t>(output / kPanel) * delta.rank + rank;
      std::memcpy(held + up_size * (place * kPanel + output % kPanel),
                  up + up_size * (static_cast<size_t>(output) * delta.rank + rank), up_size);
    }
  delta.up = held;
  deltas_.at(static_cast<size_t>(layer) * kParts + part) = delta;
  const Delta* all = &deltas_[static_cast<size_t>(layer) * kParts];
  widest_ = std::max({widest_, all[kQuery].rank + all[kKey].rank + all[kValue].rank,
                      all[kOutput].rank, all[kGate].rank + all[kUp].rank, all[kDown].rank});
}

const AdapterOps& adapter_ops(const Ops& ops) {
  if (&ops == &ops_portable()) return adapter_ops_portable();
#if defined(FOREWORD_AVX2)
  if (&ops == &ops_avx2()) return adapter_ops_avx2();
#endif
#if defined(FOREWORD_AVX512)
  return adapter_ops_avx512();
#endif
  return adapter_ops_portable();
}

}  // namespace foreword
