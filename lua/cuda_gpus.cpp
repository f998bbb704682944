#include "kernels/cuda/device.h"
#include "lua/gpus.h"

namespace het::lua {
namespace {

Json report() {
  const cuda::Found found = cuda::find_gpus();
  Json::array_t gpus, libraries, links;
  for (const cuda::Gpu& gpu : found.gpus) {
    const auto [clock, memory_clock] = cuda::clocks_now(gpu);
    gpus.push_back(Json::object_t{{"name", gpu.name},
                                  {"capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                                  {"multiprocessors", gpu.multiprocessors},
                                  {"memory", gpu.memory_bytes},
                                  {"bus_id", gpu.bus_id},
                                  {"clock", gpu.clock_hz},
                                  {"memory_clock", gpu.memory_clock_hz},
                                  {"clock_now", clock},
                                  {"memory_clock_now", memory_clock},
                                  {"usable", gpu.major >= cuda::kLeastMajor}});
  }
  for (const cuda::LibraryReport& library : {cuda::find_cublas(), cuda::find_nccl()})
    libraries.push_back(Json::object_t{{"name", library.name},
                                       {"path", library.path},
                                       {"version", library.version},
                                       {"problem", library.problem}});
  for (const cuda::GpuLink& link : cuda::find_links(found.gpus))
    links.push_back(Json::object_t{
        {"from", link.from}, {"to", link.to}, {"peers", link.peers}, {"nvlinks", link.nvlinks}});
  return Json::object_t{{"gpus", std::move(gpus)},
                        {"why_none", found.why_none},
                        {"driver", cuda::version_text(found.driver)},
                        {"runtime", cuda::version_text(found.runtime)},
                        {"libraries", std::move(libraries)},
                        {"links", std::move(links)}};
}

}  // namespace

Gpus cuda_gpus() {
  return {[] { return static_cast<int>(cuda::find_gpus().gpus.size()); }, &cuda::make_device, &report};
}

}  // namespace het::lua
