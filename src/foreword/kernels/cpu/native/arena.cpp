#include "arena.h"

#include <cassert>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace foreword {

constexpr size_t kHugePage = 2 << 20;

Arena::~Arena() { ::operator delete[](data_, std::align_val_t(kHugePage)); }

void Arena::reset(size_t bytes) {
  used_ = 0;
  if (bytes <= size_) return;
  ::operator delete[](data_, std::align_val_t(kHugePage));
  data_ = nullptr, size_ = 0;
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  data_ = static_cast<uint8_t*>(::operator new[](bytes, std::align_val_t(kHugePage)));
#if defined(__linux__)
  madvise(data_, bytes, MADV_HUGEPAGE);  // rows of a long prompt lie on a page each otherwise
#endif
  std::memset(data_, 0, bytes);
  size_ = bytes;
}

void* Arena::take(size_t bytes) {
  void* found = data_ + used_;
  used_ += (bytes + kPage - 1) / kPage * kPage;
  assert(used_ <= size_);
  return found;
}

}  // namespace foreword
