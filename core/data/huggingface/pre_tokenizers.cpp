#include "core/data/huggingface/pre_tokenizers.h"

#include "core/base/error.h"
#include "core/data/words.h"

namespace het::huggingface {
namespace {

constexpr std::string_view kPunctuation = R"([!-/:-@\[-`{-~\p{P}])";  // ASCII's and Unicode's

Behavior behavior_of(const Part& part) {
  const std::string name = part.text();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  part.refuse(fmt::format("'{}'", name));
}

// The pieces of a text, by matches and what is between.
void split_pieces(std::string_view text, bool first, const Finder& pattern, Behavior behavior, bool invert,
                  const Emit& emit) {
  struct Piece {
    size_t begin, end;
    bool match;
  };
  std::optional<Piece> waiting;  // may yet grow
  bool last_match = false;
  const auto send = [&](const Piece& piece) {
    if (piece.end > piece.begin)
      emit(text.substr(piece.begin, piece.end - piece.begin), first && piece.begin == 0);
  };
  const auto flush = [&] {
    if (waiting) send(*waiting);
    waiting.reset();
  };
  const auto add = [&](Piece piece) {
    if (piece.end == piece.begin) return;
    piece.match = piece.match != invert;
    switch (behavior) {
      case Behavior::isolated: send(piece); return;
      case Behavior::removed:
        if (!piece.match) send(piece);
        return;
      case Behavior::merged_with_previous:
        if (piece.match && !last_match && waiting) {
          waiting->end = piece.end;
        } else {
          flush();
          waiting = piece;
        }
        break;
      case Behavior::merged_with_next:
        if (waiting && waiting->match && !piece.match) {
          waiting->end = piece.end;
          waiting->match = false;
        } else {
          flush();
          waiting = piece;
        }
        break;
      case Behavior::contiguous:
        if (waiting && waiting->match == piece.match) {
          waiting->end = piece.end;
        } else {
          flush();
          waiting = piece;
        }
        break;
    }
    last_match = piece.match;
  };
  size_t at = 0;
  while (const auto found = pattern.find(text, at)) {
    add({at, found->first, false});
    add({found->first, found->second, true});
    at = found->second;
  }
  add({at, text.size(), false});
  flush();
}

}  // namespace

Scheme scheme_of(const Part& part) {
  if (!part["prepend_scheme"].present())
    return part["add_prefix_space"].flag(true) ? Scheme::always : Scheme::never;
  const std::string name = part["prepend_scheme"].text();
  if (name == "always") return Scheme::always;
  if (name == "first") return Scheme::first;
  if (name == "never") return Scheme::never;
  part["prepend_scheme"].refuse(fmt::format("'{}'", name));
}

std::vector<PreTokenizer> pre_tokenizers_of(const Part& part) {
  std::vector<PreTokenizer> list;
  const auto split = [&](Finder pattern, Behavior behavior, bool invert) {
    PreTokenizer step{PreTokenizer::Kind::split};
    step.pattern = std::move(pattern);
    step.behavior = behavior;
    step.invert = invert;
    list.push_back(std::move(step));
  };
  for (const Part& part_of : steps_of(part, "pretokenizers")) {
    const std::string type = part_of.type();
    if (!list.empty() && list.back().kind == PreTokenizer::Kind::bytes)
      part_of.refuse(fmt::format("the pre-tokenizer '{}' behind ByteLevel", type));
    if (type == "Split") {
      split(Finder::of(part_of["pattern"]), behavior_of(part_of["behavior"]), part_of["invert"].flag(false));
    } else if (type == "Digits") {
      const bool each = part_of["individual_digits"].flag(false);
      split({R"(\p{N})", part_of.name}, each ? Behavior::isolated : Behavior::contiguous, false);
    } else if (type == "Punctuation") {
      split({kPunctuation, part_of.name},
            part_of["behavior"].present() ? behavior_of(part_of["behavior"]) : Behavior::isolated, false);
    } else if (type == "BertPreTokenizer") {
      split({R"(\s)", part_of.name}, Behavior::removed, false);
      split({kPunctuation, part_of.name}, Behavior::isolated, false);
    } else if (type == "WhitespaceSplit") {
      split({R"(\s)", part_of.name}, Behavior::removed, false);
    } else if (type == "ByteLevel") {
      PreTokenizer step{PreTokenizer::Kind::bytes};
      step.prefix_space = part_of["add_prefix_space"].flag(true);
      step.words = part_of["use_regex"].flag(true);
      list.push_back(std::move(step));
    } else if (type == "Metaspace") {
      PreTokenizer step{PreTokenizer::Kind::metaspace};
      step.mark = part_of["replacement"].text();
      if (step.mark.empty()) part_of["replacement"].refuse("an empty text");
      step.scheme = scheme_of(part_of);
      step.cut = part_of["split"].flag(true);
      list.push_back(std::move(step));
    } else {
      part_of.refuse(fmt::format("the pre-tokenizer '{}'", type));
    }
  }
  return list;
}

void pre_tokenize(const std::vector<PreTokenizer>& list, size_t step, std::string_view text, bool first,
                  const Emit& emit) {
  if (text.empty()) return;
  if (step == list.size()) return emit(text, first);
  const PreTokenizer& pre = list[step];
  const Emit next = [&](std::string_view piece, bool is_first) {
    pre_tokenize(list, step + 1, piece, is_first, emit);
  };
  if (pre.kind == PreTokenizer::Kind::split)
    return split_pieces(text, first, *pre.pattern, pre.behavior, pre.invert, next);
  std::string changed;
  if (pre.kind == PreTokenizer::Kind::bytes) {
    if (pre.prefix_space && text.front() != ' ') text = changed = ' ' + std::string(text);
    if (!pre.words) return next(text, first);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = word_end(text, begin);
      next(text.substr(begin, end - begin), first && begin == 0);
      begin = end;
    }
    return;
  }
  changed = replaced(text, Finder(" "), pre.mark);
  const bool marked = changed.compare(0, pre.mark.size(), pre.mark) == 0;
  if (!marked && (pre.scheme == Scheme::always || (pre.scheme == Scheme::first && first)))
    changed.insert(0, pre.mark);
  if (!pre.cut) return next(changed, first);
  split_pieces(changed, first, Finder(pre.mark), Behavior::merged_with_next, false, next);
}

}  // namespace het::huggingface
