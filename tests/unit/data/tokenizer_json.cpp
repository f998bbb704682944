// Small tokenizer.json files; tests/reference/tokenizer_ids.py compares larger ones with the package that
// writes them.
#include <catch2/catch.hpp>

#include "core/data/pattern.h"
#include "core/data/tokenizer.h"
#include "core/data/unicode.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> made(const std::string& json) {
  return tokenizer_from_json(Json::object_t{{"kind", "huggingface"}, {"json", json}}, "'v'");
}

std::vector<std::string> found(const char* source, std::string_view text) {
  const Pattern pattern(source, "'v'");
  std::vector<std::string> list;
  for (auto match = pattern.find(text, 0); match; match = pattern.find(text, match->second))
    list.emplace_back(text.substr(match->first, match->second - match->first));
  return list;
}

// Characters with byte fallback of one byte; the mark of a space is '_'.
const std::string kCharacters = R"({
  "added_tokens": [{"id": 7, "content": "<end>", "special": true, "normalized": false, "lstrip": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"},
                 {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "},
              {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>"}}, {"Sequence": {"id": "A"}}],
                     "special_tokens": {"<end>": {"ids": [7]}}},
  "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": {"<unk>": 0, "_": 1, "a": 2, "b": 3, "ab": 4, "_ab": 5, "<0x0A>": 6},
            "merges": ["a b", ["_", "ab"]]}})";

}  // namespace

TEST_CASE("expressions match as Oniguruma's") {
  using Words = std::vector<std::string>;
  CHECK(found(R"(\p{L}+|\p{N}{1,3})", "ab12345é7") == Words{"ab", "123", "45", "é", "7"});
  CHECK(found(R"((?i:'s|'ll)|\s+(?!\S)|\s+)", "x'S  y'LL \n") == Words{"'S", " ", " ", "'LL", " \n"});
  CHECK(found(R"([^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*)", " a!!\n\nb") ==
        Words{" a", "!!\n\n", "b"});
  CHECK(found("a+?b|a++c", "aab aac") == Words{"aab", "aac"});
  CHECK(found(R"((?<=x)[a-c\-]{2}|(?>ab|a)c)", "xa- abc ac") == Words{"a-", "abc", "ac"});
  CHECK(found("(?:ab){2,}", "ab abab ababab") == Words{"abab", "ababab"});
  CHECK(found(R"(\S+)", "a\xff b") == Words{"a\xff", "b"});
}

TEST_CASE("expressions that are wrong or not known are refused") {
  const auto error = [](const char* source) { return error_of([&] { Pattern(source, "'v'"); }); };
  CHECK_THAT(error("(a"), Contains("'('"));
  CHECK_THAT(error("a)"), Contains("')'"));
  CHECK_THAT(error("[a"), Contains("']'"));
  CHECK_THAT(error("*a"), Contains("nothing to repeat"));
  CHECK_THAT(error("(a?)*"), Contains("may match nothing"));
  CHECK_THAT(error(R"(\p{Han})"), Contains(R"(\p{Han} is not supported)"));
  CHECK_THAT(error("a{1001}"), Contains("1000"));
  CHECK_THAT(error("((a{1000}){1000}){1000}"), Contains("instructions"));
  CHECK_THAT(error_of([] { Pattern("(?:a|a|aa)+$", "'v'").find(std::string(200, 'a') + "b", 0); }),
             Contains("tries too much"));
}

TEST_CASE("special tokens are those that the files name and mark", "[masked]") {
  const auto special = [](const Json& files, const std::string& added = "") {
    return tokenizer_from_json(
               Json::object_t{{"kind", "huggingface"},
                              {"json", fmt::format(R"({{"added_tokens": [{}], "model": {{"type": "WordPiece",
                                  "vocab": {{"[UNK]": 0, "a": 1, "<m>": 2, "<s>": 3, "b": 4}}}}}})",
                                                   added)},
                              {"files", files}},
               "'v'")
        ->special_tokens();
  };
  const Json none = Json::object();
  const auto file = [](const char* name, const char* text) { return Json::object_t{{name, text}}; };
  CHECK(special(none).all.empty());
  CHECK(!special(none).mask);
  CHECK(special(none, R"({"id": 7, "content": "<mask>", "special": true})").mask == 7);
  CHECK(!special(none, R"({"id": 7, "content": "<mask>"})").mask);
  const auto found =
      special(file("tokenizer_config.json",
                   R"({"mask_token": {"content": "<m>"}, "unk_token": "[UNK]", "pad_token": null,
           "add_bos_token": true, "eos_token": "not there", "additional_special_tokens": ["b", {"content": "<x>"}]})"),
              R"({"id": 9, "content": "<x>"}, {"id": 8, "content": "<y>", "special": true})");
  CHECK(found.mask == 2);
  CHECK(found.all == Ids{0, 2, 4, 8, 9});
  CHECK(special(
            file("special_tokens_map.json", R"({"mask_token": "<m>", "extra_special_tokens": {"s": "<s>"}})"))
            .all == Ids{2, 3});
  CHECK(error_of([&] {
          special(file("special_tokens_map.json", R"({"mask_token": "[MASK]"})")).known_mask();
        }) == "usage: the tokenizer's mask_token '[MASK]' is not in its vocabulary");
  CHECK_THAT(error_of([&] { special(file("special_tokens_map.json", "{")); }),
             Contains("special_tokens_map.json"));
}

TEST_CASE("text is composed as Unicode says") {
  CHECK(nfc("e\u0301 a\u0323\u0302 \u1100\u1161\u11A8 \u212B") == "\u00E9 \u1EAD \uAC01 \u00C5");
  CHECK(nfc("a\u0302\u0323") == "\u1EAD");       // marks are ordered by their class
  CHECK(nfc("\u0958") == "\u0915\u093C");        // not composed again
  CHECK(nfc("\u1AC1\u0323") == "\u1AC1\u0323");  // Unicode 9, as the package, has no class for the first
  CHECK(nfkc("\u32FF\u33FF") == "\u32FFgal");
  CHECK(is_mark(0x301));
  CHECK(!is_mark(0x1AC1));
  CHECK(is_mark(0x1CF2));
  CHECK(nfc("x\xff\u0301") == "x\xff\u0301");  // a byte that is not UTF-8 stays
  CHECK(nfd("\u00E9\u1EAD\xff\uAC01z") == "e\u0301a\u0323\u0302\xff\u1100\u1161\u11A8z");
  std::string lower;
  for (const char32_t c : U"AzÄ\u0130Σ\u0101\u0100\U00010400\u01C4中") append_lower(lower, c);
  CHECK(lower == std::string("azäi\u0307σ\u0101\u0101\U00010428\u01C6中") + '\0');
}

TEST_CASE("a tokenizer.json with characters and byte fallback") {
  const auto tokenizer = made(kCharacters);
  CHECK(tokenizer->vocabulary_size() == 8);
  CHECK(tokenizer->prefix() == Ids{7});
  CHECK(tokenizer->encode("ab ab") == Ids{5, 5});
  CHECK(tokenizer->encode("ab\nzé") == Ids{5, 6, 0});       // unknown characters are one
  CHECK(tokenizer->encode("ab  <end>ab") == Ids{5, 7, 5});  // the token takes the spaces before it
  CHECK(tokenizer->decode(Ids{5, 5, 6, 7, 2}) == "ab ab\n<end>a");
  const auto again = tokenizer_from_json(parse_json(dump(tokenizer->to_json()), "text"), "'v'");
  CHECK(again->encode("ab ab\n<end>") == tokenizer->encode("ab ab\n<end>"));
}

TEST_CASE("a tokenizer.json with bytes") {
  const std::string json = R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\d"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]},
    "decoder": {"type": "ByteLevel"},
    "model": {"ignore_merges": true, "vocab": {"a": 0, "b": 1, "Ġ": 2, "1": 3, "Ã": 4, "©": 5, "Ġab": 6}, "merges": []}})";
  const auto tokenizer = made(json);
  CHECK(tokenizer->encode("a ab11") == Ids{0, 6, 3, 3});
  CHECK(tokenizer->encode("é a") == Ids{4, 5, 2, 0});
  CHECK(tokenizer->decode(Ids{4, 5, 6}) == "é ab");
  CHECK(tokenizer->encode("\xc3").size() == 1);  // bytes need not be UTF-8
}

TEST_CASE("a tokenizer.json with the pieces of words, as BERT's") {
  const auto tokenizer = made(R"({
    "added_tokens": [{"id": 1, "content": "[MASK]"}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "post_processor": {"type": "BertProcessing", "sep": ["[MASK]", 1], "cls": ["[UNK]", 0]},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 5,
              "vocab": {"[UNK]": 0, "[MASK]": 1, "un": 2, "##a": 3, "##able": 4, "a": 5, ".": 6, "中": 7, "e": 8, "##ab": 9}}})");
  CHECK(tokenizer->prefix() == Ids{0});
  CHECK(tokenizer->suffix() == Ids{1});
  CHECK(tokenizer->encode("Una  un.a") == Ids{2, 3, 2, 6, 5});
  CHECK(tokenizer->encode("aable unb") == Ids{5, 4, 0});  // what cannot be written is unknown as a whole
  CHECK(tokenizer->encode("aaaaa aaaaaa") == Ids{5, 3, 3, 3, 3, 0});  // and a long word
  CHECK(tokenizer->encode("É中a\x07\u2028[MASK]") == Ids{8, 7, 5, 1});
  CHECK(tokenizer->decode(Ids{5, 4, 6, 2, 1}) == "aable. un [MASK]");
  CHECK(tokenizer->decode(Ids{4, 3}) == "##ablea");  // as the package shows one that nothing is before
}

TEST_CASE("a tokenizer.json with a Unigram model") {
  const std::string json =
      R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"},
      {"type": "Lowercase"}, {"type": "Strip", "strip_left": true, "strip_right": true}]},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true},
    "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"},
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["_", -3], ["a", -2], ["b", -2], ["ab", -3.5], ["_a", -4],
              ["_ab", -6.5], ["<0x7A>", -9]]}})";
  const auto tokenizer = made(json);
  CHECK(tokenizer->encode(" ab ÁB") == Ids{5, 3, 5, 3});  // -4 - 2, before -6.5 and -3 - 3.5
  CHECK(tokenizer->encode("bxyb") == Ids{1, 3, 0, 3});    // unknown characters side by side are one
  CHECK(tokenizer->decode(Ids{5, 3, 1, 4}) == "ab ab");
  std::string falling = json;
  falling.replace(falling.find(R"("unk_id": 0)"), 11, R"("byte_fallback": true)");
  CHECK(made(falling)->encode("z") == Ids{1, 7});
  CHECK_THAT(error_of([&] { made(falling)->encode("y"); }), Contains("lacks 'y'"));
  falling.replace(falling.find("-3.5"), 4, "\"x\"");
  CHECK_THAT(error_of([&] { made(falling); }), Contains("model.vocab[4]: a token and its score are wanted"));
}

TEST_CASE("parts of a tokenizer.json that are not known are refused by name") {
  const auto error = [](const std::string& from, const std::string& to) {
    std::string json = kCharacters;
    json.replace(json.find(from), from.size(), to);
    return error_of([&] { made(json); });
  };
  CHECK_THAT(error(R"("type": "Prepend")", R"("type": "Nmt")"),
             Contains("the normalizer 'Nmt' is not supported"));
  CHECK_THAT(error(R"("type": "BPE")", R"("type": "WordLevel")"),
             Contains("the model 'WordLevel' (BPE, WordPiece"));
  CHECK_THAT(error(R"("type": "BPE")", R"("type": "Unigram")"), Contains("model.vocab: a list is wanted"));
  CHECK_THAT(error(R"("type": "BPE", "unk_token": "<unk>")", R"("type": "WordPiece", "unk_token": "[X]")"),
             Contains("lacks the token '[X]'"));
  CHECK_THAT(error(R"("type": "Fuse")", R"("type": "CTC")"), Contains("the decoder 'CTC'"));
  CHECK_THAT(error(R"("a b")", R"("a c")"), Contains("lacks the token 'c'"));
  CHECK_THAT(error(R"("id": 7)", R"("id": 7000000)"), Contains("far beyond"));
  CHECK_THAT(error(R"("ids": [7])", R"("ids": [9])"), Contains("token id 9 is outside"));
  CHECK_THAT(error(R"("model":)", R"("modal":)"), Contains("tokenizer.json.model is missing"));
}
