#include "core/data/words.h"

#include <algorithm>

#include "core/data/tokenizer.h"
#include "core/data/unicode.h"
#include "core/io/utf8.h"

namespace het {

std::vector<char32_t> byte_characters() {
  std::vector<char32_t> characters(256);
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    characters[b] = prints ? b : next++;
  }
  return characters;
}

std::unordered_map<char32_t, char> bytes_of_characters() {
  const std::vector<char32_t> characters = byte_characters();
  std::unordered_map<char32_t, char> bytes;
  for (size_t b = 0; b < 256; ++b) bytes[characters[b]] = static_cast<char>(static_cast<unsigned char>(b));
  return bytes;
}

std::string bytes_of_token(const std::string& token, const std::unordered_map<char32_t, char>& bytes,
                           std::string_view what) {
  std::string result;
  for (const char32_t c : code_points_of(token, what)) {
    const auto byte = bytes.find(c);
    if (byte != bytes.end())
      result += byte->second;
    else
      append_utf8(result, c);
  }
  return result;
}

namespace {

enum class Kind : uint8_t { letter, number, space, other, end };

Kind kind_at(std::string_view text, size_t at, int& bytes) {
  if (at >= text.size()) {
    bytes = 0;
    return Kind::end;
  }
  const Decoded decoded = decode_utf8(text, at);
  bytes = std::max(decoded.bytes, 1);
  if (decoded.bytes == 0) return Kind::other;
  return is_letter(decoded.code_point)   ? Kind::letter
         : is_number(decoded.code_point) ? Kind::number
         : is_space(decoded.code_point)  ? Kind::space
                                         : Kind::other;
}

}  // namespace

size_t word_end(std::string_view text, size_t begin) {
  if (text[begin] == '\'')
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.substr(begin, ending.size()) == ending) return begin + ending.size();
  int bytes = 0;
  size_t at = begin;
  Kind kind = kind_at(text, at, bytes);
  if (text[begin] == ' ') {
    int following = 0;
    const Kind next = kind_at(text, begin + 1, following);
    if (next != Kind::space && next != Kind::end) {
      kind = next;
      at = begin + 1;
      bytes = following;
    }
  }
  size_t last = at;  // where the last character of the run begins
  const Kind run = kind;
  while (kind == run) {
    last = at;
    at += static_cast<size_t>(bytes);
    kind = kind_at(text, at, bytes);
  }
  // Of spaces before a word, the last one goes with the word.
  return run == Kind::space && kind != Kind::end && last > begin ? last : at;
}

}  // namespace het
