#include "core/data/corpus.h"

#include <catch2/catch.hpp>
#include <cstring>

#include <unistd.h>

#include "tests/fuzz/mutated.h"
#include "tests/fuzz/tokens.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using Catch::StartsWith;

namespace {

std::string text_of(const Corpus& corpus, Split split) {
  const TokenView view = corpus.view(split);
  std::vector<int32_t> ids(static_cast<size_t>(view.count));
  view.copy(0, view.count, ids.data());
  return corpus.tokenizer()->decode(ids);
}

template <typename T>
std::string bytes_of_tokens(const std::vector<T>& tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
}

std::string with_header(int32_t magic, int32_t version, int32_t count, const std::string& data) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of_tokens(header) + data;
}

std::string error_loading(const TextCorpusOptions& options) {
  return error_of([&] { Corpus::from_text(options); });
}

}  // namespace

TEST_CASE("the end of a text is held out, as nanoGPT splits 90/10") {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 1115394; ++i) text += static_cast<char>('a' + i % 26);
  const auto corpus = Corpus::from_text({.path = scratch.put("text", text)});
  CHECK(corpus->tokens() == 1115394);
  CHECK(corpus->view(Split::train).count == 1003854);
  CHECK(corpus->vocabulary_size() == 26);
  CHECK(text_of(*corpus, Split::train) + text_of(*corpus, Split::holdout) == text);
}

TEST_CASE("characters of several bytes survive the cutting of long texts") {
  const Scratch scratch;
  std::string text = "a";  // so that chunks of a power of two fall into characters
  while (text.size() < (3u << 20)) text += "世界é😀";
  const auto corpus = Corpus::from_text({.path = scratch.put("text", text), .holdout = 0.25});
  CHECK((text_of(*corpus, Split::train) + text_of(*corpus, Split::holdout) == text));
  CHECK(corpus->vocabulary_size() == 5);
}

TEST_CASE("a folder is its text files in sorted order, binary ones left out") {
  const Scratch scratch;
  scratch.put("b.txt", "second ");
  scratch.put("a/deep/file.h", "first ");
  scratch.put("c", "third");
  scratch.put("d.bin", std::string("\0\1\2", 3));
  scratch.put("e.latin1", "b\xe9ta");
  scratch.put("f.empty", "");
  const auto corpus = Corpus::from_text({.path = scratch.folder(), .holdout = 0});
  CHECK(text_of(*corpus, Split::train) == "first second third");
  CHECK(corpus->files() == 3);
  CHECK(corpus->skipped() == 2);
  const auto small = Corpus::from_text({.path = scratch.folder(), .holdout = 0, .most_bytes = 12});
  CHECK(text_of(*small, Split::train) == "first third");
  CHECK(small->skipped() == 3);
}

TEST_CASE("a folder that contains itself by a link ends") {
  const Scratch scratch;
  scratch.put("text", "once");
  REQUIRE(symlink(scratch.folder().c_str(), scratch.path("again").c_str()) == 0);
  CHECK(text_of(*Corpus::from_text({.path = scratch.folder(), .holdout = 0}), Split::train) == "once");
}

TEST_CASE("a vocabulary of an earlier run is used, and characters it lacks are named") {
  const Scratch scratch;
  const Json vocabulary = make_char_tokenizer("abcdef")->to_json();
  const auto corpus =
      Corpus::from_text({.path = scratch.put("text", "fade"), .vocabulary = vocabulary, .holdout = 0});
  CHECK(corpus->vocabulary_size() == 6);
  CHECK(corpus->view(Split::train)[0] == 5);
  CHECK_THAT(error_loading({.path = scratch.put("other", "faded?"), .vocabulary = vocabulary}),
             StartsWith("usage: the character '?' (U+003F) at character 6") &&
                 Contains("in the text '" + scratch.path("other") + "'"));
}

TEST_CASE("texts that cannot be used are refused with the reason") {
  const Scratch scratch;
  CHECK_THAT(error_loading({.path = scratch.path("absent")}), StartsWith("usage: there is no file"));
  CHECK_THAT(error_loading({.path = scratch.put("empty", "")}),
             StartsWith("usage: ") && Contains("is empty"));
  CHECK_THAT(error_loading({.path = scratch.put("latin1", "b\xe9ta")}),
             Contains("not UTF-8") && Contains("latin1"));
  CHECK_THAT(error_loading({.path = scratch.put("ok", "text"), .holdout = 1}),
             Contains("holdout = 1 is not a share"));
  CHECK_THAT(error_loading({.path = scratch.path("ok"), .holdout = -0.1}), Contains("holdout = -0.1"));
  CHECK_THAT(error_loading({.path = scratch.path("ok"), .tokenizer = "bite"}),
             Contains("did you mean 'byte'?"));
  scratch.put("folder/binary", std::string("\0", 1));
  CHECK_THAT(error_loading({.path = scratch.path("folder")}),
             Contains("holds no text files: its 1 files are binary"));
}

TEST_CASE("raw token files of both widths are mapped") {
  const Scratch scratch;
  const std::string narrow = scratch.put("narrow.bin", bytes_of_tokens<uint16_t>({5, 50256, 0, 7}));
  const auto corpus = Corpus::from_tokens({.path = narrow, .holdout = 0.5});
  CHECK(corpus->tokens() == 4);
  CHECK(corpus->vocabulary_size() == 50257);
  CHECK(corpus->view(Split::train)[1] == 50256);
  CHECK(corpus->view(Split::holdout)[1] == 7);
  CHECK(corpus->tokenizer() == nullptr);
  const auto wide =
      Corpus::from_tokens({.path = scratch.put("wide.bin", bytes_of_tokens<uint32_t>({1, 128255, 2})),
                           .width = 32,
                           .holdout = 0});
  CHECK(wide->tokens() == 3);
  CHECK(wide->vocabulary_size() == 128256);
  CHECK(wide->view(Split::train)[1] == 128255);
  CHECK(Corpus::from_tokens({.path = narrow, .vocabulary = 60000})->vocabulary_size() == 60000);
}

TEST_CASE("llm.c's headers are recognised, and checked") {
  const Scratch scratch;
  const std::string data = bytes_of_tokens<uint16_t>({9, 8, 7});
  const auto corpus =
      Corpus::from_tokens({.path = scratch.put("a.bin", with_header(20240520, 1, 3, data)), .holdout = 0});
  CHECK(corpus->tokens() == 3);
  CHECK(corpus->view(Split::train)[0] == 9);
  const auto llama = Corpus::from_tokens(
      {.path = scratch.put("b.bin", with_header(20240801, 7, 2, bytes_of_tokens<uint32_t>({100000, 3}))),
       .holdout = 0});
  CHECK(llama->view(Split::train)[0] == 100000);
  const auto error = [&](const std::string& content) {
    return error_of([&] { Corpus::from_tokens({.path = scratch.put("bad.bin", content)}); });
  };
  CHECK_THAT(error(with_header(20240520, 1, 4, data)),
             StartsWith("usage: ") && Contains("its header says 4 tokens of 2 bytes, but 6 bytes follow"));
  CHECK_THAT(error(with_header(20240520, 1, -1, data)), Contains("damaged"));
  CHECK_THAT(error(with_header(20240520, 1, 0, "")), Contains("no tokens"));
  for (const auto& [magic, version] :
       {std::pair{20240520, 2}, std::pair{20240801, 1}, std::pair{20240520, -1}})
    CHECK_THAT(
        error(with_header(magic, version, 3, data)),
        StartsWith("usage: ") && Contains(fmt::format("magic number {} with version {};", magic, version)));
}

TEST_CASE("the token files of a folder are one corpus, in the order of their names") {
  const Scratch scratch;
  scratch.put("set/train_10.bin", bytes_of_tokens<uint16_t>({5, 6}));
  scratch.put("set/train_02.bin", with_header(20240520, 1, 3, bytes_of_tokens<uint16_t>({2, 3, 4})));
  scratch.put("set/train_01.bin", bytes_of_tokens<uint16_t>({1}));
  scratch.put("set/val_00.bin", bytes_of_tokens<uint16_t>({7, 8, 9, 10}));
  scratch.put("set/notes.txt", "a");
  const auto corpus = Corpus::from_tokens({.path = scratch.path("set"), .holdout = 0.4});
  CHECK(corpus->files() == 4);
  CHECK(corpus->tokens() == 10);
  CHECK(corpus->vocabulary_size() == 11);
  const TokenView train = corpus->view(Split::train), held = corpus->view(Split::holdout);
  REQUIRE(train.count == 6);
  for (int64_t from = 0; from < 6; ++from)
    for (int64_t n = 0; from + n <= 6; ++n) {
      std::vector<int32_t> tokens(static_cast<size_t>(n));
      train.copy(from, n, tokens.data());
      for (int64_t i = 0; i < n; ++i) CHECK(tokens[static_cast<size_t>(i)] == from + i + 1);
    }
  CHECK(held[0] == 7);
  CHECK(held.part(1, 3)[2] == 10);
  scratch.put("set/val_01.bin", with_header(20240801, 7, 1, bytes_of_tokens<uint32_t>({1})));
  CHECK_THAT(error_of([&] { Corpus::from_tokens({.path = scratch.path("set")}); }),
             Contains("val_01.bin' has tokens of 32 bits") && Contains("train_01.bin' of 16"));
  scratch.put("none/notes.txt", "a");
  CHECK_THAT(error_of([&] { Corpus::from_tokens({.path = scratch.path("none")}); }),
             Contains("holds no .bin files"));
}

TEST_CASE("Megatron's token files are read by their index") {
  const Scratch scratch;
  const auto index = [](uint8_t type, std::vector<int32_t> lengths, std::vector<int64_t> begins) {
    std::string bytes("MMIDIDX\0\0", 9);
    const auto add = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
    add(uint64_t{1});
    add(type);
    add(static_cast<uint64_t>(lengths.size()));
    add(uint64_t{2});  // documents, and where the last one ends
    for (const int32_t length : lengths) add(length);
    for (const int64_t begin : begins) add(begin);
    add(int64_t{0});
    add(static_cast<int64_t>(lengths.size()));
    return bytes;
  };
  const std::string tokens = bytes_of_tokens<uint32_t>({70000, 1, 2, 3, 4});
  const std::string path = scratch.put("set/wiki_text_document.bin", tokens);
  const std::string good = index(4, {2, 0, 3}, {0, 8, 8});
  scratch.put("set/wiki_text_document.idx", good);
  for (const std::string& name : {path, scratch.path("set/wiki_text_document"), scratch.path("set"),
                                  scratch.path("set/wiki*.bin"), scratch.path("set/w?ki_text_*")}) {
    INFO(name);
    const auto corpus = Corpus::from_tokens({.path = name, .holdout = 0});
    CHECK(corpus->tokens() == 5);
    CHECK(corpus->vocabulary_size() == 70001);
    CHECK(corpus->view(Split::train)[4] == 4);
  }
  const auto error = [&](const std::string& content) {
    scratch.put("set/wiki_text_document.idx", content);
    return error_of([&] { Corpus::from_tokens({.path = path}); });
  };
  CHECK_THAT(error(index(8, {2, 3}, {0, 4})),
             StartsWith("usage: ") && Contains("has 20 bytes, its index 5 tokens of 2 bytes"));
  CHECK_THAT(error(index(5, {2, 3}, {0, 16})),
             Contains("tokens are of type 5; 4 (int32) and 8 (uint16) are read"));
  CHECK_THAT(error(index(4, {2, 3}, {0, 12})),
             Contains("sequence 1 begins at byte 12, the one before it ends at 8"));
  CHECK_THAT(error(index(4, {6, -1}, {0, 24})), Contains("sequence 1 has -1 tokens"));
  CHECK_THAT(error("MMIDIDX"), Contains("no index of Megatron's"));
  std::string newer = good;
  newer[9] = 2;
  CHECK_THAT(error(newer), Contains("index of version 2; version 1 is read"));
  for (size_t size = 9; size < good.size(); ++size)  // cut off anywhere
    CHECK_THAT(error(good.substr(0, size)), StartsWith("usage: "));
  std::string many = good;
  many[25] = '\x7f';  // 2^62 sequences
  CHECK_THAT(error(many), Contains("ends before its last entry"));
}

TEST_CASE("a pattern is the files whose names match, in the order of their names") {
  const Scratch scratch;
  scratch.put("set/b.txt", "b");
  scratch.put("set/a.txt", "a");
  scratch.put("set/.hidden.txt", "h");
  scratch.put("set/c.md", "c");
  scratch.put("set/d.txt/e.txt", "e");
  const auto read = [&](const std::string& pattern) {
    const auto corpus = Corpus::from_text({.path = scratch.path(pattern), .tokenizer = "byte", .holdout = 0});
    std::string text;
    for (int64_t i = 0; i < corpus->tokens(); ++i) text += static_cast<char>(corpus->view(Split::train)[i]);
    return text;
  };
  CHECK(read("set/*.txt") == "ab");
  CHECK(read("set/[bc].*") == "bc");
  CHECK(read("set/?.txt") == "ab");
  scratch.put("set/x*.txt", "star");  // a file of this name is itself
  CHECK(read("set/x*.txt") == "star");
  CHECK_THAT(error_of([&] { read("set/*.jpg"); }),
             StartsWith("usage: no file matches '") && Contains("set/*.jpg'"));
  CHECK_THAT(error_of([&] { read("none/*.txt"); }), StartsWith("usage: "));
}

TEST_CASE("tokens with a vocabulary are read and written as text") {
  const Scratch scratch;
  const std::string path = scratch.put("a.bin", bytes_of_tokens<uint16_t>({1, 0, 2}));
  const Json vocabulary = make_char_tokenizer("cab")->to_json();
  const auto corpus = Corpus::from_tokens({.path = path, .holdout = 0, .tokenizer = vocabulary});
  CHECK(corpus->vocabulary_size() == 3);
  CHECK(text_of(*corpus, Split::train) == "bac");
  CHECK(Corpus::from_tokens({.path = path, .vocabulary = 8, .tokenizer = vocabulary})->vocabulary_size() ==
        8);
  CHECK(Corpus::from_tokens({.path = path, .tokenizer_kind = "byte"})->vocabulary_size() == 256);
  CHECK_THAT(error_of([&] { Corpus::from_tokens({.path = path, .vocabulary = 2, .tokenizer = vocabulary}); }),
             Contains("vocab = 2 is less than the 3 tokens"));
}

TEST_CASE("corpora of one size with different tokens have different fingerprints") {
  std::vector<int32_t> ids(100'000, 1);
  const auto same = Corpus::from_ids(ids, 4, 0), again = Corpus::from_ids(ids, 4, 0.5);
  CHECK(same->fingerprint() == again->fingerprint());
  std::fill(ids.begin() + 50'000, ids.begin() + 51'000, 2);
  CHECK(same->fingerprint() != Corpus::from_ids(ids, 4, 0)->fingerprint());
  CHECK(same->fingerprint() != Corpus::from_ids(ids, 5, 0)->fingerprint());
  CHECK(Corpus::from_ids({}, 4, 0)->fingerprint() == Corpus::from_ids({}, 4, 0)->fingerprint());
}

TEST_CASE("token files of odd size, empty ones and wrong widths are refused") {
  const Scratch scratch;
  CHECK_THAT(
      error_of([&] { Corpus::from_tokens({.path = scratch.put("odd.bin", "abc")}); }),
      StartsWith("usage: ") && Contains("odd.bin' has 3 bytes, which is no whole number of 16-bit tokens"));
  CHECK_THAT(error_of([&] { Corpus::from_tokens({.path = scratch.put("six.bin", "abcdef"), .width = 32}); }),
             Contains("32-bit tokens"));
  CHECK_THAT(error_of([&] { Corpus::from_tokens({.path = scratch.put("empty.bin", "")}); }),
             Contains("is empty"));
  CHECK_THAT(error_of([&] { Corpus::from_tokens({.path = scratch.put("a.bin", "ab"), .width = 8}); }),
             Contains("tokens of 8 bits"));
  CHECK_THAT(error_of([&] {
               Corpus::from_tokens({.path = scratch.put("ff.bin", "\xff\xff\xff\xff"), .width = 32});
             }),
             Contains("holds the token 4294967295, above every vocabulary"));
}

TEST_CASE("mutated token files are refused, or their tokens are in the vocabulary") {
  const Scratch scratch;
  const std::string gpt2 = with_header(20240520, 1, 3, bytes_of_tokens<uint16_t>({5, 6, 65535}));
  const std::string llama3 = with_header(20240801, 7, 2, bytes_of_tokens<uint32_t>({5, 128000}));
  const std::string raw = bytes_of_tokens<uint32_t>({5, 128000, 6});
  std::mt19937 random(20240524);
  for (const std::string& whole : {'\0' + gpt2, '\1' + gpt2, '\1' + llama3, '\0' + raw, '\1' + raw}) {
    REQUIRE(fuzz::tokens(whole, scratch));
    const int accepted =
        fuzz::accepted(500, whole, random, std::string_view("\0\1\2\x7F\xFF", 5),
                       [&](const std::string& bytes) { return fuzz::tokens(bytes, scratch); });
    CHECK(accepted > 0);
    CHECK(accepted < 500);
  }
}

TEST_CASE("a vocabulary of no tokens, or of more than ids can name, is refused") {
  for (const int64_t vocabulary : {int64_t{0}, int64_t{-5}, int64_t{1} << 31, int64_t{1} << 53})
    CHECK_THAT(error_of([&] { Corpus::from_ids({}, vocabulary, 0); }),
               StartsWith("usage: ") && Contains("is not possible"));
}

TEST_CASE("files of a format that is not read are refused by name, with a way to convert them") {
  const Scratch scratch;
  const std::string parquet = "PAR1" + std::string(60, '\0') + "PAR1";
  const std::string file = scratch.put("rows.parquet", parquet),
                    packed = scratch.put("a.gz", "\x1f\x8b\x08 x");
  CHECK_THAT(error_loading({.path = file}), Contains("'" + file + "' is a Parquet file, which is not read") &&
                                                Contains("pandas.read_parquet('" + file + "').to_json("));
  CHECK_THAT(error_loading({.path = packed}),
             Contains("is compressed") && Contains("gunzip --keep '" + packed + "'"));
  CHECK_THAT(error_of([&] { Corpus::from_examples({.path = file, .tokenizer = "char"}); }),
             Contains("is a Parquet file"));
  CHECK_THAT(error_of([&] { Corpus::from_tokens({.path = file, .vocabulary = 100}); }),
             Contains("is a Parquet file"));
  // Beside texts such files are passed over.
  const Scratch mixed;
  mixed.put("a.txt", "some text");
  mixed.put("b.parquet", parquet);
  CHECK(Corpus::from_text({.path = Path(mixed.folder())})->skipped() == 1);
  std::filesystem::remove(mixed.path("a.txt"));
  CHECK_THAT(error_loading({.path = Path(mixed.folder())}), Contains("b.parquet' is a Parquet file"));
}
