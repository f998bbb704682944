#include "core/data/unicode.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "core/data/unicode_tables.h"
#include "core/io/utf8.h"

namespace het {
namespace {

constexpr char32_t kCodePoints = 0x110000;

template <size_t n>
std::vector<uint8_t> table_of(const unicode::Range (&ranges)[n], uint8_t otherwise) {
  std::vector<uint8_t> table(kCodePoints, otherwise);
  for (const unicode::Range& range : ranges)
    std::fill(table.begin() + range.first, table.begin() + range.last + 1, range.value);
  return table;
}

uint8_t combining_class(char32_t c) {
  static const std::vector<uint8_t> table = table_of(unicode::kCombiningClasses, 0);
  return c < kCodePoints ? table[c] : 0;
}

// Syllables of Hangul are computed (The Unicode Standard, chapter 3.12).
constexpr char32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

void decompose(char32_t c, bool compatibly, std::u32string& to) {
  if (compatibly) {
    const unicode::Compatible* form =
        std::lower_bound(std::begin(unicode::kCompatible), std::end(unicode::kCompatible), c,
                         [](const unicode::Compatible& f, char32_t value) { return f.whole < value; });
    if (form != std::end(unicode::kCompatible) && form->whole == c) {
      to.append(unicode::kCompatibleParts + form->first, form->count);
      return;
    }
  }
  if (c >= kS && c < kS + kSCount) {
    const char32_t index = c - kS;
    to += kL + index / (kVCount * kTCount);
    to += kV + index / kTCount % kVCount;
    if (index % kTCount != 0) to += kT + index % kTCount;
    return;
  }
  const unicode::Step* step =
      std::lower_bound(std::begin(unicode::kSteps), std::end(unicode::kSteps), c,
                       [](const unicode::Step& s, char32_t value) { return s.whole < value; });
  if (step == std::end(unicode::kSteps) || step->whole != c) {
    to += c;
    return;
  }
  decompose(step->first, compatibly, to);
  if (step->second != 0) decompose(step->second, compatibly, to);
}

// The character that the two make; 0: none.
char32_t composed(char32_t a, char32_t b) {
  static const std::unordered_map<uint64_t, char32_t> pairs = [] {
    std::unordered_map<uint64_t, char32_t> made;
    for (const unicode::Step& step : unicode::kSteps)
      if (step.composes) made[static_cast<uint64_t>(step.first) << 32 | step.second] = step.whole;
    return made;
  }();
  if (a >= kL && a < kL + kLCount && b >= kV && b < kV + kVCount)
    return kS + ((a - kL) * kVCount + (b - kV)) * kTCount;
  if (a >= kS && a < kS + kSCount && (a - kS) % kTCount == 0 && b > kT && b < kT + kTCount)
    return a + (b - kT);
  const auto found = pairs.find(static_cast<uint64_t>(a) << 32 | b);
  return found == pairs.end() ? 0 : found->second;
}

// Unicode Standard Annex 15: decompose, order marks by their class, compose.
std::u32string decomposed(std::u32string_view from, bool compatibly = false) {
  std::u32string text;
  for (const char32_t c : from) decompose(c, compatibly, text);
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    if (combining_class(text[begin]) != 0) {
      while (end < text.size() && combining_class(text[end]) != 0) ++end;
      std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(begin),
                       text.begin() + static_cast<std::ptrdiff_t>(end),
                       [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    }
    begin = end;
  }
  return text;
}

std::u32string composed(const std::u32string& text) {
  std::u32string result;
  size_t starter = std::u32string::npos;
  int last_class = -1;  // of what stands between the starter and here; -1: nothing
  for (const char32_t c : text) {
    const int own_class = combining_class(c);
    if (starter != std::u32string::npos && (last_class < own_class || last_class == -1)) {
      if (const char32_t whole = composed(result[starter], c); whole != 0) {
        result[starter] = whole;
        continue;
      }
    }
    if (own_class == 0) {
      starter = result.size();
      last_class = -1;
    } else {
      last_class = own_class;
    }
    result += c;
  }
  return result;
}

// The text in runs, each normalised separately. No character below `first_mark` is joined to
// the one before it, and none is changed.
template <typename Form>
std::string normal(std::string_view text, char32_t first_mark, const Form& form) {
  std::string result;
  result.reserve(text.size());
  std::u32string run;
  const auto flush = [&] {
    if (run.size() == 1 && run[0] < first_mark)
      append_utf8(result, run[0]);
    else if (!run.empty())
      for (const char32_t c : form(run)) append_utf8(result, c);
    run.clear();
  };
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    if (decoded.bytes == 0) {  // a byte that is not UTF-8 stays
      flush();
      result += text[i++];
      continue;
    }
    if (decoded.code_point < first_mark) flush();
    run += decoded.code_point;
    i += static_cast<size_t>(decoded.bytes);
  }
  flush();
  return result;
}

}  // namespace

Category category_of(char32_t c) {
  constexpr auto kUnassigned = static_cast<uint8_t>(Category::Cn);
  static const std::vector<uint8_t> table = table_of(unicode::kCategories, kUnassigned);
  return static_cast<Category>(c < kCodePoints ? table[c] : kUnassigned);
}

bool is_letter(char32_t c) { return category_of(c) <= Category::Lo; }
bool is_number(char32_t c) {
  const Category category = category_of(c);
  return category >= Category::Nd && category <= Category::No;
}

bool is_mark(char32_t c) {
  static const std::vector<uint8_t> table = table_of(unicode::kMarks, 0);
  return c < kCodePoints && table[c] != 0;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string nfc(std::string_view text) {
  constexpr char32_t kFirstMark = 0x300;
  return normal(text, kFirstMark, [](const std::u32string& run) { return composed(decomposed(run)); });
}

std::string nfd(std::string_view text) {
  constexpr char32_t kFirstDecomposed = 0xC0;
  return normal(text, kFirstDecomposed, [](const std::u32string& run) { return decomposed(run); });
}

namespace {
constexpr char32_t kFirstCompatible = 0xA0;
}

std::string nfkc(std::string_view text) {
  return normal(text, kFirstCompatible,
                [](const std::u32string& run) { return composed(decomposed(run, true)); });
}

std::string nfkd(std::string_view text) {
  return normal(text, kFirstCompatible, [](const std::u32string& run) { return decomposed(run, true); });
}

void append_lower(std::string& to, char32_t c) {
  constexpr char32_t kCapitalIWithDot = 0x130, kDotAbove = 0x307;  // the only one that becomes two
  const auto* run =
      std::lower_bound(std::begin(unicode::kLower), std::end(unicode::kLower), c,
                       [](const unicode::Lower& each, char32_t value) { return each.last < value; });
  if (c == kCapitalIWithDot) {
    to += 'i';
    append_utf8(to, kDotAbove);
  } else if (run != std::end(unicode::kLower) && c >= run->first && (c - run->first) % run->step == 0) {
    append_utf8(to, static_cast<char32_t>(static_cast<int32_t>(c) + run->difference));
  } else {
    append_utf8(to, c);
  }
}

}  // namespace het
