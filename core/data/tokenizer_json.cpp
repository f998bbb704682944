// A tokenizer.json of Hugging Face's tokenizers: added tokens are cut out of the text; what is between is
// normalised, cut into words by pre-tokenizers, and each word encoded by byte-pair encoding. Written after
// the library's documentation and compared with it in tests/reference/tokenizer_ids.py.
#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/data/merges.h"
#include "core/data/pattern.h"
#include "core/data/tokenizer_kinds.h"
#include "core/data/unicode.h"
#include "core/data/words.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr int64_t kMostIds = int64_t{1} << 24;

// --- reading the file

// A part of the file, and how it is called in errors.
struct Part {
  const Json* json = nullptr;
  std::string name;

  bool present() const { return json != nullptr && !json->is_null(); }
  Part operator[](std::string_view member) const {
    return {json == nullptr ? nullptr : find_member(*json, member), fmt::format("{}.{}", name, member)};
  }
  std::string text() const {
    const std::string* value = as_string(json);
    if (value == nullptr) fail_usage("{}: a text is wanted", name);
    return *value;
  }
  std::string text_or(std::string_view otherwise) const {
    return present() ? text() : std::string(otherwise);
  }
  bool flag(bool otherwise) const {
    const bool* value = as_bool(json);
    if (value == nullptr && present()) fail_usage("{}: true or false is wanted", name);
    return value == nullptr ? otherwise : *value;
  }
  int32_t id() const {
    const int64_t* value = as_integer(json);
    if (value == nullptr || *value < 0 || *value >= kMostIds)
      fail_usage("{}: a token id from 0 to {} is wanted", name, kMostIds - 1);
    return static_cast<int32_t>(*value);
  }
  std::vector<Part> list() const {
    const Json::array_t* array = as_array(json);
    if (array == nullptr) fail_usage("{}: a list is wanted", name);
    std::vector<Part> parts;
    for (size_t i = 0; i < array->size(); ++i)
      parts.push_back({&(*array)[i], fmt::format("{}[{}]", name, i)});
    return parts;
  }
  std::string type() const { return (*this)["type"].text(); }
  [[noreturn]] void refuse(std::string_view what) const { fail_usage("{}: {} is not supported", name, what); }
};

// The steps of a Sequence, or the one that there is; none where it is null.
std::vector<Part> steps_of(const Part& part, std::string_view list, int depth = 0) {
  if (!part.present()) return {};
  if (depth > 8) part.refuse("a sequence nested more than 8 deep");
  if (part.type() != "Sequence") return {part};
  std::vector<Part> steps;
  for (const Part& step : part[list].list())
    for (Part& inner : steps_of(step, list, depth + 1)) steps.push_back(std::move(inner));
  return steps;
}

// --- finding what to cut or replace: a literal or an expression

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

// --- normalizers

struct Normalizer {
  enum class Kind : uint8_t { nfc, prepend, replace } kind;
  std::string content = {};
  std::optional<Finder> pattern = {};
};

std::vector<Normalizer> normalizers_of(const Part& part) {
  std::vector<Normalizer> list;
  for (const Part& step : steps_of(part, "normalizers")) {
    const std::string type = step.type();
    if (type == "NFC")
      list.push_back({Normalizer::Kind::nfc});
    else if (type == "Prepend")
      list.push_back({Normalizer::Kind::prepend, step["prepend"].text()});
    else if (type == "Replace")
      list.push_back({Normalizer::Kind::replace, step["content"].text(), Finder::of(step["pattern"])});
    else
      step.refuse(fmt::format("the normalizer '{}'", type));
  }
  return list;
}

std::string replaced(std::string_view text, const Finder& pattern, std::string_view content) {
  std::string result;
  size_t at = 0;
  while (const auto found = pattern.find(text, at)) {
    result.append(text, at, found->first - at);
    result += content;
    at = found->second;
  }
  return result.append(text, at);
}

std::string normalised(const std::vector<Normalizer>& list, std::string_view text) {
  std::string result(text);
  for (const Normalizer& step : list) switch (step.kind) {
      case Normalizer::Kind::nfc: result = nfc(result); break;
      case Normalizer::Kind::prepend:
        if (!result.empty()) result.insert(0, step.content);
        break;
      case Normalizer::Kind::replace: result = replaced(result, *step.pattern, step.content); break;
    }
  return result;
}

// --- pre-tokenizers

enum class Behavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const Part& part) {
  const std::string name = part.text();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  part.refuse(fmt::format("'{}'", name));
}

enum class Scheme : uint8_t { always, first, never };  // when a word gets the mark of a space before it

Scheme scheme_of(const Part& part) {
  if (!part["prepend_scheme"].present())
    return part["add_prefix_space"].flag(true) ? Scheme::always : Scheme::never;
  const std::string name = part["prepend_scheme"].text();
  if (name == "always") return Scheme::always;
  if (name == "first") return Scheme::first;
  if (name == "never") return Scheme::never;
  part["prepend_scheme"].refuse(fmt::format("'{}'", name));
}

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
      split({R"([!-/:-@\[-`{-~\p{P}])", part_of.name},
            part_of["behavior"].present() ? behavior_of(part_of["behavior"]) : Behavior::isolated, false);
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

using Emit = std::function<void(std::string_view piece, bool first)>;

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

// --- added tokens

struct AddedToken {
  int32_t id = 0;
  std::string content = {};
  bool single_word = false, left = false, right = false, normalized = false;
};

// A character of a word by Unicode Technical Standard 18, with the letters in circles and squares and the
// joiners.
bool is_word(char32_t c) {
  const Category category = category_of(c);
  return category <= Category::Me || category == Category::Nd || category == Category::Nl ||
         category == Category::Pc || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

// Finds added tokens: the leftmost, of those that begin together the longest.
class AddedTokens {
 public:
  void add(const AddedToken& token) {
    if (token.content.empty()) return;
    size_t node = 0;
    for (const char c : token.content) {
      const auto [next, fresh] = next_.try_emplace(node << 8 | static_cast<unsigned char>(c), last_.size());
      if (fresh) last_.push_back(-1);
      node = next->second;
    }
    last_[node] = static_cast<int64_t>(tokens_.size());
    tokens_.push_back(token);
    begins_[static_cast<unsigned char>(token.content[0])] = true;
  }

  // Calls text(piece, begins at 0) and token(id) in their order.
  template <typename OnText, typename OnToken>
  void cut(std::string_view text, const OnText& on_text, const OnToken& on_token) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const AddedToken* token = begins_[static_cast<unsigned char>(text[at])] ? match(text, at) : nullptr;
      if (token == nullptr) {
        ++at;
        continue;
      }
      size_t begin = at, end = at + token->content.size();
      at = end;
      if (begin < done || (token->single_word && touches_word(text, begin, end))) continue;
      if (token->left)
        while (begin > done && is_space_before(text, begin)) begin = start_before(text, begin);
      if (token->right)
        while (end < text.size() && is_space(decode_utf8(text, end).code_point) &&
               decode_utf8(text, end).bytes > 0)
          end += static_cast<size_t>(decode_utf8(text, end).bytes);
      if (begin > done) on_text(text.substr(done, begin - done), done == 0);
      on_token(token->id);
      done = end;
    }
    if (done < text.size()) on_text(text.substr(done), done == 0);
  }

 private:
  const AddedToken* match(std::string_view text, size_t at) const {
    const AddedToken* found = nullptr;
    size_t node = 0;
    for (; at < text.size(); ++at) {
      const auto next = next_.find(node << 8 | static_cast<unsigned char>(text[at]));
      if (next == next_.end()) break;
      node = next->second;
      if (last_[node] >= 0) found = &tokens_[static_cast<size_t>(last_[node])];
    }
    return found;
  }
  static size_t start_before(std::string_view text, size_t at) {
    do --at;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
    return at;
  }
  static bool is_space_before(std::string_view text, size_t at) {
    return is_space(decode_utf8(text, start_before(text, at)).code_point);
  }
  static bool touches_word(std::string_view text, size_t begin, size_t end) {
    return (begin > 0 && is_word(decode_utf8(text, start_before(text, begin)).code_point)) ||
           (end < text.size() && is_word(decode_utf8(text, end).code_point));
  }

  std::vector<AddedToken> tokens_;
  std::unordered_map<size_t, size_t> next_;  // node and byte to node
  std::vector<int64_t> last_ = {-1};         // by node: the token that ends there
  bool begins_[256] = {};
};

// --- the tokenizer

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(std::string text, Json files, std::string_view what)
      : text_(std::move(text)), files_(std::move(files)) {
    const Json json = parse_json(text_, what);
    const Part root{&json, fmt::format("{}: tokenizer.json", what)};
    if (!json.is_object()) fail_usage("{}: an object is wanted", root.name);
    normalizers_ = normalizers_of(root["normalizer"]);
    pre_tokenizers_ = pre_tokenizers_of(root["pre_tokenizer"]);
    byte_level_ = !pre_tokenizers_.empty() && pre_tokenizers_.back().kind == PreTokenizer::Kind::bytes;
    read_model(root["model"]);
    read_added(root["added_tokens"]);
    read_decoder(root["decoder"]);
    read_prefix(root["post_processor"]);
  }

  std::string_view kind() const override { return "huggingface"; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(shown_.size()); }
  std::vector<int32_t> prefix() const override { return prefix_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    Words words;
    const Emit word = [&](std::string_view piece, bool) { encode_word(piece, words, ids); };
    const auto token = [&](int32_t id) { ids.push_back(id); };
    before_normalizing_.cut(
        text,
        [&](std::string_view raw, bool first) {
          const std::string changed = normalizers_.empty() ? std::string() : normalised(normalizers_, raw);
          after_normalizing_.cut(
              normalizers_.empty() ? raw : std::string_view(changed),
              [&](std::string_view piece, bool first_of_piece) {
                pre_tokenize(pre_tokenizers_, 0, piece, first && first_of_piece, word);
              },
              token);
        },
        token);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string& shown = shown_[checked_id(ids[i], *this)];
      if (i == 0 && drops_first_space_ && !shown.empty() && shown[0] == ' ')
        text.append(shown, 1);
      else
        text += shown;
    }
    return text;
  }

  std::vector<std::string> added_tokens() const override {
    std::vector<std::string> texts;
    for (const auto& [text, id] : by_content_) texts.push_back(text);
    return texts;
  }
  const Json& files() const override { return files_; }

  Json to_json() const override {
    Json json = Json::object_t{{"kind", "huggingface"}, {"json", text_}};
    if (!files_.is_null()) json["files"] = files_;
    return json;
  }

 private:
  using Words = std::unordered_map<std::string, std::vector<int32_t>>;

  // The bytes or characters that a token of the vocabulary stands for.
  std::string spelled(const std::string& token, std::string_view what) const {
    return byte_level_ ? bytes_of_token(token, bytes_, what) : token;
  }

  void set_shown(int32_t id, std::string shown) {
    if (static_cast<size_t>(id) >= shown_.size()) shown_.resize(static_cast<size_t>(id) + 1);
    shown_[static_cast<size_t>(id)] = std::move(shown);
  }

  void read_model(const Part& model) {
    if (!model.present()) fail_usage("{} is missing", model.name);
    const std::string type = model["type"].text_or("BPE");
    if (type != "BPE")
      model.refuse(
          fmt::format("the model '{}' (BPE is; a SentencePiece model file is read by tokenizer = "
                      "\"sentencepiece\")",
                      type));
    if (model["dropout"].present() && *model["dropout"].json != Json(0.0)) model["dropout"].refuse("dropout");
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!model[affix].text_or("").empty()) model[affix].refuse("a text");
    fuses_unknown_ = model["fuse_unk"].flag(false);
    whole_words_ = model["ignore_merges"].flag(false);
    const Part vocabulary = model["vocab"];
    const Json::object_t* entries = as_object(vocabulary.json);
    if (entries == nullptr || entries->empty())
      fail_usage("{}: an object from tokens to ids is wanted", vocabulary.name);
    std::unordered_map<std::string, int32_t> by_name;
    for (const auto& [token, id] : *entries) {
      const int32_t number = Part{&id, fmt::format("{}['{}']", vocabulary.name, token)}.id();
      by_name.emplace(token, number);
      std::string bytes = spelled(token, vocabulary.name);
      set_shown(number, bytes);
      ids_.emplace(std::move(bytes), number);
    }
    if (shown_.size() > 2 * entries->size() + 65536)
      fail_usage("{}: {} tokens have ids up to {}", vocabulary.name, entries->size(), shown_.size() - 1);
    const auto id_of = [&](const std::string& token) -> int32_t {
      const auto found = by_name.find(token);
      return found == by_name.end() ? -1 : found->second;
    };
    if (model["unk_token"].present()) unknown_ = id_of(model["unk_token"].text());
    if (byte_level_) {
      const std::vector<char32_t> characters = byte_characters();
      for (size_t b = 0; b < 256; ++b) {
        std::string character;
        append_utf8(character, characters[b]);
        byte_ids_[b] = id_of(character);
      }
    } else if (model["byte_fallback"].flag(false)) {
      falls_back_ = true;
      for (size_t b = 0; b < 256; ++b) byte_ids_[b] = id_of(fmt::format("<0x{:02X}>", b));
    }
    read_merges(model["merges"], id_of);
  }

  template <typename IdOf>
  void read_merges(const Part& merges, const IdOf& id_of) {
    for (const Part& merge : merges.list()) {
      std::string first, second;
      if (merge.json->is_array()) {
        const std::vector<Part> both = merge.list();
        if (both.size() != 2) fail_usage("{}: two tokens are wanted", merge.name);
        first = both[0].text();
        second = both[1].text();
      } else {
        const std::string line = merge.text();
        const size_t space = line.find(' ');
        if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
          fail_usage("{}: it is '{}'; two tokens with a space between are wanted", merge.name, line);
        first = line.substr(0, space);
        second = line.substr(space + 1);
      }
      const std::string joined = first + second;
      const int32_t a = id_of(first), b = id_of(second), result = id_of(joined);
      if (a < 0 || b < 0 || result < 0)
        fail_usage("{}: the vocabulary lacks the token '{}'", merge.name,
                   a < 0   ? first
                   : b < 0 ? second
                           : joined);
      merges_.add(a, b, result);
      if (byte_level_) continue;
      note_neighbours(joined);
      // Symbols that stand for other characters than their names: words are not cut.
      if (a == unknown_ || b == unknown_ || is_byte(a) || is_byte(b)) cuts_ = false;
    }
  }

  bool is_byte(int32_t id) const {
    return falls_back_ && std::find(std::begin(byte_ids_), std::end(byte_ids_), id) != std::end(byte_ids_);
  }
  static uint64_t neighbours(char32_t a, char32_t b) { return static_cast<uint64_t>(a) << 32 | b; }

  void note_neighbours(const std::string& token) {
    char32_t before = 0;
    for (size_t i = 0; i < token.size();) {
      const Decoded decoded = decode_utf8(token, i);
      if (i > 0) neighbours_.insert(neighbours(before, decoded.code_point));
      before = decoded.code_point;
      i += static_cast<size_t>(std::max(decoded.bytes, 1));
    }
  }

  void read_added(const Part& added) {
    if (!added.present()) return;
    for (const Part& part : added.list()) {
      AddedToken token{part["id"].id(), part["content"].text()};
      if (token.id > static_cast<int32_t>(shown_.size()) + 65536)
        fail_usage("{}: its id {} is far beyond the other {} tokens", part.name, token.id, shown_.size());
      token.single_word = part["single_word"].flag(false);
      token.left = part["lstrip"].flag(false);
      token.right = part["rstrip"].flag(false);
      token.normalized = part["normalized"].flag(false);
      by_content_.emplace(token.content, token.id);
      if (token.normalized) token.content = normalised(normalizers_, token.content);
      set_shown(token.id, token.content);
      if (token.normalized) {
        after_normalizing_.add(token);
      } else {
        before_normalizing_.add(token);
      }
    }
  }

  // What tokens are shown as: once for each, since no step of the decoders in use looks at more than one
  // token but for the space before the first.
  void read_decoder(const Part& decoder) {
    std::vector<std::function<void(std::string&)>> steps;
    bool bytes = false;
    for (const Part& part : steps_of(decoder, "decoders")) {
      const std::string type = part.type();
      if (type == "ByteFallback") {
        bytes = true;
      } else if (type == "Replace") {
        steps.push_back([pattern = Finder::of(part["pattern"]), content = part["content"].text()](
                            std::string& token) { token = replaced(token, pattern, content); });
      } else if (type == "Metaspace") {
        steps.push_back([pattern = Finder(part["replacement"].text())](std::string& token) {
          token = replaced(token, pattern, " ");
        });
        drops_first_space_ = scheme_of(part) != Scheme::never;
      } else if (type == "Strip") {
        if (part["content"].text() != " ") part["content"].refuse("anything but a space");
        drops_first_space_ = true;
      } else if (type != "Fuse" && type != "ByteLevel") {
        part.refuse(fmt::format("the decoder '{}'", type));
      }
    }
    for (std::string& shown : shown_)
      for (const auto& step : steps) step(shown);
    for (size_t b = 0; bytes && b < 256; ++b)
      if (const auto found = ids_.find(fmt::format("<0x{:02X}>", b)); found != ids_.end())
        set_shown(found->second, std::string(1, static_cast<char>(static_cast<unsigned char>(b))));
  }

  // What a template puts before a text.
  void read_prefix(const Part& processor) {
    for (const Part& part : steps_of(processor, "processors")) {
      if (part.type() != "TemplateProcessing") continue;
      for (const Part& piece : part["single"].list()) {
        if (!piece["SpecialToken"].present()) break;
        const std::string name = piece["SpecialToken"]["id"].text();
        const Part special = part["special_tokens"][name]["ids"];
        if (special.present()) {
          for (const Part& id : special.list()) add_prefix(id.id(), special.name);
        } else {
          const auto found = by_content_.find(name);
          if (found == by_content_.end()) fail_usage("{}: there is no token '{}'", part.name, name);
          add_prefix(found->second, special.name);
        }
      }
    }
  }
  void add_prefix(int32_t id, std::string_view name) {
    if (static_cast<size_t>(id) >= shown_.size())
      fail_usage("{}: token id {} is outside the vocabulary", name, id);
    prefix_.push_back(id);
  }

  // Appends the ids of a word.
  void encode_word(std::string_view word, Words& words, std::vector<int32_t>& ids) const {
    if (word.size() > kMostWord)
      fail_usage("a word of the text has {} bytes; {} are the most", word.size(), kMostWord);
    if (whole_words_)
      if (const auto found = ids_.find(std::string(word)); found != ids_.end())
        return ids.push_back(found->second);
    if (byte_level_ || !cuts_) return encode_part(word, words, ids, false);
    // Where no token holds two neighbouring characters side by side, none reaches over them: the word is cut
    // there.
    size_t begin = 0;
    char32_t before = 0;
    bool first = true;
    for (size_t at = 0; at < word.size();) {
      const Decoded decoded = decode_utf8(word, at);
      if (at > begin && neighbours_.find(neighbours(before, decoded.code_point)) == neighbours_.end()) {
        encode_part(word.substr(begin, at - begin), words, ids, !first);
        first = false;
        begin = at;
      }
      before = decoded.code_point;
      at += static_cast<size_t>(std::max(decoded.bytes, 1));
    }
    encode_part(word.substr(begin), words, ids, !first);
  }

  // `follows`: what is before it belongs to the same word.
  void encode_part(std::string_view part, Words& words, std::vector<int32_t>& ids, bool follows) const {
    constexpr size_t kMostKept = 64, kMostWords = size_t{1} << 20;
    const auto append = [&](const std::vector<int32_t>& made) {
      const bool fuses = follows && fuses_unknown_ && !made.empty() && !ids.empty() && unknown_ >= 0 &&
                         made.front() == unknown_ && ids.back() == unknown_;
      ids.insert(ids.end(), made.begin() + (fuses ? 1 : 0), made.end());
    };
    if (part.size() > kMostKept) return append(symbols_of(part));
    if (words.size() >= kMostWords) words.clear();
    const auto [entry, fresh] = words.try_emplace(std::string(part));
    if (fresh) entry->second = symbols_of(part);
    append(entry->second);
  }

  std::vector<int32_t> symbols_of(std::string_view part) const {
    std::vector<int32_t> symbols;
    const auto byte = [&](char c) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) symbols.push_back(id);
      return id >= 0;
    };
    if (byte_level_) {
      for (const char c : part)
        if (!byte(c)) add_unknown(symbols);
    } else {
      for (size_t at = 0; at < part.size();) {
        const size_t size = static_cast<size_t>(std::max(decode_utf8(part, at).bytes, 1));
        const std::string character(part.substr(at, size));
        at += size;
        if (const auto found = ids_.find(character); found != ids_.end())
          symbols.push_back(found->second);
        else if (!falls_back_ || !std::all_of(character.begin(), character.end(), [&](char c) {
                   return byte_ids_[static_cast<unsigned char>(c)] >= 0;
                 }))
          add_unknown(symbols);
        else
          for (const char c : character) byte(c);
      }
    }
    merges_.apply(symbols);
    return symbols;
  }

  void add_unknown(std::vector<int32_t>& symbols) const {
    if (unknown_ >= 0 && !(fuses_unknown_ && !symbols.empty() && symbols.back() == unknown_))
      symbols.push_back(unknown_);
  }

  std::string text_;  // of tokenizer.json
  Json files_;        // of others that are saved beside it: text by name
  std::vector<Normalizer> normalizers_;
  std::vector<PreTokenizer> pre_tokenizers_;
  bool byte_level_ = false, falls_back_ = false, fuses_unknown_ = false, whole_words_ = false;
  bool drops_first_space_ = false, cuts_ = true;
  std::unordered_map<char32_t, char> bytes_ = bytes_of_characters();
  std::unordered_map<std::string, int32_t> ids_;  // by what tokens stand for
  std::vector<std::string> shown_;                // by id
  int32_t byte_ids_[256] = {};
  int32_t unknown_ = -1;
  Merges merges_;
  std::unordered_set<uint64_t> neighbours_;  // pairs of characters that stand side by side in a token
  AddedTokens before_normalizing_, after_normalizing_;
  std::unordered_map<std::string, int32_t> by_content_;
  std::vector<int32_t> prefix_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const Path& model) {
  if (kind_of(model) != FileKind::folder)
    return std::make_unique<JsonTokenizer>(read_file(model), Json(), fmt::format("'{}'", model.text));
  // What transformers has beside it, and wants to find again beside a model that is saved.
  Json files = Json::object();
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
                           "chat_template.jinja", "added_tokens.json"})
    if (kind_of(model.child(name)) == FileKind::file) files[name] = read_file(model.child(name));
  return std::make_unique<JsonTokenizer>(read_file(model.child("tokenizer.json")), files,
                                         fmt::format("'{}'", model.text));
}

std::unique_ptr<Tokenizer> huggingface_from_json(const Json& json, std::string_view what) {
  const std::string* text = as_string(find_member(json, "json"));
  if (text == nullptr) fail_usage("{}: a vocabulary of kind huggingface needs the text 'json'", what);
  const Json* files = find_member(json, "files");
  if (files != nullptr && !files->is_object()) fail_usage("{}: 'files' is not an object", what);
  return std::make_unique<JsonTokenizer>(*text, files == nullptr ? Json() : *files, what);
}

}  // namespace het
