#include "core/ops/notation.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <numeric>

#include "core/base/error.h"
#include "core/ops/op.h"

namespace het {
namespace {

constexpr std::string_view kLeading = "...";

// --- as it is written

struct WrittenDim {
  DimNotation parts;     // no sizes but those of numbers
  bool spreads = false;  // `...` by itself: any number of dimensions
};

struct WrittenOperand {
  std::string name;
  bool has_dims = false;
  std::vector<WrittenDim> dims;
};

// One side of the arrow: "x[..., in]:T, bias?[out]:A". What follows a name and its dimensions is not read.
class NotationReader {
 public:
  explicit NotationReader(std::string_view text) : text_(text) {}

  std::vector<WrittenOperand> read() {
    std::vector<WrittenOperand> operands;
    skip_spaces();
    while (at_ < text_.size()) {
      operands.push_back(operand());
      while (at_ < text_.size() && text_[at_] != ',') ++at_;
      ++at_;
      skip_spaces();
    }
    return operands;
  }

 private:
  WrittenOperand operand() {
    WrittenOperand result;
    result.name = word();
    if (result.name.empty()) result.name.push_back('y');
    next_is('?');
    if (!next_is('[')) return result;
    result.has_dims = true;
    while (!next_is(']')) {
      result.dims.push_back(dim());
      next_is(',');
    }
    return result;
  }
  WrittenDim dim() {
    WrittenDim result;
    do {
      MergedLetters part;
      if (next_is('(')) {
        while (!next_is(')')) part.letters.push_back(word());
      } else if (const std::string letter = word(); letter == kLeading) {
        result.spreads = true;
      } else if (std::isdigit(static_cast<unsigned char>(letter[0])) != 0) {
        std::from_chars(letter.data(), letter.data() + letter.size(), part.size);
      } else {
        part.letters.push_back(letter);
      }
      result.parts.push_back(std::move(part));
    } while (next_is('+'));
    return result;
  }
  std::string word() {
    skip_spaces();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '_' || text_[at_] == '.'))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool next_is(char c) {
    skip_spaces();
    const bool is = at_ < text_.size() && text_[at_] == c;
    if (is) ++at_;
    return is;
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// The written operands of one side, as those of a call: `...` becomes `leading` letters.
class Expansion {
 public:
  explicit Expansion(size_t leading) {
    for (size_t i = 0; i < leading; ++i) leading_.push_back(fmt::format("{}{}", kLeading, i));
  }

  OperandNotation operator()(const WrittenOperand& written) const {
    OperandNotation operand{written.name, true, {}};
    for (const WrittenDim& dim : written.dims) {
      if (dim.spreads) {
        for (const std::string& letter : leading_) operand.dims.push_back({{{letter}, 1}});
        continue;
      }
      operand.dims.push_back(dim.parts);
      for (MergedLetters& part : operand.dims.back()) part.letters = spelled_out(part.letters);
    }
    return operand;
  }

 private:
  std::vector<std::string> spelled_out(const std::vector<std::string>& letters) const {
    std::vector<std::string> result;
    for (const std::string& letter : letters)
      if (letter == kLeading)
        result.insert(result.end(), leading_.begin(), leading_.end());
      else
        result.push_back(letter);
    return result;
  }

  std::vector<std::string> leading_;
};

// Sizes of letters and of merged letters, from the shapes of a call.
class Sizes {
 public:
  explicit Sizes(Notation& notation) : notation_(notation) {}

  // What one dimension of a tensor says; whether it said anything new.
  bool learn(const DimNotation& dim, int64_t size) {
    if (dim.size() != 1) return false;
    const std::string* unknown = nullptr;
    int64_t known = 1;
    for (const std::string& letter : dim[0].letters) {
      const auto found = notation_.sizes.find(letter);
      if (found != notation_.sizes.end())
        known *= found->second;
      else if (unknown != nullptr)
        return false;
      else
        unknown = &letter;
    }
    if (unknown == nullptr || (known == 0 && size != 0)) return false;
    notation_.sizes.emplace(*unknown, known == 0 ? 0 : size / known);
    return true;
  }

  // The size that the letters give a dimension, and their parts their own.
  int64_t apply(DimNotation& dim) const {
    int64_t total = 0;
    for (MergedLetters& part : dim) {
      if (!part.letters.empty()) part.size = 1;
      for (const std::string& letter : part.letters) {
        const auto found = notation_.sizes.find(letter);
        if (found == notation_.sizes.end()) return -1;
        part.size *= found->second;
      }
      total += part.size;
    }
    return total;
  }

 private:
  Notation& notation_;
};

size_t dims_without_leading(const WrittenOperand& operand) {
  return static_cast<size_t>(std::count_if(operand.dims.begin(), operand.dims.end(),
                                           [](const WrittenDim& dim) { return !dim.spreads; }));
}

bool spreads(const WrittenOperand& operand) { return dims_without_leading(operand) < operand.dims.size(); }

bool is_among(const std::vector<std::string>& letters, const std::string& letter) {
  return std::find(letters.begin(), letters.end(), letter) != letters.end();
}

bool runs_along(const MergedLetters& part, const std::vector<std::string>& letters) {
  return std::any_of(part.letters.begin(), part.letters.end(),
                     [&](const std::string& letter) { return is_among(letters, letter); });
}

// visit(word) for each of the words of a list, until it returns true; whether one did.
template <typename Visit>
bool any_word(std::string_view words, const Visit& visit) {
  for (size_t begin = 0; begin < words.size();) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    if (visit(words.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Notation notation_of(const OpCall& call, std::span<const TensorType> outputs) {
  const std::string text =
      call.op.notation != nullptr ? call.op.notation(call, outputs) : std::string(call.op.signature);
  const size_t arrow = text.find("→");
  HET_REQUIRE(arrow != std::string::npos, call.op.name, text);
  const std::vector<WrittenOperand> sides[2]{NotationReader(std::string_view(text).substr(0, arrow)).read(),
                                             NotationReader(std::string_view(text).substr(arrow + 3)).read()};
  const std::span<const TensorType> types[2]{call.inputs, outputs};
  Notation notation;
  size_t leading = 0;
  for (int side = 0; side < 2; ++side)
    for (size_t i = 0; i < std::min(types[side].size(), sides[side].size()); ++i)
      if (types[side][i].present() && spreads(sides[side][i]))
        leading = types[side][i].shape.size() - dims_without_leading(sides[side][i]);

  const Expansion expand(leading);
  for (int side = 0; side < 2; ++side) {
    auto& operands = side == 0 ? notation.inputs : notation.outputs;
    for (size_t i = 0; i < types[side].size(); ++i) {
      HET_REQUIRE(i < sides[side].size(), call.op.name, text, i);
      const WrittenOperand& written = sides[side][i];
      operands.push_back({written.name, false, {}});
      if (!types[side][i].present()) continue;
      HET_REQUIRE(written.has_dims, call.op.name, text, written.name);
      operands.back() = expand(written);
      HET_REQUIRE(operands.back().dims.size() == types[side][i].shape.size(), call.op.name, text,
                  written.name, to_string(types[side][i]));
    }
  }
  // Sizes: as long as a dimension fixes another letter's.
  const auto each_dim = [&](const auto& visit) {
    for (int side = 0; side < 2; ++side) {
      auto& operands = side == 0 ? notation.inputs : notation.outputs;
      for (size_t i = 0; i < operands.size(); ++i)
        for (size_t d = 0; d < operands[i].dims.size(); ++d)
          visit(operands[i].dims[d], types[side][i].shape[d]);
    }
  };
  Sizes sizes(notation);
  for (bool learned = true; learned;) {
    learned = false;
    each_dim([&](const DimNotation& dim, int64_t size) { learned = sizes.learn(dim, size) || learned; });
  }
  each_dim([&](DimNotation& dim, int64_t size) {
    HET_REQUIRE(sizes.apply(dim) == size, call.op.name, text, size);
    for (const MergedLetters& part : dim)
      for (const std::string& letter : part.letters)
        if (!is_among(notation.letters, letter)) notation.letters.push_back(letter);
  });
  return notation;
}

bool names(std::string_view words, std::string_view name) {
  return any_word(words, [&](std::string_view word) {
    return word.ends_with('*') ? name.starts_with(word.substr(0, word.size() - 1)) : name == word;
  });
}

std::vector<std::vector<std::string>> letter_sets(const Notation& notation, std::string_view word) {
  std::vector<std::vector<std::string>> sets;
  if (word == kLeading || word.ends_with('?')) {
    const std::string_view begin = word == kLeading ? word : word.substr(0, word.size() - 1);
    for (const std::string& letter : notation.letters)
      if (letter.starts_with(begin)) sets.push_back({letter});
    return sets;
  }
  std::vector<std::string> together;
  any_word(word, [&](std::string_view each) {
    for (const std::string& letter : notation.letters)
      if (names(each, letter)) together.push_back(letter);
    return false;
  });
  if (!together.empty()) sets.push_back(std::move(together));
  return sets;
}

int64_t units_of(const Notation& notation, const std::vector<std::string>& letters) {
  int64_t units = 0;
  for (const std::string& letter : letters) units = std::gcd(units, notation.sizes.at(letter));
  return units;
}

std::optional<LetterRuns> runs_of(const MergedLetters& part, const Notation& notation,
                                  const std::vector<std::string>& letters) {
  LetterRuns runs;
  for (const std::string& letter : part.letters) {
    const int64_t size = notation.sizes.at(letter);
    if (!is_among(letters, letter))
      (runs.size == 0 ? runs.outer : runs.inner) *= size;
    else if (runs.size == 0)
      runs.size = size;
    else
      return std::nullopt;
  }
  return runs;
}

bool runs_along(const OperandNotation& operand, const std::vector<std::string>& letters) {
  for (const DimNotation& dim : operand.dims)
    for (const MergedLetters& part : dim)
      if (runs_along(part, letters)) return true;
  return false;
}

std::optional<TensorSlice> cut(const OperandNotation& operand, const Shape& shape, const Notation& notation,
                               const std::vector<std::string>& letters, int64_t units, Range range) {
  TensorSlice slice = TensorSlice::whole(shape);
  for (size_t d = 0; d < operand.dims.size(); ++d) {
    const DimNotation& dim = operand.dims[d];
    const auto with = std::count_if(dim.begin(), dim.end(),
                                    [&](const MergedLetters& part) { return runs_along(part, letters); });
    if (with == 0) continue;
    if (with < static_cast<std::ptrdiff_t>(dim.size())) return std::nullopt;
    Ranges keep;
    int64_t start = 0;
    for (const MergedLetters& part : dim) {
      const auto runs = runs_of(part, notation, letters);
      if (!runs) return std::nullopt;
      const int64_t granule = runs->size / units;
      for (int64_t o = 0; o < runs->outer; ++o) {
        const int64_t at = o * runs->size;
        keep.push_back({start + (at + range.begin * granule) * runs->inner,
                        start + (at + range.end * granule) * runs->inner});
      }
      start += part.size;
    }
    slice = slice.narrowed(static_cast<int64_t>(d), keep);
  }
  return slice;
}

std::string_view meaning_of(std::string_view letter) {
  constexpr std::pair<std::string_view, std::string_view> kMeanings[] = {
      {"b", "samples"},   {"t", "tokens"},    {"s", "keys"},      {"hq", "query heads"}, {"hk", "key heads"},
      {"h", "heads"},     {"v", "rows"},      {"c", kFeatures},   {"n", kFeatures},      {"in", kFeatures},
      {"out", kFeatures}, {"ci", "channels"}, {"co", "channels"}, {"g", "groups"},       {"e", "experts"},
  };
  for (const auto& [own, meaning] : kMeanings)
    if (own == letter) return meaning;
  return "entries";
}

std::string aligned_dims(const Shape& shape, const Shape& result) {
  std::string text;
  for (size_t d = 0; d < shape.size(); ++d) {
    const size_t at = d + result.size() - shape.size();
    text += fmt::format("{}{}", d > 0 ? ", " : "",
                        shape[d] == result[at] && shape[d] != 1 ? fmt::format("{}{}", kLeading, at)
                                                                : fmt::format("{}", shape[d]));
  }
  return "[" + text + "]";
}

}  // namespace het
