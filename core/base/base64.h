// Base64 (RFC 4648, with padding), in which JSON carries bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace het {

std::string to_base64(std::string_view bytes);
// Nothing when the text is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace het
