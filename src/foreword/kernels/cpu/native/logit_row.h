// One logit row and the order of its ids: (logit descending, id ascending), as in sample/filters.py.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "sampling_loops.h"
#include "threads.h"

namespace foreword {

// Who shares the work on one row: all threads of a pool, or the caller alone.
class Split {
 public:
  explicit Split(Pool* pool) : pool_(pool) {}
  int parts() const { return pool_ ? pool_->size() : 1; }
  void run(const std::function<void(int)>& body) const { pool_ ? pool_->run(body) : body(0); }
  // Calls body(part, first, last) with [0, count) cut into one range for each part. Work that is
  // not `heavy` is done by part 0 sooner than another thread could be woken.
  void ranges(int count, bool heavy, const std::function<void(int, int, int)>& body) const;

 private:
  Pool* pool_;
};

// A value and its id as one integer: smaller is earlier in the order. -0 and 0 are equal.
using Key = uint64_t;
constexpr Key kLastKey = ~0ull;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

inline Key key_of(float value, int id) {
  int32_t bits;
  value = value + 0.0f;  // makes -0 equal to 0
  std::memcpy(&bits, &value, 4);
  const int32_t rising = bits ^ ((bits >> 31) & 0x7fffffff);
  return static_cast<Key>(static_cast<uint32_t>(~rising) ^ 0x80000000u) << 32 |
         static_cast<uint32_t>(id);
}
inline int id_of(Key key) { return static_cast<int>(key & 0xffffffffu); }
inline float value_of(Key key) {
  const int32_t rising = ~static_cast<int32_t>(static_cast<uint32_t>(key >> 32) ^ 0x80000000u);
  const int32_t bits = rising ^ ((rising >> 31) & 0x7fffffff);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The latter two: after the request's edits.
enum class Fault { kNone = 0, kNonFinite = 1, kAllMasked = 2, kOverflowed = 3, kNoneLeft = 4 };

// float32 values [size] with the highest of each group of ids, which lets most searches skip most
// of the row.
struct LogitRow {
  LogitRow(const Loops& loops, const Split& split, const float* values, int size);

  int groups() const { return static_cast<int>(maxima.size()); }
  // The lowest id of the highest value; only without a fault.
  int best() const;
  // Keys of the unmasked ids with value >= lowest and key <= last, ids ascending.
  std::vector<Key> collect(float lowest, Key last) const;
  // The key of the k-th id in the order, k >= 1; kLastKey where fewer are unmasked.
  Key first(int64_t k) const;
  // Sum of exp((value - peak) / temperature) as sample/portable.block_sum has it.
  double total(double temperature) const;
  // The same to a relative error of kRough, for 0 < temperature <= kHottest.
  double rough_total(double temperature) const;

  const Loops& loops;
  Split split;
  const float* values;
  int size;
  std::vector<float> maxima;
  float peak = kMasked;
  Fault fault = Fault::kNone;
};

constexpr int kAlone = 1 << 17;  // ids one thread compares sooner than it wakes another
constexpr double kRough = 2e-5;    // a float32 exponential and a sum of 64 lanes' terms
constexpr double kHottest = 1e30;  // above it 1 / temperature is no normal float32

}  // namespace foreword
