// The weights of a LoRA adapter, for every product of every layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "adapter_ops.h"
#include "pack.h"

namespace foreword {

// Products that share their input follow one another.
enum Part : int { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown, kParts };

class Adapter {
 public:
  explicit Adapter(int layers) : deltas_(static_cast<size_t>(layers) * kParts) {}
  Adapter(const Adapter&) = delete;

  // Copies A [rank][inputs] and B [outputs][rank]; the other fields of `delta` are set.
  void set(int layer, Part part, Delta delta, const uint8_t* down, const uint8_t* up);
  const Delta& of(size_t layer, int part) const { return deltas_[layer * kParts + part]; }
  int widest() const { return widest_; }  // numbers that all u of one input take, at most
  size_t bytes() const { return store_.bytes(); }

 private:
  std::vector<Delta> deltas_;
  Store store_;
  int widest_ = 0;
};

const AdapterOps& adapter_ops(const Ops& ops);  // of the same instruction set

}  // namespace foreword
