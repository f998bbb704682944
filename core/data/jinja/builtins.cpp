#include "core/data/jinja/builtins.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "core/base/error.h"
#include "core/io/utf8.h"

namespace het::jinja {
namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";
constexpr int64_t kMostRange = 100000;  // as in Jinja's sandbox

const std::string& words_of(const Value& value, std::string_view who) {
  if (value.text() == nullptr) fail_usage("{}: a string is wanted, this is {}", who, value.kind());
  return *value.text();
}
int64_t whole_of(const Value& value, std::string_view who) {
  if (const bool* flag = value.boolean()) return *flag ? 1 : 0;
  if (value.integer() == nullptr) fail_usage("{}: a whole number is wanted, this is {}", who, value.kind());
  return *value.integer();
}
std::string words_or(const Value* value, std::string_view otherwise, std::string_view who) {
  return value == nullptr || value->is_none() ? std::string(otherwise) : words_of(*value, who);
}

// Bytes of the white space that begins or, from the right, ends a text, as Python has it; 0: none.
size_t space_of(std::string_view text, bool from_right) {
  static constexpr std::string_view kOthers[] = {
      "\x1C",         "\x1D",         "\x1E",         "\x1F",         "\xC2\x85",     "\xC2\xA0",
      "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84",
      "\xE2\x80\x85", "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A",
      "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  if (text.empty()) return 0;
  if (kSpace.find(from_right ? text.back() : text.front()) != std::string_view::npos) return 1;
  for (const std::string_view space : kOthers)
    if (from_right ? text.ends_with(space) : text.starts_with(space)) return space.size();
  return 0;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
// Letters beyond ASCII change by tables that are not here; to leave them as they are would be wrong.
void require_ascii(const std::string& text) {
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    fail_usage("large and small letters are known of ASCII only, and the text is '{}'", text);
}
std::string in_case(std::string text, char (*change)(char)) {
  require_ascii(text);
  std::transform(text.begin(), text.end(), text.begin(), change);
  return text;
}
// The first letter of the text, or of each word, large; the others small.
std::string capitals(std::string text, bool each_word) {
  require_ascii(text);
  bool first = true;
  for (char& c : text) {
    c = first ? upper(c) : lower(c);
    first = each_word && !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
  }
  return text;
}

// Without these characters at the ends; by default, without white space.
std::string stripped(std::string_view text, const Value* characters, bool left, bool right) {
  const std::string set =
      characters == nullptr || characters->is_none() ? "" : words_of(*characters, "strip");
  const auto taken = [&](bool from_right) -> size_t {
    if (set.empty()) return space_of(text, from_right);
    for (const Value& one : items_of(Value::of(set)))
      if (from_right ? text.ends_with(*one.text()) : text.starts_with(*one.text())) return one.text()->size();
    return 0;
  };
  while (left && !text.empty()) {
    const size_t bytes = taken(false);
    if (bytes == 0) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    const size_t bytes = taken(true);
    if (bytes == 0) break;
    text.remove_suffix(bytes);
  }
  return std::string(text);
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most) {
  std::string result;
  size_t at = 0;
  while (most != 0) {
    const size_t found = text.find(from, at);
    if (found == std::string::npos || from.empty()) break;
    result.append(text, at, found - at).append(to);
    at = found + from.size();
    if (most > 0) --most;
  }
  return result + text.substr(at);
}

// Cut at white space where `by` is null; at most `most` times where that is not below 0.
List split(const std::string& text, const std::string* by, int64_t most = -1, bool from_right = false) {
  std::vector<std::string> parts;
  if (by == nullptr) {
    std::string rest = stripped(text, nullptr, true, false);
    while (!rest.empty()) {
      size_t end = most >= 0 && static_cast<int64_t>(parts.size()) == most ? rest.size() : 0;
      while (end < rest.size() && space_of(std::string_view(rest).substr(end), false) == 0) ++end;
      parts.push_back(rest.substr(0, end));
      rest = stripped(std::string_view(rest).substr(end), nullptr, true, false);
    }
  } else {
    const std::string& separator = *by;
    if (separator.empty()) fail_usage("split: the separator is empty");
    std::string_view rest = text;
    while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
      const size_t at = from_right ? rest.rfind(separator) : rest.find(separator);
      if (at == std::string_view::npos) break;
      if (from_right) {
        parts.emplace_back(rest.substr(at + separator.size()));
        rest = rest.substr(0, at);
      } else {
        parts.emplace_back(rest.substr(0, at));
        rest.remove_prefix(at + separator.size());
      }
    }
    parts.emplace_back(rest);
    if (from_right) std::reverse(parts.begin(), parts.end());
  }
  List list;
  for (std::string& part : parts) list.push_back(Value::of(std::move(part)));
  return list;
}

List lines_of(const std::string& text) {
  const std::string newline = "\n";
  return split(text, &newline);
}

const std::string* separator_of(const Arguments& arguments) {
  const Value* by = arguments.find(0, "sep");
  return by == nullptr || by->is_none() ? nullptr : &words_of(*by, "split");
}

// What `attribute` of a filter finds: "a.b" goes into b of a.
Value member_of(const Value& value, const std::string& path) {
  Value found = value;
  const std::string dot = ".";
  for (const Value& part : split(path, &dot)) {
    const Value* member = found.object() == nullptr ? nullptr : found.object()->find(*part.text());
    found = member == nullptr ? Value::undefined(*part.text()) : Value(*member);
  }
  return found;
}

Object& object_of(const Value& value, std::string_view who) {
  if (value.object() == nullptr) fail_usage("{}: an object is wanted, this is {}", who, value.kind());
  return *value.object();
}

List pairs_of(const Value& value, std::string_view who) {
  List pairs;
  for (const auto& [name, member] : object_of(value, who).members)
    pairs.push_back(Value::of(List{Value::of(name), member}));
  return pairs;
}

Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.list.erase(rest.list.begin(),
                  rest.list.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.list.size())));
  return rest;
}

// select, reject, selectattr, rejectattr.
List chosen(const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  const size_t own = by_attribute ? 1 : 0;
  if (arguments.list.size() < own) fail_usage("selectattr: the name of an attribute is wanted");
  List list;
  for (const Value& item : items_of(value)) {
    const Value what = by_attribute ? member_of(item, words_of(arguments.list[0], "selectattr")) : item;
    const bool good = arguments.list.size() > own
                          ? tested(words_of(arguments.list[own], "select"), what, rest_of(arguments, own + 1))
                          : what.truth();
    if (good == wanted) list.push_back(item);
  }
  return list;
}

List mapped(const Value& value, const Arguments& arguments) {
  const Value* attribute = arguments.list.empty() ? arguments.find(0, "attribute") : nullptr;
  const Value* otherwise = arguments.find(99, "default");
  if (attribute == nullptr && arguments.list.empty()) fail_usage("map: a filter or 'attribute' is wanted");
  List list;
  for (const Value& item : items_of(value)) {
    Value made = attribute != nullptr
                     ? member_of(item, words_of(*attribute, "map"))
                     : filtered(words_of(arguments.list[0], "map"), item, rest_of(arguments, 1));
    if (made.is_undefined() && otherwise != nullptr) made = *otherwise;
    list.push_back(std::move(made));
  }
  return list;
}

List sorted(const Value& value, const Arguments& arguments) {
  List list = items_of(value);
  const Value *reverse = arguments.find(0, "reverse"), *cased = arguments.find(1, "case_sensitive"),
              *attribute = arguments.find(2, "attribute");
  const bool keeps_case = cased != nullptr && cased->truth();
  const auto key = [&](const Value& item) {
    Value made = attribute != nullptr ? member_of(item, words_of(*attribute, "sort")) : item;
    if (!keeps_case && made.text() != nullptr) made = Value::of(in_case(*made.text(), lower));
    return made;
  };
  const bool downwards = reverse != nullptr && reverse->truth();
  std::stable_sort(list.begin(), list.end(), [&](const Value& a, const Value& b) {
    return downwards ? compare(key(b), key(a)) < 0 : compare(key(a), key(b)) < 0;
  });
  return list;
}

std::string joined(const Value& value, const Arguments& arguments) {
  const std::string between = words_or(arguments.find(0, "d"), "", "join");
  const Value* attribute = arguments.find(1, "attribute");
  std::string text;
  bool first = true;
  for (const Value& item : items_of(value)) {
    if (!first) text += between;
    first = false;
    text += text_of(attribute != nullptr ? member_of(item, words_of(*attribute, "join")) : item);
  }
  return text;
}

std::string indented(const std::string& text, const Arguments& arguments) {
  const Value *width = arguments.find(0, "width"), *first = arguments.find(1, "first"),
              *blank = arguments.find(2, "blank");
  const std::string space =
      width != nullptr && width->text() != nullptr
          ? *width->text()
          : std::string(static_cast<size_t>(
                            std::clamp<int64_t>(width == nullptr ? 4 : whole_of(*width, "indent"), 0, 1000)),
                        ' ');
  std::string result;
  bool first_line = true;
  for (const Value& line : lines_of(text)) {
    if (!first_line) result += '\n';
    const bool indents = first_line ? first != nullptr && first->truth()
                                    : !line.text()->empty() || (blank != nullptr && blank->truth());
    result += (indents ? space : "") + *line.text();
    first_line = false;
  }
  return result;
}

std::optional<double> number_in(const Value& value) {
  if (value.is_number()) return value.number();
  if (value.text() == nullptr) return std::nullopt;
  const std::string text = stripped(*value.text(), nullptr, true, true);
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

Value extreme(const Value& value, bool greatest) {
  const List list = items_of(value);
  if (list.empty()) return Value::undefined("the greatest of no items");
  const Value* best = &list[0];
  for (const Value& item : list)
    if (greatest ? compare(item, *best) > 0 : compare(item, *best) < 0) best = &item;
  return *best;
}

using Filter = Value (*)(const Value&, const Arguments&);

const std::vector<std::pair<std::string_view, Filter>>& filters() {
  static const std::vector<std::pair<std::string_view, Filter>> table = {
      {"trim",
       [](const Value& v, const Arguments& a) {
         return Value::of(stripped(text_of(v), a.find(0, "chars"), true, true));
       }},
      {"tojson",
       [](const Value& v, const Arguments& a) {
         const Value *indent = a.find(0, "indent"), *sorts = a.find(99, "sort_keys");
         for (const auto& [name, value] : a.named)
           if (name == "separators") fail_usage("tojson: 'separators' is not supported");
         return Value::of(json_of(v,
                                  indent == nullptr || indent->is_none() ? -1 : whole_of(*indent, "tojson"),
                                  sorts != nullptr && sorts->truth()));
       }},
      {"length", [](const Value& v, const Arguments&) { return Value::of(length_of(v)); }},
      {"count", [](const Value& v, const Arguments&) { return Value::of(length_of(v)); }},
      {"upper", [](const Value& v, const Arguments&) { return Value::of(in_case(text_of(v), upper)); }},
      {"lower", [](const Value& v, const Arguments&) { return Value::of(in_case(text_of(v), lower)); }},
      {"capitalize", [](const Value& v, const Arguments&) { return Value::of(capitals(text_of(v), false)); }},
      {"title", [](const Value& v, const Arguments&) { return Value::of(capitals(text_of(v), true)); }},
      {"string", [](const Value& v, const Arguments&) { return Value::of(text_of(v)); }},
      {"safe", [](const Value& v, const Arguments&) { return v; }},
      {"list", [](const Value& v, const Arguments&) { return Value::of(items_of(v)); }},
      {"items", [](const Value& v,
                   const Arguments&) { return Value::of(v.is_undefined() ? List{} : pairs_of(v, "items")); }},
      {"dictsort",
       [](const Value& v, const Arguments&) {
         List pairs = pairs_of(v, "dictsort");
         std::stable_sort(pairs.begin(), pairs.end(), [](const Value& x, const Value& y) {
           return in_case(*(*x.list())[0].text(), lower) < in_case(*(*y.list())[0].text(), lower);
         });
         return Value::of(std::move(pairs));
       }},
      {"first",
       [](const Value& v, const Arguments&) {
         const List list = items_of(v);
         return list.empty() ? Value::undefined("the first of no items") : list.front();
       }},
      {"last",
       [](const Value& v, const Arguments&) {
         const List list = items_of(v);
         return list.empty() ? Value::undefined("the last of no items") : list.back();
       }},
      {"reverse",
       [](const Value& v, const Arguments&) {
         List list = items_of(v);
         std::reverse(list.begin(), list.end());
         if (v.text() == nullptr) return Value::of(std::move(list));
         return Value::of(joined(Value::of(std::move(list)), {}));
       }},
      {"unique",
       [](const Value& v, const Arguments&) {
         List list;
         for (const Value& item : items_of(v))
           if (!contains(Value::of(list), item)) list.push_back(item);
         return Value::of(std::move(list));
       }},
      {"join", [](const Value& v, const Arguments& a) { return Value::of(joined(v, a)); }},
      {"replace",
       [](const Value& v, const Arguments& a) {
         const Value *from = a.find(0, "old"), *to = a.find(1, "new"), *most = a.find(2, "count");
         if (from == nullptr || to == nullptr) fail_usage("replace: two strings are wanted");
         return Value::of(replaced(text_of(v), words_of(*from, "replace"), words_of(*to, "replace"),
                                   most == nullptr || most->is_none() ? -1 : whole_of(*most, "replace")));
       }},
      {"default",
       [](const Value& v, const Arguments& a) {
         const Value *otherwise = a.find(0, "default_value"), *falsy = a.find(1, "boolean");
         const bool missing = v.is_undefined() || (falsy != nullptr && falsy->truth() && !v.truth());
         return !missing ? v : otherwise == nullptr ? Value::of(std::string()) : *otherwise;
       }},
      {"int",
       [](const Value& v, const Arguments& a) {
         const Value* otherwise = a.find(0, "default");
         if (v.integer() != nullptr) return v;
         const auto number = number_in(v);
         if (!number || !(std::abs(*number) < 9e18))
           return otherwise == nullptr ? Value::of(int64_t{0}) : *otherwise;
         return Value::of(static_cast<int64_t>(*number));
       }},
      {"float",
       [](const Value& v, const Arguments& a) {
         const Value* otherwise = a.find(0, "default");
         const auto number = number_in(v);
         return number ? Value::of(*number) : otherwise == nullptr ? Value::of(0.0) : *otherwise;
       }},
      {"abs",
       [](const Value& v, const Arguments&) {
         if (v.integer() != nullptr) return Value::of(std::abs(*v.integer()));
         if (!v.is_number()) fail_usage("abs: a number is wanted, this is {}", v.kind());
         return Value::of(std::abs(v.number()));
       }},
      {"round",
       [](const Value& v, const Arguments& a) {
         const Value* digits = a.find(0, "precision");
         if (!v.is_number()) fail_usage("round: a number is wanted, this is {}", v.kind());
         const double power =
             std::pow(10.0, static_cast<double>(digits == nullptr ? 0 : whole_of(*digits, "round")));
         return Value::of(std::nearbyint(v.number() * power) / power);
       }},
      {"max", [](const Value& v, const Arguments&) { return extreme(v, true); }},
      {"min", [](const Value& v, const Arguments&) { return extreme(v, false); }},
      {"sum",
       [](const Value& v, const Arguments&) {
         double total = 0;
         bool whole = true;
         for (const Value& item : items_of(v)) {
           if (!item.is_number()) fail_usage("sum: numbers are wanted, this is {}", item.kind());
           whole = whole && item.real() == nullptr;
           total += item.number();
         }
         return whole ? Value::of(static_cast<int64_t>(total)) : Value::of(total);
       }},
      {"select", [](const Value& v, const Arguments& a) { return Value::of(chosen(v, a, false, true)); }},
      {"reject", [](const Value& v, const Arguments& a) { return Value::of(chosen(v, a, false, false)); }},
      {"selectattr", [](const Value& v, const Arguments& a) { return Value::of(chosen(v, a, true, true)); }},
      {"rejectattr", [](const Value& v, const Arguments& a) { return Value::of(chosen(v, a, true, false)); }},
      {"map", [](const Value& v, const Arguments& a) { return Value::of(mapped(v, a)); }},
      {"sort", [](const Value& v, const Arguments& a) { return Value::of(sorted(v, a)); }},
      {"indent", [](const Value& v, const Arguments& a) { return Value::of(indented(text_of(v), a)); }},
  };
  return table;
}

using Test = bool (*)(const Value&, const Arguments&);

const Value& other(const Arguments& a) {
  if (a.list.size() != 1) fail_usage("this test needs a value to compare with");
  return a.list[0];
}

const std::vector<std::pair<std::string_view, Test>>& tests() {
  static const std::vector<std::pair<std::string_view, Test>> table = {
      {"defined", [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"undefined", [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"string", [](const Value& v, const Arguments&) { return v.text() != nullptr; }},
      {"mapping", [](const Value& v, const Arguments&) { return v.object() != nullptr; }},
      {"sequence",
       [](const Value& v, const Arguments&) {
         return v.text() != nullptr || v.list() != nullptr || v.object() != nullptr || v.is_undefined();
       }},
      {"iterable",
       [](const Value& v, const Arguments&) {
         return v.text() != nullptr || v.list() != nullptr || v.object() != nullptr || v.is_undefined();
       }},
      {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
      {"integer", [](const Value& v, const Arguments&) { return v.integer() != nullptr; }},
      {"float", [](const Value& v, const Arguments&) { return v.real() != nullptr; }},
      {"boolean", [](const Value& v, const Arguments&) { return v.boolean() != nullptr; }},
      {"true", [](const Value& v, const Arguments&) { return v.boolean() != nullptr && *v.boolean(); }},
      {"false", [](const Value& v, const Arguments&) { return v.boolean() != nullptr && !*v.boolean(); }},
      {"callable", [](const Value& v, const Arguments&) { return v.function() != nullptr; }},
      {"odd", [](const Value& v, const Arguments&) { return whole_of(v, "odd") % 2 != 0; }},
      {"even", [](const Value& v, const Arguments&) { return whole_of(v, "even") % 2 == 0; }},
      {"divisibleby",
       [](const Value& v, const Arguments& a) {
         const int64_t by = whole_of(other(a), "divisibleby");
         if (by == 0) fail_usage("divisibleby: 0 divides nothing");
         return whole_of(v, "divisibleby") % by == 0;
       }},
      {"in", [](const Value& v, const Arguments& a) { return contains(other(a), v); }},
      {"eq", [](const Value& v, const Arguments& a) { return equal(v, other(a)); }},
      {"equalto", [](const Value& v, const Arguments& a) { return equal(v, other(a)); }},
      {"ne", [](const Value& v, const Arguments& a) { return !equal(v, other(a)); }},
      {"lt", [](const Value& v, const Arguments& a) { return compare(v, other(a)) < 0; }},
      {"le", [](const Value& v, const Arguments& a) { return compare(v, other(a)) <= 0; }},
      {"gt", [](const Value& v, const Arguments& a) { return compare(v, other(a)) > 0; }},
      {"ge", [](const Value& v, const Arguments& a) { return compare(v, other(a)) >= 0; }},
  };
  return table;
}

template <typename Table>
auto entry_of(const Table& table, std::string_view name) {
  return std::find_if(table.begin(), table.end(), [&](const auto& entry) { return entry.first == name; });
}

std::string_view full_name(std::string_view name) { return name == "d" ? "default" : name; }

using Method = Value (*)(const std::string&, const Arguments&);

bool has_affix(const std::string& text, const Arguments& a, bool at_end) {
  const auto fits = [&](const Value& value) {
    const std::string& affix = words_of(value, at_end ? "endswith" : "startswith");
    return at_end ? text.ends_with(affix) : text.starts_with(affix);
  };
  if (a.list.size() != 1) fail_usage("startswith: a string is wanted");
  if (const List* list = a.list[0].list()) return std::any_of(list->begin(), list->end(), fits);
  return fits(a.list[0]);
}

// Code points before a byte of the text; -1 before npos.
int64_t position_of(const std::string& text, size_t byte) {
  if (byte == std::string::npos) return -1;
  return length_of(Value::of(text.substr(0, byte)));
}

const std::vector<std::pair<std::string_view, Method>>& text_methods() {
  static const std::vector<std::pair<std::string_view, Method>> table = {
      {"strip", [](const std::string& t,
                   const Arguments& a) { return Value::of(stripped(t, a.find(0, "chars"), true, true)); }},
      {"lstrip", [](const std::string& t,
                    const Arguments& a) { return Value::of(stripped(t, a.find(0, "chars"), true, false)); }},
      {"rstrip", [](const std::string& t,
                    const Arguments& a) { return Value::of(stripped(t, a.find(0, "chars"), false, true)); }},
      {"split",
       [](const std::string& t, const Arguments& a) {
         const Value* most = a.find(1, "maxsplit");
         return Value::of(split(t, separator_of(a), most == nullptr ? -1 : whole_of(*most, "split")));
       }},
      {"rsplit",
       [](const std::string& t, const Arguments& a) {
         const std::string* by = separator_of(a);
         const Value* most = a.find(1, "maxsplit");
         if (most != nullptr && by == nullptr) fail_usage("rsplit: a separator is wanted");
         return Value::of(split(t, by, most == nullptr ? -1 : whole_of(*most, "rsplit"), true));
       }},
      {"splitlines",
       [](const std::string& t, const Arguments&) {
         List lines = lines_of(t);
         if (lines.back().text()->empty()) lines.pop_back();
         return Value::of(std::move(lines));
       }},
      {"startswith",
       [](const std::string& t, const Arguments& a) { return Value::of(has_affix(t, a, false)); }},
      {"endswith", [](const std::string& t, const Arguments& a) { return Value::of(has_affix(t, a, true)); }},
      {"upper", [](const std::string& t, const Arguments&) { return Value::of(in_case(t, upper)); }},
      {"lower", [](const std::string& t, const Arguments&) { return Value::of(in_case(t, lower)); }},
      {"title", [](const std::string& t, const Arguments&) { return Value::of(capitals(t, true)); }},
      {"capitalize", [](const std::string& t, const Arguments&) { return Value::of(capitals(t, false)); }},
      {"replace",
       [](const std::string& t, const Arguments& a) { return filtered("replace", Value::of(t), a); }},
      {"removeprefix",
       [](const std::string& t, const Arguments& a) {
         return Value::of(has_affix(t, a, false) ? t.substr(a.list[0].text()->size()) : t);
       }},
      {"removesuffix",
       [](const std::string& t, const Arguments& a) {
         return Value::of(has_affix(t, a, true) ? t.substr(0, t.size() - a.list[0].text()->size()) : t);
       }},
      {"find",
       [](const std::string& t, const Arguments& a) {
         return Value::of(position_of(t, t.find(words_of(other(a), "find"))));
       }},
      {"rfind",
       [](const std::string& t, const Arguments& a) {
         return Value::of(position_of(t, t.rfind(words_of(other(a), "rfind"))));
       }},
      {"count",
       [](const std::string& t, const Arguments& a) {
         return Value::of(static_cast<int64_t>(split(t, &words_of(other(a), "count")).size()) - 1);
       }},
      {"join",
       [](const std::string& t, const Arguments& a) {
         return Value::of(joined(other(a), {{Value::of(t)}, {}}));
       }},
      {"isdigit",
       [](const std::string& t, const Arguments&) {
         return Value::of(!t.empty() && t.find_first_not_of("0123456789") == std::string::npos);
       }},
      {"isspace",
       [](const std::string& t, const Arguments&) {
         return Value::of(!t.empty() && t.find_first_not_of(kSpace) == std::string::npos);
       }},
  };
  return table;
}

[[noreturn]] void fail_method(std::string_view name, const Value& value) {
  fail_usage("{} has no method '{}' here", value.kind(), name);
}

}  // namespace

bool is_filter(std::string_view name) { return entry_of(filters(), full_name(name)) != filters().end(); }
bool is_test(std::string_view name) { return entry_of(tests(), name) != tests().end(); }

Value filtered(std::string_view name, const Value& value, const Arguments& arguments) {
  const auto found = entry_of(filters(), full_name(name));
  if (found == filters().end()) fail_usage("the filter '{}' is not supported", name);
  return found->second(value, arguments);
}

bool tested(std::string_view name, const Value& value, const Arguments& arguments) {
  const std::string_view full = name == "==" ? "eq" : name == "!=" ? "ne" : name;
  const auto found = entry_of(tests(), full);
  if (found == tests().end()) fail_usage("the test '{}' is not supported", name);
  return found->second(value, arguments);
}

Value called(std::string_view name, const Value& value, const Arguments& arguments) {
  if (const std::string* text = value.text()) {
    const auto found = entry_of(text_methods(), name);
    if (found == text_methods().end()) fail_method(name, value);
    return found->second(*text, arguments);
  }
  if (const Object* object = value.object()) {
    if (name == "items") return Value::of(pairs_of(value, "items"));
    if (name == "keys") return Value::of(items_of(value));
    if (name == "values") {
      List list;
      for (const auto& [own, member] : object->members) list.push_back(member);
      return Value::of(std::move(list));
    }
    if (name == "get") {
      if (arguments.list.empty()) fail_usage("get: the name of a member is wanted");
      const Value* found = object->find(words_of(arguments.list[0], "get"));
      const Value* otherwise = arguments.find(1, "default");
      return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value::none();
    }
  }
  if (const List* list = value.list()) {
    if (name == "index") {
      for (size_t i = 0; i < list->size(); ++i)
        if (equal((*list)[i], other(arguments))) return Value::of(static_cast<int64_t>(i));
      fail_usage("index: the value is not in the list");
    }
    if (name == "count")
      return Value::of(static_cast<int64_t>(std::count_if(
          list->begin(), list->end(), [&](const Value& item) { return equal(item, other(arguments)); })));
  }
  if (value.list() != nullptr || value.object() != nullptr)
    for (const std::string_view changing : {"append", "extend", "insert", "pop", "remove", "sort", "reverse",
                                            "update", "setdefault", "clear", "popitem"})
      if (name == changing)
        fail_usage("'{}' would change {}; templates cannot: use + or a namespace", name, value.kind());
  fail_method(name, value);
}

Value function_named(std::string_view name) {
  if (name == "range")
    return Value::of(Function{"range", [](const Arguments& a) {
                                if (a.list.empty() || a.list.size() > 3)
                                  fail_usage("range: one to three whole numbers are wanted");
                                const int64_t begin = a.list.size() == 1 ? 0 : whole_of(a.list[0], "range");
                                const int64_t end = whole_of(a.list[a.list.size() == 1 ? 0 : 1], "range");
                                const int64_t step = a.list.size() == 3 ? whole_of(a.list[2], "range") : 1;
                                if (step == 0) fail_usage("range: a step of 0 goes nowhere");
                                List list;
                                for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
                                  if (static_cast<int64_t>(list.size()) >= kMostRange)
                                    fail_usage("range: more than {} numbers", kMostRange);
                                  list.push_back(Value::of(i));
                                }
                                return Value::of(std::move(list));
                              }});
  if (name == "namespace" || name == "dict")
    return Value::of(Function{std::string(name), [space = name == "namespace"](const Arguments& a) {
                                Object object;
                                if (!a.list.empty()) object = object_of(a.list[0], "namespace");
                                object.is_namespace = space;
                                for (const auto& [own, value] : a.named) object.set(own, value);
                                return Value::of(std::move(object));
                              }});
  if (name == "raise_exception")
    return Value::of(Function{"raise_exception", [](const Arguments& a) -> Value {
                                fail_usage("it refuses these messages: {}",
                                           a.list.empty() ? "" : text_of(a.list[0]));
                              }});
  return Value::undefined(std::string(name));
}

}  // namespace het::jinja
