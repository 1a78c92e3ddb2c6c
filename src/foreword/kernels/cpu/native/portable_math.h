// log and exp of sample/portable.py: basic operations in the order written there, so the same bits.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace foreword {

constexpr double kLn2High = 0x1.62e42feep-1;  // ln 2 cut to 32 bits
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kRootHalf = 0x1.6a09e667f3bcdp-1;

// x > 0, a normal number. x = 2^k * m; see the Python for the rest.
inline double portable_log(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  double k = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1022);
  bits = (bits & 0xfffffffffffffull) | (1022ull << 52);
  double fraction;  // in [1/2, 1)
  std::memcpy(&fraction, &bits, 8);
  if (fraction < kRootHalf) {
    fraction = fraction + fraction;
    k = k - 1.0;
  }
  const double f = fraction - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double h = 0.5 * f * f;
  double series = 2.0 / 21.0;
  for (const double c : {2.0 / 19.0, 2.0 / 17.0, 2.0 / 15.0, 2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0,
                         2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0})
    series = series * z + c;
  const double remainder = series * z;
  return k * kLn2High - ((h - (s * (h + remainder) + k * kLn2Low)) - f);
}

}  // namespace foreword
