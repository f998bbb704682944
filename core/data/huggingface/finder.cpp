#include "core/data/huggingface/finder.h"

namespace het::huggingface {

std::string replaced(std::string_view text, const Finder& pattern, std::string_view content) {
  std::string result;
  size_t at = 0;
  while (const auto found = pattern.find(text, at)) {
    result.append(text, at, found->first - at);
    result += content;
    at = found->second;
  }
  return result.append(text, at);
}

}  // namespace het::huggingface
