// Files of token ids: nanoGPT's raw .bin, llm.c's with its header of 256 int32, and Megatron's .bin with its
// .idx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/io/file.h"
#include "core/io/files.h"

namespace het {

// The tokens of one file, which stays mapped as long as this lives.
struct TokenFile {
  std::shared_ptr<const MappedFile> file;
  const std::byte* data = nullptr;
  int64_t count = 0;
  int width = 2;                            // bytes of a token: 2 or 4
  std::shared_ptr<const MappedFile> index;  // of a Megatron data set; null: it has none
};

// Throws Error(usage) for an empty or damaged file, text, a size that is no whole number of tokens.
// `raw_width`: bits of a token where the file says nothing of it.
TokenFile open_tokens(const Path& path, int raw_width);

// Where the documents of a Megatron data set begin, in tokens, ascending, by its index; none where there is
// no index. Throws Error(usage) for a damaged one.
std::vector<int64_t> indexed_documents(const TokenFile& tokens);

// A file itself; the .bin files of a folder, or those that match a pattern, in the order of their names; the
// .bin of a Megatron data set, which is named without an ending.
std::vector<Path> token_files(const Path& path);

}  // namespace het
