// Index notation of a call: which letter runs along each dimension of its operands and results, in the style
// of einsum and einops. `q[b, t, hq, d]` names four letters; `(h d)` is one dimension of merged letters, the
// outer one first; `p0 + p1` is one of parts that follow one another; a number is a dimension that no letter
// runs along; `...` stands for the leading dimensions. A letter has one size in the whole call.
//
// What can be cut follows from the letters: cutting one cuts every dimension that it runs along.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/slice.h"

namespace het {

struct OpCall;

// Letters that are merged into one dimension, or into one part of it; none for a number.
struct MergedLetters {
  std::vector<std::string> letters;
  int64_t size = 1;  // the product, or the number
};
// One dimension: parts that follow one another, nearly always one.
using DimNotation = std::vector<MergedLetters>;

struct OperandNotation {
  std::string name;
  bool present = false;
  std::vector<DimNotation> dims;
};

struct Notation {
  std::vector<OperandNotation> inputs, outputs;  // as the call's, absent ones too
  std::vector<std::string> letters;              // in the order in which they appear
  std::map<std::string, int64_t> sizes;          // by letter
};

// Of a call and the types of its results: OpDef::notation where the operator has one, else its signature,
// with `...` written out as letters "...0", "...1". Throws Error(bug) where they do not describe the call.
Notation notation_of(const OpCall& call, std::span<const TensorType> outputs);

// Whether a word of a rule names this: "weight" itself, "p*" all that begin with p. A list of words,
// separated by spaces, names what one of them names.
bool names(std::string_view words, std::string_view name);

// The letters that a word of a rule stands for, one set for each way to cut: "out" itself, "hq hk" both
// together, "..." each leading dimension in turn, "r?" each that begins with r in turn, "p*" all that begin
// with p, together. Letters that the call
// does not have are left out; no set without letters.
std::vector<std::vector<std::string>> letter_sets(const Notation& notation, std::string_view word);

// Letters that are cut together are cut in as many units as their sizes have in common: 8 query heads and 2
// key heads in 2 units, of 4 and 1 heads.
int64_t units_of(const Notation& notation, const std::vector<std::string>& letters);

// Where letters run along a part of a dimension: `outer` times [all entries of a letter], of `inner` elements
// each. size 0: none of them does. nullopt: two of them are merged in it.
struct LetterRuns {
  int64_t outer = 1, size = 0, inner = 1;
};
std::optional<LetterRuns> runs_of(const MergedLetters& part, const Notation& notation,
                                  const std::vector<std::string>& letters);
bool runs_along(const OperandNotation& operand, const std::vector<std::string>& letters);

// What of a tensor the units [range.begin, range.end) of the letters are; all of a tensor that none of them
// runs along. nullopt: a dimension has parts with such a letter beside parts without one, which cannot be
// cut.
std::optional<TensorSlice> cut(const OperandNotation& operand, const Shape& shape, const Notation& notation,
                               const std::vector<std::string>& letters, int64_t units, Range range);

// What entries of a letter are, for people: "key heads" of hk, "features" of c.
inline constexpr std::string_view kFeatures = "features";
std::string_view meaning_of(std::string_view letter);

// For OpDef::notation: the dimensions of an operand that broadcasts to `result`, "[1, ...2]" of [1, 5] in
// [4, 3, 5]. Dimensions of size 1 are numbers.
std::string aligned_dims(const Shape& shape, const Shape& result);

}  // namespace het
