// The regular expressions by which tokenizers cut text into words: those of Oniguruma's syntax that
// tokenizer.json files use. They match code points of UTF-8; a byte that is not UTF-8 is a character that is
// in no class but negated ones. Immutable after it is made; may be used from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/data/unicode.h"

namespace het {

class Pattern {
 public:
  // Throws Error(usage) where the syntax is wrong or not supported; `what` names the file.
  Pattern(std::string_view source, std::string_view what);

  // The first match that begins at `from` or later, as [begin, end) in bytes; one of no bytes is none. Throws
  // Error(usage) when the pattern tries too much.
  std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from) const;

 private:
  friend class PatternParser;

  enum class Op : uint8_t {
    set,          // one character of sets_[x]
    split,        // go on at x, else at y
    jump,         // go on at x
    look_ahead,   // what follows up to `stop` matches here (y = 1: does not); go on at x
    look_behind,  // the character before is in sets_[y / 2] (y odd: is not); go on at x
    atomic,       // what follows up to `stop` matches here, its first way only; go on at x
    run,          // as many of sets_[x] as there are, at least y, given back one by one
    begin,        // of the text
    end,          // of the text
    stop,         // end of a look_ahead or an atomic, or the match
  };
  struct Instruction {
    Op op;
    uint32_t x = 0, y = 0;
  };
  // A set of characters: ranges, categories and other sets, or all characters but these.
  struct Set {
    std::vector<std::pair<char32_t, char32_t>> ranges;
    uint32_t categories = 0;  // bit of each Category
    bool space = false, negated = false;
    std::vector<Set> parts;
    bool ascii[128] = {};  // has() of these, once it is finished
    bool has(char32_t c) const;
  };

  bool matches(const Set& set, std::string_view text, size_t at, int& bytes) const;
  std::optional<size_t> match(std::string_view text, size_t at, uint32_t start, int64_t& budget,
                              int depth) const;

  std::string what_, source_;
  std::vector<Instruction> program_;
  std::vector<Set> sets_;
};

}  // namespace het
