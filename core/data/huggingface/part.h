// Parts of a tokenizer.json as they are read: what is missing or not supported is refused by its place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/io/json.h"

namespace het::huggingface {

inline constexpr int64_t kMostIds = int64_t{1} << 24;

// A part of the file, and how it is called in errors.
struct Part {
  const Json* json = nullptr;
  std::string name;

  bool present() const { return json != nullptr && !json->is_null(); }
  Part operator[](std::string_view member) const {
    return {json == nullptr ? nullptr : find_member(*json, member), fmt::format("{}.{}", name, member)};
  }
  std::string text() const {
    const std::string* value = as_string(json);
    if (value == nullptr) fail_usage("{}: a string is wanted", name);
    return *value;
  }
  std::string text_or(std::string_view otherwise) const {
    return present() ? text() : std::string(otherwise);
  }
  bool flag(bool otherwise) const {
    const bool* value = as_bool(json);
    if (value == nullptr && present()) fail_usage("{}: true or false is wanted", name);
    return value == nullptr ? otherwise : *value;
  }
  int32_t id() const {
    const int64_t* value = as_integer(json);
    if (value == nullptr || *value < 0 || *value >= kMostIds)
      fail_usage("{}: a token id from 0 to {} is wanted", name, kMostIds - 1);
    return static_cast<int32_t>(*value);
  }
  std::vector<Part> list() const {
    const Json::array_t* array = as_array(json);
    if (array == nullptr) fail_usage("{}: a list is wanted", name);
    std::vector<Part> parts;
    for (size_t i = 0; i < array->size(); ++i)
      parts.push_back({&(*array)[i], fmt::format("{}[{}]", name, i)});
    return parts;
  }
  std::string type() const { return (*this)["type"].text(); }
  [[noreturn]] void refuse(std::string_view what) const { fail_usage("{}: {} is not supported", name, what); }
};

// The steps of a Sequence, or the one that there is; none where it is null.
inline std::vector<Part> steps_of(const Part& part, std::string_view list, int depth = 0) {
  if (!part.present()) return {};
  if (depth > 8) part.refuse("a sequence nested more than 8 deep");
  if (part.type() != "Sequence") return {part};
  std::vector<Part> steps;
  for (const Part& step : part[list].list())
    for (Part& inner : steps_of(step, list, depth + 1)) steps.push_back(std::move(inner));
  return steps;
}

}  // namespace het::huggingface
