// How the program reaches GPUs: those of CUDA in hetrun, an emulated one in a program that only tests use.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "core/io/json.h"

namespace het::lua {

struct Gpus {
  std::function<int()> count;
  // Throws Error(environment) with what is missing.
  std::function<std::shared_ptr<Device>(int ordinal)> open;
  // {gpus = {{name, ...}}, why_none, driver, runtime, libraries = {{name, path, version, problem}}, links =
  // {{from, to, peers, nvlinks}}}, GPUs numbered from 0.
  std::function<Json()> report;
};

// By kernels/cuda, or its absence.
Gpus cuda_gpus();

// Is this "cuda" or "cuda:1"?
bool names_gpu(const std::string& device);

// The GPU that a device's name means for this process: "cuda:1" the second, "cuda" the one of the local rank.
// Throws Error(usage) when there are fewer GPUs than ranks on this machine.
int gpu_of(const std::string& device, const Gpus& gpus);

}  // namespace het::lua
