#include "core/base/visible.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/io/utf8.h"

namespace het {

bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::string visible(std::string_view text) {
  const auto plain = [](char c) { return c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7F); };
  if (std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::string shown;
  shown.reserve(text.size() + 16);
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    const std::string_view bytes = text.substr(i, static_cast<size_t>(decoded.bytes));
    if (decoded.bytes == 0)
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    else if (!is_control(decoded.code_point) || plain(text[i]))
      shown += bytes;
    else if (decoded.code_point < 0x80)
      shown += fmt::format("\\x{:02x}", static_cast<uint32_t>(decoded.code_point));
    else
      shown += fmt::format("\\u{:04x}", static_cast<uint32_t>(decoded.code_point));
    i += decoded.bytes > 0 ? static_cast<size_t>(decoded.bytes) : 1;
  }
  return shown;
}

}  // namespace het
