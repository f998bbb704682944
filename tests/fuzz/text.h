// What every fuzzer of texts asks: any bytes are read as UTF-8 exactly where they are, and what a tokenizer
// encodes it decodes to the same bytes.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/data/tokenizer.h"
#include "core/io/utf8.h"

namespace het::fuzz {

// True when the text can be encoded; it is then decoded to the same bytes.
inline bool encoded_again(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  try {
    ids = tokenizer.encode(text);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
  for (const int32_t id : ids)
    if (id < 0 || id >= tokenizer.vocabulary_size()) std::abort();
  if (tokenizer.decode(ids) != text) std::abort();
  return true;
}

// GPT-2's byte-level vocabulary with a few merges.
inline const Tokenizer& small_bpe() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    Json::array_t tokens;
    const auto add = [&](char32_t c) {
      std::string token;
      append_utf8(token, c);
      tokens.emplace_back(token);
    };
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b)
      add((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE ? b : next++);
    for (const char* token : {"th", "the", "aa", "aaaa"}) tokens.emplace_back(token);
    return tokenizer_from_json(
        Json::object_t{
            {"kind", "bpe"}, {"tokens", tokens}, {"merges", Json::array_t{"t h", "th e", "a a", "aa aa"}}},
        "the vocabulary of the test");
  }();
  return *tokenizer;
}

// True when the text is UTF-8. Aborts when it breaks the promise.
inline bool text(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Decoded decoded = decode_utf8(bytes, at);
    if (decoded.bytes == 0) break;
    std::string again;
    append_utf8(again, decoded.code_point);
    if (again != bytes.substr(at, static_cast<size_t>(decoded.bytes))) std::abort();
    at += static_cast<size_t>(decoded.bytes);
  }
  const bool sound = at == bytes.size();
  if (find_invalid_utf8(bytes) != (sound ? std::string_view::npos : at)) std::abort();
  if (!encoded_again(*make_byte_tokenizer(), bytes) || !encoded_again(small_bpe(), bytes)) std::abort();
  try {
    if (!encoded_again(*make_char_tokenizer(bytes), bytes)) std::abort();
    if (!sound || bytes.empty()) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage || (sound && !bytes.empty())) std::abort();
  }
  return sound;
}

}  // namespace het::fuzz
