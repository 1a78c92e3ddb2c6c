// Philox4x64-10 and the Gumbel noise of sample/noise.py, one counter at a time.
#pragma once
#include <cstdint>

#include "portable_math.h"
#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace foreword {

struct Words {
  uint64_t at[4];
};

inline uint64_t multiply(uint64_t x, uint64_t y, uint64_t& high) {
#if defined(_MSC_VER)
  high = __umulh(x, y);
  return x * y;
#else
  const unsigned __int128 product = static_cast<unsigned __int128>(x) * y;
  high = static_cast<uint64_t>(product >> 64);
  return static_cast<uint64_t>(product);
#endif
}

// One counter on its way through the rounds.
struct Philox {
  uint64_t a, b, c, d;

  void round(uint64_t left, uint64_t right) {
    uint64_t high_a, high_c;
    const uint64_t low_a = multiply(a, 0xD2E7470EE14C6C93ull, high_a);
    const uint64_t low_c = multiply(c, 0xCA5A826395121157ull, high_c);
    a = high_c ^ b ^ left;
    b = low_c;
    c = high_a ^ d ^ right;
    d = low_a;
  }
};

// The words of `count` times 4 ids from 4 * block on: key (seed, 0), counters (block + i, position,
// 0, 0).
template <int count>
inline void token_words(uint64_t seed, uint64_t position, uint64_t block, Words (&words)[count]) {
  Philox each[count];
  for (int i = 0; i < count; ++i) each[i] = {block + static_cast<uint64_t>(i), position, 0, 0};
  uint64_t left = seed, right = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < count; ++i) each[i].round(left, right);
    left += 0x9E3779B97F4A7C15ull;
    right += 0xBB67AE8584CAA73Bull;
  }
  for (int i = 0; i < count; ++i)
    words[i] = {{each[i].a, each[i].b, each[i].c, each[i].d}};
}

inline Words token_words(uint64_t seed, uint64_t position, uint64_t block) {
  Words words[1];
  token_words(seed, position, block, words);
  return words[0];
}

// The first word of (position) in another stream of the seed, as sample/noise.chance.
inline uint64_t stream_word(uint64_t seed, uint64_t stream, uint64_t position) {
  Philox state{0, position, 0, 0};
  uint64_t left = seed, right = stream;
  for (int round = 0; round < 10; ++round) {
    state.round(left, right);
    left += 0x9E3779B97F4A7C15ull;
    right += 0xBB67AE8584CAA73Bull;
  }
  return state.a;
}

// A word's u in (0, 1).
inline double uniform(uint64_t word) {
  const double u = (static_cast<double>(word >> 11) + 0.5) * 0x1p-53;
  return u > 1.0 - 0x1p-53 ? 1.0 - 0x1p-53 : u;
}

// -log(-log(u)): from -3.62 to 36.74.
inline double gumbel(uint64_t word) { return -portable_log(-portable_log(uniform(word))); }

}  // namespace foreword
