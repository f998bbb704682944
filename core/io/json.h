// JSON as a plain value, with what our files need and nlohmann's value type does not give: duplicate keys
// refused, nesting bounded, the order of keys kept. Only json.cpp sees nlohmann's parser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/io/files.h"

namespace het {

struct Json {
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the file
  // Integers beyond int64 are read as double. A NaN or infinity is written as null: JSON has no other.
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value = nullptr;

  // Defined in json.cpp: inlined, the variant's moves make g++ 12 warn of uninitialised members that are
  // none.
  Json();
  Json(bool v);
  Json(int v);
  Json(int64_t v);
  Json(double v);
  Json(const char* v);
  Json(std::string v);
  Json(Array v);
  Json(Object v);
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;
  ~Json();
  bool operator==(const Json&) const = default;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
  const bool* boolean() const { return std::get_if<bool>(&value); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value); }
  const std::string* string() const { return std::get_if<std::string>(&value); }
  const Array* array() const { return std::get_if<Array>(&value); }
  const Object* object() const { return std::get_if<Object>(&value); }
  // A member of an object by name; nullptr when this is no object or has none.
  const Json* find(std::string_view name) const;
};

inline constexpr int kJsonDepth = 64;

// Throws Error(usage) that says what is wrong and at which byte; `what` names the text ("config.json").
Json parse_json(std::string_view text, std::string_view what, int depth = kJsonDepth);
// indent < 0: on one line. Bytes that are not UTF-8 are written as U+FFFD.
std::string to_string(const Json& json, int indent = -1);

Json read_json(const Path& path);
void write_json(const Path& path, const Json& json);  // indented, replaced atomically

}  // namespace het
