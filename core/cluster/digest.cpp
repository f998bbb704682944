#include "core/cluster/digest.h"

#include <map>

#include <fmt/format.h>

namespace het {
namespace {

std::string_view hash_of(std::string_view digest) { return digest.substr(0, digest.find('\n')); }

// Values by name.
std::map<std::string_view, std::string_view> settings_of(std::string_view digest) {
  std::map<std::string_view, std::string_view> settings;
  for (size_t at = digest.find('\n'); at != digest.npos;) {
    const size_t next = digest.find('\n', at + 1);
    const std::string_view line = digest.substr(at + 1, next == digest.npos ? next : next - at - 1);
    const size_t middle = line.find(" = ");
    if (middle != line.npos) settings[line.substr(0, middle)] = line.substr(middle + 3);
    at = next;
  }
  return settings;
}

std::string show(std::string_view name, const std::map<std::string_view, std::string_view>& settings) {
  const auto found = settings.find(name);
  return std::string(name) + (found == settings.end() ? " not set" : " = " + std::string(found->second));
}

}  // namespace

bool same_digest(std::string_view a, std::string_view b) { return hash_of(a) == hash_of(b); }

DigestDifference difference_of(std::string_view a, std::string_view b) {
  const auto first = settings_of(a), second = settings_of(b);
  auto names = first;
  names.insert(second.begin(), second.end());
  for (const auto& [name, value] : names) {
    const auto in_first = first.find(name), in_second = second.find(name);
    if (in_first == first.end() || in_second == second.end() || in_first->second != in_second->second)
      return {show(name, first), show(name, second)};
  }
  return {fmt::format("hash {}", hash_of(a)), fmt::format("hash {}", hash_of(b))};
}

}  // namespace het
