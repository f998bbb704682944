// The steps that cut a text into words, which the model encodes one by one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/huggingface/finder.h"

namespace het::huggingface {

enum class Behavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

enum class Scheme : uint8_t { always, first, never };  // when a word gets the mark of a space before it

// `prepend_scheme`, or what stands for it in older files.
Scheme scheme_of(const Part& part);

struct PreTokenizer {
  enum class Kind : uint8_t { split, bytes, metaspace } kind;
  std::optional<Finder> pattern = {};
  Behavior behavior = Behavior::isolated;
  bool invert = false;
  bool prefix_space = false, words = false;  // of bytes
  std::string mark = {};                     // of metaspace
  Scheme scheme = Scheme::never;
  bool cut = false;
};

// Throws Error(usage) naming a step that is not supported.
std::vector<PreTokenizer> pre_tokenizers_of(const Part& part);

using Emit = std::function<void(std::string_view piece, bool first)>;
// Emits the words of a text by the steps of `list` from `step` on; `first`: the whole text begins with it.
void pre_tokenize(const std::vector<PreTokenizer>& list, size_t step, std::string_view text, bool first,
                  const Emit& emit);

}  // namespace het::huggingface
