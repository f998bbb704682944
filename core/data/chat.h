// Conversations as text: a model's chat template, and which parts of what it writes the assistant says.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/data/jinja/template.h"
#include "core/data/tokenizer.h"
#include "core/io/json.h"

namespace het {

// Bytes [begin, end) of a text.
using TextSpan = std::pair<size_t, size_t>;

struct ChatText {
  std::string text;
  std::vector<TextSpan> counted;  // what the assistant says, ascending
};

struct Conversation {
  Json messages;                // list of {role, content, ...}
  Json tools;                   // null: none
  Json variables;               // others that the template gets; null: none
  size_t first_counted = 0;     // messages before this one are not counted, whoever says them
  bool asks_for_reply = false;  // add_generation_prompt
};

// Immutable: may be used from any thread.
class ChatTemplate {
 public:
  // `special_tokens`: what the template knows as bos_token, eos_token, ...: text by name. `added_tokens`:
  // texts of tokens that are not cut, by which the end of a turn is known.
  ChatTemplate(std::string_view source, Json special_tokens, std::vector<std::string> added_tokens);
  // That of a tokenizer's folder; nullptr where it has none.
  static std::unique_ptr<ChatTemplate> of(const Tokenizer& tokenizer);

  // As apply_chat_template(tokenize=False) of transformers.
  std::string render(const Conversation& conversation) const;
  // The same, and what the assistant says in it, each turn with its closing token: what the template marks
  // with {% generation %}, else what stands behind the prompt for a reply, up to the end of the turn. Throws
  // Error(usage) when nothing is said, or what the assistant says cannot be found in the text.
  ChatText conversation(const Conversation& conversation) const;

 private:
  jinja::Rendered rendered(const jinja::Object& variables, const jinja::List& messages, size_t count,
                           bool asks_for_reply) const;
  std::optional<TextSpan> turn(const jinja::Object& variables, const jinja::List& messages, size_t index,
                               const std::string& text) const;
  std::optional<TextSpan> content(const jinja::Object& variables, const jinja::List& messages, size_t index,
                                  const std::string& text) const;

  jinja::Template template_;
  Json special_tokens_;
  std::vector<std::string> added_tokens_;
};

// The special tokens that a tokenizer's folder names, as "eos_token": text by name.
Json special_tokens_of(const Tokenizer& tokenizer);

}  // namespace het
