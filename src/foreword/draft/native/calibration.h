// draft/_calibration.py in compiled code. Sources are numbers here.
#pragma once
#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace foreword::draft {

constexpr int BINS = 10;  // of the reliability plot

struct Cell {
  uint32_t key = 0;  // source, kind, band, depth, evidence
};

struct Chance {
  double chance;
  Cell cell;
};

struct Reliability {
  std::array<int, BINS> counts{}, right{};
  std::array<double, BINS> said{};
};

// Of one request, by source.
class Trust {
 public:
  double of(int source) const {
    return source < static_cast<int>(known_.size()) ? known_[source] : 1.0;
  }
  void set(int source, double factor) {
    if (source >= static_cast<int>(known_.size())) known_.resize(source + 1, 1.0);
    known_[source] = factor;
  }

 private:
  std::vector<double> known_;
};

class Calibration {
 public:
  explicit Calibration(bool learning) : learning_(learning) {}

  Chance chance(int source, int kind, int depth, int evidence, double score, double trust) const;
  void learn(Cell cell, double score, double chance, bool right);
  void adapt(Trust& trust, int source, double chance, bool right) const;
  const std::unordered_map<int, Reliability>& reliability() const { return reliability_; }

 private:
  struct Sums {
    double said = 0.0, right = 0.0, count = 0.0;  // fading
    double factor = 1.0;

    void add(double score, bool was_right);
    void settle(double above, double leaning);
  };

  bool learning_;
  std::unordered_map<uint32_t, Sums> sums_;
  std::unordered_map<int, Reliability> reliability_;
};

}  // namespace foreword::draft
