// Round to nearest, exceptions masked, denormals kept or flushed (as the matrix unit does); the
// caller's state comes back.
#pragma once
#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace foreword {

class FloatState {
 public:
  explicit FloatState(bool flush = false) {
#if defined(__x86_64__) || defined(_M_X64)
    saved_ = _mm_getcsr();
    _mm_setcsr(flush ? 0x1f80 | 0x8040 : 0x1f80);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    const uint64_t state = flush ? 1u << 24 : 0;
    asm volatile("msr fpcr, %0" ::"r"(state));
#endif
  }
  ~FloatState() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_setcsr(static_cast<unsigned>(saved_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(saved_));
#endif
  }
  FloatState(const FloatState&) = delete;

 private:
  uint64_t saved_ = 0;
};

}  // namespace foreword
