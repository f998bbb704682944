#include "lua/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/base/error.h"

namespace het::lua {

bool names_gpu(const std::string& device) {
  if (device == "cuda") return true;
  const size_t digits = device.size() - std::min(device.size(), size_t{5});
  return device.starts_with("cuda:") && digits >= 1 && digits <= 4 &&
         device.find_first_not_of("0123456789", 5) == std::string::npos;
}

int local_rank() {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"})
    if (const char* text = std::getenv(name)) return std::max(0, std::atoi(text));
  return 0;
}

std::string device_of_rank(const std::string& list, int local_rank) {
  std::vector<std::string> devices;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    devices.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  if (devices.size() == 1) return list;
  int next = 0;
  const auto is_named = [&](const std::string& gpu) {
    return std::find(devices.begin(), devices.end(), gpu) != devices.end();
  };
  for (std::string& device : devices) {
    if (device != "cuda") continue;
    while (is_named("cuda:" + std::to_string(next))) ++next;
    device = "cuda:" + std::to_string(next);
  }
  return devices[std::min(devices.size() - 1, static_cast<size_t>(local_rank))];
}

int gpu_of(const std::string& device, const Gpus& gpus) {
  if (device != "cuda") return std::atoi(device.c_str() + 5);
  const int rank = local_rank();
  const int count = gpus.count();
  // A launcher that shows each rank one GPU has chosen already.
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (count <= 1 && (rank == 0 || visible != nullptr)) return 0;
  if (rank >= count && count > 0)
    fail_usage(
        "rank {} of this machine has no GPU: there {} {}; start at most {} here, or name one for all: "
        "--device=cuda:0",
        rank, count == 1 ? "is" : "are", count, count);
  return count == 0 ? 0 : rank;
}

}  // namespace het::lua
