#include "kernels/reference/device.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "core/base/error.h"
#include "core/tensor/tensor.h"
#include "kernels/reference/families.h"

namespace het {
namespace {

class HostMemory final : public Memory {
 public:
  explicit HostMemory(int64_t bytes) : buffer_(bytes) { std::memset(buffer_.data(), 0, bytes); }
  std::byte* address() const override { return buffer_.data(); }

 private:
  Buffer buffer_;
};

class ReferenceDevice final : public Device {
 public:
  ReferenceDevice() : kernels_(reference::all_kernels()) {}

  std::string name() const override { return "reference"; }
  std::unique_ptr<Memory> allocate(int64_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  int64_t available_bytes() const override {
    std::ifstream info("/proc/meminfo");
    int64_t kib = 0;
    for (std::string word; info >> word;)
      if (word == "MemAvailable:" && info >> kib) return kib << 10;
    return std::numeric_limits<int64_t>::max();  // not known: allocation itself will tell
  }
  std::unique_ptr<Kernel> prepare(const KernelRequest& request) override {
    for (const KernelEntry& entry : kernels_)
      if (entry.op == request.op.name) return entry.prepare(request);
    fail_usage("the reference device has no kernel for '{}'", request.op.name);
  }
  void copy_in(std::byte* to, const std::byte* host, int64_t bytes) override { std::memcpy(to, host, bytes); }
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override {
    std::memcpy(host, from, bytes);
  }

 private:
  std::vector<KernelEntry> kernels_;
};

}  // namespace

std::shared_ptr<Device> make_reference_device() { return std::make_shared<ReferenceDevice>(); }

}  // namespace het
