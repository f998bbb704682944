// SentencePiece's precompiled_charsmap: which characters a text has others for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace het::huggingface {

// Immutable. Of a hostile map the changed text is meaningless; no byte outside of the map is read.
class PrecompiledMap {
 public:
  // `map`: the size of a trie in bytes (u32, little-endian), the trie (a double array of u32, as Darts writes
  // it), and the texts that it points into, each ended by a zero byte. Throws Error(usage) for sizes that do
  // not fit, naming `what`.
  PrecompiledMap(std::string_view map, std::string_view what);

  // As the `tokenizers` package applies it: a grapheme cluster of less than 6 bytes is replaced as a whole by
  // what the shortest text of the map that it begins with becomes; others are replaced character by
  // character.
  std::string apply(std::string_view text) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace het::huggingface
