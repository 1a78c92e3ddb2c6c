#include "threads.h"

#include "float_state.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define FOREWORD_PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define FOREWORD_PAUSE() asm volatile("yield")
#else
#define FOREWORD_PAUSE() ((void)0)
#endif

namespace foreword {
namespace {

constexpr int kSpins = 20000;     // about 1 ms: longer than Python needs between passes
constexpr int kBusySpins = 1000;  // in a barrier, before others may have the core

}  // namespace

Pool::Pool(int threads) : threads_(threads) {
  for (int index = 1; index < threads; ++index)
    members_.emplace_back([this, index] { serve(index); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& member : members_) member.join();
}

void Pool::run(const std::function<void(int)>& body) {
  FloatState state;
  if (threads_ == 1) {
    body(0);
    return;
  }
  finished_ = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    body_ = &body;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  body(0);
  while (finished_.load(std::memory_order_acquire) != threads_ - 1) FOREWORD_PAUSE();
}

void Pool::barrier() {
  if (threads_ == 1) return;
  const uint64_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    FOREWORD_PAUSE();
    if (spins > kBusySpins) std::this_thread::yield();
  }
}

void Pool::serve(int index) {
  FloatState state;
  uint64_t seen = 0;
  while (true) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen && spins < kSpins;)
      ++spins, FOREWORD_PAUSE();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    (*body_)(index);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace foreword
