// Who a process is, from what launchers put into its environment. The environment is passed in, never read
// from the process here, so that every launcher can be tested.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace het {

// The value of a variable; nothing when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvironmentLookup process_environment();

}  // namespace het
