#include "snapshot/store/xml.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace het {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr int kDeepest = 16;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == ':' || static_cast<unsigned char>(c) >= 0x80;
}

void append_utf8(std::string& text, uint32_t code) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

// Every function answers whether the document is well-formed so far.
class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  bool document(XmlElement& root) {
    take("\xef\xbb\xbf");  // a byte order mark
    skip_space();          // that a slow server sends, to show that it is there
    if (rest_.starts_with("<?xml") && !declaration()) return false;
    if (!between() || !element(root, 1)) return false;
    return between() && rest_.empty();
  }

 private:
  bool take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  bool skip_past(std::string_view token) {
    const size_t at = rest_.find(token);
    if (at == rest_.npos) return false;
    rest_.remove_prefix(at + token.size());
    return true;
  }
  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kSpace), rest_.size())); }

  bool declaration() {
    const std::string_view all = rest_;
    if (!skip_past("?>")) return false;
    const std::string_view text = all.substr(0, all.size() - rest_.size());
    const size_t encoding = text.find("encoding");
    if (encoding == text.npos) return true;
    return text.find("UTF-8", encoding) != text.npos || text.find("utf-8", encoding) != text.npos;
  }

  // White space and comments.
  bool between() {
    for (;;) {
      skip_space();
      if (!take("<!--")) return true;
      if (!skip_past("-->")) return false;
    }
  }

  bool name(std::string_view& result) {
    size_t end = 0;
    while (end < rest_.size() && is_name(rest_[end])) ++end;
    result = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return end > 0;
  }

  // Attributes carry nothing that is needed; they have to be there in form.
  bool attributes() {
    for (;;) {
      const bool spaced = rest_.find_first_not_of(kSpace) > 0;
      skip_space();
      if (rest_.starts_with('>') || rest_.starts_with("/>")) return true;
      std::string_view ignored;
      if (!spaced || !name(ignored)) return false;
      skip_space();
      if (!take("=")) return false;
      skip_space();
      const std::string_view quote = rest_.substr(0, 1);
      if (quote != "\"" && quote != "'") return false;
      rest_.remove_prefix(1);
      const size_t end = rest_.find(quote);
      if (end == rest_.npos || rest_.substr(0, end).find('<') != std::string_view::npos) return false;
      rest_.remove_prefix(end + 1);
    }
  }

  bool element(XmlElement& into, int depth) {
    std::string_view full, closing;
    if (depth > kDeepest || !take("<") || !name(full) || !attributes()) return false;
    into.name = full.substr(full.rfind(':') + 1);
    if (take("/>")) return true;
    if (!take(">")) return false;
    for (;;) {
      if (take("<!--")) {
        if (!skip_past("-->")) return false;
      } else if (take("<![CDATA[")) {
        const std::string_view all = rest_;
        if (!skip_past("]]>")) return false;
        into.text += all.substr(0, all.size() - rest_.size() - 3);
      } else if (take("</")) {
        if (!name(closing) || closing != full) return false;
        skip_space();
        if (!into.children.empty()) into.text.clear();  // white space between them
        return take(">");
      } else if (rest_.starts_with('<')) {
        if (!element(into.children.emplace_back(), depth + 1)) return false;
      } else if (!characters(into.text)) {
        return false;
      }
    }
  }

  bool characters(std::string& text) {
    const size_t end = rest_.find_first_of("<&");
    if (end == rest_.npos) return false;
    text += rest_.substr(0, end);
    rest_.remove_prefix(end);
    return !rest_.starts_with('&') || reference(text);
  }

  bool reference(std::string& text) {
    constexpr std::pair<std::string_view, char> kNamed[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (const auto& [token, character] : kNamed)
      if (take(token)) {
        text += character;
        return true;
      }
    if (!take("&#")) return false;
    const int base = take("x") ? 16 : 10;
    uint32_t code = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), code, base);
    if (error != std::errc{} || code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      return false;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    append_utf8(text, code);
    return take(";");
  }

  std::string_view rest_;
};

}  // namespace

const XmlElement* XmlElement::child(std::string_view wanted) const {
  for (const XmlElement& each : children)
    if (each.name == wanted) return &each;
  return nullptr;
}

std::string XmlElement::text_of(std::string_view wanted) const {
  const XmlElement* found = child(wanted);
  return found == nullptr ? "" : found->text;
}

std::optional<XmlElement> parse_xml(std::string_view document) {
  XmlElement root;
  return Reader(document).document(root) ? std::optional(std::move(root)) : std::nullopt;
}

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text)
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '"')
      escaped += "&quot;";
    else
      escaped += c;
  return escaped;
}

}  // namespace het
