// The static settings of one operator call: a small ordered map from name to a plain value. Read once, when
// shapes are inferred and when a kernel is prepared; never in a step.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace het {

// `value` as an integer, if it is a whole number of at most 2^53: beyond, not every integer is a double.
inline std::optional<int64_t> whole_number(double value) {
  if (!(std::abs(value) <= 0x1p53) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

using Attribute = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, Attribute>> entries) : entries_(entries) {}

  bool has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  Attributes& set(std::string name, Attribute value);
  // The value as T; throws Error(usage) naming the attribute when it is missing or of another kind. An
  // integer serves where a double is asked for.
  template <typename T>
  T get(std::string_view name) const;
  template <typename T>
  T get(std::string_view name, T fallback) const {
    return has(name) ? get<T>(name) : fallback;
  }

  const std::map<std::string, Attribute, std::less<>>& entries() const { return entries_; }
  bool operator==(const Attributes&) const = default;

 private:
  std::map<std::string, Attribute, std::less<>> entries_;
};

std::string to_string(const Attributes& attributes);  // "{causal = true, scale = 0.125}"

}  // namespace het
