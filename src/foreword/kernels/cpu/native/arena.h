#pragma once
#include <cstddef>
#include <cstdint>

namespace foreword {

constexpr size_t kPage = 4096;

// Memory that is reused from pass to pass.
class Arena {
 public:
  ~Arena();
  // All memory of the last pass becomes free; at least `bytes` can be had.
  void reset(size_t bytes);
  void* take(size_t bytes);

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

}  // namespace foreword
