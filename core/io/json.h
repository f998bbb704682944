// JSON values are nlohmann's. What our files need beside its parser: duplicate keys refused, nesting bounded,
// integers always signed, and text that is safe to show on a terminal.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/io/files.h"

namespace het {

// Its objects keep the order of their keys. They are found one after the other: an object of many keys is
// walked, not searched.
using Json = nlohmann::ordered_json;

// A member of an object by name; nullptr when this is no object or has none.
inline const Json* find_member(const Json& json, std::string_view name) {
  const auto found = json.find(name);
  return found == json.end() ? nullptr : &*found;
}
inline const Json* find_member(const Json* json, std::string_view name) {
  return json == nullptr ? nullptr : find_member(*json, name);
}

// The value when it is of this type; else nullptr.
inline const bool* as_bool(const Json& json) { return json.get_ptr<const bool*>(); }
inline const int64_t* as_integer(const Json& json) { return json.get_ptr<const int64_t*>(); }
inline const std::string* as_string(const Json& json) { return json.get_ptr<const std::string*>(); }
inline const Json::array_t* as_array(const Json& json) { return json.get_ptr<const Json::array_t*>(); }
inline const Json::object_t* as_object(const Json& json) { return json.get_ptr<const Json::object_t*>(); }
// The same of a member that may not be there.
inline const bool* as_bool(const Json* json) { return json ? as_bool(*json) : nullptr; }
inline const int64_t* as_integer(const Json* json) { return json ? as_integer(*json) : nullptr; }
inline const std::string* as_string(const Json* json) { return json ? as_string(*json) : nullptr; }
inline const Json::array_t* as_array(const Json* json) { return json ? as_array(*json) : nullptr; }
inline const Json::object_t* as_object(const Json* json) { return json ? as_object(*json) : nullptr; }

inline constexpr int kJsonDepth = 64;

// Integers beyond int64 are read as double. Throws Error(usage) that says what is wrong and at which byte;
// `what` names the text ("config.json").
Json parse_json(std::string_view text, std::string_view what, int depth = kJsonDepth);
// On one line, or each member on its line, indented by two spaces a level. A NaN or infinity is written as
// null, for JSON has no other; bytes that are not UTF-8 as U+FFFD; control characters as \u and their number.
std::string dump(const Json& json, bool lines = false);
std::string dump(const Json& json, int) = delete;  // no width

Json read_json(const Path& path);
void write_json(const Path& path, const Json& json);  // indented, replaced atomically

}  // namespace het
