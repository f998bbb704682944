#include "core/data/jinja/syntax.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/base/error.h"
#include "core/io/utf8.h"

namespace het::jinja {
namespace {

constexpr int kMostDepth = 200;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

enum class Kind : uint8_t { text, begin_output, begin_statement, end, name, string, integer, real, symbol };

struct Token {
  Kind kind = Kind::end;
  std::string text;
  int line = 1;
};

[[noreturn]] void fail_at(int line, const std::string& what) {
  fail_usage("line {} of the chat template: {}", line, what);
}

// Cuts a template into text and the tokens between its brackets.
class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<Token> run() {
    bool starts_line = true;
    while (at_ < source_.size()) {
      const size_t open = next_bracket();
      std::string text = source_.substr(at_, open - at_);
      if (open == source_.size()) {
        add_text(std::move(text));
        break;
      }
      const char bracket = source_[open + 1], sign = open + 2 < source_.size() ? source_[open + 2] : ' ';
      if (sign == '-') {
        while (!text.empty() && is_space(text.back())) text.pop_back();
      } else if (bracket != '{' && sign != '+') {  // lstrip_blocks
        const size_t newline = text.rfind('\n');
        const size_t start = newline == std::string::npos ? 0 : newline + 1;
        if ((newline != std::string::npos || starts_line) &&
            text.find_first_not_of(" \t\v\f", start) == std::string::npos)
          text.resize(start);
      }
      const int line = line_;
      add_text(std::move(text));
      line_ = line + count_lines(at_, open);
      at_ = open + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (bracket == '#') {
        const size_t close = source_.find("#}", at_);
        if (close == std::string::npos) fail_at(line_, "'{#' has no '#}'");
        line_ += count_lines(at_, close);
        const bool strips = close > at_ && source_[close - 1] == '-';
        const bool keeps = close > at_ && source_[close - 1] == '+';
        at_ = close + 2;
        starts_line = after_bracket(strips, !keeps);
      } else {
        tokens_.push_back({bracket == '{' ? Kind::begin_output : Kind::begin_statement, "", line_});
        starts_line = inside(bracket == '{' ? "}}" : "%}");
        if (is_raw()) starts_line = raw();
      }
    }
    tokens_.push_back({Kind::end, "", line_});
    return std::move(tokens_);
  }

 private:
  size_t next_bracket() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i)
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    return source_.size();
  }
  int count_lines(size_t begin, size_t end) const {
    return static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(begin),
                                       source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
  }
  void add_text(std::string text) {
    if (!text.empty()) tokens_.push_back({Kind::text, std::move(text), line_});
  }

  // Skips the white space behind a bracket; returns whether a line starts there.
  bool after_bracket(bool strips, bool trims) {
    const size_t begin = at_;
    if (strips)
      while (at_ < source_.size() && is_space(source_[at_])) ++at_;
    else if (trims && at_ < source_.size() && source_[at_] == '\n')
      ++at_;
    line_ += count_lines(begin, at_);
    return at_ > begin && source_[at_ - 1] == '\n';
  }

  // The tokens up to `close`; an `end` token follows them.
  bool inside(std::string_view close) {
    int depth = 0;
    const int first = line_;
    for (;;) {
      while (at_ < source_.size() && is_space(source_[at_])) line_ += source_[at_++] == '\n' ? 1 : 0;
      if (at_ >= source_.size()) fail_at(first, fmt::format("a bracket of this line has no '{}'", close));
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool strips = rest[0] == '-' && rest.substr(1, 2) == close;
      const bool keeps = rest[0] == '+' && rest.substr(1, 2) == close;
      if (strips || keeps || (depth == 0 && rest.substr(0, 2) == close)) {
        tokens_.push_back({Kind::end, std::string(close), line_});
        at_ += strips || keeps ? 3 : 2;
        return after_bracket(strips, close == "%}" && !keeps);
      }
      token(rest, depth);
    }
  }

  void token(std::string_view rest, int& depth) {
    const char c = rest[0];
    if (begins_name(c)) {
      size_t end = 1;
      while (end < rest.size() && (begins_name(rest[end]) || is_digit(rest[end]))) ++end;
      return add(Kind::name, std::string(rest.substr(0, end)), end);
    }
    if (is_digit(c)) return number(rest);
    if (c == '"' || c == '\'') return string(rest);
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"})
      if (rest.substr(0, 2) == two) return add(Kind::symbol, std::string(two), 2);
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos)
      fail_at(line_, fmt::format("{} is not understood", show_code_point(decode_utf8(rest, 0).code_point)));
    if (c == '{') ++depth;
    if (c == '}') --depth;
    add(Kind::symbol, std::string(1, c), 1);
  }
  void add(Kind kind, std::string text, size_t length) {
    tokens_.push_back({kind, std::move(text), line_});
    at_ += length;
  }

  void number(std::string_view rest) {
    size_t end = 0;
    bool fraction = false;
    while (end < rest.size() && (is_digit(rest[end]) || rest[end] == '_')) ++end;
    if (end + 1 < rest.size() && rest[end] == '.' && is_digit(rest[end + 1])) {
      fraction = true;
      ++end;
      while (end < rest.size() && is_digit(rest[end])) ++end;
    }
    if (end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < rest.size() && (rest[digits] == '+' || rest[digits] == '-')) ++digits;
      if (digits < rest.size() && is_digit(rest[digits])) {
        fraction = true;
        while (digits < rest.size() && is_digit(rest[digits])) ++digits;
        end = digits;
      }
    }
    std::string text(rest.substr(0, end));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(fraction ? Kind::real : Kind::integer, text, end);
  }

  // A literal of Python's, with its escapes.
  void string(std::string_view rest) {
    const char quote = rest[0];
    const int line = line_;
    std::string text;
    size_t i = 1;
    for (;; ++i) {
      if (i >= rest.size()) fail_at(line, "a string has no end");
      if (rest[i] == quote) break;
      if (rest[i] == '\n') ++line_;
      if (rest[i] != '\\' || i + 1 >= rest.size()) {
        text += rest[i];
        continue;
      }
      const char c = rest[++i];
      static constexpr std::string_view kLetters = "ntr\\'\"abfv0",
                                        kMeanings = std::string_view("\n\t\r\\'\"\a\b\f\v\0", 11);
      if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t point = 0;
        const std::string_view hex = rest.substr(i + 1, digits);
        const auto read = std::from_chars(hex.data(), hex.data() + hex.size(), point, 16);
        if (hex.size() < digits || read.ptr != hex.data() + hex.size() || point > 0x10FFFF)
          fail_at(line_, fmt::format("'\\{}{}' is no character", c, hex));
        append_utf8(text, point);
        i += digits;
      } else if (const size_t which = kLetters.find(c); which != std::string_view::npos) {
        text += kMeanings[which];
      } else if (c != '\n') {
        text += '\\';
        text += c;
      }
    }
    tokens_.push_back({Kind::string, std::move(text), line});
    at_ += i + 1;
  }

  // Were the last tokens {% raw %}? Then what follows is text up to {% endraw %}.
  bool is_raw() const {
    return tokens_.size() >= 3 && tokens_[tokens_.size() - 2].text == "raw" &&
           tokens_[tokens_.size() - 2].kind == Kind::name &&
           tokens_[tokens_.size() - 3].kind == Kind::begin_statement;
  }
  bool raw() {
    tokens_.resize(tokens_.size() - 3);
    for (size_t open = source_.find("{%", at_); open != std::string::npos;
         open = source_.find("{%", open + 2)) {
      size_t i = open + 2;
      const bool strips = i < source_.size() && source_[i] == '-';
      if (strips) ++i;
      while (i < source_.size() && is_space(source_[i])) ++i;
      if (source_.compare(i, 6, "endraw") != 0) continue;
      const size_t close = source_.find("%}", i);
      if (close == std::string::npos) break;
      std::string text = source_.substr(at_, open - at_);
      while (strips && !text.empty() && is_space(text.back())) text.pop_back();
      const int lines = count_lines(at_, close);
      add_text(std::move(text));
      line_ += lines;
      at_ = close + 2;
      return after_bracket(source_[close - 1] == '-', true);
    }
    fail_at(line_, "'raw' has no 'endraw'");
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

using Made = std::unique_ptr<Expression>;

Made make(Operation operation, std::string text = {}) {
  auto made = std::make_unique<Expression>();
  made->operation = operation;
  made->text = std::move(text);
  return made;
}
template <typename... Parts>
Made make(Operation operation, std::string text, Made first, Parts... parts) {
  Made made = make(operation, std::move(text));
  made->parts.push_back(std::move(first));
  (made->parts.push_back(std::move(parts)), ...);
  return made;
}

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Lexer(source).run()) {}

  std::vector<Statement> run() {
    std::vector<Statement> all = body({}, 0);
    return all;
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  bool at_end() const { return at_ + 1 >= tokens_.size(); }
  bool is(Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool symbol(std::string_view text) const { return is(Kind::symbol, text); }
  bool word(std::string_view text) const { return is(Kind::name, text); }
  bool accept(std::string_view text) {
    if (!symbol(text)) return false;
    ++at_;
    return true;
  }
  bool accept_word(std::string_view text) {
    if (!word(text)) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void fail_here(const std::string& wanted) const {
    const Token& token = now();
    const std::string found = token.kind == Kind::end ? "the bracket ends"
                              : token.kind == Kind::string
                                  ? fmt::format("the text '{}' stands there", token.text)
                                  : fmt::format("'{}' stands there", token.text);
    fail_at(token.line, fmt::format("{} is wanted, and {}", wanted, found));
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail_here(fmt::format("'{}'", text));
  }
  std::string name(const char* what) {
    if (now().kind != Kind::name) fail_here(what);
    return tokens_[at_++].text;
  }
  void end_bracket() {
    if (now().kind != Kind::end || at_end()) fail_here("the end of the bracket");
    ++at_;
  }

  // --- statements

  // Statements up to one of `ends`, at whose name it stops, or up to the end of the template.
  std::vector<Statement> body(const std::vector<std::string_view>& ends, int depth) {
    if (depth > kMostDepth) fail_at(now().line, fmt::format("statements nest more than {} deep", kMostDepth));
    std::vector<Statement> all;
    const int begun = now().line;
    while (!at_end()) {
      const Token& token = now();
      Statement made;
      made.line = token.line;
      ++at_;
      if (token.kind == Kind::text) {
        made.text = token.text;
      } else if (token.kind == Kind::begin_output) {
        made.action = Action::output;
        made.value = expression(depth);
        end_bracket();
      } else {
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return all;
        statement(made, depth);
      }
      all.push_back(std::move(made));
    }
    if (!ends.empty()) fail_at(begun, fmt::format("'{}' is missing", ends.back()));
    return all;
  }
  std::vector<Statement> block(const std::vector<std::string_view>& ends, int depth) {
    end_bracket();
    return body(ends, depth + 1);
  }
  void close(std::string_view end) {
    if (!accept_word(end)) fail_here(fmt::format("'{}'", end));
    end_bracket();
  }

  void statement(Statement& made, int depth) {
    const std::string which = name("the name of a statement");
    if (which == "if") return branches(made, depth);
    if (which == "for") return loop(made, depth);
    if (which == "set") return set(made, depth);
    if (which == "macro") return macro(made, depth);
    if (which == "generation") {
      made.action = Action::generation;
      made.body = block({"endgeneration"}, depth);
      return close("endgeneration");
    }
    if (which == "break" || which == "continue") {
      if (loops_ == 0) fail_at(made.line, fmt::format("'{}' stands outside a loop", which));
      made.action = which == "break" ? Action::leave : Action::next;
      return end_bracket();
    }
    for (const std::string_view closing :
         {"elif", "else", "endif", "endfor", "endset", "endmacro", "endgeneration"})
      if (which == closing) fail_at(made.line, fmt::format("'{}' closes nothing", which));
    fail_at(made.line,
            fmt::format(
                "the statement '{}' is not supported; if, for, set, macro, break, continue, generation and "
                "raw are",
                which));
  }

  void branches(Statement& made, int depth) {
    made.action = Action::branches;
    made.value = expression(depth);
    made.body = block({"elif", "else", "endif"}, depth);
    if (word("elif")) {
      Statement inner;
      inner.line = now().line;
      ++at_;
      branches(inner, depth + 1);
      made.otherwise.push_back(std::move(inner));
      return;
    }
    if (accept_word("else")) made.otherwise = block({"endif"}, depth);
    close("endif");
  }

  void loop(Statement& made, int depth) {
    made.action = Action::loop;
    made.names = targets(false);
    if (!accept_word("in")) fail_here("'in'");
    made.value = disjunction(depth);
    if (accept_word("if")) made.filter = expression(depth);
    if (word("recursive")) fail_at(now().line, "a 'recursive' loop is not supported");
    ++loops_;
    made.body = block({"else", "endfor"}, depth);
    --loops_;
    if (accept_word("else")) made.otherwise = block({"endfor"}, depth);
    close("endfor");
  }

  std::vector<std::string> targets(bool members) {
    std::vector<std::string> names;
    const bool bracket = accept("(");
    do {
      std::string target = name("a name");
      if (members && accept(".")) target += "." + name("a name");
      names.push_back(std::move(target));
    } while (accept(","));
    if (bracket) expect(")");
    return names;
  }

  void set(Statement& made, int depth) {
    made.names = targets(true);
    if (accept("=")) {
      made.action = Action::set;
      made.value = listed(depth);
      return end_bracket();
    }
    if (symbol("|")) fail_at(now().line, "a filter on a 'set' block is not supported");
    made.action = Action::set_block;
    if (made.names.size() != 1) fail_here("'='");
    made.body = block({"endset"}, depth);
    close("endset");
  }

  void macro(Statement& made, int depth) {
    made.action = Action::macro;
    made.text = name("the name of a macro");
    expect("(");
    while (!accept(")")) {
      made.names.push_back(name("the name of an argument"));
      made.defaults.push_back(accept("=") ? expression(depth) : nullptr);
      if (!accept(",") && !symbol(")")) fail_here("',' or ')'");
    }
    const int loops = std::exchange(loops_, 0);
    made.body = block({"endmacro"}, depth);
    loops_ = loops;
    close("endmacro");
  }

  // --- expressions, from the loosest binding to the tightest

  // One or, with commas, a list.
  Made listed(int depth) {
    Made first = expression(depth);
    if (!symbol(",")) return first;
    Made list = make(Operation::list, {}, std::move(first));
    while (accept(",")) list->parts.push_back(expression(depth));
    return list;
  }

  Made expression(int depth) {
    if (depth > kMostDepth)
      fail_at(now().line, fmt::format("an expression nests more than {} deep", kMostDepth));
    Made made = disjunction(depth + 1);
    while (accept_word("if")) {
      Made condition = disjunction(depth + 1), otherwise;
      if (accept_word("else")) otherwise = expression(depth + 1);
      made = make(Operation::condition, {}, std::move(condition), std::move(made), std::move(otherwise));
    }
    return made;
  }

  Made disjunction(int depth) {
    Made made = conjunction(depth);
    while (accept_word("or")) made = make(Operation::logical_or, {}, std::move(made), conjunction(depth));
    return made;
  }
  Made conjunction(int depth) {
    Made made = negation(depth);
    while (accept_word("and")) made = make(Operation::logical_and, {}, std::move(made), negation(depth));
    return made;
  }
  Made negation(int depth) {
    if (depth > kMostDepth)
      fail_at(now().line, fmt::format("an expression nests more than {} deep", kMostDepth));
    if (accept_word("not")) return make(Operation::logical_not, {}, negation(depth + 1));
    return comparison(depth);
  }

  Made comparison(int depth) {
    Made made = sum(depth);
    Made chain;
    for (;;) {
      std::string sign;
      for (const std::string_view one : {"==", "!=", "<=", ">=", "<", ">"})
        if (sign.empty() && accept(one)) sign = one;
      if (sign.empty() && accept_word("in")) sign = "in";
      if (sign.empty() && word("not") && tokens_[at_ + 1].kind == Kind::name &&
          tokens_[at_ + 1].text == "in") {
        at_ += 2;
        sign = "not in";
      }
      if (sign.empty()) break;
      if (!chain) chain = make(Operation::comparison, {}, std::move(made));
      chain->texts.push_back(std::move(sign));
      chain->parts.push_back(sum(depth));
    }
    return chain ? std::move(chain) : std::move(made);
  }

  template <typename Operand>
  Made arithmetic(const std::vector<std::string_view>& signs, const Operand& operand) {
    Made made = operand();
    for (;;) {
      const auto sign =
          std::find_if(signs.begin(), signs.end(), [&](std::string_view one) { return symbol(one); });
      if (sign == signs.end()) return made;
      ++at_;
      made = make(Operation::arithmetic, std::string(*sign), std::move(made), operand());
    }
  }
  Made sum(int depth) {
    return arithmetic({"+", "-"}, [&] { return arithmetic({"~"}, [&] { return product(depth); }); });
  }
  Made product(int depth) {
    return arithmetic({"*", "/", "//", "%"},
                      [&] { return arithmetic({"**"}, [&] { return unary(depth, true); }); });
  }

  Made unary(int depth, bool filtered) {
    if (depth > kMostDepth)
      fail_at(now().line, fmt::format("an expression nests more than {} deep", kMostDepth));
    Made made;
    if (accept("-"))
      made = make(Operation::minus, {}, unary(depth + 1, false));
    else if (accept("+"))
      made = unary(depth + 1, false);
    else
      made = primary(depth);
    made = postfix(std::move(made), depth);
    while (filtered) {
      if (accept("|")) {
        made = make(Operation::filter, filter_name(), std::move(made));
        if (accept("(")) arguments(*made, depth);
      } else if (accept_word("is")) {
        made = test(std::move(made), depth);
      } else if (symbol("(")) {
        made = postfix(std::move(made), depth);
      } else {
        break;
      }
    }
    return made;
  }
  std::string filter_name() { return name("the name of a filter"); }

  Made test(Made of, int depth) {
    const bool negated = accept_word("not");
    Made made = make(Operation::test, name("the name of a test"), std::move(of));
    if (accept("(")) {
      arguments(*made, depth);
    } else if (now().kind == Kind::string || now().kind == Kind::integer || now().kind == Kind::real ||
               symbol("[") || symbol("{") ||
               (now().kind == Kind::name && !word("else") && !word("or") && !word("and") && !word("if") &&
                !word("is") && !word("in") && !word("not"))) {
      made->parts.push_back(postfix(primary(depth), depth));
    }
    return negated ? make(Operation::logical_not, {}, std::move(made)) : std::move(made);
  }

  Made primary(int depth) {
    const Token token = now();
    ++at_;
    Made made = make(Operation::literal);
    switch (token.kind) {
      case Kind::name:
        if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
          made->value = Value::of(token.text[0] == 't' || token.text[0] == 'T');
        } else if (token.text == "none" || token.text == "None") {
          made->value = Value::none();
        } else {
          made = make(Operation::name, token.text);
        }
        return made;
      case Kind::string: {
        std::string text = token.text;
        while (now().kind == Kind::string) text += tokens_[at_++].text;
        made->value = Value::of(std::move(text));
        return made;
      }
      case Kind::integer: {
        int64_t number = 0;
        const auto read = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
        if (read.ec != std::errc()) fail_at(token.line, fmt::format("{} is too large", token.text));
        made->value = Value::of(number);
        return made;
      }
      case Kind::real: made->value = Value::of(std::stod(token.text)); return made;
      case Kind::symbol:
        if (token.text == "(") return bracketed(depth);
        if (token.text == "[") return list(depth);
        if (token.text == "{") return object(depth);
        break;
      default: break;
    }
    --at_;
    fail_here("a value");
  }

  Made bracketed(int depth) {
    if (accept(")")) return make(Operation::list);
    Made made = expression(depth + 1);
    if (symbol(",")) {
      made = make(Operation::list, {}, std::move(made));
      while (accept(",") && !symbol(")")) made->parts.push_back(expression(depth + 1));
    }
    expect(")");
    return made;
  }
  Made list(int depth) {
    Made made = make(Operation::list);
    while (!accept("]")) {
      made->parts.push_back(expression(depth + 1));
      if (!accept(",") && !symbol("]")) fail_here("',' or ']'");
    }
    return made;
  }
  Made object(int depth) {
    Made made = make(Operation::object);
    while (!accept("}")) {
      made->parts.push_back(expression(depth + 1));
      expect(":");
      made->parts.push_back(expression(depth + 1));
      if (!accept(",") && !symbol("}")) fail_here("',' or '}'");
    }
    return made;
  }

  Made postfix(Made made, int depth) {
    for (;;) {
      if (accept(".")) {
        if (now().kind == Kind::integer) {
          Made index = primary(depth);
          made = make(Operation::item, {}, std::move(made), std::move(index));
        } else {
          made = make(Operation::attribute, name("a name"), std::move(made));
        }
      } else if (accept("[")) {
        made = subscript(std::move(made), depth);
      } else if (accept("(")) {
        made = make(Operation::call, {}, std::move(made));
        arguments(*made, depth);
      } else {
        return made;
      }
    }
  }
  Made subscript(Made of, int depth) {
    Made from, to, step;
    if (!symbol(":")) from = expression(depth + 1);
    if (accept("]")) return make(Operation::item, {}, std::move(of), std::move(from));
    expect(":");
    if (!symbol(":") && !symbol("]")) to = expression(depth + 1);
    if (accept(":") && !symbol("]")) step = expression(depth + 1);
    expect("]");
    return make(Operation::slice, {}, std::move(of), std::move(from), std::move(to), std::move(step));
  }
  void arguments(Expression& made, int depth) {
    while (!accept(")")) {
      if (symbol("*") || symbol("**")) fail_at(now().line, "a call with '*' is not supported");
      if (now().kind == Kind::name && tokens_[at_ + 1].kind == Kind::symbol && tokens_[at_ + 1].text == "=") {
        const std::string own = now().text;
        at_ += 2;
        made.named.emplace_back(own, expression(depth + 1));
      } else {
        made.parts.push_back(expression(depth + 1));
      }
      if (!accept(",") && !symbol(")")) fail_here("',' or ')'");
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int loops_ = 0;
};

}  // namespace

std::vector<Statement> parse(std::string_view source) { return Parser(source).run(); }

}  // namespace het::jinja
