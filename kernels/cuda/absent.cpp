// In place of this folder where no CUDA toolkit was found: the program says so.
#include "core/base/error.h"
#include "kernels/cuda/device.h"

namespace het::cuda {
namespace {

constexpr const char* kWhy = "this hetrun was built without CUDA";

}  // namespace

Found find_gpus() {
  Found found;
  found.why_none = kWhy;
  return found;
}
LibraryReport find_cublas() { return {"cuBLASLt", "", "", kWhy}; }
LibraryReport find_nccl() { return {"NCCL", "", "", kWhy}; }
std::vector<GpuLink> find_links(const std::vector<Gpu>&) { return {}; }
std::pair<double, double> clocks_now(const Gpu&) { return {0, 0}; }

std::shared_ptr<Device> make_device(int) {
  fail_environment(
      "device cuda: {}; a build on a machine with the CUDA 13 toolkit, or the released archive, has it",
      kWhy);
}

}  // namespace het::cuda
