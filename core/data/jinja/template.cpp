#include "core/data/jinja/template.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/base/error.h"
#include "core/data/jinja/builtins.h"

namespace het::jinja {
namespace {

constexpr int64_t kMostSteps = 2'000'000;        // of one text
constexpr size_t kMostBytes = size_t{64} << 20;  // of one text
constexpr int kMostCalls = 100;                  // of macros in macros

// --- what can be known of a template before it is used

void check(const Expression* expression) {
  if (expression == nullptr) return;
  if (expression->operation == Operation::filter && !is_filter(expression->text))
    fail_usage("the filter '{}' is not supported", expression->text);
  if (expression->operation == Operation::test && !is_test(expression->text))
    fail_usage("the test '{}' is not supported", expression->text);
  for (const auto& part : expression->parts) check(part.get());
  for (const auto& [name, part] : expression->named) check(part.get());
}

// Returns whether {% generation %} is among them.
bool check(const std::vector<Statement>& statements, bool captured) {
  bool marks = false;
  for (const Statement& one : statements) {
    try {
      check(one.value.get());
      check(one.filter.get());
      for (const auto& value : one.defaults) check(value.get());
      if (one.action == Action::generation && captured)
        fail_usage("'generation' inside a macro or set is not supported");
    } catch (Error& error) {
      fail_usage("line {} of the chat template: {}", one.line, error.sentence());
    }
    const bool inner = captured || one.action == Action::macro || one.action == Action::set_block;
    marks = check(one.body, inner) || marks || one.action == Action::generation;
    marks = check(one.otherwise, captured) || marks;
  }
  return marks;
}

// --- variables

// The variables of a loop's pass, a macro's call or the whole template; those around it are looked at next.
struct Scope {
  const Scope* outer = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;

  void set(std::string_view name, Value value) {
    for (auto& [own, old] : variables)
      if (own == name) {
        old = std::move(value);
        return;
      }
    variables.emplace_back(name, std::move(value));
  }
};

enum class Flow : uint8_t { goes_on, leaves, next };

int64_t floor_divided(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0); }

class Renderer {
 public:
  explicit Renderer(const Object& variables) {
    for (const auto& [name, value] : variables.members) root_.set(name, value);
  }

  Rendered run(const std::vector<Statement>& statements) {
    all(statements, root_);
    return std::move(output_);
  }

 private:
  // --- statements

  Flow all(const std::vector<Statement>& statements, Scope& scope) {
    for (const Statement& one : statements) {
      if (const Flow flow = located(one, [&] { return statement(one, scope); }); flow != Flow::goes_on)
        return flow;
      if (output_.text.size() > kMostBytes)
        fail_usage("the chat template writes more than {} bytes", kMostBytes);
    }
    return Flow::goes_on;
  }

  // The innermost statement gives an error its line.
  template <typename Body>
  Flow located(const Statement& one, const Body& body) {
    try {
      return body();
    } catch (const Error& error) {
      if (located_) throw;
      located_ = true;
      fail_usage("line {} of the chat template: {}", one.line, error.sentence());
    }
  }

  Flow statement(const Statement& one, Scope& scope) {
    count();
    switch (one.action) {
      case Action::text: output_.text += one.text; break;
      case Action::output: output_.text += text_of(value_of(*one.value, scope)); break;
      case Action::branches:
        return all(value_of(*one.value, scope).truth() ? one.body : one.otherwise, scope);
      case Action::loop: return loop(one, scope);
      case Action::set: assign(one.names, value_of(*one.value, scope), scope); break;
      case Action::set_block: {
        Value text = Value::of(captured(one.body, scope));
        assign(one.names, std::move(text), scope);
        break;
      }
      case Action::macro: scope.set(one.text, macro(one)); break;
      case Action::generation: {
        const size_t begin = output_.text.size();
        const Flow flow = all(one.body, scope);
        output_.generated.emplace_back(begin, output_.text.size());
        return flow;
      }
      case Action::leave: return Flow::leaves;
      case Action::next: return Flow::next;
    }
    return Flow::goes_on;
  }

  std::string captured(const std::vector<Statement>& body, Scope& scope) {
    std::string before = std::exchange(output_.text, {});
    all(body, scope);
    return std::exchange(output_.text, std::move(before));
  }

  void assign(const std::vector<std::string>& names, Value value, Scope& scope) {
    if (names.size() == 1) return assign_one(names[0], std::move(value), scope);
    const List list = items_of(value);
    if (list.size() != names.size()) fail_usage("{} values are set to {} names", list.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) assign_one(names[i], list[i], scope);
  }
  void assign_one(const std::string& name, Value value, Scope& scope) {
    const size_t dot = name.find('.');
    if (dot == std::string::npos) return scope.set(name, std::move(value));
    const Value space = variable(name.substr(0, dot), scope);
    if (space.object() == nullptr || !space.object()->is_namespace)
      fail_usage("'{}' is not a namespace: its '{}' cannot be set", name.substr(0, dot),
                 name.substr(dot + 1));
    space.object()->set(name.substr(dot + 1), std::move(value));
  }

  Flow loop(const Statement& one, Scope& scope) {
    List list = items_of(value_of(*one.value, scope));
    if (one.filter != nullptr) {
      List kept;
      for (Value& item : list) {
        Scope inner{&scope, {}};
        assign(one.names, item, inner);
        if (value_of(*one.filter, inner).truth()) kept.push_back(std::move(item));
      }
      list = std::move(kept);
    }
    if (list.empty()) return all(one.otherwise, scope);
    const auto size = static_cast<int64_t>(list.size());
    for (int64_t i = 0; i < size; ++i) {
      count();
      Scope inner{&scope, {}};
      const auto at = [&](int64_t k, const char* name) {
        return k < 0 || k >= size ? Value::undefined(name) : list[static_cast<size_t>(k)];
      };
      inner.set("loop", Value::of(Object{{{"index", Value::of(i + 1)},
                                          {"index0", Value::of(i)},
                                          {"first", Value::of(i == 0)},
                                          {"last", Value::of(i + 1 == size)},
                                          {"length", Value::of(size)},
                                          {"revindex", Value::of(size - i)},
                                          {"revindex0", Value::of(size - i - 1)},
                                          {"previtem", at(i - 1, "loop.previtem")},
                                          {"nextitem", at(i + 1, "loop.nextitem")}},
                                         false}));
      assign(one.names, list[static_cast<size_t>(i)], inner);
      if (all(one.body, inner) == Flow::leaves) break;
    }
    return Flow::goes_on;
  }

  // Sees its arguments and what the whole template has set.
  Value macro(const Statement& one) {
    return Value::of(Function{one.text, [this, &one](const Arguments& given) {
                                if (++calls_ > kMostCalls)
                                  fail_usage("macros call each other more than {} deep", kMostCalls);
                                Scope scope{&root_, {}};
                                if (given.list.size() > one.names.size())
                                  fail_usage("the macro '{}' takes {} values, and {} are given", one.text,
                                             one.names.size(), given.list.size());
                                for (size_t i = 0; i < one.names.size(); ++i) {
                                  const Value* value = given.find(i, one.names[i]);
                                  if (value != nullptr)
                                    scope.set(one.names[i], *value);
                                  else
                                    scope.set(one.names[i], one.defaults[i] != nullptr
                                                                ? value_of(*one.defaults[i], scope)
                                                                : Value::undefined(one.names[i]));
                                }
                                std::string text = captured(one.body, scope);
                                --calls_;
                                return Value::of(std::move(text));
                              }});
  }

  // --- expressions

  void count() {
    if (++steps_ > kMostSteps) fail_usage("it takes more than {} steps", kMostSteps);
  }

  Value variable(std::string_view name, const Scope& scope) const {
    for (const Scope* at = &scope; at != nullptr; at = at->outer)
      for (const auto& [own, value] : at->variables)
        if (own == name) return value;
    return function_named(name);
  }

  Value value_of(const Expression& e, const Scope& scope) {
    count();
    const auto part = [&](size_t i) { return value_of(*e.parts[i], scope); };
    switch (e.operation) {
      case Operation::literal: return e.value;
      case Operation::name: return variable(e.text, scope);
      case Operation::list: {
        List list;
        for (size_t i = 0; i < e.parts.size(); ++i) list.push_back(part(i));
        return Value::of(std::move(list));
      }
      case Operation::object: {
        Object object;
        for (size_t i = 0; i < e.parts.size(); i += 2) {
          const Value key = part(i);
          object.set(text_of(key), part(i + 1));
        }
        return Value::of(std::move(object));
      }
      case Operation::attribute: return member(part(0), e.text);
      case Operation::item: return item(part(0), part(1));
      case Operation::slice: return slice(e, scope);
      case Operation::call: return call(e, scope);
      case Operation::filter: return filtered(e.text, part(0), arguments(e, scope));
      case Operation::test: return Value::of(tested(e.text, part(0), arguments(e, scope)));
      case Operation::logical_not: return Value::of(!part(0).truth());
      case Operation::logical_and: {
        Value first = part(0);
        return first.truth() ? part(1) : first;
      }
      case Operation::logical_or: {
        Value first = part(0);
        return first.truth() ? first : part(1);
      }
      case Operation::minus: {
        const Value operand = part(0);
        if (!operand.is_number()) fail_usage("'-' before {}", operand.kind());
        if (operand.real() != nullptr) return Value::of(-*operand.real());
        return Value::of(-static_cast<int64_t>(operand.number()));
      }
      case Operation::arithmetic: return arithmetic(e.text, part(0), part(1));
      case Operation::comparison: return comparison(e, scope);
      case Operation::condition:
        if (part(0).truth()) return part(1);
        return e.parts[2] != nullptr ? part(2) : Value::undefined("the value of an 'if' without 'else'");
    }
    return {};
  }

  Arguments arguments(const Expression& e, const Scope& scope) {
    Arguments made;
    for (size_t i = 1; i < e.parts.size(); ++i) made.list.push_back(value_of(*e.parts[i], scope));
    for (const auto& [name, value] : e.named) made.named.emplace_back(name, value_of(*value, scope));
    return made;
  }

  static Value member(const Value& of, const std::string& name) {
    if (of.is_undefined()) fail_usage("'.{}' of {}", name, of.kind());
    const Value* found = of.object() == nullptr ? nullptr : of.object()->find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }

  static Value item(const Value& of, const Value& key) {
    if (of.is_undefined()) fail_usage("an item of {}", of.kind());
    if (of.object() != nullptr)
      return key.text() != nullptr ? member(of, *key.text()) : Value::undefined(text_of(key));
    if (key.integer() == nullptr || (of.list() == nullptr && of.text() == nullptr))
      return Value::undefined(text_of(key));
    const List list = of.list() != nullptr ? List{} : items_of(of);
    const List& items = of.list() != nullptr ? *of.list() : list;
    const auto size = static_cast<int64_t>(items.size());
    const int64_t index = *key.integer() + (*key.integer() < 0 ? size : 0);
    return index < 0 || index >= size ? Value::undefined(fmt::format("item {}", *key.integer()))
                                      : items[static_cast<size_t>(index)];
  }

  Value slice(const Expression& e, const Scope& scope) {
    const Value of = value_of(*e.parts[0], scope);
    if (of.list() == nullptr && of.text() == nullptr) fail_usage("a slice of {}", of.kind());
    const List items = items_of(of);
    const auto size = static_cast<int64_t>(items.size());
    const auto bound = [&](size_t i) -> std::optional<int64_t> {
      if (e.parts[i] == nullptr) return std::nullopt;
      const Value value = value_of(*e.parts[i], scope);
      if (value.is_none()) return std::nullopt;
      if (value.integer() == nullptr) fail_usage("a slice from or to {}", value.kind());
      return *value.integer();
    };
    const int64_t step = bound(3).value_or(1);
    if (step == 0) fail_usage("a slice with a step of 0");
    const auto placed = [&](std::optional<int64_t> given, int64_t otherwise) {
      if (!given) return otherwise;
      const int64_t at = *given + (*given < 0 ? size : 0);
      return std::clamp<int64_t>(at, step > 0 ? 0 : -1, step > 0 ? size : size - 1);
    };
    const int64_t from = placed(bound(1), step > 0 ? 0 : size - 1),
                  to = placed(bound(2), step > 0 ? size : -1);
    List list;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
      list.push_back(items[static_cast<size_t>(i)]);
    if (of.list() != nullptr) return Value::of(std::move(list));
    std::string text;
    for (const Value& one : list) text += *one.text();
    return Value::of(std::move(text));
  }

  Value call(const Expression& e, const Scope& scope) {
    const Expression& callee = *e.parts[0];
    if (callee.operation == Operation::attribute) {
      const Value of = value_of(*callee.parts[0], scope);
      if (of.is_undefined()) fail_usage("'.{}' of {}", callee.text, of.kind());
      const Value* own = of.object() == nullptr ? nullptr : of.object()->find(callee.text);
      if (own != nullptr && own->function() != nullptr) return own->function()->call(arguments(e, scope));
      return called(callee.text, of, arguments(e, scope));
    }
    const Value function = value_of(callee, scope);
    if (function.function() == nullptr) {
      if (callee.text == "strftime_now")
        fail_usage("'strftime_now' is not supported: what a run trains on must not depend on the day");
      fail_usage("a call of {}", function.kind());
    }
    return function.function()->call(arguments(e, scope));
  }

  static Value arithmetic(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "~") return Value::of(text_of(a) + text_of(b));
    if (sign == "+" && a.text() != nullptr && b.text() != nullptr) return Value::of(*a.text() + *b.text());
    if (sign == "+" && a.list() != nullptr && b.list() != nullptr) {
      List list = *a.list();
      list.insert(list.end(), b.list()->begin(), b.list()->end());
      return Value::of(std::move(list));
    }
    if (sign == "*" && a.text() != nullptr && b.integer() != nullptr) {
      std::string text;
      for (int64_t i = 0; i < *b.integer(); ++i) {
        text += *a.text();
        if (text.size() > kMostBytes) fail_usage("a string of more than {} bytes", kMostBytes);
      }
      return Value::of(std::move(text));
    }
    if (!a.is_number() || !b.is_number()) fail_usage("{} {} {}", a.kind(), sign, b.kind());
    const double x = a.number(), y = b.number();
    const bool whole = a.real() == nullptr && b.real() == nullptr;
    if ((sign == "/" || sign == "//" || sign == "%") && y == 0) fail_usage("a division by 0");
    if (sign == "/") return Value::of(x / y);
    if (whole && (sign == "//" || sign == "%")) {
      const auto n = static_cast<int64_t>(x), d = static_cast<int64_t>(y);
      const int64_t quotient = floor_divided(n, d);
      return Value::of(sign == "//" ? quotient : n - quotient * d);
    }
    const double result = sign == "+"    ? x + y
                          : sign == "-"  ? x - y
                          : sign == "*"  ? x * y
                          : sign == "//" ? std::floor(x / y)
                          : sign == "%"  ? x - y * std::floor(x / y)
                                         : std::pow(x, y);
    const bool exact = whole && std::abs(result) < 9007199254740992.0 && result == std::floor(result);
    return exact ? Value::of(static_cast<int64_t>(result)) : Value::of(result);
  }

  Value comparison(const Expression& e, const Scope& scope) {
    Value left = value_of(*e.parts[0], scope);
    for (size_t i = 0; i < e.texts.size(); ++i) {
      Value right = value_of(*e.parts[i + 1], scope);
      const std::string& sign = e.texts[i];
      const bool good = sign == "=="       ? equal(left, right)
                        : sign == "!="     ? !equal(left, right)
                        : sign == "in"     ? contains(right, left)
                        : sign == "not in" ? !contains(right, left)
                        : sign == "<"      ? compare(left, right) < 0
                        : sign == ">"      ? compare(left, right) > 0
                        : sign == "<="     ? compare(left, right) <= 0
                                           : compare(left, right) >= 0;
      if (!good) return Value::of(false);
      left = std::move(right);
    }
    return Value::of(true);
  }

  Rendered output_;
  Scope root_;
  int64_t steps_ = 0;
  int calls_ = 0;
  bool located_ = false;
};

}  // namespace

Template::Template(std::string_view source) : statements_(parse(source)) {
  marks_generation_ = check(statements_, false);
}

Rendered Template::render(const Object& variables) const { return Renderer(variables).run(statements_); }

}  // namespace het::jinja
