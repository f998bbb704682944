// How GPT-2's tokenizer sees text: bytes as printable characters, and words.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace het {

// A vocabulary writes each byte as a printable character: itself where that prints, else one from U+0100 on.
std::vector<char32_t> byte_characters();
std::unordered_map<char32_t, char> bytes_of_characters();
// The bytes that a token stands for; characters that stand for no byte are kept as they are.
std::string bytes_of_token(const std::string& token, const std::unordered_map<char32_t, char>& bytes,
                           std::string_view what);

// Where the word that begins at `begin` ends:
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t word_end(std::string_view text, size_t begin);

}  // namespace het
