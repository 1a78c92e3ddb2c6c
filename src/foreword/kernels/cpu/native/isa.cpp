#include "isa.h"

#include <cstring>
#include <initializer_list>

#if defined(FOREWORD_X86)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace foreword {

#if defined(FOREWORD_X86)
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
#if defined(_MSC_VER)
  int out[4];
  __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
  r.a = out[0], r.b = out[1], r.c = out[2], r.d = out[3];
#else
  if (__get_cpuid_max(0, nullptr) >= leaf) __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
#endif
  return r;
}

// What the operating system saves on a context switch.
uint64_t enabled_state() {
  if (!(cpuid(1, 0).c & (1u << 27))) return 0;
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
#endif
}

bool all(unsigned value, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(value >> bit & 1)) return false;
  return true;
}

bool has_avx2() {
  const Registers one = cpuid(1, 0);
  return (enabled_state() & 6) == 6 && all(one.c, {12, 28, 29}) && all(cpuid(7, 0).b, {5});
}

bool has_avx512() {
  const Registers seven = cpuid(7, 0);
  return has_avx2() && (enabled_state() & 0xe6) == 0xe6 && all(seven.b, {16, 17, 30, 31}) &&
         all(seven.c, {11}) && all(cpuid(7, 1).a, {5});
}

// Linux gives a process its tile registers only when asked.
bool tiles_granted() {
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool has_amx() {
  constexpr uint64_t kTiles = 3ull << 17;
  return has_avx512() && (enabled_state() & kTiles) == kTiles &&
         all(cpuid(7, 0).d, {22, 24, 25}) && tiles_granted();
}

}  // namespace

const Ops* find_ops(const char* name) {
  if (!std::strcmp(name, "portable")) return &ops_portable();
  // Asked once: a hypervisor answers cpuid in microseconds, and every pass comes by here.
  static const bool avx2 = has_avx2(), avx512 = has_avx512(), amx = has_amx();
  if (!std::strcmp(name, "avx2") && avx2) return &ops_avx2();
  if (!std::strcmp(name, "avx512") && avx512) return &ops_avx512();
  if (!std::strcmp(name, "amx") && amx) return &ops_amx();
  return nullptr;
}
#else
const Ops* find_ops(const char* name) {
  return std::strcmp(name, "portable") ? nullptr : &ops_portable();
}
#endif

const char* best_isa() {
  for (const char* name : {"amx", "avx512", "avx2"})
    if (find_ops(name)) return name;
  return "portable";
}

}  // namespace foreword
