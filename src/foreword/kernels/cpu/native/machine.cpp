#include "machine.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

namespace foreword {
namespace {

constexpr size_t kPiece = 1u << 20;  // what a thread claims at a time, as the engine's threads do
constexpr int kStreams = 4;          // read side by side: more misses in flight than with one
constexpr size_t kAhead = 4096;      // bytes asked for before they are read

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void fetch(const void* place) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(place, 0, 3);
#else
  (void)place;
#endif
}

uint64_t read(const uint8_t* piece) {
  constexpr size_t kLength = kPiece / kStreams;
  uint64_t sums[8] = {};
  for (size_t i = 0; i < kLength; i += 64)
    for (int stream = 0; stream < kStreams; ++stream) {
      const uint8_t* line = piece + stream * kLength + i;
      fetch(line + kAhead);
      uint64_t words[8];
      std::memcpy(words, line, 64);
      for (int j = 0; j < 8; ++j) sums[j] += words[j];
    }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

// Rows prepared for a product, and room for its result: what one thread needs.
class Trial {
 public:
  Trial(const Ops& ops, const Linear& linear, int rows) : ops_(ops), linear_(linear) {
    const size_t block = round_up(rows, kRowBlock);
    const int groups = is_grouped(linear.activation) ? groups_of(linear) : 0;
    values_.resize(block / kRowBlock * row_block_bytes(linear.activation, linear.padded) + 64);
    scales_.resize(block * groups + 16);
    sums_.resize(block * groups + 16);
    isums_.resize(block * groups + 16);
    out_.resize(static_cast<size_t>(rows) * round_up(linear.outputs, kPanel));
    scratch_.resize(product_scratch(linear.padded, groups) + 64);
    made_ = {linear.activation, rows,           linear.padded, linear.group,  linear.block,
             aligned(values_),  scales_.data(), sums_.data(),  isums_.data()};
    std::vector<float> line(round_up(linear.inputs, kPanel));
    for (int row = 0; row < rows; ++row) {
      for (int k = 0; k < linear.inputs; ++k)
        line[k] = static_cast<float>((row * 31 + k * 17) % 255 - 127) / 127;
      ops.prepare(line.data(), linear.inputs, 0, linear.padded, row, made_);
    }
  }

  void multiply() {
    ops_.product(linear_, made_, 0, panels_of(linear_), out_.data(),
                 round_up(linear_.outputs, kPanel), false, aligned(scratch_));
  }

 private:
  static uint8_t* aligned(std::vector<uint8_t>& bytes) {
    return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  }

  const Ops& ops_;
  const Linear& linear_;
  Rows made_;
  std::vector<uint8_t> values_, scratch_;
  std::vector<float> scales_, sums_, out_;
  std::vector<int32_t> isums_;
};

}  // namespace

ReadProbe::ReadProbe(size_t bytes, Pool& pool)
    : data_(nullptr), bytes_((bytes + kPiece - 1) / kPiece * kPiece) {
  data_ = store_.take(bytes_ + kPiece);  // what is asked for ahead of the last piece is there, too
  std::atomic<size_t> next{0};
  pool.run([&](int) {  // pages that were never written are one page of zeros, in a cache
    for (size_t at; (at = next.fetch_add(kPiece)) < bytes_;) std::memset(data_ + at, 1, kPiece);
  });
}

double ReadProbe::seconds(Pool& pool) {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> sum{0};
  const auto start = Clock::now();
  pool.run([&](int) {
    uint64_t mine = 0;
    for (size_t at; (at = next.fetch_add(kPiece)) < bytes_;) mine += read(data_ + at);
    sum += mine;
  });
  const double found = since(start);
  sum_ += sum;
  return found;
}

double product_seconds(const Ops& ops, const Linear& linear, Pool& pool, int rows, int times) {
  double found = 0;
  pool.run([&](int thread) {
    Trial trial(ops, linear, rows);
    trial.multiply();  // the weight comes into the caches
    pool.barrier();
    const auto start = Clock::now();
    for (int i = 0; i < times; ++i) trial.multiply();
    pool.barrier();
    if (!thread) found = since(start);
  });
  return found;
}

}  // namespace foreword
