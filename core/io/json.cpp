#include "core/io/json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/visible.h"
#include "core/io/file.h"
#include "core/io/utf8.h"

namespace het {
namespace {

// Receives the parser's events and builds the value. Returning false stops the parser; the error is kept.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(int depth) : depth_(depth) {}

  Json result;
  std::string error;

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override {
    return value <= INT64_MAX ? add(static_cast<int64_t>(value)) : add(static_cast<double>(value));
  }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return open(Json(Json::Object())); }
  bool start_array(size_t) override { return open(Json(Json::Array())); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (!open_.back().names.insert(name).second) {
      error = fmt::format("the key '{}' stands twice in one object", name);
      return false;
    }
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& exception) override {
    error = exception.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    if (const size_t end = error.find("] "); end != std::string::npos) error.erase(0, end + 2);
    return false;
  }

 private:
  // A container not yet closed. Values are moved into their parent when they are whole, so nothing is copied.
  struct Open {
    Json value;
    std::string key;
    std::unordered_set<std::string> names;
  };

  bool open(Json container) {
    if (static_cast<int>(open_.size()) == depth_) {
      error = fmt::format("it is nested more than {} deep", depth_);
      return false;
    }
    open_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }
  bool add(Json value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (auto* array = std::get_if<Json::Array>(&open_.back().value.value)) {
      array->push_back(std::move(value));
    } else {
      std::get<Json::Object>(open_.back().value.value)
          .emplace_back(std::move(open_.back().key), std::move(value));
    }
    return true;
  }

  int depth_;
  std::vector<Open> open_;
};

void write_string(std::string& to, std::string_view text) {
  to += '"';
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    const std::string_view bytes = text.substr(i, static_cast<size_t>(decoded.bytes));
    i += decoded.bytes > 0 ? static_cast<size_t>(decoded.bytes) : 1;
    switch (decoded.code_point) {
      case '"': to += "\\\""; break;
      case '\\': to += "\\\\"; break;
      case '\n': to += "\\n"; break;
      case '\r': to += "\\r"; break;
      case '\t': to += "\\t"; break;
      default:
        if (decoded.bytes == 0)
          append_utf8(to, 0xFFFD);
        else if (is_control(decoded.code_point))  // JSON is printed on terminals too
          to += fmt::format("\\u{:04x}", static_cast<uint32_t>(decoded.code_point));
        else
          to += bytes;
    }
  }
  to += '"';
}

void write_double(std::string& to, double value) {
  if (!std::isfinite(value)) {
    to += "null";
    return;
  }
  const std::string digits = fmt::format("{}", value);
  to += digits;
  if (digits.find_first_of(".e") == std::string::npos) to += ".0";  // so that it is read as a double again
}

void write_value(std::string& to, const Json& json, int indent, int level) {
  const auto line = [&](int depth) {
    if (indent < 0) return;
    to += '\n';
    to.append(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' ');
  };
  if (const auto* array = json.array()) {
    to += '[';
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) to += indent < 0 ? "," : ", ";
      write_value(to, (*array)[i], indent, level + 1);
    }
    to += ']';
  } else if (const auto* object = json.object()) {
    to += '{';
    for (size_t i = 0; i < object->size(); ++i) {
      if (i > 0) to += ',';
      line(level + 1);
      write_string(to, (*object)[i].first);
      to += indent < 0 ? ":" : ": ";
      write_value(to, (*object)[i].second, indent, level + 1);
    }
    if (!object->empty()) line(level);
    to += '}';
  } else if (const auto* text = json.string()) {
    write_string(to, *text);
  } else if (const auto* flag = json.boolean()) {
    to += *flag ? "true" : "false";
  } else if (const auto* integer = json.integer()) {
    to += fmt::format("{}", *integer);
  } else if (const auto* number = std::get_if<double>(&json.value)) {
    write_double(to, *number);
  } else {
    to += "null";
  }
}

}  // namespace

Json::Json() = default;
Json::Json(bool v) : value(v) {}
Json::Json(int v) : value(int64_t{v}) {}
Json::Json(int64_t v) : value(v) {}
Json::Json(double v) : value(v) {}
Json::Json(const char* v) : value(std::string(v)) {}
Json::Json(std::string v) : value(std::move(v)) {}
Json::Json(Array v) : value(std::move(v)) {}
Json::Json(Object v) : value(std::move(v)) {}
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;

const Json* Json::find(std::string_view name) const {
  if (const Object* members = object())
    for (const auto& [key, member] : *members)
      if (key == name) return &member;
  return nullptr;
}

Json parse_json(std::string_view text, std::string_view what, int depth) {
  Builder builder(depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder))
    fail_usage("{} is not valid JSON: {}", what, builder.error);
  return std::move(builder.result);
}

std::string to_string(const Json& json, int indent) {
  std::string text;
  write_value(text, json, indent, 0);
  return text;
}

Json read_json(const Path& path) { return parse_json(read_file(path), fmt::format("'{}'", path.text)); }

void write_json(const Path& path, const Json& json) { write_file(path, to_string(json, 2) + "\n"); }

}  // namespace het
