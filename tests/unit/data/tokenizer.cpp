#include "core/data/tokenizer.h"

#include <catch2/catch.hpp>

#include <sentencepiece_trainer.h>

#include "core/io/file.h"
#include "tests/fuzz/mutated.h"
#include "tests/fuzz/vocabulary.h"
#include "tests/unit/data/bpe_golden.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using Catch::StartsWith;

namespace {

const std::string kText = "To be, or not to be: that is the question — naïve café, 世界 😀\n";

void check_round_trip(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  for (const int32_t id : ids) CHECK((id >= 0 && id < tokenizer.vocabulary_size()));
  CHECK(tokenizer.decode(ids) == text);
}

// The same tokenizer after its vocabulary has been through a file.
std::unique_ptr<Tokenizer> saved_and_loaded(const Tokenizer& tokenizer) {
  const Scratch scratch;
  write_json(scratch.path("vocabulary.json"), tokenizer.to_json());
  return tokenizer_from_json(read_json(scratch.path("vocabulary.json")), "vocabulary.json");
}

// A small model trained on repetitions of a few sentences.
std::string trained_sentencepiece(const Scratch& scratch) {
  std::string lines;
  for (int i = 0; i < 50; ++i)
    lines += "to be or not to be\nthat is the question\nthe slings and arrows of fortune\n";
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + scratch.put("lines.txt", lines) + " --model_prefix=" + scratch.path("small") +
      " --vocab_size=60 --model_type=bpe --character_coverage=1.0 --minloglevel=3 --num_threads=1");
  REQUIRE(status.ok());
  return scratch.path("small.model");
}

}  // namespace

TEST_CASE("a char vocabulary is the sorted set of code points") {
  const auto tokenizer = make_char_tokenizer("hello é世!");
  CHECK(tokenizer->kind() == "char");
  CHECK(tokenizer->vocabulary_size() == 8);  // ' ' '!' e h l o é 世
  CHECK(tokenizer->encode("o! he世") == std::vector<int32_t>{5, 1, 0, 3, 2, 7});
  check_round_trip(*make_char_tokenizer(kText), kText);
  CHECK(make_char_tokenizer(kText)->encode("").empty());
}

TEST_CASE("a character outside the vocabulary is named with its place") {
  const auto tokenizer = make_char_tokenizer("abc\n");
  CHECK_THAT(error_of([&] { tokenizer->encode("ab\ncé"); }),
             StartsWith("usage: the character 'é' (U+00E9) at character 5 (line 2) is not in the vocabulary: "
                        "it is a char-level "
                        "vocabulary of 4 characters"));
  CHECK_THAT(error_of([&] { tokenizer->encode("ab\xff"); }), Contains("not UTF-8: byte 3 (line 1) is 0xFF"));
  CHECK_THAT(error_of([&] {
               tokenizer->decode(std::vector<int32_t>{0, 4});
             }),
             Contains("token id 4 is outside the vocabulary of 4"));
  CHECK_THAT(error_of([&] { tokenizer->decode(std::vector<int32_t>{-1}); }), Contains("token id -1"));
}

TEST_CASE("text that is not UTF-8 gives no char vocabulary, and the byte tokenizer is suggested") {
  CHECK_THAT(error_of([] { make_char_tokenizer("line one\nb\xe9ta"); }),
             Contains("byte 11 (line 2) is 0xE9") && Contains("byte tokenizer"));
  CHECK_THAT(error_of([] { make_char_tokenizer(""); }), StartsWith("usage: "));
}

TEST_CASE("the byte tokenizer takes anything and loses nothing") {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const auto tokenizer = make_byte_tokenizer();
  CHECK(tokenizer->vocabulary_size() == 256);
  CHECK(tokenizer->encode("A\xff") == std::vector<int32_t>{65, 255});
  check_round_trip(*tokenizer, all);
}

TEST_CASE("vocabularies are the same after saving and loading") {
  for (const auto& [kind, size] : {std::pair<const char*, int64_t>{"char", 0}, {"byte", 256}}) {
    const auto tokenizer = make_tokenizer(kind, kText, "");
    const auto loaded = saved_and_loaded(*tokenizer);
    CHECK(loaded->kind() == kind);
    CHECK(loaded->vocabulary_size() == tokenizer->vocabulary_size());
    CHECK(loaded->encode(kText) == tokenizer->encode(kText));
  }
}

TEST_CASE("vocabularies that are none are refused") {
  const auto error = [](const char* json) {
    return error_of([&] { tokenizer_from_json(parse_json(json, "text"), "'vocabulary.json'"); });
  };
  CHECK_THAT(error("[]"), StartsWith("usage: 'vocabulary.json': a vocabulary needs the text 'kind'"));
  CHECK_THAT(error(R"({"kind":"char"})"), Contains("needs the text 'characters'"));
  CHECK_THAT(error(R"({"kind":"char","characters":""})"), Contains("empty"));
  CHECK_THAT(error(R"({"kind":"char","characters":"ba"})"),
             Contains("must ascend") && Contains("'a' (U+0061) follows 'b' (U+0062)"));
  CHECK_THAT(error(R"({"kind":"chars","characters":"ab"})"), Contains("did you mean 'char'?"));
  CHECK_THAT(error(R"({"kind":"sentencepiece","model":"!!"})"), Contains("not base64"));
  CHECK_THAT(error(R"({"kind":"sentencepiece","model":"AAAA"})"), Contains("is not a SentencePiece model"));
  CHECK_THAT(error(R"({"kind":"bpe","tokens":["a"],"merges":[]})"), Contains("lacks the token"));
  CHECK_THAT(error(R"({"kind":"bpe","merges":[]})"), Contains("needs the list 'tokens'"));
}

TEST_CASE("tokenizers are made by name, and a wrong name is answered with the nearest") {
  CHECK(make_tokenizer("char", "ab", "")->vocabulary_size() == 2);
  CHECK_THAT(error_of([] { make_tokenizer("chr", "ab", ""); }),
             Contains("no tokenizer 'chr'; there are: char, byte, sentencepiece, bpe, huggingface; did you "
                      "mean 'char'?"));
  CHECK_THAT(error_of([] { make_tokenizer("sentencepiece", "ab", ""); }), Contains("needs 'model'"));
  CHECK_THAT(error_of([] { make_tokenizer("bpe", "ab", ""); }), Contains("vocab.json and merges.txt"));
}

TEST_CASE("a SentencePiece model encodes, decodes and is saved with the vocabulary") {
  const Scratch scratch;
  const std::string path = trained_sentencepiece(scratch);
  const auto tokenizer = make_sentencepiece_tokenizer(path);
  CHECK(tokenizer->kind() == "sentencepiece");
  CHECK(tokenizer->vocabulary_size() == 60);
  const std::string text = "that is the question of fortune";
  check_round_trip(*tokenizer, text);
  CHECK(tokenizer->encode(text).size() < text.size());
  CHECK(saved_and_loaded(*tokenizer)->encode(text) == tokenizer->encode(text));
  // Beyond the size of one piece, nothing is lost between pieces.
  std::string lines;
  for (int i = 0; i < 5000; ++i) lines += "that is the question\n";
  const std::vector<int32_t> line = tokenizer->encode("that is the question"), all = tokenizer->encode(lines);
  REQUIRE(all.size() == 5000 * line.size());
  CHECK(std::equal(line.begin(), line.end(), all.end() - static_cast<std::ptrdiff_t>(line.size())));
  CHECK_THAT(error_of([&] { make_sentencepiece_tokenizer(scratch.put("bad.model", "nonsense")); }),
             StartsWith("usage: ") && Contains("bad.model' is not a SentencePiece model"));
  CHECK_THAT(error_of([&] { make_sentencepiece_tokenizer(scratch.path("absent")); }),
             Contains("there is no file"));
}

TEST_CASE("byte-level BPE gives what Hugging Face's tokenizers give") {
  const Scratch scratch;
  scratch.put("vocab.json", kBpeVocabulary);
  scratch.put("merges.txt", kBpeMerges);
  const auto tokenizer = make_bpe_tokenizer(scratch.folder());
  const auto loaded = saved_and_loaded(*tokenizer);
  const Json cases = parse_json(kBpeCases, "cases");
  REQUIRE(as_array(cases)->size() > 15);
  for (const Json& item : *as_array(cases)) {
    const std::string& text = *as_string((*as_array(item))[0]);
    INFO(text);
    std::vector<int32_t> expected;
    for (const Json& id : *as_array((*as_array(item))[1]))
      expected.push_back(static_cast<int32_t>(*as_integer(id)));
    CHECK(tokenizer->encode(text) == expected);
    CHECK(loaded->encode(text) == expected);
    CHECK(tokenizer->decode(expected) == text);
  }
  check_round_trip(*tokenizer, "not \xff UTF-8 \xe2\x82");
}

TEST_CASE("BPE files that do not fit together are refused") {
  const Scratch scratch;
  scratch.put("vocab.json", kBpeVocabulary);
  const auto error = [&](const char* merges) {
    scratch.put("merges.txt", merges);
    return error_of([&] { make_bpe_tokenizer(scratch.folder()); });
  };
  CHECK_THAT(error_of([&] { make_bpe_tokenizer(scratch.folder()); }),
             StartsWith("usage: BPE folder ") && Contains(" has no merges.txt"));
  CHECK_THAT(error("#version: 0.2\nt h e\n"), Contains("merge 1 is 't h e'; two tokens"));
  CHECK_THAT(error("z q\n"), Contains("lacks the token 'zq'"));
  scratch.put("vocab.json", R"({"a":0,"b":2})");
  CHECK_THAT(error(""), Contains("token 'b' has the id 2; ids are 0 to 1, each once"));
}

TEST_CASE("a text that is one word longer than memory is worth is refused") {
  const std::string text((size_t{64} << 20) + 1, 'a');
  CHECK_THAT(error_of([&] { fuzz::small_bpe().encode(text); }),
             Contains("usage: ") && Contains("the word that begins at byte 0"));
}

TEST_CASE("mutated vocabularies are refused, or encode and decode") {
  const Scratch scratch;
  const std::string saved = dump(fuzz::small_bpe().to_json());
  std::string files = "{";
  const Json vocabulary = fuzz::small_bpe().to_json();
  const Json* tokens = find_member(vocabulary, "tokens");
  for (size_t id = 0; id < as_array(tokens)->size(); ++id)
    files += fmt::format("{}{}:{}", id == 0 ? "" : ",", dump((*as_array(tokens))[id]), id);
  files += "}";
  files += '\0';
  files += "#version: 0.2\nt h\nth e\n";
  const std::string characters = R"({"kind":"char","characters":"\n abcé大"})";
  std::mt19937 random(20240523);
  for (const std::string& whole : {saved, files, characters}) {
    REQUIRE(fuzz::vocabulary(whole, scratch));
    CHECK(fuzz::accepted(200, whole, random, "0123456789{}[],:\" abcz",
                         [&](const std::string& text) { return fuzz::vocabulary(text, scratch); }) < 200);
  }
}
