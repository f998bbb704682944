#include "core/device/device.h"

#include <fmt/ranges.h>

namespace het {

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
