// What every fuzzer of vocabularies asks: any bytes either give a tokenizer that keeps its promises or an
// Error of the usage kind.
#pragma once

#include <cstdlib>
#include <memory>
#include <numeric>
#include <string_view>

#include "core/base/error.h"
#include "core/data/tokenizer.h"
#include "tests/fuzz/text.h"
#include "tests/unit/io/scratch.h"

namespace het::fuzz {

// Each id stands for a text, what was saved is read back, and `text` is encoded as `encoded_again` wants it.
inline void keeps_its_promises(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids(static_cast<size_t>(tokenizer.vocabulary_size()));
  std::iota(ids.begin(), ids.end(), 0);
  tokenizer.decode(ids);
  if (tokenizer_from_json(tokenizer.to_json(), "what was saved")->to_json() != tokenizer.to_json())
    std::abort();
  if (tokenizer.kind() != "sentencepiece")
    encoded_again(tokenizer, text);  // it replaces what it does not know
}

// `input` is a vocabulary.json; or, where it holds a zero byte, a vocab.json before that and a merges.txt
// behind. True when it was accepted. Aborts when it breaks the promise.
inline bool vocabulary(std::string_view input, const testing::Scratch& scratch) {
  try {
    const size_t end = input.find('\0');
    std::unique_ptr<Tokenizer> tokenizer;
    if (end == std::string_view::npos) {
      tokenizer = tokenizer_from_json(parse_json(input, "fuzz"), "fuzz");
    } else {
      scratch.put("vocab.json", input.substr(0, end));
      scratch.put("merges.txt", input.substr(end + 1));
      tokenizer = make_bpe_tokenizer(scratch.folder());
    }
    keeps_its_promises(*tokenizer, input);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
}

}  // namespace het::fuzz
