#include "core/io/utf8.h"

#include <fmt/format.h>

namespace het {

Decoded decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const int bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + static_cast<size_t>(bytes) > text.size()) return {};
  char32_t code = first & (0xFFu >> (bytes + 1));
  for (int i = 1; i < bytes; ++i) {
    if ((byte(static_cast<size_t>(i)) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(static_cast<size_t>(i)) & 0x3Fu);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return {code, bytes};
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Decoded decoded = decode_utf8(text, i);
    if (decoded.bytes == 0) return i;
    i += static_cast<size_t>(decoded.bytes);
  }
  return std::string_view::npos;
}

void append_utf8(std::string& to, char32_t c) {
  const auto put = [&](char32_t bits) { to += static_cast<char>(static_cast<unsigned char>(bits)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::string show_code_point(char32_t c) {
  std::string number = fmt::format("U+{:04X}", static_cast<uint32_t>(c));
  if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return number;
  std::string text;
  append_utf8(text, c);
  return fmt::format("'{}' ({})", text, number);
}

}  // namespace het
