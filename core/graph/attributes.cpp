#include "core/graph/attributes.h"

#include <type_traits>

#include "core/base/error.h"

namespace het {
namespace {

std::string_view kind_of(const Attribute& attribute) {
  static constexpr std::string_view kNames[] = {"a boolean", "an integer",         "a number",
                                                "a string",  "a list of integers", "a list of numbers"};
  return kNames[attribute.index()];
}

std::string show(const Attribute& attribute) {
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return '"' + value + '"';
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>> ||
                             std::is_same_v<T, std::vector<double>>) {
          return fmt::format("{{{}}}", fmt::join(value, ", "));
        } else {
          return fmt::format("{}", value);
        }
      },
      attribute);
}

}  // namespace

Attributes& Attributes::set(std::string name, Attribute value) {
  entries_.insert_or_assign(std::move(name), std::move(value));
  return *this;
}

template <typename T>
T Attributes::get(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail_usage("attribute '{}' is missing; given are {}", name, to_string(*this));
  const Attribute& attribute = found->second;
  if (const T* value = std::get_if<T>(&attribute)) return *value;
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* whole = std::get_if<int64_t>(&attribute)) return static_cast<double>(*whole);
  }
  if constexpr (std::is_same_v<T, int64_t>) {
    // A Lua number is a double; a whole one serves as an integer.
    if (const auto* number = std::get_if<double>(&attribute))
      if (const auto whole = whole_number(*number)) return *whole;
  }
  if constexpr (std::is_same_v<T, std::vector<double>>) {
    if (const auto* whole = std::get_if<std::vector<int64_t>>(&attribute))
      return std::vector<double>(whole->begin(), whole->end());
  }
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    if (const auto* numbers = std::get_if<std::vector<double>>(&attribute))
      if (numbers->empty()) return {};
  }
  fail_usage("attribute '{}' = {} is {}; {} is needed", name, show(attribute), kind_of(attribute),
             kind_of(Attribute(T{})));
}

template bool Attributes::get<bool>(std::string_view) const;
template int64_t Attributes::get<int64_t>(std::string_view) const;
template double Attributes::get<double>(std::string_view) const;
template std::string Attributes::get<std::string>(std::string_view) const;
template std::vector<int64_t> Attributes::get<std::vector<int64_t>>(std::string_view) const;
template std::vector<double> Attributes::get<std::vector<double>>(std::string_view) const;

std::string to_string(const Attributes& attributes) {
  std::string text = "{";
  for (const auto& [name, value] : attributes.entries())
    text += fmt::format("{}{} = {}", text.size() > 1 ? ", " : "", name, show(value));
  return text + "}";
}

}  // namespace het
