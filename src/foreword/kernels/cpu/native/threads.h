// A pool that spins briefly between the phases of a pass and sleeps between passes.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace foreword {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  int size() const { return threads_; }

  // Runs body(thread) on every member, the caller being thread 0. Floating-point state is pinned
  // in all of them and restored in the caller.
  void run(const std::function<void(int)>& body);

  // Inside run: all members meet.
  void barrier();

 private:
  void serve(int index);

  int threads_;
  std::vector<std::thread> members_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> finished_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint64_t> phase_{0};
};

}  // namespace foreword
