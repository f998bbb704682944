#include "core/data/pattern.h"

#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "core/io/utf8.h"

namespace het {

// Stands for a byte that is not UTF-8.
constexpr char32_t kNoCharacter = 0x110000;
constexpr uint32_t kMostRepeats = 1000, kMostInstructions = 100000;

namespace {

constexpr uint32_t bit(Category category) { return uint32_t{1} << static_cast<int>(category); }
constexpr uint32_t bits(Category first, Category last) { return (bit(last) << 1) - bit(first); }

struct NamedCategories {
  std::string_view name;
  uint32_t categories;
};
using C = Category;
constexpr NamedCategories kCategories[] = {
    {"L", bits(C::Lu, C::Lo)},
    {"Letter", bits(C::Lu, C::Lo)},
    {"Lu", bit(C::Lu)},
    {"Ll", bit(C::Ll)},
    {"Lt", bit(C::Lt)},
    {"Lm", bit(C::Lm)},
    {"Lo", bit(C::Lo)},
    {"M", bits(C::Mn, C::Me)},
    {"Mn", bit(C::Mn)},
    {"Mc", bit(C::Mc)},
    {"Me", bit(C::Me)},
    {"N", bits(C::Nd, C::No)},
    {"Number", bits(C::Nd, C::No)},
    {"Nd", bit(C::Nd)},
    {"Nl", bit(C::Nl)},
    {"No", bit(C::No)},
    {"P", bits(C::Pc, C::Po)},
    {"Pc", bit(C::Pc)},
    {"Pd", bit(C::Pd)},
    {"Ps", bit(C::Ps)},
    {"Pe", bit(C::Pe)},
    {"Pi", bit(C::Pi)},
    {"Pf", bit(C::Pf)},
    {"Po", bit(C::Po)},
    {"S", bits(C::Sm, C::So)},
    {"Sm", bit(C::Sm)},
    {"Sc", bit(C::Sc)},
    {"Sk", bit(C::Sk)},
    {"So", bit(C::So)},
    {"Z", bits(C::Zs, C::Zp)},
    {"Zs", bit(C::Zs)},
    {"Zl", bit(C::Zl)},
    {"Zp", bit(C::Zp)},
    {"C", bits(C::Cc, C::Cn)},
    {"Cc", bit(C::Cc)},
    {"Cf", bit(C::Cf)},
};
// Where the character begins that ends at `at`.
size_t before(std::string_view text, size_t at) {
  for (size_t bytes = 1; bytes <= 4 && bytes <= at; ++bytes)
    if (static_cast<size_t>(decode_utf8(text, at - bytes).bytes) == bytes) return at - bytes;
  return at - 1;
}

constexpr uint32_t kWord = bits(C::Lu, C::Lo) | bits(C::Mn, C::Me) | bit(C::Nd) | bit(C::Pc);

}  // namespace

bool Pattern::Set::has(char32_t c) const {
  bool inside = std::any_of(parts.begin(), parts.end(), [c](const Set& part) { return part.has(c); });
  if (!inside && c != kNoCharacter)
    inside = (categories >> static_cast<int>(category_of(c)) & 1) != 0 || (space && is_space(c)) ||
             std::any_of(ranges.begin(), ranges.end(),
                         [c](const auto& range) { return c >= range.first && c <= range.second; });
  return inside != negated;
}

// Builds the program. A piece of it is a list of instructions whose jumps are relative to its beginning until
// it is placed.
class PatternParser {
 public:
  using Op = Pattern::Op;
  using Instruction = Pattern::Instruction;
  using Set = Pattern::Set;
  struct Code {
    std::vector<Instruction> list;
    bool nullable = true;  // it may match nothing
    int single = -1;       // it is one character of this set
  };

  PatternParser(std::string_view source, Pattern& pattern) : source_(source), pattern_(pattern) {}

  void parse() {
    Code code = alternatives(false, 0);
    if (at_ < source_.size()) fail("a ')' without its '('");
    code.list.push_back({Op::stop});
    pattern_.program_ = std::move(code.list);
    for (Set& set : pattern_.sets_)
      for (char32_t c = 0; c < 128; ++c) set.ascii[c] = set.has(c);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    fail_usage("{}: the regular expression '{}', byte {}: {}", pattern_.what_, source_, at_ + 1, why);
  }
  bool ends() const { return at_ >= source_.size(); }
  bool take(std::string_view words) {
    if (source_.substr(at_, words.size()) != words) return false;
    at_ += words.size();
    return true;
  }
  char32_t character() {
    if (ends()) fail("it ends too early");
    const Decoded decoded = decode_utf8(source_, at_);
    if (decoded.bytes == 0) fail("it is not UTF-8");
    at_ += static_cast<size_t>(decoded.bytes);
    return decoded.code_point;
  }

  // `code` behind what `to` has.
  static void append(Code& to, const Code& code) {
    const auto base = static_cast<uint32_t>(to.list.size());
    for (Instruction i : code.list) {
      if (i.op == Op::split || i.op == Op::jump || i.op == Op::look_ahead || i.op == Op::look_behind ||
          i.op == Op::atomic)
        i.x += base;
      if (i.op == Op::split) i.y += base;
      to.list.push_back(i);
    }
    if (to.list.size() > kMostInstructions)
      fail_usage("a regular expression needs more than {} instructions", kMostInstructions);
  }

  Code alternatives(bool fold, int depth) {
    if (depth > 64) fail("it is nested more than 64 deep");
    std::vector<Code> list{sequence(fold, depth)};
    while (take("|")) list.push_back(sequence(fold, depth));
    Code result = std::move(list.back());
    for (size_t i = list.size() - 1; i-- > 0;) {
      // split first, rest; first; jump end; rest
      Code joined;
      const auto size = static_cast<uint32_t>(list[i].list.size());
      joined.list.push_back({Op::split, 1, size + 2});
      append(joined, list[i]);
      joined.list.push_back({Op::jump, size + 2 + static_cast<uint32_t>(result.list.size())});
      append(joined, result);
      joined.nullable = list[i].nullable || result.nullable;
      result = std::move(joined);
    }
    return result;
  }

  Code sequence(bool fold, int depth) {
    Code result;
    while (!ends() && source_[at_] != '|' && source_[at_] != ')') {
      if (take("(?i)")) {
        fold = true;
        continue;
      }
      const Code part = repeated(atom(fold, depth));
      const bool nullable = result.nullable && part.nullable;
      result.single = result.list.empty() ? part.single : -1;
      append(result, part);
      result.nullable = nullable;
    }
    return result;
  }

  Code repeated(Code code) {
    while (!ends()) {
      uint32_t least = 0, most = 0;  // most 0: any number
      const size_t before = at_;
      bool interval = false;
      if (take("*")) {
        most = 0;
      } else if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (source_[at_] == '{' && counts(least, most)) {
        interval = true;
      } else {
        at_ = before;
        return code;
      }
      const bool lazy = take("?");
      const bool possessive = !lazy && !interval && take("+");
      code = repeat(code, least, most, lazy);
      if (possessive) {
        Code outer;
        outer.list.push_back({Op::atomic, static_cast<uint32_t>(code.list.size()) + 2});
        append(outer, code);
        outer.list.push_back({Op::stop});
        outer.nullable = code.nullable;
        code = std::move(outer);
      }
    }
    return code;
  }

  // {3}, {1,3}, {2,} or {,3}; what looks otherwise is a literal brace.
  bool counts(uint32_t& least, uint32_t& most) {
    ++at_;
    const auto number = [&](uint32_t& value) {
      const size_t begin = at_;
      uint64_t read = 0;
      while (!ends() && source_[at_] >= '0' && source_[at_] <= '9')
        read = std::min<uint64_t>(read * 10 + static_cast<uint64_t>(source_[at_++] - '0'), kMostRepeats + 1);
      value = static_cast<uint32_t>(read);
      return at_ > begin;
    };
    const bool first = number(least);
    bool unbounded = false;
    if (take(",")) {
      unbounded = !number(most);
      if (!first && unbounded) return false;
    } else {
      if (!first) return false;
      most = least;
    }
    if (!take("}")) return false;
    if (least > kMostRepeats || most > kMostRepeats) fail("it repeats more than 1000 times");
    if (!unbounded && most == 0) fail("it repeats 0 times");
    if (!unbounded && most < least) fail("the least number of repeats is above the greatest");
    if (unbounded) most = 0;
    return true;
  }

  Code repeat(const Code& code, uint32_t least, uint32_t most, bool lazy) {
    Code result;
    result.nullable = least == 0 || code.nullable;
    if (most == 0 && code.single >= 0 && !lazy) {
      result.list.push_back({Op::run, static_cast<uint32_t>(code.single), least});
      return result;
    }
    if (most == 0 && code.nullable)
      fail("what may match nothing is repeated without end, which is not supported");
    for (uint32_t i = 0; i < least; ++i) append(result, code);
    const auto size = static_cast<uint32_t>(code.list.size());
    const auto choice = [&](uint32_t inside, uint32_t outside) {
      const auto base = static_cast<uint32_t>(result.list.size());
      result.list.push_back(lazy ? Instruction{Op::split, base + outside, base + inside}
                                 : Instruction{Op::split, base + inside, base + outside});
    };
    if (most == 0) {
      choice(1, size + 2);
      const auto loop = static_cast<uint32_t>(result.list.size()) - 1;
      append(result, code);
      result.list.push_back({Op::jump, loop});
      return result;
    }
    for (uint32_t i = least; i < most; ++i) {
      choice(1, (size + 1) * (most - i));
      append(result, code);
    }
    return result;
  }

  Code of_set(Set set) {
    Code code;
    code.single = static_cast<int>(pattern_.sets_.size());
    code.nullable = false;
    code.list.push_back({Op::set, static_cast<uint32_t>(pattern_.sets_.size())});
    pattern_.sets_.push_back(std::move(set));
    return code;
  }

  static void add(Set& set, char32_t first, char32_t last, bool fold) {
    set.ranges.emplace_back(first, last);
    if (!fold) return;
    for (char32_t c = first; c <= last && c < 128; ++c) {
      if (c >= 'a' && c <= 'z') set.ranges.emplace_back(c - 32, c - 32);
      if (c >= 'A' && c <= 'Z') set.ranges.emplace_back(c + 32, c + 32);
      // Of letters that fold to one of ASCII there are two more.
      if (c == 's' || c == 'S') set.ranges.emplace_back(0x17F, 0x17F);
      if (c == 'k' || c == 'K') set.ranges.emplace_back(0x212A, 0x212A);
    }
  }

  // After a backslash: a class of characters, or one of them in `literal`.
  Set escape(std::optional<char32_t>& literal) {
    const char32_t c = character();
    Set set;
    switch (c) {
      case 's':
      case 'S':
        set.space = true;
        set.negated = c == 'S';
        return set;
      case 'd':
      case 'D':
        set.categories = bit(C::Nd);
        set.negated = c == 'D';
        return set;
      case 'w':
      case 'W':
        set.categories = kWord;
        set.negated = c == 'W';
        return set;
      case 'p':
      case 'P': return named(c == 'P');
      case 'r': literal = '\r'; return set;
      case 'n': literal = '\n'; return set;
      case 't': literal = '\t'; return set;
      case 'f': literal = '\f'; return set;
      case 'v': literal = '\v'; return set;
      case 'x':
      case 'u': literal = hexadecimal(c); return set;
      default: break;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      std::string name;
      append_utf8(name, c);
      fail(fmt::format("\\{} is not supported", name));
    }
    literal = c;
    return set;
  }

  char32_t hexadecimal(char32_t kind) {
    const bool braces = take("{");
    const size_t most = braces ? 8 : kind == 'x' ? 2 : 4;
    uint64_t value = 0;
    size_t digits = 0;
    for (; digits < most && !ends() && std::isxdigit(static_cast<unsigned char>(source_[at_])) != 0;
         ++digits, ++at_)
      value = value * 16 + static_cast<uint64_t>(std::stoi(std::string(1, source_[at_]), nullptr, 16));
    if (digits == 0 || (!braces && kind == 'u' && digits < 4) || (braces && !take("}")) ||
        value >= kNoCharacter)
      fail("a code point in hexadecimal is wanted");
    return static_cast<char32_t>(value);
  }

  Set named(bool negated) {
    std::string_view name;
    if (take("{")) {
      if (take("^")) negated = !negated;
      const size_t end = source_.find('}', at_);
      if (end == std::string_view::npos) fail("a '{' without its '}'");
      name = source_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      name = source_.substr(at_, 1);
      ++at_;
    }
    for (const NamedCategories& known : kCategories)
      if (known.name == name) {
        Set set;
        set.categories = known.categories;
        set.negated = negated;
        return set;
      }
    fail(fmt::format("\\p{{{}}} is not supported; general categories are", name));
  }

  Set bracket(bool fold, int depth) {
    if (depth > 64) fail("it is nested more than 64 deep");
    Set set;
    set.negated = take("^");
    bool first = true;
    while (true) {
      if (ends()) fail("a '[' without its ']'");
      if (!first && take("]")) return set;
      first = false;
      if (take("&&")) fail("&& in a class is not supported");
      if (source_.substr(at_, 2) == "[:") fail("[: :] in a class is not supported");
      if (take("[")) {
        set.parts.push_back(bracket(fold, depth + 1));
        continue;
      }
      std::optional<char32_t> low;
      if (take("\\")) {
        Set part = escape(low);
        if (!low) {
          set.parts.push_back(std::move(part));
          continue;
        }
      } else {
        low = character();
      }
      char32_t high = *low;
      if (at_ + 1 < source_.size() && source_[at_] == '-' && source_[at_ + 1] != ']') {
        ++at_;
        std::optional<char32_t> last;
        if (take("\\")) {
          escape(last);
          if (!last) fail("a range ends in a class");
        } else {
          last = character();
        }
        high = *last;
        if (high < *low) fail("a range ends before it begins");
      }
      add(set, *low, high, fold);
    }
  }

  Code group(bool fold, int depth) {
    bool negative = false, ahead = false, behind = false, atomic = false;
    if (take("?:")) {
    } else if (take("?i:")) {
      fold = true;
    } else if (take("?>")) {
      atomic = true;
    } else if (take("?=")) {
      ahead = true;
    } else if (take("?!")) {
      ahead = negative = true;
    } else if (take("?<=")) {
      behind = true;
    } else if (take("?<!")) {
      behind = negative = true;
    } else if (take("?")) {
      fail("this kind of group is not supported");
    }
    Code inner = alternatives(fold, depth + 1);
    if (!take(")")) fail("a '(' without its ')'");
    if (!ahead && !behind && !atomic) return inner;
    Code outer;
    if (behind) {
      if (inner.single < 0) fail("looking behind at other than one character is not supported");
      outer.list.push_back(
          {Op::look_behind, 1, static_cast<uint32_t>(inner.single) * 2 + (negative ? 1 : 0)});
      return outer;
    }
    outer.list.push_back({atomic ? Op::atomic : Op::look_ahead, static_cast<uint32_t>(inner.list.size()) + 2,
                          negative ? uint32_t{1} : uint32_t{0}});
    append(outer, inner);
    outer.list.push_back({Op::stop});
    outer.nullable = ahead || inner.nullable;
    return outer;
  }

  Code atom(bool fold, int depth) {
    if (take("(")) return group(fold, depth);
    if (take("[")) return of_set(bracket(fold, 0));
    if (take(".")) {
      Set set;
      add(set, '\n', '\n', false);
      set.negated = true;
      return of_set(std::move(set));
    }
    Code anchor;
    if (take("^") || take("\\A")) {
      anchor.list.push_back({Op::begin});
      return anchor;
    }
    if (take("$") || take("\\z")) {
      anchor.list.push_back({Op::end});
      return anchor;
    }
    if (source_[at_] == '*' || source_[at_] == '+' || source_[at_] == '?') fail("there is nothing to repeat");
    std::optional<char32_t> literal;
    if (take("\\")) {
      Set set = escape(literal);
      if (!literal) return of_set(std::move(set));
    } else {
      literal = character();
    }
    Set set;
    add(set, *literal, *literal, fold);
    return of_set(std::move(set));
  }

  std::string_view source_;
  Pattern& pattern_;
  size_t at_ = 0;
};

Pattern::Pattern(std::string_view source, std::string_view what) : what_(what), source_(source) {
  PatternParser(source_, *this).parse();
}

// Is the character at `at` in the set? It has so many bytes.
bool Pattern::matches(const Set& set, std::string_view text, size_t at, int& bytes) const {
  if (at >= text.size()) return false;
  const auto byte = static_cast<unsigned char>(text[at]);
  bytes = 1;
  if (byte < 128) return set.ascii[byte];
  const Decoded decoded = decode_utf8(text, at);
  if (decoded.bytes == 0) return set.has(kNoCharacter);
  bytes = decoded.bytes;
  return set.has(decoded.code_point);
}

// Backtracking: where the first way through the program ends that begins at `at`.
std::optional<size_t> Pattern::match(std::string_view text, size_t at, uint32_t start, int64_t& budget,
                                     int depth) const {
  if (depth > 64) fail_usage("{}: the regular expression '{}' is nested too deep", what_, source_);
  struct Way {
    uint32_t pc;
    size_t at, least;  // of a run: it may be given back down to here
  };
  std::vector<Way> ways;
  uint32_t pc = start;
  while (true) {
    if (--budget < 0)
      fail_usage("{}: the regular expression '{}' tries too much at byte {} of a text", what_, source_, at);
    const Instruction& i = program_[pc];
    bool good = true;
    int bytes = 0;
    switch (i.op) {
      case Op::set:
        good = matches(sets_[i.x], text, at, bytes);
        if (good) at += static_cast<size_t>(bytes);
        ++pc;
        break;
      case Op::run: {
        size_t least = at;
        uint32_t count = 0;
        while (matches(sets_[i.x], text, at, bytes)) {
          at += static_cast<size_t>(bytes);
          if (++count == i.y) least = at;
        }
        budget -= count;
        good = count >= i.y;
        ++pc;
        if (good && at > least) ways.push_back({pc, at, least});
        break;
      }
      case Op::split:
        ways.push_back({i.y, at, at});
        pc = i.x;
        break;
      case Op::jump: pc = i.x; break;
      case Op::look_ahead:
        good = match(text, at, pc + 1, budget, depth + 1).has_value() != (i.y == 1);
        pc = i.x;
        break;
      case Op::look_behind:
        good = (at > 0 && matches(sets_[i.y / 2], text, before(text, at), bytes)) != (i.y % 2 == 1);
        pc = i.x;
        break;
      case Op::atomic: {
        const auto end = match(text, at, pc + 1, budget, depth + 1);
        good = end.has_value();
        if (good) at = *end;
        pc = i.x;
        break;
      }
      case Op::begin:
        good = at == 0;
        ++pc;
        break;
      case Op::end:
        good = at == text.size();
        ++pc;
        break;
      case Op::stop: return at;
    }
    if (good) continue;
    if (ways.empty()) return std::nullopt;
    Way& way = ways.back();
    pc = way.pc;
    at = way.at;
    if (way.at > way.least) {  // a run gives one character back
      at = way.at = before(text, at);
      if (way.at == way.least) ways.pop_back();
    } else {
      ways.pop_back();
    }
  }
}

std::optional<std::pair<size_t, size_t>> Pattern::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size();) {
    int64_t budget = 1000 + 64 * static_cast<int64_t>(text.size() - at);
    const auto end = match(text, at, 0, budget, 0);
    if (end && *end > at) return std::pair{at, *end};
    at += static_cast<size_t>(std::max(decode_utf8(text, at).bytes, 1));
  }
  return std::nullopt;
}

}  // namespace het
