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

// Of a list as --device gives it, "cuda,cpu,cpu", the device of the process with this local rank: the last
// one goes for all that follow. A "cuda" in a list of several is the first GPU that no other of them means.
std::string device_of_rank(const std::string& list, int local_rank);

// Of this process among those of its machine, as torchrun, our own launcher, Open MPI and Slurm say; else 0.
int local_rank();

// The GPU that a device's name means for this process: "cuda:1" the second, "cuda" the one of the local rank.
// Throws Error(usage) when there are fewer GPUs than ranks on this machine.
int gpu_of(const std::string& device, const Gpus& gpus);

}  // namespace het::lua
