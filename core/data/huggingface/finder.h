// What normalizers and pre-tokenizers look for in a text: a literal or an expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/data/huggingface/part.h"
#include "core/data/pattern.h"

namespace het::huggingface {

class Finder {
 public:
  explicit Finder(std::string literal) : literal_(std::move(literal)) {}
  Finder(std::string_view expression, std::string_view what) : pattern_(std::in_place, expression, what) {}
  // From {"String": ...} or {"Regex": ...}.
  static Finder of(const Part& part) {
    if (part["String"].present()) {
      std::string literal = part["String"].text();
      if (literal.empty()) part.refuse("an empty pattern");
      return Finder(std::move(literal));
    }
    if (part["Regex"].present()) return {part["Regex"].text(), part.name};
    return Finder(part.text());
  }

  std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from) const {
    if (pattern_) return pattern_->find(text, from);
    const size_t at = text.find(literal_, from);
    if (at == std::string_view::npos) return std::nullopt;
    return std::pair{at, at + literal_.size()};
  }

 private:
  std::string literal_;
  std::optional<Pattern> pattern_;
};

// The text with all that is found replaced.
std::string replaced(std::string_view text, const Finder& pattern, std::string_view content);

}  // namespace het::huggingface
