#include "core/base/error.h"

namespace het {

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bug: return "bug";
    case ErrorKind::usage: return "usage";
    case ErrorKind::environment: return "environment";
    case ErrorKind::peer: return "peer";
  }
  return "unknown";
}

Error::Error(ErrorKind kind, std::string sentence)
    : kind_(kind), sentence_(std::move(sentence)), text_(sentence_) {}

void Error::add_context(std::string where) {
  text_ += "\n  in " + where;
  context_.push_back(std::move(where));
}

void fail_requirement(const char* expression, const char* file, int line, std::string values) {
  fail(ErrorKind::bug, "internal requirement failed: {}{} ({}:{})", expression, values, file, line);
}

}  // namespace het
