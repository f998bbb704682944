#include "core/data/examples.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/data/corpus.h"
#include "core/data/data_files.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr size_t kLinesAtOnce = 256;  // that threads share out

std::string with_ending(std::string text, const std::string& ending) {
  return text.ends_with(ending) ? text : text + ending;
}

const std::string& text_member(const Json& line, const char* name) {
  const std::string* text = as_string(find_member(line, name));
  if (text == nullptr) fail_usage("'{}' is not a text", name);
  return *text;
}

// Messages as templates take them; throws for what no template does.
void check_messages(const Json& messages, const std::string& name) {
  const Json::array_t* list = as_array(messages);
  if (list == nullptr || list->empty()) fail_usage("'{}' is not a list of messages", name);
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    if (as_string(find_member(message, "role")) == nullptr)
      fail_usage("{}[{}] has no 'role' that is a text", name, i);
    const Json* content = find_member(message, "content");
    if (content != nullptr && as_string(content) == nullptr && !content->is_null() &&
        as_array(content) == nullptr)
      fail_usage("{}[{}].content is not a text", name, i);
    if (as_string(content) == nullptr && as_array(content) == nullptr &&
        find_member(message, "tool_calls") == nullptr)
      fail_usage("{}[{}] has no 'content'", name, i);
  }
}

Json member_or_null(const Json& line, const char* name) {
  const Json* found = find_member(line, name);
  return found == nullptr ? Json() : *found;
}

}  // namespace

ExampleText ExampleReader::read(const Json& line) const {
  if (!line.is_object()) fail_usage("a JSON object is wanted");
  const auto has = [&](const char* name) { return find_member(line, name) != nullptr; };
  ExampleText made;
  const bool completes = has("completion");
  if (has("prompt") != completes)
    fail_usage("'{}' has no '{}' beside it", completes ? "completion" : "prompt",
               completes ? "prompt" : "completion");
  if (has("messages") || (completes && as_array(find_member(line, "prompt")) != nullptr)) {
    Conversation conversation;
    conversation.messages = *find_member(line, completes ? "prompt" : "messages");
    check_messages(conversation.messages, completes ? "prompt" : "messages");
    if (completes) {
      conversation.first_counted = conversation.messages.size();
      check_messages(*find_member(line, "completion"), "completion");
      for (const Json& message : *find_member(line, "completion")) conversation.messages.push_back(message);
    }
    conversation.tools = member_or_null(line, "tools");
    conversation.variables = member_or_null(line, "chat_template_kwargs");
    if (chat == nullptr)
      fail_usage(
          "messages need a chat template, and there is none: give 'chat_template', or as 'model' a folder "
          "that has chat_template.jinja, or chat_template in tokenizer_config.json");
    if (counts_all) {
      made.text = chat->render(conversation);
      made.counted = {{0, made.text.size()}};
    } else {
      ChatText text = chat->conversation(conversation);
      made.text = std::move(text.text);
      made.counted = std::move(text.counted);
    }
    made.takes_prefix = false;
  } else if (completes) {
    const std::string& prompt = text_member(line, "prompt");
    made.text = prompt + with_ending(text_member(line, "completion"), ending);
    made.counted = {{counts_all ? 0 : prompt.size(), made.text.size()}};
  } else if (has("text")) {
    made.text = with_ending(text_member(line, "text"), ending);
    made.counted = {{0, made.text.size()}};
  } else {
    std::string names;
    for (const auto& [name, value] : *as_object(line)) names += (names.empty() ? "" : ", ") + name;
    fail_usage("it has {}; 'text', 'prompt' and 'completion', or 'messages' are wanted",
               names.empty() ? "no members" : names);
  }
  return made;
}

EncodedExample encode_example(const Tokenizer& tokenizer, const ExampleText& example) {
  const std::string_view text = example.text;
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::vector<int32_t> prefix = example.takes_prefix ? tokenizer.prefix() : std::vector<int32_t>{};

  // Where what counts begins and ends, in tokens. When pieces encode as the whole does, by their lengths;
  // else by how far the tokens of what stands before are those of the whole.
  std::vector<size_t> cuts;
  for (const auto& [begin, end] : example.counted)
    for (const size_t cut : {begin, end})
      if (cuts.empty() || cuts.back() < cut) cuts.push_back(cut);
  std::vector<size_t> places;
  std::vector<int32_t> joined;
  size_t from = 0;
  for (const size_t cut : cuts) {
    const std::vector<int32_t> piece = tokenizer.encode(text.substr(from, cut - from));
    joined.insert(joined.end(), piece.begin(), piece.end());
    places.push_back(joined.size());
    from = cut;
  }
  if (from < text.size()) {
    const std::vector<int32_t> piece = tokenizer.encode(text.substr(from));
    joined.insert(joined.end(), piece.begin(), piece.end());
  }
  if (joined != ids)
    for (size_t i = 0; i < cuts.size(); ++i) {
      const std::vector<int32_t> before = tokenizer.encode(text.substr(0, cuts[i]));
      const size_t most = std::min(before.size(), ids.size());
      places[i] = cuts[i] == text.size()
                      ? ids.size()
                      : static_cast<size_t>(std::mismatch(before.begin(),
                                                          before.begin() + static_cast<std::ptrdiff_t>(most),
                                                          ids.begin())
                                                .first -
                                            before.begin());
    }
  const auto place_of = [&](size_t cut) {
    return places[static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), cut) - cuts.begin())];
  };

  EncodedExample made;
  made.ids = prefix;
  made.ids.insert(made.ids.end(), ids.begin(), ids.end());
  made.counted.assign(made.ids.size(), 0);
  for (const auto& [begin, end] : example.counted)
    for (size_t i = place_of(begin); i < place_of(end); ++i) made.counted[prefix.size() + i] = 1;
  if (std::count(made.counted.begin() + (made.counted.empty() ? 0 : 1), made.counted.end(), 1) == 0)
    fail_usage("it has no token to learn: what counts is empty");
  return made;
}

namespace {

struct Line {
  std::string_view text;
  size_t file = 0;
  int64_t number = 0;
};

void add_lines(std::string_view text, size_t file, std::vector<Line>& lines) {
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines.push_back({line, file, number});
    at = end + 1;
  }
}

// Run body(i) for each i below count, on all threads; the error of the lowest i is thrown.
template <typename Body>
void for_each_in_order(size_t count, const Body& body) {
  std::vector<std::exception_ptr> errors(count);
  parallel_parts(static_cast<int64_t>(count), [&](int64_t i) {
    try {
      body(static_cast<size_t>(i));
    } catch (...) {
      errors[static_cast<size_t>(i)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace

std::shared_ptr<const Corpus> Corpus::from_examples(const ExampleCorpusOptions& options) {
  std::shared_ptr<Corpus> corpus(new Corpus);
  corpus->name_ = options.path.text;
  corpus->packs_ = options.packing;
  std::vector<Path> paths;
  for (const DataFile& file : data_files(options.path, ".jsonl").files) paths.push_back(file.path);
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<Line> lines;
  for (const Path& path : paths) {
    files.push_back(std::make_unique<MappedFile>(path));
    require_known_format(files.back()->text(), path.text);
    add_lines(files.back()->text(), files.size() - 1, lines);
  }
  corpus->files_ = static_cast<int>(files.size());
  if (lines.empty())
    fail_usage("'{}' holds no examples: it has no line that is not empty", options.path.text);
  const auto read = [&](const Line& line, const auto& body) {
    const std::string where = fmt::format("{}:{}", paths[line.file].text, line.number);
    const Json json = parse_json(line.text, where);
    try {
      return body(json);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", where, error.sentence()));
    }
  };

  ExampleReader reader;
  reader.counts_all = options.counts_all;
  if (options.vocabulary.is_null() &&
      options.tokenizer == "char") {  // its vocabulary is that of the examples
    std::string all;
    for (const Line& line : lines)
      all += read(line, [&](const Json& json) { return reader.read(json).text; });
    corpus->tokenizer_ = make_tokenizer("char", all + options.ending.value_or(""), options.model);
  } else {
    corpus->tokenizer_ = options.vocabulary.is_null()
                             ? make_tokenizer(options.tokenizer, "", options.model)
                             : tokenizer_from_json(options.vocabulary, "the vocabulary given");
  }
  const Tokenizer& tokenizer = *corpus->tokenizer_;
  corpus->vocabulary_ = tokenizer.vocabulary_size();
  const Json special = special_tokens_of(tokenizer);
  const std::string* end_token = as_string(find_member(special, "eos_token"));
  reader.ending = options.ending ? *options.ending : end_token != nullptr ? *end_token : "";
  const std::unique_ptr<ChatTemplate> chat =
      options.chat_template.empty() ? ChatTemplate::of(tokenizer)
                                    : std::make_unique<ChatTemplate>(read_file(options.chat_template),
                                                                     special, tokenizer.added_tokens());
  reader.chat = chat.get();

  const auto encode_all = [&]<typename Token>(Token) {
    auto tokens = std::make_shared<std::vector<Token>>();
    corpus->starts_.push_back(0);
    for (size_t first = 0; first < lines.size(); first += kLinesAtOnce) {
      std::vector<EncodedExample> made(std::min(kLinesAtOnce, lines.size() - first));
      for_each_in_order(made.size(), [&](size_t i) {
        made[i] = read(lines[first + i],
                       [&](const Json& json) { return encode_example(tokenizer, reader.read(json)); });
      });
      for (const EncodedExample& example : made) {
        for (const int32_t id : example.ids) tokens->push_back(static_cast<Token>(id));
        corpus->counted_.insert(corpus->counted_.end(), example.counted.begin(), example.counted.end());
        corpus->starts_.push_back(static_cast<int64_t>(tokens->size()));
      }
    }
    corpus->add_piece(reinterpret_cast<const std::byte*>(tokens->data()),
                      static_cast<int64_t>(tokens->size()), sizeof(Token));
    corpus->storage_ = std::move(tokens);
  };
  if (corpus->vocabulary_ <= 65536)
    encode_all(uint16_t{});
  else
    encode_all(uint32_t{});
  corpus->set_holdout(options.holdout);
  return corpus;
}

}  // namespace het
