// Examples to fine-tune on, one a line of JSON or an element of a JSON list: which text a line stands for,
// and which of its tokens the loss counts. Corpus::from_examples reads files of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/data/chat.h"
#include "core/data/tokenizer.h"

namespace het {

struct ExampleText {
  std::string text;
  std::vector<TextSpan> counted;  // ascending
  bool takes_prefix = true;       // false: a template has written what stands before a text
};

struct ExampleReader {
  const ChatTemplate* chat = nullptr;  // null: messages are refused
  std::string ending;                  // behind a text and a completion that do not end with it
  bool counts_all = false;

  // `prompt` and `completion`, strings or lists of messages: the completion counts. `messages`, with `tools`
  // and `chat_template_kwargs`, or ShareGPT's `conversations`: what the assistant says counts. `text`: all of
  // it counts. Alpaca's `instruction`, `input`, `output` and `history`: as messages. Of a line with several
  // of these the first counts. Throws Error(usage) that says what is wrong with the line.
  ExampleText read(const Json& line) const;

  // Two answers to one prompt, the better one and the other: `prompt`, `chosen` and `rejected`, strings or
  // lists of messages. Without a `prompt`, and where messages have one that is a string, it is what both
  // begin with. Each counts as a completion does. Throws as read().
  std::array<ExampleText, 2> read_preference(const Json& line) const;

 private:
  ExampleText written(const Json& line, Conversation conversation) const;
  ExampleText completed(const Json& line, const Json& prompt, const Json& completion,
                        const std::string& name) const;
};

struct EncodedExample {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counted;  // one for each id
};

// A token counts when any of its characters stands in what counts, as return_assistant_tokens_mask of
// transformers has it. Throws Error(usage) when nothing counts but the first token, which nothing predicts.
EncodedExample encode_example(const Tokenizer& tokenizer, const ExampleText& example);

}  // namespace het
