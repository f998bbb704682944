#include "core/data/huggingface/precompiled.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/data/unicode.h"
#include "core/io/utf8.h"

namespace het::huggingface {
namespace {

uint32_t word_at(std::string_view bytes, size_t at) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i)
    word |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << 8 * i;
  return word;
}

// Aoe, "An efficient digital search algorithm by using a double-array structure" (1989), with the units of
// Darts-clone: label in bits 0 to 7, bit 8 says that a text ends here, the offset of the next units is in
// bits 10 to 30 and 8 bits further left where bit 9 is set; bit 31 marks the unit of a value.
constexpr uint32_t kValue = uint32_t{1} << 31;
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }
bool ends_here(uint32_t unit) { return (unit & 1u << 8) != 0; }
uint32_t label_of(uint32_t unit) { return unit & (kValue | 0xFF); }

bool is_among(char32_t c, const std::pair<char32_t, char32_t>* begin,
              const std::pair<char32_t, char32_t>* end) {
  return std::any_of(begin, end, [&](const auto& range) { return c >= range.first && c <= range.second; });
}

// Classes of Unicode Standard Annex 29 for grapheme clusters. Flags, pictographs and conjuncts of Indic
// scripts are left out: such clusters have 6 bytes or more, and are replaced character by character.
enum class Break : uint8_t { other, cr, lf, control, extends, prepends, l, v, t, lv, lvt };

bool is_prepended(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kPrepended[] = {
      {0x0600, 0x0605},   {0x06DD, 0x06DD},   {0x070F, 0x070F},   {0x0890, 0x0891},   {0x08E2, 0x08E2},
      {0x0D4E, 0x0D4E},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x111C2, 0x111C3}, {0x1193F, 0x1193F},
      {0x11941, 0x11941}, {0x11A3A, 0x11A3A}, {0x11A84, 0x11A89}, {0x11D46, 0x11D46}, {0x11F02, 0x11F02}};
  return is_among(c, std::begin(kPrepended), std::end(kPrepended));
}

// Marks, joiners, modifiers and tags; not the spacing marks that the annex excepts.
bool is_extending(char32_t c, Category category) {
  constexpr std::pair<char32_t, char32_t> kExtending[] = {{0x0E33, 0x0E33},   {0x0EB3, 0x0EB3},
                                                          {0x200C, 0x200D},   {0xFF9E, 0xFF9F},
                                                          {0x1F3FB, 0x1F3FF}, {0xE0020, 0xE007F}};
  constexpr std::pair<char32_t, char32_t> kApart[] = {
      {0x102B, 0x102C}, {0x1038, 0x1038}, {0x1062, 0x1064},  {0x1067, 0x106D}, {0x1083, 0x1083},
      {0x1087, 0x108C}, {0x108F, 0x108F}, {0x109A, 0x109C},  {0x1A61, 0x1A61}, {0x1A63, 0x1A64},
      {0xAA7B, 0xAA7B}, {0xAA7D, 0xAA7D}, {0x11720, 0x11721}};
  if (category == Category::Mn || category == Category::Me) return true;
  if (category == Category::Mc) return !is_among(c, std::begin(kApart), std::end(kApart));
  return is_among(c, std::begin(kExtending), std::end(kExtending));
}

Break break_of(char32_t c) {
  if (c < 0x300) {
    if (c == '\r') return Break::cr;
    if (c == '\n') return Break::lf;
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD ? Break::control : Break::other;
  }
  if (c >= 0x1100 && c <= 0x11FF) return c < 0x1160 ? Break::l : c < 0x11A8 ? Break::v : Break::t;
  if (c >= 0xA960 && c <= 0xA97C) return Break::l;
  if (c >= 0xAC00 && c <= 0xD7A3) return (c - 0xAC00) % 28 == 0 ? Break::lv : Break::lvt;
  if (c >= 0xD7B0 && c <= 0xD7C6) return Break::v;
  if (c >= 0xD7CB && c <= 0xD7FB) return Break::t;
  const Category category = category_of(c);
  if (is_prepended(c)) return Break::prepends;
  if (is_extending(c, category)) return Break::extends;
  const bool controls = category == Category::Cc || category == Category::Cf || category == Category::Zl ||
                        category == Category::Zp;
  return controls ? Break::control : Break::other;
}

bool is_joined(Break before, Break after) {
  const auto controls = [](Break b) { return b == Break::cr || b == Break::lf || b == Break::control; };
  if (before == Break::cr && after == Break::lf) return true;
  if (controls(before) || controls(after)) return false;
  if (after == Break::extends || before == Break::prepends) return true;
  if (before == Break::l)
    return after == Break::l || after == Break::v || after == Break::lv || after == Break::lvt;
  if (before == Break::lv || before == Break::v) return after == Break::v || after == Break::t;
  return (before == Break::lvt || before == Break::t) && after == Break::t;
}

// The end of the character at `at`; of a byte that is not UTF-8, behind it.
size_t character_end(std::string_view text, size_t at) {
  return at + static_cast<size_t>(std::max(decode_utf8(text, at).bytes, 1));
}

size_t cluster_end(std::string_view text, size_t at) {
  const auto class_at = [&](size_t place) {
    const Decoded decoded = decode_utf8(text, place);
    return decoded.bytes == 0 ? Break::control : break_of(decoded.code_point);
  };
  Break last = class_at(at);
  for (at = character_end(text, at); at < text.size(); at = character_end(text, at)) {
    const Break next = class_at(at);
    if (!is_joined(last, next)) break;
    last = next;
  }
  return at;
}

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view map, std::string_view what) {
  if (map.size() < 4) fail_usage("{}: a map of {} bytes has no trie", what, map.size());
  const size_t bytes = word_at(map, 0);
  if (bytes == 0 || bytes % 4 != 0 || bytes > map.size() - 4)
    fail_usage("{}: a trie of {} bytes does not fit in a map of {}", what, bytes, map.size());
  for (size_t at = 4; at < 4 + bytes; at += 4) trie_.push_back(word_at(map, at));
  texts_ = map.substr(4 + bytes);
  if (find_invalid_utf8(texts_) != std::string_view::npos) fail_usage("{}: its texts are not UTF-8", what);
}

// Of the shortest text of the map that `text` begins with; nothing: it begins with none.
std::optional<std::string_view> PrecompiledMap::replacement(std::string_view text) const {
  size_t node = offset_of(trie_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || label_of(trie_[node]) != byte) return std::nullopt;
    const bool ends = ends_here(trie_[node]);
    node ^= offset_of(trie_[node]);
    if (!ends) continue;
    if (node >= trie_.size()) return std::nullopt;
    const size_t begin = trie_[node] & ~kValue;
    if (begin >= texts_.size()) return std::string_view();
    return std::string_view(texts_).substr(begin, std::min(texts_.find('\0', begin), texts_.size()) - begin);
  }
  return std::nullopt;
}

std::string PrecompiledMap::apply(std::string_view text) const {
  constexpr size_t kLongCluster = 6;
  std::string result;
  result.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = cluster_end(text, begin);
    if (end - begin < kLongCluster) {
      if (const auto whole = replacement(text.substr(begin, end - begin))) {
        result += *whole;
        begin = end;
        continue;
      }
    }
    for (size_t next; begin < end; begin = next) {
      next = character_end(text, begin);
      const std::string_view character = text.substr(begin, next - begin);
      result += replacement(character).value_or(character);
    }
  }
  return result;
}

}  // namespace het::huggingface
