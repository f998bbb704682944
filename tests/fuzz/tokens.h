// What every fuzzer of token files asks: any bytes either give a corpus whose tokens are all in its
// vocabulary, in two parts that are the whole, or an Error of the usage kind.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/data/corpus.h"
#include "tests/unit/io/scratch.h"

namespace het::fuzz {

// The lowest bit of the first byte says the width of raw tokens (0: 16 bits, 1: 32), the rest is the file.
// True when it was accepted. Aborts when it breaks the promise.
inline bool tokens(std::string_view input, const testing::Scratch& scratch) {
  if (input.empty()) return false;
  try {
    TokenCorpusOptions options;
    options.path = scratch.put("tokens.bin", input.substr(1));
    options.width = (input[0] & 1) != 0 ? 32 : 16;
    const auto corpus = Corpus::from_tokens(options);
    int64_t count = 0;
    for (const Split split : {Split::train, Split::holdout}) {
      const TokenView view = corpus->view(split);
      std::vector<int32_t> ids(static_cast<size_t>(view.count));
      view.copy(0, view.count, ids.data());
      for (const int32_t id : ids)
        if (id < 0 || id >= corpus->vocabulary_size()) std::abort();
      count += view.count;
    }
    if (count != corpus->tokens() || count == 0 || count > static_cast<int64_t>(input.size()) / 2)
      std::abort();
    corpus->fingerprint();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
}

}  // namespace het::fuzz
