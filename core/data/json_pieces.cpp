#include "core/data/json_pieces.h"

#include <algorithm>

#include "core/base/error.h"

namespace het {
namespace {

constexpr std::string_view kJsonSpace = " \t\r\n";

std::vector<JsonPiece> pieces_of_lines(std::string_view text) {
  std::vector<JsonPiece> lines;
  int64_t number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.find_first_not_of(kJsonSpace) != std::string_view::npos) lines.push_back({line, number, 0});
    at = end + 1;
  }
  return lines;
}

// Behind the string whose first quote is at `at`, or behind the text.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

// The comma or bracket that ends the element which begins at `at`, or a '}' too many, or the size of the
// text.
size_t end_of_element(std::string_view text, size_t at) {
  int64_t depth = 0;
  while ((at = text.find_first_of("\"{}[],", at)) != std::string_view::npos) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']' || c == '}')) return at;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++at;
  }
  return text.size();
}

// Counts the lines of a text up to places that only grow.
class LineCounter {
 public:
  explicit LineCounter(std::string_view text) : text_(text) {}

  int64_t at(size_t place) {
    const std::string_view passed = text_.substr(counted_, place - counted_);
    line_ += std::count(passed.begin(), passed.end(), '\n');
    counted_ = place;
    return line_;
  }

 private:
  std::string_view text_;
  int64_t line_ = 1;
  size_t counted_ = 0;
};

// `at`: behind the bracket with which the list begins.
std::vector<JsonPiece> pieces_of_list(std::string_view text, size_t at, const std::string& path) {
  std::vector<JsonPiece> elements;
  LineCounter lines(text);
  for (bool is_last = false; !is_last; ++at) {
    const size_t first = text.find_first_not_of(kJsonSpace, at);
    at = first == std::string_view::npos ? text.size() : end_of_element(text, first);
    if (at == text.size()) fail_usage("{}: the list does not end", path);
    if (text[at] == '}') fail_usage("{}:{}: '}}' stands where an element ends", path, lines.at(at));
    is_last = text[at] == ']';
    if (is_last && first == at && elements.empty()) continue;
    const std::string_view element = text.substr(first, at - first);
    const int64_t line = lines.at(first);
    if (element.empty()) fail_usage("{}:{}: there is no element before '{}'", path, line, text[at]);
    elements.push_back({element.substr(0, element.find_last_not_of(kJsonSpace) + 1), line,
                        static_cast<int64_t>(elements.size() + 1)});
  }
  if (const size_t more = text.find_first_not_of(kJsonSpace, at); more != std::string_view::npos)
    fail_usage("{}:{}: there is more behind the end of the list", path, lines.at(more));
  return elements;
}

}  // namespace

std::vector<JsonPiece> json_pieces(std::string_view text, const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  const size_t first = text.find_first_not_of(kJsonSpace, begin);
  if (first == std::string_view::npos || text[first] != '[') return pieces_of_lines(text);
  return pieces_of_list(text, first + 1, path);
}

}  // namespace het
