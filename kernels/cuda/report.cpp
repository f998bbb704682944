// What `hetrun doctor` says of CUDA beside the GPUs themselves: NCCL, links between GPUs, clocks as they are.
#include <algorithm>

#include <dlfcn.h>

#include "core/base/error.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {
namespace {

// NVIDIA's management library comes with the driver. Of its interface only plain numbers are used.
class Management {
 public:
  Management() : library_(open_library("libnvidia-ml.so.1")) {
    int (*start)() = nullptr;
    if (!find(start, "nvmlInit_v2") || start() != 0) return;
    started_ = true;
  }
  ~Management() {
    int (*end)() = nullptr;
    if (started_ && find(end, "nvmlShutdown")) end();
  }
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;

  // Links that are up.
  int nvlinks(const std::string& bus_id) {
    constexpr unsigned kMost = 18;
    int (*state)(void*, unsigned, unsigned*) = nullptr;
    void* device = handle(bus_id);
    int count = 0;
    if (device == nullptr || !find(state, "nvmlDeviceGetNvLinkState")) return 0;
    for (unsigned link = 0; link < kMost; ++link)
      if (unsigned up = 0; state(device, link, &up) == 0 && up != 0) ++count;
    return count;
  }

  // Of the multiprocessors (0) or the memory (2), now; 0: unknown.
  double clock_hz(const std::string& bus_id, unsigned domain) {
    int (*clock)(void*, unsigned, unsigned*) = nullptr;
    void* device = handle(bus_id);
    unsigned megahertz = 0;
    if (device == nullptr || !find(clock, "nvmlDeviceGetClockInfo")) return 0;
    return clock(device, domain, &megahertz) == 0 ? megahertz * 1e6 : 0;
  }

 private:
  template <typename Function>
  bool find(Function& function, const char* name) {
    if (library_.handle == nullptr) return false;
    function = reinterpret_cast<Function>(dlsym(library_.handle, name));
    return function != nullptr;
  }
  void* handle(const std::string& bus_id) {
    int (*get)(const char*, void**) = nullptr;
    void* device = nullptr;
    if (!started_ || !find(get, "nvmlDeviceGetHandleByPciBusId_v2")) return nullptr;
    return get(bus_id.c_str(), &device) == 0 ? device : nullptr;
  }

  OpenLibrary library_;
  bool started_ = false;
};

}  // namespace

std::vector<GpuLink> find_links(const std::vector<Gpu>& gpus) {
  std::vector<GpuLink> links;
  Management management;
  for (int from = 0; from < static_cast<int>(gpus.size()); ++from)
    for (int to = from + 1; to < static_cast<int>(gpus.size()); ++to) {
      int there = 0, back = 0;
      const bool peers = cudaDeviceCanAccessPeer(&there, from, to) == cudaSuccess &&
                         cudaDeviceCanAccessPeer(&back, to, from) == cudaSuccess && there != 0 && back != 0;
      const int nvlinks =
          std::min(management.nvlinks(gpus[from].bus_id), management.nvlinks(gpus[to].bus_id));
      links.push_back({from, to, peers, peers ? nvlinks : 0});
    }
  return links;
}

std::pair<double, double> clocks_now(const Gpu& gpu) {
  Management management;
  return {management.clock_hz(gpu.bus_id, 0), management.clock_hz(gpu.bus_id, 2)};
}

}  // namespace het::HET_CUDA
