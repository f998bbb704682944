// The names of devices in plans: "a:1" is device 1 of host a.
#pragma once

#include <string_view>

namespace het {

inline std::string_view host_of(std::string_view device) { return device.substr(0, device.rfind(':')); }
// "1", as a text.
inline std::string_view number_of(std::string_view device) { return device.substr(device.rfind(':') + 1); }

}  // namespace het
