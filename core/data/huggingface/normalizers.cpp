#include "core/data/huggingface/normalizers.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/base64.h"
#include "core/data/huggingface/precompiled.h"
#include "core/data/unicode.h"
#include "core/io/utf8.h"

namespace het::huggingface {
namespace {

// Each character as change(to, c) appends it; bytes that are not UTF-8 stay.
template <typename Change>
std::string by_character(std::string_view text, const Change& change) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = decode_utf8(text, at);
    if (decoded.bytes == 0)
      result += text[at++];
    else
      change(result, decoded.code_point);
    at += static_cast<size_t>(decoded.bytes);
  }
  return result;
}

std::string lower(std::string_view text) { return by_character(text, append_lower); }

// Without accents, of a text that is decomposed.
template <typename IsAccent>
std::string without(std::string_view text, const IsAccent& is_accent) {
  return by_character(text, [&](std::string& to, char32_t c) {
    if (!is_accent(c)) append_utf8(to, c);
  });
}

// BERT's: without control characters, all spaces alike.
std::string cleaned(std::string_view text) {
  return by_character(text, [](std::string& to, char32_t c) {
    const Category category = category_of(c);
    if (c == '\t' || c == '\n' || c == '\r')
      to += ' ';
    else if (c == 0xFFFD || category == Category::Cc || category == Category::Cf || category == Category::Co)
      return;
    else if (is_space(c))
      to += ' ';
    else
      append_utf8(to, c);
  });
}

// The blocks of ideographs that BERT takes for words of one character.
bool is_ideograph(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [&](const auto& block) { return c >= block.first && c <= block.second; });
}

std::string with_ideographs_apart(std::string_view text) {
  return by_character(text, [](std::string& to, char32_t c) {
    const bool apart = is_ideograph(c);
    if (apart) to += ' ';
    append_utf8(to, c);
    if (apart) to += ' ';
  });
}

Normalizer bert(const Part& part) {
  const bool cleans = part["clean_text"].flag(true), parts = part["handle_chinese_chars"].flag(true),
             lowers = part["lowercase"].flag(true), strips = part["strip_accents"].flag(lowers);
  return [=](std::string text) {
    if (cleans) text = cleaned(text);
    if (parts) text = with_ideographs_apart(text);
    if (strips) text = without(nfd(text), [](char32_t c) { return category_of(c) == Category::Mn; });
    return lowers ? lower(text) : text;
  };
}

// Without spaces at its ends.
std::string stripped(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = 0;
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = decode_utf8(text, at);
    const size_t next = at + static_cast<size_t>(std::max(decoded.bytes, 1));
    if (decoded.bytes == 0 || !is_space(decoded.code_point)) {
      if (!any) begin = at;
      any = true;
      end = next;
    }
    at = next;
  }
  if (!any && (left || right)) return "";
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(text.substr(begin, end - begin));
}

Normalizer precompiled(const Part& given) {
  if (!given.present()) return [](std::string text) { return text; };
  const std::optional<std::string> bytes = from_base64(given.text());
  if (!bytes) fail_usage("{}: it is not base64", given.name);
  if (bytes->empty()) return [](std::string text) { return text; };
  return [map = std::make_shared<PrecompiledMap>(*bytes, given.name)](const std::string& text) {
    return map->apply(text);
  };
}

Normalizer normalizer_of(const Part& step) {
  const std::string type = step.type();
  if (type == "NFC") return [](const std::string& text) { return nfc(text); };
  if (type == "NFD") return [](const std::string& text) { return nfd(text); };
  if (type == "NFKC") return [](const std::string& text) { return nfkc(text); };
  if (type == "NFKD") return [](const std::string& text) { return nfkd(text); };
  if (type == "Precompiled") return precompiled(step["precompiled_charsmap"]);
  if (type == "Lowercase") return [](const std::string& text) { return lower(text); };
  if (type == "StripAccents") return [](const std::string& text) { return without(text, is_mark); };
  if (type == "BertNormalizer") return bert(step);
  if (type == "Strip")
    return [left = step["strip_left"].flag(true), right = step["strip_right"].flag(true)](
               const std::string& text) { return stripped(text, left, right); };
  if (type == "Prepend")
    return
        [content = step["prepend"].text()](std::string text) { return text.empty() ? text : content + text; };
  if (type == "Replace")
    return [pattern = Finder::of(step["pattern"]), content = step["content"].text()](
               const std::string& text) { return replaced(text, pattern, content); };
  step.refuse(fmt::format("the normalizer '{}'", type));
}

}  // namespace

std::vector<Normalizer> normalizers_of(const Part& part) {
  std::vector<Normalizer> list;
  for (const Part& step : steps_of(part, "normalizers")) list.push_back(normalizer_of(step));
  return list;
}

std::string normalised(const std::vector<Normalizer>& list, std::string_view text) {
  std::string result(text);
  for (const Normalizer& step : list) result = step(std::move(result));
  return result;
}

}  // namespace het::huggingface
