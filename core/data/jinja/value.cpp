#include "core/data/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/io/utf8.h"

namespace het::jinja {
namespace {

// Python's repr() of a number with a fraction: the shortest digits that give it back.
std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// In quotes, with escapes for these, the backslash and line ends, and for characters below a space by
// `other`.
template <typename Other>
std::string escaped(const std::string& text, char quote, const Other& other) {
  std::string result(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\')
      result += '\\', result += c;
    else if (c == '\n')
      result += "\\n";
    else if (c == '\r')
      result += "\\r";
    else if (c == '\t')
      result += "\\t";
    else
      result += other(c);
  }
  return result + quote;
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  return escaped(text, quote, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", static_cast<unsigned>(byte))
                                       : std::string(1, c);
  });
}

std::string json_text(const std::string& text) {
  return escaped(text, '"', [](char c) -> std::string {
    if (c == '\b') return "\\b";
    if (c == '\f') return "\\f";
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 ? fmt::format("\\u{:04x}", static_cast<unsigned>(byte)) : std::string(1, c);
  });
}

class JsonWriter {
 public:
  JsonWriter(int64_t indent, bool sorted) : indent_(indent), sorted_(sorted) {}

  void write(const Value& value, int64_t depth) {
    if (const List* list = value.list()) {
      bracket('[', ']', list->size(), depth, [&](size_t i) { write((*list)[i], depth + 1); });
    } else if (const Object* object = value.object()) {
      std::vector<const std::pair<std::string, Value>*> members;
      for (const auto& member : object->members) members.push_back(&member);
      if (sorted_)
        std::sort(members.begin(), members.end(),
                  [](const auto* a, const auto* b) { return a->first < b->first; });
      bracket('{', '}', members.size(), depth, [&](size_t i) {
        text += json_text(members[i]->first) + ": ";
        write(members[i]->second, depth + 1);
      });
    } else if (const std::string* words = value.text()) {
      text += json_text(*words);
    } else if (const bool* flag = value.boolean()) {
      text += *flag ? "true" : "false";
    } else if (value.is_none()) {
      text += "null";
    } else if (value.is_number()) {
      text += text_of(value);
    } else {
      fail_usage("tojson: {} cannot be written as JSON", value.kind());
    }
  }

  std::string text;

 private:
  template <typename Item>
  void bracket(char open, char close, size_t count, int64_t depth, const Item& item) {
    text += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) text += indent_ < 0 ? ", " : ",";
      line(depth + 1);
      item(i);
    }
    if (count > 0) line(depth);
    text += close;
  }
  void line(int64_t depth) {
    if (indent_ >= 0) text += '\n' + std::string(static_cast<size_t>(depth * indent_), ' ');
  }

  int64_t indent_;
  bool sorted_;
};

}  // namespace

const Value* Object::find(std::string_view name) const {
  for (const auto& [own, value] : members)
    if (own == name) return &value;
  return nullptr;
}

void Object::set(std::string_view name, Value value) {
  for (auto& [own, old] : members)
    if (own == name) {
      old = std::move(value);
      return;
    }
  members.emplace_back(name, std::move(value));
}

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < list.size()) return &list[position];
  for (const auto& [own, value] : named)
    if (own == name) return &value;
  return nullptr;
}

Value Value::from(const Json& json) {
  if (const bool* flag = as_bool(json)) return of(*flag);
  if (const int64_t* integer = as_integer(json)) return of(*integer);
  if (const std::string* text = as_string(json)) return of(*text);
  if (json.is_number()) return of(json.get<double>());
  if (const Json::array_t* array = as_array(json)) {
    List list;
    for (const Json& item : *array) list.push_back(from(item));
    return of(std::move(list));
  }
  if (const Json::object_t* members = as_object(json)) {
    Object object;
    for (const auto& [name, member] : *members) object.members.emplace_back(name, from(member));
    return of(std::move(object));
  }
  return none();
}

bool Value::truth() const {
  if (const bool* flag = boolean()) return *flag;
  if (const int64_t* whole = integer()) return *whole != 0;
  if (const double* fraction = real()) return *fraction != 0;
  if (const std::string* words = text()) return !words->empty();
  if (const List* items = list()) return !items->empty();
  if (const Object* members = object()) return members->is_namespace || !members->members.empty();
  return function() != nullptr;
}

double Value::number() const {
  if (const bool* flag = boolean()) return *flag ? 1 : 0;
  if (const int64_t* whole = integer()) return static_cast<double>(*whole);
  HET_REQUIRE(real() != nullptr);
  return *real();
}

std::string Value::kind() const {
  if (const auto* name = std::get_if<Undefined>(&data_))
    return fmt::format("'{}', which is undefined", name->name);
  if (is_none()) return "none";
  if (boolean() != nullptr) return "a boolean";
  if (is_number()) return "a number";
  if (text() != nullptr) return "a string";
  if (list() != nullptr) return "a list";
  if (object() != nullptr) return "an object";
  return "a function";
}

std::string text_of(const Value& value) {
  if (value.is_undefined()) return "";
  if (const std::string* text = value.text()) return *text;
  return shown(value);
}

std::string shown(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const bool* flag = value.boolean()) return *flag ? "True" : "False";
  if (const int64_t* integer = value.integer()) return fmt::format("{}", *integer);
  if (const double* real = value.real()) return real_text(*real);
  if (const std::string* text = value.text()) return quoted(*text);
  std::string result;
  if (const List* list = value.list()) {
    for (const Value& item : *list) result += (result.empty() ? "" : ", ") + shown(item);
    return "[" + result + "]";
  }
  if (const Object* object = value.object()) {
    for (const auto& [name, member] : object->members)
      result += (result.empty() ? "" : ", ") + quoted(name) + ": " + shown(member);
    return "{" + result + "}";
  }
  fail_usage("the function '{}' cannot be written", value.function()->name);
}

std::string json_of(const Value& value, int64_t indent, bool sorted) {
  JsonWriter writer(indent, sorted);
  writer.write(value, 0);
  return std::move(writer.text);
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.list() != nullptr && b.list() != nullptr)
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), equal);
  if (a.object() != nullptr && b.object() != nullptr) {
    if (a.object() == b.object()) return true;
    if (a.object()->members.size() != b.object()->members.size()) return false;
    return std::all_of(a.object()->members.begin(), a.object()->members.end(), [&](const auto& member) {
      const Value* other = b.object()->find(member.first);
      return other != nullptr && equal(member.second, *other);
    });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->compare(*b.text());
  fail_usage("{} and {} have no order", a.kind(), b.kind());
}

List items_of(const Value& value) {
  if (const List* list = value.list()) return *list;
  List items;
  if (value.is_undefined()) return items;
  if (const Object* object = value.object()) {
    for (const auto& [name, member] : object->members) items.push_back(Value::of(name));
  } else if (const std::string* text = value.text()) {
    for (size_t i = 0; i < text->size();) {
      const auto bytes = static_cast<size_t>(std::max(decode_utf8(*text, i).bytes, 1));
      items.push_back(Value::of(text->substr(i, bytes)));
      i += bytes;
    }
  } else {
    fail_usage("{} has no items to go through", value.kind());
  }
  return items;
}

bool contains(const Value& whole, const Value& part) {
  if (const std::string* text = whole.text()) {
    if (part.text() == nullptr) fail_usage("'in': {} is not a part of a string", part.kind());
    return text->find(*part.text()) != std::string::npos;
  }
  if (const Object* object = whole.object())
    return part.text() != nullptr && object->find(*part.text()) != nullptr;
  if (const List* list = whole.list())
    return std::any_of(list->begin(), list->end(), [&](const Value& item) { return equal(item, part); });
  if (whole.is_undefined()) return false;
  fail_usage("'in': {} has no items", whole.kind());
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const List* list = value.list()) return static_cast<int64_t>(list->size());
  if (const Object* object = value.object()) return static_cast<int64_t>(object->members.size());
  return static_cast<int64_t>(items_of(value).size());
}

}  // namespace het::jinja
