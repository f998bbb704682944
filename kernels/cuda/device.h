// The NVIDIA device: kernels of this folder on one GPU, queued on one stream. Nothing here needs a GPU or a
// driver to be built or linked; both are looked for when the program runs.
//
// The folder is compiled twice: for GPUs (namespace cuda), and by the C++ compiler on tests/emulated_cuda
// (namespace cuda_emulated), where the kernels' own code runs on the processor, thread by thread, for the
// tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/device/device.h"

#ifndef HET_CUDA
#define HET_CUDA cuda
#endif

namespace het::HET_CUDA {

struct Gpu {
  std::string name;          // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0, free_bytes = 0;
  double clock_hz = 0, memory_clock_hz = 0;  // 0: the driver does not say
  int bus_bits = 0;
  std::string bus_id;
};

// What was found. Empty `gpus` and a sentence in `why_none` when there is nothing to compute on.
struct Found {
  std::vector<Gpu> gpus;
  std::string why_none;
  int driver = 0, runtime = 0;  // as CUDA numbers them: 13000 is 13.0; 0: no driver
};
Found find_gpus();

inline constexpr int kLeastMajor = 8;  // compute capability that the kernels need: Ampere

// "13.0" of 13000; empty of 0.
inline std::string version_text(int version) {
  if (version == 0) return {};
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

// A library of CUDA's that is opened when the program runs.
struct LibraryReport {
  std::string name, path, version;
  std::string problem;  // empty: it can be used
};
LibraryReport find_cublas();
LibraryReport find_nccl();

// Between two GPUs, by their places in Found::gpus.
struct GpuLink {
  int from = 0, to = 0;
  bool peers = false;  // they reach each other's memory; else traffic goes through the host's
  int nvlinks = 0;     // that are up; 0: PCIe
};
std::vector<GpuLink> find_links(const std::vector<Gpu>& gpus);

// Of multiprocessors and memory, as they run now; 0: the driver does not say.
std::pair<double, double> clocks_now(const Gpu& gpu);

// The GPU `ordinal`. Throws Error(environment) saying what is missing.
std::shared_ptr<Device> make_device(int ordinal = 0);

}  // namespace het::HET_CUDA
