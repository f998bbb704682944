// Errors: one type, sorted by who has to act. Thrown where a mistake is found, given context on the
// way up, caught at the edges (the program, the Lua trampoline, a test). Never swallowed.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace het {

// Who can do something about it. The value is also the exit code of `hetrun`.
enum class ErrorKind {
  bug = 70,          // hetrun itself is wrong
  usage = 2,         // the person: a recipe, an option, a file that is not what it should be
  environment = 71,  // the machine: memory, disk, a missing library
  peer = 75,         // another process: the policy decides; the scheduler may requeue
};

// "usage", "environment", "peer" or "bug".
std::string_view name_of(ErrorKind kind);

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string sentence);

  ErrorKind kind() const { return kind_; }
  // The sentence, then one "  in ..." line for each context, innermost first.
  const char* what() const noexcept override { return text_.c_str(); }
  const std::string& sentence() const { return sentence_; }
  const std::vector<std::string>& context() const { return context_; }
  void add_context(std::string where);

 private:
  ErrorKind kind_;
  std::string sentence_;
  std::vector<std::string> context_;
  std::string text_;
};

// Throw an Error with a formatted sentence.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void fail_environment(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::environment, fmt::format(format, std::forward<Args>(args)...));
}

// What std::bad_alloc says to people.
inline Error out_of_memory() {
  return {ErrorKind::environment,
          "the machine has no memory left for this; a smaller batch, model or corpus would help"};
}

// Run `body`; an Error that leaves it gains the context that `where()` returns (called only then).
template <typename Where, typename Body>
decltype(auto) with_context(Where&& where, Body&& body) {
  try {
    return body();
  } catch (Error& error) {
    error.add_context(where());
    throw;
  }
}

[[noreturn]] void fail_requirement(const char* expression, const char* file, int line, std::string values);

}  // namespace het

// An invariant of hetrun itself. On failure: the expression, the values named after it, file and line.
// For mistakes of people use fail_usage with a sentence that teaches.
#define HET_REQUIRE(condition, ...)                                                          \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::het::fail_requirement(#condition, __FILE__, __LINE__,                                \
                              ::het::detail::show(#__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

namespace het::detail {
inline std::string show(const char*) { return {}; }
template <typename... Values>
std::string show(const char* names, const Values&... values) {
  std::string text = fmt::format(" with {} =", names);
  ((text += fmt::format(" {}", values)), ...);
  return text;
}
}  // namespace het::detail
