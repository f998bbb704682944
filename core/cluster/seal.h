// Values in the store with a proof that their writer knows the run's secret.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace het {

// Good for this key only.
std::string sealed(std::string_view secret, const std::string& key, const std::string& text);
// The text; nothing: the value was not sealed for this key, or with another secret.
std::optional<std::string> unsealed(std::string_view secret, const std::string& key,
                                    const std::string& value);

}  // namespace het
