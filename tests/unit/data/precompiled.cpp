#include "core/data/huggingface/precompiled.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/base/base64.h"
#include "core/data/tokenizer.h"
#include "core/data/unicode.h"
#include "tests/fuzz/mutated.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using huggingface::PrecompiledMap;

namespace {

using Replacements = std::map<std::string, std::string>;

// A double array of the replacements, as Darts-clone writes it: the units that follow one stand at its place
// ^ its offset ^ their bytes; a value stands where a zero byte would.
class Builder {
 public:
  explicit Builder(const Replacements& replacements) {
    for (const auto& [from, to] : replacements) {
      values_[from] = static_cast<uint32_t>(texts_.size());
      texts_ += to + '\0';
    }
    units_.resize(1);
    used_ = {0};
    children_of("", 0);
  }
  std::string map() const {
    std::string bytes = word(static_cast<uint32_t>(4 * units_.size()));
    for (const uint32_t unit : units_) bytes += word(unit);
    return bytes + texts_;
  }

 private:
  static std::string word(uint32_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
    return bytes;
  }

  void children_of(const std::string& prefix, uint32_t at) {
    std::set<uint32_t> bytes;
    for (const auto& [from, value] : values_)
      if (from.starts_with(prefix))
        bytes.insert(from.size() == prefix.size() ? 0 : static_cast<unsigned char>(from[prefix.size()]));
    uint32_t offset = 1;
    const auto taken = [&](uint32_t byte) { return used_.count(at ^ offset ^ byte) > 0; };
    while (std::any_of(bytes.begin(), bytes.end(), taken)) ++offset;
    units_[at] |= offset << 10 | (bytes.count(0) << 8);
    for (const uint32_t byte : bytes) {
      const uint32_t place = at ^ offset ^ byte;
      used_.insert(place);
      units_.resize(std::max<size_t>(units_.size(), place + 1));
      units_[place] = byte == 0 ? values_[prefix] | 1u << 31 : byte;
    }
    for (const uint32_t byte : bytes)
      if (byte != 0) children_of(prefix + static_cast<char>(byte), at ^ offset ^ byte);
  }

  std::map<std::string, uint32_t> values_;
  std::string texts_;
  std::vector<uint32_t> units_;
  std::set<uint32_t> used_;
};

const Replacements kSome = {{"\uFB01", "fi"}, {"\r", " "},     {"e\u0301", "\u00E9"}, {"a", "b"},
                            {"a\u0301", "!"}, {"\u200B", ""},  {"xyz", "?"},          {"\u1112", "h"},
                            {"\u0301", "'"},  {"\u1161", "v"}, {"\u06DD", "#"}};

}  // namespace

TEST_CASE("a precompiled map replaces characters and short grapheme clusters", "[precompiled]") {
  const PrecompiledMap map(Builder(kSome).map(), "m");
  const auto apply = [&](std::string_view text) { return map.apply(text); };
  CHECK(apply("") == "");
  CHECK(apply("plain \u4E2D") == "plbin \u4E2D");
  CHECK(apply("\uFB01n") == "fin");
  CHECK(apply("n\u200Bn") == "nn");
  CHECK(apply("xyz") == "xyz");  // no cluster
  CHECK(apply("e\u0301") == "\u00E9");
  CHECK(apply("a\u0301c") == "bc");                    // the shortest that the cluster begins with
  CHECK(apply("a\u0302") == "b");                      // and the whole cluster is replaced
  CHECK(apply("e\u0302") == "e\u0302");                // begins with none
  CHECK(apply("e\u0302\u0301\u0301") == "e\u0302''");  // a cluster of 7 bytes, by characters
  CHECK(apply("\r\n") == " ");                         // one cluster
  CHECK(apply("\n\r") == "\n ");
  CHECK(apply("\r\u0301") == " '");        // a mark joins no control character
  CHECK(apply("\u06DDx\uFB01") == "#fi");  // joined to the one that it precedes
  CHECK(apply("\u0600\uFB01") == "\u0600fi");
  CHECK(apply("\u1112\u1161") == "hv");  // a syllable of 6 bytes
  CHECK(apply("\u1161\u0301") == "v");
  CHECK(apply("\u1112\u1161\u0301") == "hv'");      // and of 8
  CHECK(apply("a\xff\u0301\xe4") == "b\xff'\xe4");  // bytes that are not UTF-8 stay
  CHECK(apply(std::string_view("\0a", 2)) == std::string("\0b", 2));
}

TEST_CASE("a precompiled map that does not fit is refused", "[precompiled]") {
  const auto error = [](std::string_view map) { return error_of([&] { PrecompiledMap(map, "m"); }); };
  CHECK(error("abc") == "usage: m: a map of 3 bytes has no trie");
  CHECK(error(std::string_view("\0\0\0\0", 4)) == "usage: m: a trie of 0 bytes does not fit in a map of 4");
  CHECK_THAT(error(std::string_view("\6\0\0\0abcdef", 10)), Contains("a trie of 6 bytes"));
  CHECK_THAT(error(std::string_view("\x8\0\0\0abcdef", 10)), Contains("a trie of 8 bytes"));
  CHECK_THAT(error(std::string_view("\4\0\0\0abcd\xff", 9)), Contains("its texts are not UTF-8"));
}

TEST_CASE("a hostile precompiled map reads nothing outside of itself", "[precompiled]") {
  const std::string whole = Builder(kSome).map();
  std::string text;
  for (const auto& [from, to] : kSome) text += from + to + "\xff";
  std::mt19937 random(7);
  const int taken =
      fuzz::accepted(5000, whole, random, std::string_view("\0\1\2\x80\xff", 5), [&](const std::string& map) {
        try {
          PrecompiledMap(map, "m").apply(text);
          return true;
        } catch (const Error& error) {
          REQUIRE(error.kind() == ErrorKind::usage);
          return false;
        }
      });
  CHECK(taken > 100);
  CHECK(taken < 5000);
  for (int i = 0; i < 2000; ++i) {  // units of any kind
    std::string map = std::string("\x40\0\0\0", 4);
    for (int byte = 0; byte < 64; ++byte) map += static_cast<char>(random());
    PrecompiledMap(map + "abc", "m").apply(text);
  }
}

TEST_CASE("a tokenizer.json has a precompiled map as base64", "[precompiled]") {
  const auto made = [](const std::string& map) {
    return tokenizer_from_json(
        Json::object_t{
            {"kind", "huggingface"},
            {"json", fmt::format(R"({{"normalizer": {{"type": "Precompiled", "precompiled_charsmap": {}}},
                           "model": {{"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["fi", -1], ["b", -1]]}}}})",
                                 map)}},
        "'v'");
  };
  const std::string base64 = to_base64(Builder(kSome).map());
  CHECK(made('"' + base64 + '"')->encode("\uFB01a") == std::vector<int32_t>{1, 2});
  CHECK(made("null")->encode("b") == std::vector<int32_t>{2});
  CHECK_THAT(error_of([&] { made("\"=x\""); }),
             Contains("tokenizer.json.normalizer.precompiled_charsmap: it is not base64"));
  CHECK_THAT(error_of([&] { made("\"AAAA\""); }), Contains("precompiled_charsmap: a map of 3 bytes"));
}

TEST_CASE("compatible forms are those of Unicode", "[precompiled]") {
  CHECK(nfkc("\uFB01 \u00BD \u00A0x \u212B e\u0301") == "fi 1\u20442  x \u00C5 \u00E9");
  CHECK(nfkd("\uFB01 \uAC01 \u1E9B\u0323") == "fi \u1100\u1161\u11A8 s\u0323\u0307");
  CHECK(nfkc("\u1E9B\u0323 \uFDFA\xff") ==
        "\u1E69 \u0635\u0644\u0649 \u0627\u0644\u0644\u0647 \u0639\u0644\u064A\u0647 "
        "\u0648\u0633\u0644\u0645\xff");
}
