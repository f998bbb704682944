// A tokenizer.json of Hugging Face's tokenizers: added tokens are cut out of the text; what is between is
// normalised, cut into words by pre-tokenizers, and each word encoded by the model. Written after the
// library's documentation and compared with it in tests/reference/tokenizer_ids.py.
#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "core/base/error.h"
#include "core/data/huggingface/added_tokens.h"
#include "core/data/huggingface/model.h"
#include "core/data/huggingface/normalizers.h"
#include "core/data/huggingface/pre_tokenizers.h"
#include "core/data/huggingface/special_tokens.h"
#include "core/data/tokenizer_kinds.h"
#include "core/io/file.h"

namespace het {
namespace huggingface {
namespace {

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(std::string text, Json files, std::string_view what)
      : text_(std::move(text)), files_(std::move(files)) {
    const Json json = parse_json(text_, what);
    const Part root{&json, fmt::format("{}: tokenizer.json", what)};
    if (!json.is_object()) fail_usage("{}: an object is wanted", root.name);
    normalizers_ = normalizers_of(root["normalizer"]);
    pre_tokenizers_ = pre_tokenizers_of(root["pre_tokenizer"]);
    const bool byte_level =
        !pre_tokenizers_.empty() && pre_tokenizers_.back().kind == PreTokenizer::Kind::bytes;
    model_ = make_model(root["model"], byte_level, shown_);
    read_added(root["added_tokens"]);
    read_decoder(root["decoder"]);
    read_surroundings(root["post_processor"]);
  }

  std::string_view kind() const override { return "huggingface"; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(shown_.texts.size()); }
  std::vector<int32_t> prefix() const override { return prefix_; }
  std::vector<int32_t> suffix() const override { return suffix_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    Model::Words words;
    const Emit word = [&](std::string_view piece, bool) { model_->encode(piece, words, ids); };
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
      const size_t id = checked_id(ids[i], *this);
      const std::string& shown = i == 0 && id < first_shown_.size() ? first_shown_[id] : shown_.texts[id];
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
  SpecialTokens special_tokens() const override {
    std::call_once(special_read_, [this] { special_ = special_tokens_in(text_, files_); });
    return special_;
  }

  Json to_json() const override {
    Json json = Json::object_t{{"kind", "huggingface"}, {"json", text_}};
    if (!files_.is_null()) json["files"] = files_;
    return json;
  }

 private:
  void read_added(const Part& added) {
    if (!added.present()) return;
    for (const Part& part : added.list()) {
      AddedToken token{part["id"].id(), part["content"].text()};
      if (token.id > static_cast<int32_t>(shown_.texts.size()) + 65536)
        fail_usage("{}: its id {} is far beyond the other {} tokens", part.name, token.id,
                   shown_.texts.size());
      token.single_word = part["single_word"].flag(false);
      token.left = part["lstrip"].flag(false);
      token.right = part["rstrip"].flag(false);
      token.normalized = part["normalized"].flag(false);
      by_content_.emplace(token.content, token.id);
      if (token.normalized) token.content = normalised(normalizers_, token.content);
      shown_.set(token.id, token.content);
      if (token.normalized) {
        after_normalizing_.add(token);
      } else {
        before_normalizing_.add(token);
      }
    }
  }

  // What tokens are shown as: once for each, since no step of the decoders in use looks at more than one
  // token but at whether it is the first.
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
      } else if (type == "WordPiece") {
        read_word_pieces(part);
      } else if (type == "Strip") {
        if (part["content"].text() != " ") part["content"].refuse("anything but a space");
        drops_first_space_ = true;
      } else if (type != "Fuse" && type != "ByteLevel") {
        part.refuse(fmt::format("the decoder '{}'", type));
      }
    }
    std::unordered_map<std::string, char> bytes_by_name;
    for (int b = 0; bytes && b < 256; ++b)
      bytes_by_name.emplace(byte_token(b), static_cast<char>(static_cast<unsigned char>(b)));
    for (std::string& shown : shown_.texts)
      if (const auto byte = bytes_by_name.find(shown); byte != bytes_by_name.end())
        shown.assign(1, byte->second);
      else
        for (const auto& step : steps) step(shown);
  }

  // Tokens that continue a word are shown without their mark, others with a space before them, but the first.
  void read_word_pieces(const Part& part) {
    const std::string mark = part["prefix"].text_or("##");
    const auto cleaned = [](std::string text) {
      constexpr std::pair<std::string_view, std::string_view> kSpaces[] = {
          {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
          {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
          {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
      for (const auto& [from, to] : kSpaces) text = replaced(text, Finder(std::string(from)), to);
      return text;
    };
    first_shown_ = shown_.texts;
    for (std::string& shown : shown_.texts)
      shown = !mark.empty() && shown.starts_with(mark) ? shown.substr(mark.size()) : " " + shown;
    if (!part["cleanup"].flag(true)) return;
    for (auto* texts : {&first_shown_, &shown_.texts})
      for (std::string& shown : *texts) shown = cleaned(std::move(shown));
  }

  // What is put before and behind a text.
  void read_surroundings(const Part& processor) {
    for (const Part& part : steps_of(processor, "processors")) {
      if (part.type() == "BertProcessing" || part.type() == "RobertaProcessing")
        for (const auto& [name, to] : {std::pair{"cls", &prefix_}, std::pair{"sep", &suffix_}}) {
          const std::vector<Part> token = part[name].list();
          if (token.size() != 2) fail_usage("{}: a token and its id are wanted", part[name].name);
          add_surrounding(*to, token[1].id(), token[1].name);
        }
      if (part.type() == "TemplateProcessing") read_template(part);
    }
  }
  void read_template(const Part& part) {
    std::vector<int32_t>* to = &prefix_;
    for (const Part& piece : part["single"].list()) {
      if (!piece["SpecialToken"].present()) {
        to = &suffix_;
        continue;
      }
      const std::string name = piece["SpecialToken"]["id"].text();
      const Part special = part["special_tokens"][name]["ids"];
      if (special.present()) {
        for (const Part& id : special.list()) add_surrounding(*to, id.id(), special.name);
      } else {
        const auto found = by_content_.find(name);
        if (found == by_content_.end()) fail_usage("{}: there is no token '{}'", part.name, name);
        add_surrounding(*to, found->second, special.name);
      }
    }
  }
  void add_surrounding(std::vector<int32_t>& to, int32_t id, std::string_view name) const {
    if (static_cast<size_t>(id) >= shown_.texts.size())
      fail_usage("{}: token id {} is outside the vocabulary", name, id);
    to.push_back(id);
  }

  std::string text_;  // of tokenizer.json
  Json files_;        // of others that are saved beside it: text by name
  mutable std::once_flag special_read_;
  mutable SpecialTokens special_;
  std::vector<Normalizer> normalizers_;
  std::vector<PreTokenizer> pre_tokenizers_;
  std::unique_ptr<Model> model_;
  Shown shown_;
  std::vector<std::string> first_shown_;  // by id, of the first token where it differs; else empty
  bool drops_first_space_ = false;
  AddedTokens before_normalizing_, after_normalizing_;
  std::unordered_map<std::string, int32_t> by_content_;
  std::vector<int32_t> prefix_, suffix_;
};

}  // namespace
}  // namespace huggingface

using huggingface::JsonTokenizer;

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
