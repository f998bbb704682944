// What a step does to the caches between two passes of a layer, done to a program that has only few of the
// model's layers: all other layers' weights, gradients and activations pass through them. For measurements on
// processors; owned and called by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/profile/measure.h"

namespace het::planner {

class Eviction {
 public:
  // `shares` of the program that is measured, `memory` of all layers of the model.
  Eviction(const std::vector<Share>& shares, const std::vector<LayerMemory>& memory);

  // Before instruction `i`: writes bytes() of other memory where a pass of a layer begins.
  void operator()(size_t i);

  bool begins_pass(size_t i) const { return passes_[i]; }
  size_t bytes() const { return lines_.size() * sizeof(Line); }

  // Beyond what any cache holds.
  static constexpr double kMostBytes = 128 * 1024 * 1024;

 private:
  struct alignas(64) Line {
    volatile int64_t word = 0;
  };
  std::vector<bool> passes_;
  std::vector<Line> lines_;
};

}  // namespace het::planner
