#include "core/data/packing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/data/sampler.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;

namespace {

int64_t length_of(const PackedRows& rows, int64_t row, const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (const int64_t example : rows.row(row)) sum += lengths[static_cast<size_t>(example)];
  return sum;
}

// Examples "aa...a", "bb...b", ... of these numbers of letters, each with an ending.
std::shared_ptr<const Corpus> letters(const Scratch& scratch, const std::vector<int64_t>& counts,
                                      bool packing, const std::string& name = "letters.jsonl") {
  std::string lines;
  for (size_t i = 0; i < counts.size(); ++i)
    lines += fmt::format("{{\"text\": \"{}\"}}\n",
                         std::string(static_cast<size_t>(counts[i]), static_cast<char>('a' + i)));
  return Corpus::from_examples({.path = scratch.put(name, lines),
                                .tokenizer = "byte",
                                .holdout = 0,
                                .ending = ".",
                                .packing = packing});
}

}  // namespace

TEST_CASE("each example is in one packed row, whole, and rows have few gaps") {
  for (const int64_t context : {1, 7, 512})
    for (const uint64_t seed : {1, 2}) {
      std::vector<int64_t> lengths;
      for (uint64_t i = 0; i < 3000; ++i)
        lengths.push_back(1 + static_cast<int64_t>(philox(philox_key(5, 1), i)[0]) %
                                  std::max<int64_t>(1, i % 3 == 0 ? context : context / 3));
      const PackedRows rows = pack_rows(lengths, context, seed);
      std::vector<int64_t> all = rows.examples;
      std::sort(all.begin(), all.end());
      std::vector<int64_t> expected(lengths.size());
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(all == expected);
      for (int64_t row = 0; row < rows.count(); ++row) {
        const int64_t length = length_of(rows, row, lengths);
        REQUIRE(length >= 1);
        REQUIRE(length <= context);
      }
      const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
      CHECK(rows.count() * 9 <= ((sum + context - 1) / context) * 11 + 9);
      CHECK(pack_rows(lengths, context, seed).examples == rows.examples);
    }
}

TEST_CASE("the seed decides which examples of a length share a row") {
  const std::vector<int64_t> lengths(64, 10);
  CHECK(pack_rows(lengths, 40, 1).examples != pack_rows(lengths, 40, 2).examples);
  CHECK(pack_rows(lengths, 40, 1).count() == 16);
  CHECK(pack_rows({}, 40, 1).count() == 0);
}

TEST_CASE("packed rows hold whole examples, where each begins, and labels of their tokens alone") {
  const Scratch scratch;
  // Of 5, 3, 2, 4 and 9 tokens to predict; the last is cut.
  const auto corpus = letters(scratch, {5, 3, 2, 4, 9}, true);
  REQUIRE(corpus->packs());
  const SamplerOptions options{.context = 8, .batch = 3, .seed = 4, .ahead = 0};
  const Batch batch = make_batch(*corpus, options, 0);
  REQUIRE(batch.starts.size() == 1);
  CHECK(batch.labelled == 5 + 3 + 2 + 4 + 8);
  std::multiset<std::string> seen;
  for (int64_t row = 0; row < 3; ++row) {
    const auto at = [&](const std::vector<Tensor>& of, int64_t i) {
      return static_cast<int64_t>(of[0].at(row * 8 + i));
    };
    std::string example;
    for (int64_t i = 0; i < 8; ++i) {
      const int64_t start = at(batch.starts, i);
      if (at(batch.labels, i) == kIgnoredLabel) {  // padding, at the end
        CHECK(start == i);
        CHECK(at(batch.inputs, i) == 0);
        continue;
      }
      if (start == i && i > 0) {
        seen.insert(example);
        example.clear();
      }
      CHECK(start == i - static_cast<int64_t>(example.size()));
      example += static_cast<char>(at(batch.inputs, i));
      const bool last = i == 7 || at(batch.starts, i + 1) != start;
      if (!last) CHECK(at(batch.labels, i) == at(batch.inputs, i + 1));
      if (last && example.size() < 8) CHECK(at(batch.labels, i) == '.');
    }
    seen.insert(example);
  }
  CHECK(seen == std::multiset<std::string>{"aaaaa", "bbb", "cc", "dddd", "eeeeeeee"});
  const Sampler sampler(corpus, options);
  CHECK(sampler.packed().examples == 5);
  CHECK(sampler.packed().rows == 3);
  CHECK(sampler.packed().tokens == 22);
}

TEST_CASE("packed rows depend neither on batch, micro-batch nor rank, and come once in an epoch") {
  const Scratch scratch;
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < 26; ++i) counts.push_back(1 + i * 7 % 11);
  const auto corpus = letters(scratch, counts, true);
  const SamplerOptions options{.context = 12, .batch = 6, .seed = 9, .ahead = 0};
  const int64_t rows = Sampler(corpus, options).packed().rows;
  const auto row_of = [&](int64_t number) {
    SamplerOptions one = options;
    one.batch = 1;
    const Batch batch = make_batch(*corpus, one, number);
    std::vector<double> all;
    for (const auto* tensors : {&batch.inputs, &batch.labels, &batch.starts})
      for (int64_t i = 0; i < 12; ++i) all.push_back((*tensors)[0].at(i));
    return all;
  };
  SamplerOptions part = options;
  part.first = 2;
  part.count = 4;
  part.microbatch = 2;
  const Batch mine = make_batch(*corpus, part, 18);
  CHECK(mine.labelled == make_batch(*corpus, options, 18).labelled);
  for (int64_t s = 0; s < 4; ++s) {
    std::vector<double> all;
    for (const auto* tensors : {&mine.inputs, &mine.labels, &mine.starts})
      for (int64_t i = 0; i < 12; ++i)
        all.push_back((*tensors)[static_cast<size_t>(s / 2)].at(s % 2 * 12 + i));
    CHECK(all == row_of(18 + 2 + s));
  }
  std::vector<std::vector<double>> first, second;
  for (int64_t i = 0; i < rows; ++i) {
    first.push_back(row_of(i));
    second.push_back(row_of(rows + i));
  }
  CHECK(first != second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  CHECK(first == second);
}

TEST_CASE("what is held out is not packed, nor what packs nothing") {
  const Scratch scratch;
  const std::string path =
      scratch.put("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n{\"text\": \"ef\"}\n");
  const auto corpus = Corpus::from_examples(
      {.path = path, .tokenizer = "byte", .holdout = 0.5, .ending = ".", .packing = true});
  const auto plain =
      Corpus::from_examples({.path = path, .tokenizer = "byte", .holdout = 0.5, .ending = "."});
  const SamplerOptions held{.context = 8, .batch = 2, .split = Split::holdout, .ahead = 0};
  CHECK(make_batch(*corpus, held, 0).starts.empty());
  CHECK(make_batch(*corpus, held, 0).labelled == 4);
  CHECK(make_batch(*plain, {.context = 8, .ahead = 0}, 0).starts.empty());
  CHECK_FALSE(plain->packs());
  CHECK(plain->fingerprint() != corpus->fingerprint());
  CHECK(Sampler(plain, {.context = 8}).packed().rows == 0);
}

TEST_CASE("a mixture packs the samples of those that pack") {
  const Scratch scratch;
  const auto packed = letters(scratch, {2, 3, 1, 2}, true),
             plain = letters(scratch, {2, 3, 1, 2}, false, "plain.jsonl");
  const auto mixed = Corpus::from_mixture({{packed, 1}, {plain, 1}});
  CHECK(mixed->packs());
  CHECK_FALSE(Corpus::from_mixture({{packed, 0}, {plain, 1}})->packs());
  const Batch batch = make_batch(*mixed, {.context = 8, .batch = 4, .seed = 1, .ahead = 0}, 0);
  REQUIRE(batch.starts.size() == 1);
  int64_t shared = 0;
  for (int64_t row = 0; row < 4; ++row) {
    bool several = false;
    for (int64_t i = 1; i < 8; ++i)
      several = several || (batch.starts[0].at(row * 8 + i) == static_cast<double>(i) &&
                            batch.labels[0].at(row * 8 + i) != kIgnoredLabel);
    shared += several ? 1 : 0;
  }
  CHECK(shared == 2);
}

TEST_CASE("documents are divided into pieces of the context, and held out whole") {
  const Scratch scratch;
  // Of 2, 12, 1, 5, 3 and 4 tokens with their dots: 1, 11, 0, 4, 2 and 3 to predict.
  const auto corpus = Corpus::from_text({.path = scratch.put("text.txt", "a.bcdefghijkl..mnop.qr.stu."),
                                         .tokenizer = "byte",
                                         .holdout = 0.2,
                                         .documents = {.packing = true, .ending = "."}});
  REQUIRE(corpus->packs());
  CHECK(corpus->examples(Split::train) == 5);
  CHECK(corpus->examples(Split::holdout) == 1);
  const Sampler sampler(corpus, {.context = 4, .batch = 2, .seed = 1, .ahead = 0});
  CHECK(sampler.packed().examples == 0);
  CHECK(sampler.packed().pieces == 1 + 3 + 0 + 1 + 1);
  CHECK(sampler.packed().tokens == 18);
  REQUIRE(sampler.packed().rows == 5);
  const Batch batch = make_batch(*corpus, {.context = 4, .batch = 5, .seed = 1}, 0);
  CHECK(batch.labelled == 18);
  std::multiset<std::string> seen;  // what labels are after which inputs
  for (int64_t i = 0; i < 20; ++i) {
    const auto at = [&](const std::vector<Tensor>& of) { return static_cast<int64_t>(of[0].at(i)); };
    if (at(batch.labels) == kIgnoredLabel) continue;
    seen.insert({static_cast<char>(at(batch.inputs)), static_cast<char>(at(batch.labels))});
  }
  CHECK(seen == std::multiset<std::string>{"a.", "bc", "cd", "de", "ef", "fg", "gh", "hi", "ij", "jk", "kl",
                                           "l.", "mn", "no", "op", "p.", "qr", "r."});
  const SamplerOptions held{.context = 4, .split = Split::holdout};
  CHECK(make_batch(*corpus, held, 0).inputs[0].at(0) == 's');
  CHECK(make_batch(*corpus, held, 0).labelled == 3);
  CHECK(make_batch(*corpus, held, 0).starts.empty());
  CHECK(make_batch(*corpus, held, 1).labelled == 0);
}

TEST_CASE("of documents one with something to predict is held out") {
  const Scratch scratch;
  const auto corpus_of = [&](const std::string& text, double holdout) {
    return Corpus::from_text({.path = scratch.put("text.txt", text),
                              .tokenizer = "byte",
                              .holdout = holdout,
                              .documents = {.packing = true, .ending = "."}});
  };
  // The line break behind the last dot is a document of one token.
  const auto corpus = corpus_of("abc.defg.\n", 0.05);
  CHECK(corpus->examples(Split::train) == 1);
  CHECK(corpus->examples(Split::holdout) == 2);
  CHECK(make_batch(*corpus, {.context = 4, .split = Split::holdout}, 0).labelled > 0);
  const auto alone = corpus_of("abc.", 0.5);
  CHECK(alone->examples(Split::holdout) == 0);
  CHECK_THAT(error_of([&] { Sampler bad(alone, {.context = 4, .split = Split::holdout}); }),
             Catch::Contains("holds 1 document, none of them held out; holdout = 0 evaluates nothing"));
  CHECK_THAT(error_of([&] { corpus_of("abc", 0); }),
             Catch::Contains("does not have the token 46, which 'ending' says stands behind each document"));
}
