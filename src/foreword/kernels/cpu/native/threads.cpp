#include "threads.h"

#include "float_state.h"

#include <map>
#include <stdexcept>
#include <string>

#if !defined(_WIN32)
#include <pthread.h>
#include <signal.h>
#endif

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

// Teams of this process by size. A child of fork has none of the threads: it forgets the teams and
// counts itself, so that pools it inherited make new ones.
struct Registry {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Team>> teams;
  std::atomic<unsigned> forks{0};

  Registry() {
#if !defined(_WIN32)
    pthread_atfork([] { one().mutex.lock(); }, [] { one().mutex.unlock(); },
                   [] {
                     Registry& self = one();
                     new std::map<int, std::weak_ptr<Team>>(std::move(self.teams));
                     self.teams.clear();
                     self.forks.fetch_add(1);
                     self.mutex.unlock();
                   });
#endif
  }
  static Registry& one() {
    static Registry* made = new Registry;  // never destroyed: threads may outlive main
    return *made;
  }
};

Registry& registry() { return Registry::one(); }

// Signals are for the threads of the host program.
class NoSignals {
 public:
#if defined(_WIN32)
  NoSignals() {}
#else
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

 private:
  sigset_t saved_;
#endif
};

}  // namespace

Team::Team(int threads) : threads_(threads), forks_(registry().forks.load()) {
  NoSignals inherited;
  for (int index = 1; index < threads; ++index)
    members_.emplace_back([this, index] { serve(index); });
}

Team::~Team() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& member : members_) member.join();
}

void Team::run(const std::function<void(int)>& body) {
  std::lock_guard<std::mutex> turn(turn_);
  finished_ = 0;
  arrived_ = 0;
  failed_ = false;
  error_ = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    body_ = &body;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  work(0);
  for (int spins = 0; finished_.load(std::memory_order_acquire) != threads_ - 1; ++spins) {
    FOREWORD_PAUSE();
    if (spins > kBusySpins) std::this_thread::yield();
  }
  if (error_) std::rethrow_exception(error_);
}

void Team::work(int index) {
  try {
    (*body_)(index);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error_) error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

void Team::barrier() {
  const uint64_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    FOREWORD_PAUSE();
    if (failed_.load(std::memory_order_acquire))
      throw std::runtime_error("another thread of the pass failed");
    if (spins > kBusySpins) std::this_thread::yield();
  }
}

void Team::serve(int index) {
#if defined(__linux__)
  const std::string name = "foreword-" + std::to_string(index);
  pthread_setname_np(pthread_self(), name.c_str());
#endif
  FloatState state;
  uint64_t seen = 0;
  while (true) {
    for (int left = kSpins; left && generation_.load(std::memory_order_acquire) == seen; --left) {
      FOREWORD_PAUSE();
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    work(index);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

Pool::Pool(int threads) : threads_(threads) {
  if (threads < 1) throw std::invalid_argument("a pool has at least one thread");
  join_team();
}

Pool::~Pool() { leave_team(); }

void Pool::join_team() {
  if (threads_ == 1) return;
  Registry& known = registry();
  std::lock_guard<std::mutex> lock(known.mutex);
  std::weak_ptr<Team>& place = known.teams[threads_];
  team_ = place.lock();
  if (!team_) place = team_ = std::make_shared<Team>(threads_);
}

void Pool::leave_team() {
  // Of a team that stayed in the parent there is nothing to end here.
  if (team_ && team_->forks() != registry().forks.load())
    new std::shared_ptr<Team>(std::move(team_));
  team_.reset();
}

void Pool::run(const std::function<void(int)>& body) {
  FloatState state;
  if (threads_ == 1) return body(0);
  if (team_->forks() != registry().forks.load()) {
    leave_team();
    join_team();
  }
  team_->run(body);
}

}  // namespace foreword
