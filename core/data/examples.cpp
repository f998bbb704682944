#include "core/data/examples.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/data/corpus.h"
#include "core/data/data_files.h"
#include "core/data/json_pieces.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr size_t kLinesAtOnce = 256;  // that threads share out

std::string with_ending(std::string text, const std::string& ending) {
  return text.ends_with(ending) ? text : text + ending;
}

// Neither absent nor null.
const Json* find_given(const Json& line, const char* name) {
  const Json* found = find_member(line, name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

const std::string& text_member(const Json& line, const char* name) {
  const std::string* text = as_string(find_member(line, name));
  if (text == nullptr) fail_usage("'{}' is not a string", name);
  return *text;
}

// Messages as templates take them; throws for what no template does.
void check_messages(const Json& messages, const std::string& name) {
  const Json::array_t* list = as_array(messages);
  if (list == nullptr || list->empty()) fail_usage("'{}' is not a list of messages", name);
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    if (as_string(find_member(message, "role")) == nullptr)
      fail_usage("{}[{}] has no 'role' that is a string", name, i);
    const Json* content = find_member(message, "content");
    if (content != nullptr && as_string(content) == nullptr && !content->is_null() &&
        as_array(content) == nullptr)
      fail_usage("{}[{}].content is not a string", name, i);
    if (as_string(content) == nullptr && as_array(content) == nullptr &&
        find_member(message, "tool_calls") == nullptr)
      fail_usage("{}[{}] has no 'content'", name, i);
  }
}

// What ShareGPT's files call a role, as templates have it; an empty text: none that is known.
std::string_view role_of(std::string_view from) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kRoles = {
      {{"system", "system"},
       {"human", "user"},
       {"user", "user"},
       {"gpt", "assistant"},
       {"chatgpt", "assistant"},
       {"assistant", "assistant"},
       {"observation", "tool"},
       {"tool", "tool"}}};
  for (const auto& [name, role] : kRoles)
    if (name == from) return role;
  return {};
}

Json message_of(std::string_view role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// What `system` says, if anything, as the first message.
Json begun_messages(const Json& line) {
  Json messages = Json::array();
  if (find_given(line, "system") != nullptr && !text_member(line, "system").empty())
    messages.push_back(message_of("system", text_member(line, "system")));
  return messages;
}

// ShareGPT's `conversations` (and `system`), as messages: 'from' and 'value' are a role and a content.
Json messages_of_conversations(const Json& line) {
  const Json::array_t* list = as_array(find_member(line, "conversations"));
  if (list == nullptr || list->empty()) fail_usage("'conversations' is not a list of messages");
  Json messages = begun_messages(line);
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& turn = (*list)[i];
    if (find_member(turn, "role") != nullptr) {  // messages under this name
      messages.push_back(turn);
      continue;
    }
    const std::string *from = as_string(find_member(turn, "from")),
                      *value = as_string(find_member(turn, "value"));
    if (from == nullptr || value == nullptr)
      fail_usage("conversations[{}] has no '{}' that is a string", i, from == nullptr ? "from" : "value");
    const std::string_view role = role_of(*from);
    if (role.empty())
      fail_usage(
          "conversations[{}] is from '{}'; system, human (or user), gpt (or assistant) and tool are known", i,
          *from);
    messages.push_back(message_of(role, *value));
  }
  check_messages(messages, "conversations");
  return messages;
}

// Alpaca's instruction, input and output, as messages: the input stands below the instruction. `history` has
// what was asked and answered before, in pairs.
Json messages_of_instruction(const Json& line) {
  Json messages = begun_messages(line);
  if (const Json* history = find_given(line, "history")) {
    const Json::array_t* turns = as_array(history);
    if (turns == nullptr) fail_usage("'history' is not a list of pairs of strings");
    for (const Json& turn : *turns) {
      const Json::array_t* pair = as_array(&turn);
      if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string())
        fail_usage("'history' is not a list of pairs of strings");
      messages.push_back(message_of("user", *as_string(&(*pair)[0])));
      messages.push_back(message_of("assistant", *as_string(&(*pair)[1])));
    }
  }
  std::string asked = text_member(line, "instruction");
  if (find_given(line, "input") != nullptr && !text_member(line, "input").empty())
    asked += "\n\n" + text_member(line, "input");
  messages.push_back(message_of("user", std::move(asked)));
  messages.push_back(message_of("assistant", text_member(line, "output")));
  return messages;
}

Json member_or_null(const Json& line, const char* name) {
  const Json* found = find_member(line, name);
  return found == nullptr ? Json() : *found;
}

std::string names_of(const Json& line) {
  std::string names;
  for (const auto& [name, value] : *as_object(&line)) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "no members" : names;
}

// What both texts, or both lists of messages, begin with: in texts whole code points, without a space before
// the first difference, as TRL has it.
Json common_prompt(const Json& chosen, const Json& rejected) {
  if (const Json::array_t* a = as_array(&chosen), *b = as_array(&rejected); a != nullptr && b != nullptr) {
    const auto end = std::mismatch(a->begin(), a->end(), b->begin(), b->end()).first;
    return Json::array_t(a->begin(), end);
  }
  const std::string &a = *as_string(&chosen), &b = *as_string(&rejected);
  auto count = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (count > 0 && count < a.size() && (static_cast<unsigned char>(a[count]) & 0xC0) == 0x80) --count;
  if (count > 0 && a[count - 1] == ' ') --count;
  return a.substr(0, count);
}

Json after(const Json& whole, const Json& prompt) {
  if (const Json::array_t* list = as_array(&whole))
    return Json::array_t(list->begin() + static_cast<std::ptrdiff_t>(prompt.size()), list->end());
  return as_string(&whole)->substr(as_string(&prompt)->size());
}

}  // namespace

// A text or messages behind a prompt of the same kind. `name`: of the member that the completion is.
ExampleText ExampleReader::completed(const Json& line, const Json& prompt, const Json& completion,
                                     const std::string& name) const {
  ExampleText made;
  if (as_array(&prompt) == nullptr) {
    const std::string *before = as_string(&prompt), *own = as_string(&completion);
    if (before == nullptr || own == nullptr)
      fail_usage("'{}' is not a string", before == nullptr ? "prompt" : name);
    made.text = *before + with_ending(*own, ending);
    made.counted = {{counts_all ? 0 : before->size(), made.text.size()}};
    return made;
  }
  Conversation conversation;
  conversation.messages = prompt;
  conversation.first_counted = prompt.size();
  check_messages(completion, name);
  for (const Json& message : *as_array(&completion)) conversation.messages.push_back(message);
  return written(line, std::move(conversation));
}

// Messages as the chat template writes them, with what the line says for it.
ExampleText ExampleReader::written(const Json& line, Conversation conversation) const {
  conversation.tools = member_or_null(line, "tools");
  conversation.variables = member_or_null(line, "chat_template_kwargs");
  if (chat == nullptr)
    fail_usage(
        "a conversation needs a chat template, and there is none: give 'chat_template', or as 'model' a "
        "folder that has chat_template.jinja, or chat_template in tokenizer_config.json");
  ExampleText made;
  made.takes_prefix = false;
  if (counts_all) {
    made.text = chat->render(conversation);
    made.counted = {{0, made.text.size()}};
  } else {
    ChatText text = chat->conversation(conversation);
    made.text = std::move(text.text);
    made.counted = std::move(text.counted);
  }
  return made;
}

ExampleText ExampleReader::read(const Json& line) const {
  if (!line.is_object()) fail_usage("a JSON object is wanted");
  const Json *prompt = find_member(line, "prompt"), *completion = find_member(line, "completion");
  const Json* messages = find_member(line, "messages");
  if (completion != nullptr ? prompt == nullptr : prompt != nullptr && messages == nullptr)
    fail_usage(
        "'{}' has no '{}' beside it{}", completion != nullptr ? "completion" : "prompt",
        completion != nullptr ? "prompt" : "completion",
        find_member(line, "chosen") != nullptr ? "; data.preferences reads 'chosen' and 'rejected'" : "");
  if (completion != nullptr) {
    if (as_array(prompt) != nullptr) check_messages(*prompt, "prompt");
    return completed(line, *prompt, *completion, "completion");
  }
  if (messages != nullptr) {
    check_messages(*messages, "messages");
    return written(line, Conversation{.messages = *messages});
  }
  if (find_given(line, "conversations") != nullptr)
    return written(line, Conversation{.messages = messages_of_conversations(line)});
  const bool is_asked = find_member(line, "instruction") != nullptr && find_member(line, "output") != nullptr;
  if (find_given(line, "text") == nullptr && is_asked)
    return written(line, Conversation{.messages = messages_of_instruction(line)});
  if (find_member(line, "text") == nullptr)
    fail_usage(
        "it has {}; 'text', 'prompt' and 'completion', 'messages', 'conversations', or 'instruction' and "
        "'output' are wanted",
        names_of(line));
  ExampleText made;
  made.text = with_ending(text_member(line, "text"), ending);
  made.counted = {{0, made.text.size()}};
  return made;
}

std::array<ExampleText, 2> ExampleReader::read_preference(const Json& line) const {
  if (!line.is_object()) fail_usage("a JSON object is wanted");
  const Json *chosen = find_member(line, "chosen"), *rejected = find_member(line, "rejected");
  if (chosen == nullptr || rejected == nullptr)
    fail_usage("it has {}; 'prompt', 'chosen' and 'rejected' are wanted", names_of(line));
  for (const auto& [name, answer] : {std::pair{"chosen", chosen}, std::pair{"rejected", rejected}})
    if (as_array(answer) == nullptr && as_string(answer) == nullptr)
      fail_usage("'{}' is neither a string nor a list of messages", name);
  const bool has_messages = as_array(chosen) != nullptr;
  if (has_messages != (as_array(rejected) != nullptr))
    fail_usage("'chosen' is a {}, 'rejected' a {}", has_messages ? "list of messages" : "string",
               has_messages ? "string" : "list of messages");
  if (*chosen == *rejected) fail_usage("'chosen' and 'rejected' are the same");
  const Json* prompt = find_member(line, "prompt");
  if (!has_messages && prompt != nullptr && as_array(prompt) != nullptr)
    fail_usage("'prompt' is a list of messages, 'chosen' a string");
  if (prompt != nullptr && (as_array(prompt) != nullptr) == has_messages) {
    if (has_messages) check_messages(*prompt, "prompt");
    return {completed(line, *prompt, *chosen, "chosen"), completed(line, *prompt, *rejected, "rejected")};
  }
  const Json common = common_prompt(*chosen, *rejected);
  if (has_messages) {
    if (common.empty())
      fail_usage("'chosen' and 'rejected' begin with no message that both have{}",
                 prompt == nullptr ? ", and there is no 'prompt'"
                                   : "; a 'prompt' beside messages is a list of messages");
    if (common.size() == chosen->size() || common.size() == rejected->size())
      fail_usage("'chosen' and 'rejected' do not differ in a message");
    check_messages(common, "chosen");
  }
  return {completed(line, common, after(*chosen, common), "chosen"),
          completed(line, common, after(*rejected, common), "rejected")};
}

namespace {

// Where a cut of a text lies in its tokens: `first` is the first one that does not end before it, and
// `straddles` says whether a part of that one stands before it, too.
struct TokenCut {
  size_t first = 0;
  bool straddles = false;
};

// `ids`: of the text; `before`: of what stands before the cut. From the first difference on the tokens of the
// text are laid over what those of `before` say: a token may have no character there, as a "▁" that a
// normalizer has put before a line break, which begins another token.
TokenCut cut_in(const Tokenizer& tokenizer, std::span<const int32_t> ids, std::span<const int32_t> before) {
  // Tokens that are decoded with it: what a decoder strips stands at its beginning.
  constexpr size_t kContext = 8;
  const size_t most = std::min(before.size(), ids.size());
  const auto same = static_cast<size_t>(
      std::mismatch(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(most), ids.begin()).first -
      before.begin());
  if (same == before.size()) return {same, false};
  const size_t from = same - std::min(same, kContext);
  const std::string known = tokenizer.decode(ids.subspan(from, same - from));
  const std::string whole = tokenizer.decode(before.subspan(from));
  if (!whole.starts_with(known)) return {same, false};
  size_t covered = known.size();  // of `whole`, by the tokens before `end`
  size_t end = same;
  for (; end < ids.size() && covered < whole.size(); ++end) {
    const std::string said = tokenizer.decode(ids.subspan(from, end + 1 - from));
    if (said.size() > whole.size() || !whole.starts_with(said)) return {end, true};
    covered = said.size();
  }
  return {end, false};
}

}  // namespace

EncodedExample encode_example(const Tokenizer& tokenizer, const ExampleText& example) {
  const std::string_view text = example.text;
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::vector<int32_t> prefix = example.takes_prefix ? tokenizer.prefix() : std::vector<int32_t>{};

  // Where what counts begins and ends, in tokens. When pieces encode as the whole does, by their lengths;
  // else by the tokens of what stands before.
  std::vector<size_t> cuts;
  for (const auto& [begin, end] : example.counted)
    for (const size_t cut : {begin, end})
      if (cuts.empty() || cuts.back() < cut) cuts.push_back(cut);
  std::vector<TokenCut> places;
  std::vector<int32_t> joined;
  size_t from = 0;
  for (const size_t cut : cuts) {
    const std::vector<int32_t> piece = tokenizer.encode(text.substr(from, cut - from));
    joined.insert(joined.end(), piece.begin(), piece.end());
    places.push_back({joined.size(), false});
    from = cut;
  }
  if (from < text.size()) {
    const std::vector<int32_t> piece = tokenizer.encode(text.substr(from));
    joined.insert(joined.end(), piece.begin(), piece.end());
  }
  if (joined != ids)
    for (size_t i = 0; i < cuts.size(); ++i)
      places[i] = cuts[i] == text.size() ? TokenCut{ids.size(), false}
                                         : cut_in(tokenizer, ids, tokenizer.encode(text.substr(0, cuts[i])));
  const auto place_of = [&](size_t cut) {
    return places[static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), cut) - cuts.begin())];
  };

  EncodedExample made;
  made.ids = prefix;
  made.ids.insert(made.ids.end(), ids.begin(), ids.end());
  made.counted.assign(made.ids.size(), 0);
  for (const auto& [begin, end] : example.counted)
    for (size_t i = place_of(begin).first, last = place_of(end).first + (place_of(end).straddles ? 1 : 0);
         i < last; ++i)
      made.counted[prefix.size() + i] = 1;
  if (std::count(made.counted.begin() + (made.counted.empty() ? 0 : 1), made.counted.end(), 1) == 0)
    fail_usage("it has no token to learn: what counts is empty");
  return made;
}

namespace {

struct Line {
  JsonPiece piece;
  size_t file = 0;
};

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
  corpus->rows_ = options.preferences ? 2 : 1;
  std::vector<Path> paths;
  for (const DataFile& file : data_files(options.path, ".jsonl").files) paths.push_back(file.path);
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<Line> lines;
  for (const Path& path : paths) {
    files.push_back(std::make_unique<MappedFile>(path));
    require_known_format(files.back()->text(), path.text);
    for (const JsonPiece& piece : json_pieces(files.back()->text(), path.text))
      lines.push_back({piece, files.size() - 1});
  }
  corpus->files_ = static_cast<int>(files.size());
  if (lines.empty()) fail_usage("'{}' holds no examples", options.path.text);
  const auto read = [&](const Line& line, const auto& body) {
    std::string where = fmt::format("{}:{}", paths[line.file].text, line.piece.line);
    if (line.piece.element > 0) where += fmt::format(" (element {} of the list)", line.piece.element);
    const Json json = parse_json(line.piece.text, where);
    try {
      return body(json);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", where, error.sentence()));
    }
  };

  // Where `error`, of a line from the first one on, is handled: throws it with the numbers of more such
  // lines.
  const auto refuse = [&](const Error& error, size_t first, const auto& body) {
    if (error.kind() != ErrorKind::usage) throw;
    constexpr size_t kMostChecked = 10'000;  // they may have to be encoded
    constexpr size_t kMostNamed = 3;
    const size_t end = std::min(lines.size(), first + kMostChecked);
    std::vector<const Line*> wrong;
    for (size_t i = first; i < end; ++i) try {
        read(lines[i], body);
      } catch (const Error&) {
        wrong.push_back(&lines[i]);
      }
    if (wrong.size() < 2 || wrong.size() == lines.size()) throw;
    const auto number_of = [](const Line& line) {
      return line.piece.element > 0 ? line.piece.element : line.piece.line;
    };
    std::string others;
    for (size_t i = 1; i < std::min(wrong.size(), 1 + kMostNamed); ++i) {
      others += i == 1 ? " " : ", ";
      others += files.size() == 1 ? std::to_string(number_of(*wrong[i]))
                                  : fmt::format("{}:{}", paths[wrong[i]->file].text, number_of(*wrong[i]));
    }
    if (wrong.size() > 1 + kMostNamed) others += fmt::format(" and {} more", wrong.size() - 1 - kMostNamed);
    if (end < lines.size()) others += fmt::format(" of the next {}", kMostChecked);
    throw Error(error.kind(), fmt::format("{}; {}{}{} cannot be read either", error.sentence(),
                                          wrong[0]->piece.element > 0 ? "element" : "line",
                                          wrong.size() == 2 ? "" : "s", others));
  };

  ExampleReader reader;
  reader.counts_all = options.counts_all;
  const auto texts_of = [&](const Json& json) -> std::vector<ExampleText> {
    if (!options.preferences) return {reader.read(json)};
    auto [chosen, rejected] = reader.read_preference(json);
    return {std::move(chosen), std::move(rejected)};
  };
  if (options.vocabulary.is_null() &&
      options.tokenizer == "char") {  // its vocabulary is that of the examples
    std::string all;
    const auto add = [&](const Json& json) {
      for (const ExampleText& example : texts_of(json)) all += example.text;
    };
    for (size_t i = 0; i < lines.size(); ++i) try {
        read(lines[i], add);
      } catch (const Error& error) {
        refuse(error, i, add);
      }
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

  const auto rows = static_cast<size_t>(corpus->rows_);
  const auto encode_all = [&]<typename Token>(Token) {
    auto tokens = std::make_shared<std::vector<Token>>();
    corpus->starts_.push_back(0);
    for (size_t first = 0; first < lines.size(); first += kLinesAtOnce) {
      const size_t count = std::min(kLinesAtOnce, lines.size() - first);
      std::vector<EncodedExample> made(count * rows);
      const auto encode = [&](const Json& json, EncodedExample* examples) {
        for (const ExampleText& text : texts_of(json)) *examples++ = encode_example(tokenizer, text);
      };
      try {
        for_each_in_order(count, [&](size_t i) {
          read(lines[first + i], [&](const Json& json) { encode(json, &made[i * rows]); });
        });
      } catch (const Error& error) {
        std::vector<EncodedExample> unused(rows);
        refuse(error, first, [&](const Json& json) { encode(json, unused.data()); });
      }
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
