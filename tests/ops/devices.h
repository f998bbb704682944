// The devices under test: the reference, the CPU with each instruction set that it has here, and the emulated
// GPU (devices.cpp); or a GPU (gpu.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device/device.h"

namespace het::ops_test {

struct Subject {
  std::string name;  // "reference", "cpu v4"
  std::shared_ptr<Device> device;

  bool is_reference() const { return name == "reference"; }
  bool is_gpu() const { return name.starts_with("cuda"); }
};

const std::vector<Subject>& subjects();

}  // namespace het::ops_test
