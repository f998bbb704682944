// The syntax of chat templates: what of Jinja they use, as trees. Anything else is refused by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/data/jinja/value.h"

namespace het::jinja {

enum class Operation : uint8_t {
  literal,    // value
  name,       // text
  list,       // parts
  object,     // parts: key, value, key, value, ...
  attribute,  // parts[0].text
  item,       // parts[0][parts[1]]
  slice,      // parts[0][parts[1]:parts[2]:parts[3]], each of the three may be null
  call,       // parts[0](parts[1], ..., named)
  filter,     // parts[0] | text(parts[1], ..., named)
  test,       // parts[0] is text parts[1]
  logical_not,
  logical_and,
  logical_or,
  minus,       // of one part
  arithmetic,  // parts[0] text parts[1], text one of + - * / // % ** ~
  comparison,  // parts[0] texts[0] parts[1] texts[1] parts[2] ...
  condition,   // parts[1] if parts[0] else parts[2], which may be null
};

struct Expression {
  Operation operation = Operation::literal;
  Value value;
  std::string text;
  std::vector<std::string> texts;
  std::vector<std::unique_ptr<Expression>> parts;
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named;
};

enum class Action : uint8_t {
  text,        // writes `text`
  output,      // writes `value`
  branches,    // if: `value`, `body`, `otherwise`
  loop,        // for `names` in `value` if `filter`: `body`, else `otherwise`
  set,         // `names` = `value`; a name "a.b" is a member of a namespace
  set_block,   // names[0] = what `body` writes
  macro,       // `text`(`names`, with default values `defaults`): `body`
  generation,  // `body` is what the assistant says
  leave,       // break
  next,        // continue
};

struct Statement {
  Action action = Action::text;
  int line = 1;  // of the template
  std::string text;
  std::vector<std::string> names;
  std::unique_ptr<Expression> value, filter;
  std::vector<std::unique_ptr<Expression>> defaults;  // one for each name, or null
  std::vector<Statement> body, otherwise;
};

// Throws Error(usage) that names the line and what is not understood. White space is cut as transformers asks
// Jinja to: trim_blocks, lstrip_blocks.
std::vector<Statement> parse(std::string_view source);

}  // namespace het::jinja
