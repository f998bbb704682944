#pragma once

#include <string_view>

namespace het {

// Without spaces, tabs and line ends around it.
inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace het
