#include "calibration.h"

#include <algorithm>
#include <cmath>

namespace foreword::draft {
namespace {

// As in _calibration.py, which says what they mean.
constexpr double BANDS[] = {0.03, 0.08, 0.16, 0.28, 0.42, 0.58, 0.72, 0.84, 0.93, 0.97};
constexpr int DEPTHS[] = {0, 0, 1, 2, 2, 3, 3, 3, 3, 4};
constexpr int EVIDENCE = 63;
constexpr double FADING = 1.0 - 1.0 / 600.0;
constexpr double LEANING = 100.0;
constexpr double DOUBT = 20.0;
constexpr double LEAST = 0.002, MOST = 0.995;
constexpr double TRUST_STEP = 0.07;
constexpr double LEAST_TRUST = 0.05, MOST_TRUST = 20.0;

constexpr int BELOW_BITS = 10;  // of depth and evidence
constexpr uint32_t ABOVE = (1u << BELOW_BITS) - 1;  // in their place: the cell above

double odds(double chance) {
  chance = std::min(std::max(chance, LEAST), MOST);
  return chance / (1.0 - chance);
}

}  // namespace

void Calibration::Sums::add(double score, bool was_right) {
  said = said * FADING + score;
  right = right * FADING + (was_right ? 1.0 : 0.0);
  count = count * FADING + 1.0;
}

void Calibration::Sums::settle(double above, double leaning) {
  const double mean = said / count;
  const double leant = mean * above / (1.0 - mean + mean * above);
  factor = odds((right + leaning * leant) / (count + leaning)) / odds(mean);
}

Chance Calibration::chance(int source, int kind, int depth, int evidence, double score,
                           double trust) const {
  const int place = DEPTHS[std::min(depth, 9)];
  const uint32_t band =
      static_cast<uint32_t>(std::upper_bound(std::begin(BANDS), std::end(BANDS), score) -
                            std::begin(BANDS));
  const uint32_t upper = ((static_cast<uint32_t>(source) << 4 | kind) << 4 | band) << BELOW_BITS;
  const Cell cell{upper | static_cast<uint32_t>(place << 6 | std::min(evidence, EVIDENCE))};
  auto known = sums_.find(cell.key);
  if (known == sums_.end()) known = sums_.find(upper | ABOVE);
  const double factor = (known == sums_.end() ? 1.0 : known->second.factor) * trust;
  score = std::min(score, MOST);
  const double chance = score * factor / (1.0 - score + score * factor);
  return {std::min(std::max(chance, LEAST), MOST), cell};
}

void Calibration::learn(Cell cell, double score, double chance, bool right) {
  if (!learning_) return;
  score = std::min(score, MOST);
  Sums& above = sums_[cell.key | ABOVE];
  above.add(score, right);
  above.settle(1.0, DOUBT);
  const double factor = above.factor;
  Sums& own = sums_[cell.key];
  own.add(score, right);
  own.settle(factor, LEANING);
  Reliability& plot = reliability_[static_cast<int>(cell.key >> (BELOW_BITS + 8))];
  const int bin = std::min(static_cast<int>(chance * BINS), BINS - 1);
  ++plot.counts[bin];
  plot.said[bin] += chance;
  plot.right[bin] += right;
}

void Calibration::adapt(Trust& trust, int source, double chance, bool right) const {
  if (!learning_) return;
  const double moved = trust.of(source) * std::exp(TRUST_STEP * ((right ? 1.0 : 0.0) - chance));
  trust.set(source, std::min(std::max(moved, LEAST_TRUST), MOST_TRUST));
}

}  // namespace foreword::draft
