// Threads that spin briefly between the phases of a pass and sleep between passes.
//
// All pools of one size in a process are handles on one team: engines side by side take turns, so
// that no more threads compute than either of them was given.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace foreword {

// The caller is member 0 while it runs something; the others are threads of the team's own.
class Team {
 public:
  explicit Team(int threads);
  ~Team();
  void run(const std::function<void(int)>& body);
  void barrier();
  unsigned forks() const { return forks_; }

 private:
  void serve(int index);
  void work(int index);

  const int threads_;
  const unsigned forks_;  // of this process's line when the team was made
  std::vector<std::thread> members_;
  std::mutex turn_;  // held by whoever runs
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* body_ = nullptr;
  std::exception_ptr error_;  // the first of a run
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> finished_{0};
  std::atomic<bool> stop_{false}, failed_{false};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint64_t> phase_{0};
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  int size() const { return threads_; }

  // Runs body(thread) on every member, the caller being thread 0, and raises the first exception
  // of any. Floating-point state is pinned in all of them and restored in the caller. Calls from
  // several threads wait for each other. In a forked child the threads are made anew.
  void run(const std::function<void(int)>& body);

  // Inside run: all members meet. Throws when one of them has failed and will not come.
  void barrier() {
    if (team_) team_->barrier();
  }

 private:
  void join_team();
  void leave_team();

  const int threads_;
  std::shared_ptr<Team> team_;  // null with one thread
};

}  // namespace foreword
