#include "core/device/device.h"

#include <fmt/ranges.h>

#include "core/tensor/tensor.h"

namespace het {

std::unique_ptr<Memory> Device::allocate_staging(int64_t bytes) {
  class HostMemory final : public Memory {
   public:
    explicit HostMemory(int64_t bytes) : buffer_(bytes) {}
    std::byte* address() const override { return buffer_.data(); }

   private:
    Buffer buffer_;
  };
  return std::make_unique<HostMemory>(bytes);
}

std::unique_ptr<Transfer> Device::begin_transfer(std::span<const CopyOut> copies) {
  for (const CopyOut& copy : copies) copy_out(copy.host, copy.from, copy.bytes);
  return nullptr;
}

std::string key_of(const KernelRequest& request) {
  std::string key =
      fmt::format("{}{}+{}", request.op.name, to_string(request.attributes), request.accumulate);
  for (const auto layouts : {request.inputs, request.outputs}) {
    key += '|';
    for (const Layout& layout : layouts)
      key += fmt::format("{}:{};", to_string(layout.type), fmt::join(layout.strides, ","));
  }
  return key;
}

}  // namespace het
