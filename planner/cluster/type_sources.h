// Where the figures of the known device types are published, for those who want to check them.
#pragma once

#include <string_view>

namespace het::planner {

struct TypeSource {
  std::string_view source;  // "NVIDIA H100 data sheet (2023), SXM"
  std::string_view remark;  // what hetrun cannot do on it; empty: nothing
};
// Of a type that known_device_types has; of others both are empty.
TypeSource source_of(std::string_view type);

}  // namespace het::planner
