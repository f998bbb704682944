// Small helpers of the unit tests: run a graph on the reference device and look at numbers.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/program/executor.h"
#include "kernels/reference/device.h"
#include "planner/lower/lower.h"

namespace het::testing {

inline std::shared_ptr<StateStore> reference_state(uint64_t seed = 1) {
  return std::make_shared<StateStore>(make_reference_device(), seed);
}

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(tensor.at(i));
  return values;
}

// Numbers that are neither small nor regular: deterministic, in [-1, 1].
inline Tensor wave(const TensorType& type, double phase) {
  Tensor tensor(type);
  for (int64_t i = 0; i < tensor.elements(); ++i)
    tensor.set(i, std::sin(1.7 * static_cast<double>(i) + phase));
  return tensor;
}

}  // namespace het::testing
