#include "core/data/chat.h"

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/data/huggingface/special_tokens.h"

namespace het {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

size_t common_prefix(const std::string& a, const std::string& b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first - a.begin());
}

Json file_of(const Tokenizer& tokenizer, const char* name) {
  const std::string* text = as_string(find_member(tokenizer.files(), name));
  return text == nullptr ? Json() : parse_json(*text, name);
}

// A chat_template of tokenizer_config.json: a text, or a list of them by name.
const std::string* template_in(const Json& config) {
  const Json* given = find_member(config, "chat_template");
  if (const std::string* text = as_string(given)) return text;
  const Json::array_t* list = as_array(given);
  if (list == nullptr) return nullptr;
  const std::string* found = nullptr;
  for (const Json& one : *list) {
    const std::string* name = as_string(find_member(one, "name"));
    if (found == nullptr || (name != nullptr && *name == "default"))
      found = as_string(find_member(one, "template"));
  }
  return found;
}

}  // namespace

Json special_tokens_of(const Tokenizer& tokenizer) {
  Json found = Json::object();
  for (const char* file : {"special_tokens_map.json", "tokenizer_config.json"}) {
    huggingface::each_named_token(
        file_of(tokenizer, file),
        [&](const std::string& name, const std::string& text) { found[name] = text; });
  }
  return found;
}

ChatTemplate::ChatTemplate(std::string_view source, Json special_tokens,
                           std::vector<std::string> added_tokens)
    : template_(source), special_tokens_(std::move(special_tokens)), added_tokens_(std::move(added_tokens)) {}

std::unique_ptr<ChatTemplate> ChatTemplate::of(const Tokenizer& tokenizer) {
  const std::string* source = as_string(find_member(tokenizer.files(), "chat_template.jinja"));
  const Json config = file_of(tokenizer, "tokenizer_config.json");
  if (source == nullptr) source = template_in(config);
  if (source == nullptr) return nullptr;
  return std::make_unique<ChatTemplate>(*source, special_tokens_of(tokenizer), tokenizer.added_tokens());
}

namespace {

jinja::Object variables_of(const Json& special_tokens, const Conversation& conversation) {
  jinja::Object variables;
  const auto add = [&](const Json& from) {
    if (const Json::object_t* members = as_object(from))
      for (const auto& [name, value] : *members) variables.set(name, jinja::Value::from(value));
  };
  add(special_tokens);
  variables.set("tools", jinja::Value::from(conversation.tools));
  variables.set("documents", jinja::Value::none());
  add(conversation.variables);
  return variables;
}

}  // namespace

jinja::Rendered ChatTemplate::rendered(const jinja::Object& variables, const jinja::List& messages,
                                       size_t count, bool asks_for_reply) const {
  jinja::Object all = variables;
  all.set("messages", jinja::Value::of(jinja::List(messages.begin(),
                                                   messages.begin() + static_cast<std::ptrdiff_t>(count))));
  all.set("add_generation_prompt", jinja::Value::of(asks_for_reply));
  return template_.render(all);
}

std::string ChatTemplate::render(const Conversation& conversation) const {
  const jinja::List messages = jinja::items_of(jinja::Value::from(conversation.messages));
  return rendered(variables_of(special_tokens_, conversation), messages, messages.size(),
                  conversation.asks_for_reply)
      .text;
}

// Where the assistant's message stands in the text of all: from behind the prompt for a reply to its end.
// Nothing where the template writes what is before otherwise when others follow.
std::optional<TextSpan> ChatTemplate::turn(const jinja::Object& variables, const jinja::List& messages,
                                           size_t index, const std::string& text) const {
  const std::string prompt = rendered(variables, messages, index, true).text;
  const size_t begin = common_prefix(prompt, text);
  // A prompt may end with words that the message then does not have, as "<think>".
  if (begin < prompt.size()) {
    const std::string before = rendered(variables, messages, index, false).text;
    if (!text.starts_with(before) || begin < before.size()) return std::nullopt;
  }
  const std::string until = rendered(variables, messages, index + 1, false).text;
  const size_t same = common_prefix(until, text);
  if (same < begin) return std::nullopt;
  size_t end = same == until.size() ? same : begin;
  const auto has_token = [&](std::string_view part) {
    return std::any_of(added_tokens_.begin(), added_tokens_.end(),
                       [&](const std::string& token) { return part.find(token) != std::string_view::npos; });
  };
  // Templates may leave something out of earlier turns, as what was thought: the rest of the turn is the
  // same, with the token that ends it where it has one.
  const bool ends_with_token = has_token(std::string_view(until).substr(begin));
  for (size_t left_out = begin + 1; end == begin && left_out < until.size(); ++left_out) {
    const std::string_view rest = std::string_view(until).substr(left_out);
    if (std::string_view(text).substr(begin).starts_with(rest) && (!ends_with_token || has_token(rest)))
      end = begin + rest.size();
  }
  // They may close the last turn otherwise than earlier ones: both are the same up to a token that ends a
  // turn.
  if (end == begin)
    for (const std::string& token : added_tokens_) {
      const size_t at = token.size() <= same ? text.rfind(token, same - token.size()) : std::string::npos;
      if (at != std::string::npos && at >= begin) end = std::max(end, at + token.size());
    }
  while (end > begin && kSpace.find(text[end - 1]) != std::string_view::npos) --end;
  if (end == begin) return std::nullopt;
  return TextSpan{begin, end};
}

// Where the message's content stands, with the token behind it: what other contents do not share.
std::optional<TextSpan> ChatTemplate::content(const jinja::Object& variables, const jinja::List& messages,
                                              size_t index, const std::string& text) const {
  const auto with_content = [&](const char* content) {
    jinja::List changed = messages;
    jinja::Object message = *messages[index].object();
    message.set("content", jinja::Value::of(std::string(content)));
    changed[index] = jinja::Value::of(std::move(message));
    return rendered(variables, changed, changed.size(), false).text;
  };
  const std::string one = with_content("\x01"), other = with_content("\x02");
  const size_t begin = common_prefix(one, other);
  const std::string tail = one.substr(std::min(begin + 1, one.size()));
  if (begin + tail.size() >= text.size() || text.compare(0, begin, one, 0, begin) != 0 ||
      text.compare(text.size() - tail.size(), tail.size(), tail) != 0)
    return std::nullopt;
  size_t end = text.size() - tail.size();
  for (const std::string& token : added_tokens_)
    if (tail.starts_with(token)) return TextSpan{begin, end + token.size()};
  return TextSpan{begin, end};
}

ChatText ChatTemplate::conversation(const Conversation& conversation) const {
  const jinja::List messages = jinja::items_of(jinja::Value::from(conversation.messages));
  const jinja::Object variables = variables_of(special_tokens_, conversation);
  jinja::Rendered made = rendered(variables, messages, messages.size(), false);
  ChatText result;
  size_t said = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const jinja::Value* role = messages[i].object() == nullptr ? nullptr : messages[i].object()->find("role");
    if (role == nullptr || role->text() == nullptr || *role->text() != "assistant") continue;
    ++said;
    if (i < conversation.first_counted) continue;
    if (!template_.marks_generation()) {
      auto span = turn(variables, messages, i, made.text);
      if (!span) span = content(variables, messages, i, made.text);
      if (!span)
        fail_usage(
            "the chat template writes messages[{}] otherwise when others follow, so that what the assistant "
            "says "
            "cannot be found; mark it in the template with {{% generation %}} and {{% endgeneration %}}",
            i);
      result.counted.push_back(*span);
    } else if (said <= made.generated.size()) {
      result.counted.push_back(made.generated[said - 1]);
    }
  }
  if (result.counted.empty()) fail_usage("no message is the assistant's: there is nothing to learn");
  result.text = std::move(made.text);
  return result;
}

}  // namespace het
