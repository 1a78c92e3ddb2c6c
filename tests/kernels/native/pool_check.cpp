// What Python cannot ask of the thread pool: exceptions, forks in the middle, several callers.
// Prints one line per check, and returns 1 when one fails.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "threads.h"

using foreword::Pool;

static bool fine = true;

static void check(const char* what, bool ok) {
  std::printf("%s: %s\n", ok ? "ok" : "FAILED", what);
  fine = fine && ok;
}

// Every member once, and nobody passes a barrier before all are there.
static bool whole(Pool& pool, int rounds) {
  std::vector<int> seen(pool.size(), 0);
  std::atomic<bool> good{true};
  for (int round = 0; round < rounds; ++round)
    pool.run([&](int index) {
      for (int phase = 1; phase <= 3; ++phase) {
        ++seen[index];
        pool.barrier();
        for (int other : seen)
          if (other != 3 * round + phase) good = false;
        pool.barrier();
      }
    });
  for (int count : seen) good = good && count == 3 * rounds;
  return good;
}

static std::string failure_of(Pool& pool, int who, bool at_barrier) {
  try {
    pool.run([&](int index) {
      if (index == who) throw std::logic_error("member " + std::to_string(who));
      if (at_barrier) pool.barrier();
    });
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "none";
}

static bool in_child(Pool& pool) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang is a failure
    _exit(whole(pool, 5) ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

int main(int count, char** words) {
  const bool forks = count < 2 || std::strcmp(words[1], "no-fork");
  alarm(60);
  for (int threads : {1, 2, 3, 5}) {
    Pool pool(threads);
    check("every member, every barrier", whole(pool, 15));
    for (int who = 0; who < threads; ++who) {
      const std::string wanted = "member " + std::to_string(who);
      check("the failure of one is raised", failure_of(pool, who, false) == wanted);
      check("also when others wait for it", failure_of(pool, who, true) == wanted);
      check("and the next run is whole", whole(pool, 5));
    }
    if (forks) {
      check("a child of fork has threads of its own", in_child(pool));
      check("and the parent keeps its own", whole(pool, 5));
    }
  }
  {
    Pool one(3), two(3);
    std::atomic<int> inside{0}, most{0};
    auto call = [&](Pool& pool) {
      for (int round = 0; round < 60; ++round)
        pool.run([&](int index) {
          const int now = ++inside;
          for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
          }
          pool.barrier();
          if (!index) --inside;
          if (index) --inside;
        });
    };
    std::thread a([&] { call(one); }), b([&] { call(two); });
    a.join(), b.join();
    check("two pools of a size take turns", most == 3);
    if (forks) {
      std::thread busy([&] { call(one); });
      bool all = true;
      for (int round = 0; round < 5; ++round) all = all && in_child(two);
      busy.join();
      check("a fork while others compute", all);
    }
  }
  return fine ? 0 : 1;
}
