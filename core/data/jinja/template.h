// Chat templates: the part of Jinja that models' templates use, with the meaning it has in transformers
// (trim_blocks, lstrip_blocks, loop controls, tojson as json.dumps, {% generation %}). What is not understood
// is refused by name when the template is read, filters and tests included.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/data/jinja/syntax.h"

namespace het::jinja {

// What a template wrote, and which bytes of it stand in {% generation %}: [begin, end), ascending.
struct Rendered {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generated;
};

// Immutable: may be used from any thread.
class Template {
 public:
  explicit Template(std::string_view source);  // throws Error(usage)

  // With these variables. Throws Error(usage) for what the template refuses, and for what it cannot do with
  // them, with the line of the template.
  Rendered render(const Object& variables) const;
  bool marks_generation() const { return marks_generation_; }

 private:
  std::vector<Statement> statements_;
  bool marks_generation_ = false;
};

}  // namespace het::jinja
