#include "core/data/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>

#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using Catch::StartsWith;

namespace {

constexpr int64_t kTokens = 1000;

// Token i is i, so a window shows its position.
std::shared_ptr<const Corpus> counting(double holdout = 0.1, int64_t tokens = kTokens) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 0);
  return Corpus::from_ids(ids, tokens, holdout);
}

std::vector<int32_t> numbers(const std::vector<Tensor>& tensors) {
  std::vector<int32_t> all;
  for (const Tensor& tensor : tensors)
    all.insert(all.end(), tensor.span<int32_t>().begin(), tensor.span<int32_t>().end());
  return all;
}

std::vector<int32_t> take(Sampler& sampler, int batches) {
  std::vector<int32_t> all;
  for (int i = 0; i < batches; ++i) {
    const Batch batch = sampler.next();
    const std::vector<int32_t> inputs = numbers(batch.inputs), labels = numbers(batch.labels);
    all.insert(all.end(), inputs.begin(), inputs.end());
    if (sampler.options().objective == Objective::masked) all.insert(all.end(), labels.begin(), labels.end());
  }
  return all;
}

}  // namespace

TEST_CASE("labels are the inputs shifted by one, within the split") {
  for (const Split split : {Split::train, Split::holdout}) {
    Sampler sampler(counting(), {.context = 16, .batch = 8, .microbatch = 4, .split = split, .seed = 3});
    for (int i = 0; i < 50; ++i) {
      const Batch batch = sampler.next();
      REQUIRE(batch.inputs.size() == 2);
      CHECK(batch.labelled == 8 * 16);
      CHECK(batch.cursor == 8 * i);
      for (size_t m = 0; m < 2; ++m) {
        REQUIRE(batch.inputs[m].type() == TensorType{DType::i32, {4, 16}});
        for (int64_t s = 0; s < 4; ++s)
          for (int64_t t = 0; t < 16; ++t) {
            const double first = batch.inputs[m].at(s * 16);
            REQUIRE(batch.inputs[m].at(s * 16 + t) == first + static_cast<double>(t));
            REQUIRE(batch.labels[m].at(s * 16 + t) == first + static_cast<double>(t) + 1);
          }
        CHECK(batch.inputs[m].at(0) >= (split == Split::train ? 0 : 900));
        CHECK(batch.labels[m].at(63) < (split == Split::train ? 900 : 1000));
      }
    }
  }
}

TEST_CASE("sample order depends neither on batch, micro-batch nor rank") {
  const auto corpus = counting();
  for (const Objective objective : {Objective::next_token, Objective::masked}) {
    const SamplerOptions base{.context = 8, .batch = 24, .seed = 7, .objective = objective, .ahead = 0};
    const std::vector<int32_t> expected = numbers(make_batch(*corpus, base, 48).inputs);

    std::vector<int32_t> pieces;
    for (int64_t cursor = 48; cursor < 72; cursor += 6) {
      SamplerOptions small = base;
      small.batch = 6;
      small.microbatch = 2;
      const std::vector<int32_t> part = numbers(make_batch(*corpus, small, cursor).inputs);
      pieces.insert(pieces.end(), part.begin(), part.end());
    }
    CHECK(pieces == expected);

    pieces.clear();
    int64_t labelled = 0;
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 10}, {10, 2}, {12, 12}}) {
      SamplerOptions rank = base;
      rank.first = first;
      rank.count = count;
      const Batch batch = make_batch(*corpus, rank, 48);
      const std::vector<int32_t> part = numbers(batch.inputs);
      pieces.insert(pieces.end(), part.begin(), part.end());
      CHECK((labelled == 0 || labelled == batch.labelled));  // counts the whole batch on every rank
      labelled = batch.labelled;
    }
    CHECK(pieces == expected);
  }
}

TEST_CASE("batches made ahead equal those made at once, from any cursor") {
  const auto corpus = counting();
  for (const Objective objective : {Objective::next_token, Objective::masked})
    for (const int ahead : {1, 2, 7}) {
      SamplerOptions options{.context = 8,
                             .batch = 4,
                             .microbatch = 2,
                             .seed = 11,
                             .start = 20,
                             .objective = objective,
                             .ahead = 0};
      Sampler direct(corpus, options);
      options.ahead = ahead;
      Sampler prefetched(corpus, options);
      CHECK(take(direct, 10) == take(prefetched, 10));
      CHECK(direct.cursor() == 60);
      CHECK(prefetched.cursor() == 60);
      for (const int64_t cursor : {int64_t{0}, int64_t{1000000007}, int64_t{60}}) {
        direct.seek(cursor);
        prefetched.seek(cursor);
        CHECK(take(direct, 3) == take(prefetched, 3));
        CHECK(prefetched.cursor() == cursor + 12);
      }
    }
}

TEST_CASE("a run that goes on at a cursor sees what it would have seen") {
  const auto corpus = counting();
  Sampler whole(corpus, {.context = 8, .batch = 4, .seed = 5});
  take(whole, 6);
  Sampler resumed(corpus, {.context = 8, .batch = 4, .seed = 5, .start = whole.cursor()});
  CHECK(take(whole, 5) == take(resumed, 5));
}

TEST_CASE("seeds give different samples, the holdout's do not change") {
  const auto corpus = counting();
  const auto sample = [&](Split split, uint64_t seed) {
    Sampler sampler(corpus, {.context = 8, .batch = 16, .split = split, .seed = seed});
    return take(sampler, 2);
  };
  CHECK(sample(Split::train, 1) == sample(Split::train, 1));
  CHECK(sample(Split::train, 1) != sample(Split::train, 2));
  CHECK(sample(Split::holdout, 1) == sample(Split::holdout, 2));
}

TEST_CASE("training samples are uniform over the split") {
  const SamplerOptions options{.context = 8, .seed = 1};
  std::vector<int> counts(10);
  const int draws = 20000;
  for (int64_t i = 0; i < draws; ++i) {
    const int64_t start = sample_start(options, 1000, i);
    REQUIRE(start >= 0);
    REQUIRE(start < 1000);
    ++counts[static_cast<size_t>(start / 100)];
  }
  double chi = 0;
  for (const int count : counts) chi += (count - draws / 10.0) * (count - draws / 10.0) / (draws / 10.0);
  CHECK(chi < 27.9);  // 9 degrees of freedom, p = 0.001
}

TEST_CASE("evaluation samples cover the holdout evenly, however many are taken") {
  const SamplerOptions options{.context = 8, .split = Split::holdout};
  for (const int64_t samples : {10, 64, 240}) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < samples; ++i) starts.push_back(sample_start(options, 100000, i));
    std::sort(starts.begin(), starts.end());
    int64_t widest = std::max(starts.front(), 100000 - starts.back());
    for (size_t i = 1; i < starts.size(); ++i) widest = std::max(widest, starts[i] - starts[i - 1]);
    CHECK(static_cast<double>(widest) < 2.7 * 100000 / static_cast<double>(samples));
  }
}

TEST_CASE("the shortest text that holds a sample is enough, one token less is not") {
  Sampler sampler(counting(0, 9), {.context = 8, .batch = 3});
  CHECK(numbers(sampler.next().labels)[7] == 8);
  CHECK_THAT(error_of([] { Sampler bad(counting(0, 8), {.context = 8}); }),
             StartsWith("usage: 'the tokens given' is too short: its train split has 8 tokens, a context of "
                        "8 needs at least 9"));
  CHECK_THAT(error_of([] { Sampler bad(counting(0.1, 80), {.context = 8, .split = Split::holdout}); }),
             Contains("its holdout split has 8 tokens") && Contains("larger holdout"));
  CHECK_THAT(
      error_of([] {
        Sampler bad(counting(0.1, 8)->undivided(Split::holdout), {.context = 8, .split = Split::holdout});
      }),
      StartsWith("usage: 'the tokens given' is too short: it has 8 tokens, a context of 8 needs at least 9; "
                 "use a longer text or a shorter context"));
  for (const Split split : {Split::train, Split::holdout}) {
    const auto all = counting(0.5, 80)->undivided(split);
    CHECK(all->view(split).count == 80);
    CHECK(all->view(split)[79] == 79);
    CHECK(all->fingerprint() == counting(0, 80)->fingerprint());
  }
  Sampler masked(counting(0, 8), {.context = 8, .objective = Objective::masked});
  CHECK(masked.next().inputs[0].elements() == 8);
}

TEST_CASE("sizes that do not fit are refused") {
  const auto error = [](SamplerOptions options) {
    return error_of([&] { Sampler sampler(counting(), options); });
  };
  CHECK_THAT(error({.context = 0}), Contains("a context of 0"));
  CHECK_THAT(error({.context = 8, .batch = 0}), Contains("a batch of 0"));
  CHECK_THAT(error({.context = 8, .batch = 12, .microbatch = 5}),
             Contains("a micro-batch of 5 does not divide the 12 samples"));
  CHECK_THAT(error({.context = 8, .batch = 12, .first = 10, .count = 3}),
             Contains("samples 11 to 13 are asked of a batch of 12"));
  CHECK_THAT(error({.context = 8, .start = -1}), Contains("before the first sample"));
  CHECK_THAT(error({.context = 8, .objective = Objective::masked, .mask_share = 0}),
             Contains("mask_share = 0"));
  CHECK_THAT(error({.context = 8, .ahead = -1}), Contains("-1 batches cannot be made ahead"));
  CHECK_THAT(error({.context = 8, .ahead = 1 << 30}), Contains("cannot be made ahead"));
  CHECK_THAT(error({.context = 8, .batch = int64_t{1} << 53}), Contains("more than 2^48 elements"));
  CHECK_THAT(error({.context = 8, .batch = int64_t{1} << 44}),
             Contains("environment: ") && Contains("are available"));
  Sampler sampler(counting(), {.context = 8});
  CHECK_THAT(error_of([&] { sampler.seek(-3); }), Contains("before the first sample"));
}

TEST_CASE("masked samples follow BERT's shares, and labels stand only where there is something to guess") {
  const int32_t vocabulary = 50000;
  std::vector<int32_t> ids(100000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919) % vocabulary);
  const auto corpus = Corpus::from_ids(ids, vocabulary, 0);
  Sampler sampler(corpus, {.context = 128, .batch = 64, .seed = 2, .objective = Objective::masked});
  std::map<std::string, int> seen;
  int tokens = 0;
  for (int step = 0; step < 10; ++step) {
    const Batch batch = sampler.next();
    const std::vector<int32_t> inputs = numbers(batch.inputs), labels = numbers(batch.labels);
    int64_t labelled = 0;
    for (size_t i = 0; i < inputs.size(); ++i, ++tokens) {
      REQUIRE(inputs[i] <= vocabulary);
      if (labels[i] == kIgnoredLabel) {
        REQUIRE(inputs[i] < vocabulary);
        continue;
      }
      ++labelled;
      REQUIRE(labels[i] >= 0);
      ++seen[inputs[i] == vocabulary ? "masked" : inputs[i] == labels[i] ? "kept" : "random"];
    }
    CHECK(labelled == batch.labelled);
  }
  const double chosen = seen["masked"] + seen["kept"] + seen["random"];
  CHECK(chosen / tokens == Approx(0.15).margin(0.005));
  CHECK(seen["masked"] / chosen == Approx(0.8).margin(0.01));
  CHECK(seen["random"] / chosen == Approx(0.1).margin(0.01));
  CHECK(seen["kept"] / chosen == Approx(0.1).margin(0.01));
}

TEST_CASE("every masked sample has something to guess") {
  Sampler sampler(counting(),
                  {.context = 2, .batch = 200, .seed = 9, .objective = Objective::masked, .mask_token = 3});
  const Batch batch = sampler.next();
  for (int64_t s = 0; s < 200; ++s)
    CHECK((batch.labels[0].at(2 * s) != kIgnoredLabel || batch.labels[0].at(2 * s + 1) != kIgnoredLabel));
}

TEST_CASE("tokens that the tokenizer has around a text stand around masked windows", "[masked]") {
  const Scratch scratch;
  const std::string json = R"({"pre_tokenizer": {"type": "WhitespaceSplit"},
    "added_tokens": [{"id": 4, "content": "[MASK]", "special": true}], %
    "model": {"type": "WordPiece", "unk_token": "[UNK]",
              "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[END]": 3, "a": 5, "b": 6, "c": 7}}})";
  const auto tokenizer_with = [&](const std::string& processor) -> Json {
    std::string text = json;
    text.replace(text.find('%'), 1, processor);
    return Json::object_t{{"kind", "huggingface"}, {"json", text}};
  };
  const auto corpus_with = [&](const std::string& processor) {
    return Corpus::from_text({.path = scratch.put("text", "a b c a b c a b c"),
                              .vocabulary = tokenizer_with(processor),
                              .holdout = 0});
  };
  const std::string with_ends =
      R"("post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},)";
  const auto bert = corpus_with(with_ends);
  SamplerOptions options{.context = 7, .batch = 300, .seed = 4, .objective = Objective::masked};
  options.surrounded = true;
  const Batch batch = make_batch(*bert, options, 0);
  int64_t labelled = 0;
  for (int64_t at = 0; at < 300 * 7; at += 7) {
    CHECK(batch.inputs[0].at(at) == 1);
    CHECK(batch.inputs[0].at(at + 6) == 2);
    double before = 0;
    for (int64_t i = 0; i < 7; ++i) {
      const bool guessed = batch.labels[0].at(at + i) != kIgnoredLabel;
      labelled += guessed ? 1 : 0;
      const double token = guessed ? batch.labels[0].at(at + i) : batch.inputs[0].at(at + i);
      if (i == 0 || i == 6) {
        CHECK(!guessed);
      } else {
        CHECK((before == 0 || token == (before == 7 ? 5 : before + 1)));
        CHECK(batch.inputs[0].at(at + i) != 1);  // not drawn either, though the file does not call it special
        before = token;
      }
    }
  }
  CHECK(labelled == batch.labelled);
  options.context = 2;
  CHECK_THAT(error_of([&] { make_batch(*bert, options, 0); }),
             Contains("is full of the 2") && Contains("3 is the least"));
  options.context = 12;
  CHECK_THAT(error_of([&] { make_batch(*bert, options, 0); }), Contains("a context of 12 needs at least 10"));
  // A position is one in the file, also where a window has tokens before it.
  const auto bad = Corpus::from_tokens({.path = scratch.put("bad.bin", std::string("\5\0\6\0\xff\0", 6)),
                                        .holdout = 0,
                                        .tokenizer = tokenizer_with(with_ends)});
  options.context = 5;
  CHECK_THAT(error_of([&] { make_batch(*bad, options, 0); }),
             Contains("holds the token 255 at position 2 of"));

  const auto two = corpus_with(R"("post_processor": {"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "y"}}],
      "special_tokens": {"x": {"ids": [1]}, "y": {"ids": [3, 2]}}},)");
  CHECK(two->tokenizer()->prefix() == std::vector<int32_t>{1});
  CHECK(two->tokenizer()->suffix() == std::vector<int32_t>{3, 2});
  options.context = 4;
  CHECK(numbers(make_batch(*two, options, 0).inputs).at(2) == 3);
  options.surrounded = false;
  CHECK(numbers(make_batch(*two, options, 0).inputs).at(2) >= 4);
}

TEST_CASE("special tokens are neither masked nor drawn, and the tokenizer's mask hides", "[masked]") {
  const Scratch scratch;
  std::string words, added, text;
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    const auto id = std::count(words.begin(), words.end(), ':');
    added +=
        fmt::format(R"({}{{"id": {}, "content": "{}", "special": true}})", id > 0 ? ", " : "", id, token);
    words += fmt::format(R"("{}": {}, )", token, id);
  }
  for (int i = 5; i < 20; ++i)
    words += fmt::format(R"("{}": {}{})", static_cast<char>('a' + i), i, i < 19 ? ", " : "");
  for (int i = 0; i < 4000; ++i)
    text += i % 3 == 0 ? "[SEP] " : i % 11 == 0 ? "? " : fmt::format("{} ", static_cast<char>('f' + i % 15));
  const Json vocabulary = Json::object_t{
      {"kind", "huggingface"},
      {"json", fmt::format(R"({{"added_tokens": [{}], "pre_tokenizer": {{"type": "BertPreTokenizer"}},
                               "model": {{"type": "WordPiece", "vocab": {{{}}}}}}})",
                           added, words)}};
  const auto corpus =
      Corpus::from_text({.path = scratch.put("text", text), .vocabulary = vocabulary, .holdout = 0});
  CHECK(corpus->vocabulary_size() == 20);
  CHECK(corpus->special_tokens().mask == 4);
  CHECK(corpus->special_tokens().all == std::vector<int32_t>{0, 1, 2, 3, 4});

  SamplerOptions options{.context = 64, .batch = 50, .seed = 4, .objective = Objective::masked};
  std::map<int32_t, int> seen, hidden;
  int chosen = 0, words_seen = 0;
  for (Sampler sampler(corpus, options); sampler.cursor() < 500;) {
    const Batch batch = sampler.next();
    const std::vector<int32_t> inputs = numbers(batch.inputs), labels = numbers(batch.labels);
    int64_t labelled = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int32_t was = labels[i] == kIgnoredLabel ? inputs[i] : labels[i];
      ++seen[was];
      words_seen += was >= 5 ? 1 : 0;
      if (labels[i] == kIgnoredLabel) continue;
      ++labelled;
      ++chosen;
      REQUIRE(labels[i] >= 5);
      REQUIRE(inputs[i] >= 4);
      ++hidden[inputs[i]];
    }
    CHECK(labelled == batch.labelled);
  }
  CHECK(seen[1] > 500);  // there are special tokens to spare
  CHECK(seen[3] > 5000);
  CHECK(seen[4] == 0);
  CHECK(static_cast<double>(chosen) / words_seen == Approx(0.15).margin(0.01));
  CHECK(static_cast<double>(hidden[4]) / chosen == Approx(0.8).margin(0.03));
  for (int32_t token = 5; token < 20; ++token) CHECK(hidden[token] > 0);  // each may be drawn

  // A text of special tokens alone has nothing to guess.
  const auto special = Corpus::from_text(
      {.path = scratch.put("special", "[SEP] [SEP] [CLS] [MASK]"), .vocabulary = vocabulary, .holdout = 0});
  const Batch batch = make_batch(*special, {.context = 4, .objective = Objective::masked}, 0);
  CHECK(batch.labelled == 0);
  CHECK(numbers(batch.inputs) == std::vector<int32_t>{3, 3, 2, 4});
}

TEST_CASE("a token outside the vocabulary is an error where it is met, again and again") {
  const Scratch scratch;
  const std::string path = scratch.put("bad.bin", std::string("\1\0\2\0\3\0\xff\xff\4\0", 10));
  const auto corpus = Corpus::from_tokens({.path = path, .holdout = 0, .vocabulary = 5});
  for (const int ahead : {0, 2}) {
    Sampler sampler(corpus, {.context = 4, .ahead = ahead});
    for (int i = 0; i < 3; ++i) {
      CHECK_THAT(
          error_of([&] { sampler.next(); }),
          Contains("bad.bin' holds the token 65535 at position 3 of its train split; the vocabulary has 5"));
      CHECK(sampler.cursor() == 0);
    }
  }
}

TEST_CASE("a mixture has its shares in any run of samples, and each source goes on in its order",
          "[mixture]") {
  const std::vector<double> weights{5, 0, 2.5, 1, 0.01};
  const Mixture mixture(weights);
  std::vector<int64_t> seen(weights.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (int64_t i = 0; i < 200'000; ++i) {
    const auto [source, sample] = mixture.place(i);
    REQUIRE(sample == seen[source]++);
    for (size_t s = 0; s < weights.size(); ++s)
      if (std::abs(static_cast<double>(seen[s]) - weights[s] / sum * static_cast<double>(i + 1)) > 4) FAIL(i);
  }
  CHECK(seen[1] == 0);
  const int64_t far = int64_t{1} << 50;
  CHECK(mixture.place(far).source == mixture.place(0).source);
  CHECK(static_cast<double>(mixture.place(far).sample) ==
        Approx(weights[mixture.place(far).source] / sum * static_cast<double>(far)).epsilon(1e-4));

  CHECK_THAT(error_of([] { Mixture({1, -1}); }), Contains("the weight -1 is no number of at least 0"));
  CHECK_THAT(error_of([] { Mixture({0, 0}); }), Contains("sum to 0"));
  CHECK_THAT(error_of([] { Mixture({1, 1e-6}); }), Contains("would have no samples"));
  CHECK_THAT(error_of([] { Mixture({1, NAN}); }), StartsWith("usage: "));
  CHECK_THAT(error_of([] { Mixture({}); }), StartsWith("usage: "));
}

TEST_CASE("samples of mixed corpora are those of the corpora", "[mixture]") {
  // Tokens of the first are below 1000, of the second from 1000 on.
  std::vector<int32_t> ids(500);
  std::iota(ids.begin(), ids.end(), 1000);
  const auto first = counting(), second = Corpus::from_ids(ids, 1500, 0);
  const auto mixed = Corpus::from_mixture({{first, 2}, {second, 1}});
  CHECK(mixed->tokens() == 1500);
  CHECK(mixed->vocabulary_size() == 1500);
  CHECK(mixed->fingerprint() != Corpus::from_mixture({{first, 1}, {second, 1}})->fingerprint());
  const SamplerOptions options{.context = 8, .batch = 3, .seed = 7, .ahead = 0};
  const auto firsts = [&](const std::shared_ptr<const Corpus>& corpus, int batches, Split split) {
    SamplerOptions of_split = options;
    of_split.split = split;
    Sampler sampler(corpus, of_split);
    const std::vector<int32_t> tokens = take(sampler, batches);
    std::vector<int32_t> begins;
    for (size_t i = 0; i < tokens.size(); i += 8) begins.push_back(tokens[i]);
    return begins;
  };
  std::vector<int32_t> from_first, from_second;
  for (const int32_t token : firsts(mixed, 100, Split::train))
    (token < 1000 ? from_first : from_second).push_back(token);
  CHECK(from_first.size() == 200);
  std::vector<int32_t> alone = firsts(first, 100, Split::train);
  alone.resize(200);
  CHECK(from_first == alone);
  alone = firsts(second, 100, Split::train);
  alone.resize(100);
  CHECK(from_second == alone);
  CHECK(firsts(mixed, 5, Split::holdout) ==
        firsts(first, 5, Split::holdout));  // the second holds nothing out

  SamplerOptions part = options;  // of one rank
  part.first = 1;
  part.count = 2;
  const Batch all = make_batch(*mixed, options, 30), mine = make_batch(*mixed, part, 30);
  CHECK(all.labelled == 24);
  CHECK(mine.labelled == 24);
  for (int64_t i = 0; i < 16; ++i) CHECK(mine.inputs[0].at(i) == all.inputs[0].at(8 + i));

  const auto none = Corpus::from_mixture({{second, 1}});
  CHECK_FALSE(none->holds_out());
  const auto held = mixed->undivided(Split::holdout);  // in the same shares
  CHECK(held->holds_out());
  from_second.clear();
  for (const int32_t token : firsts(held, 100, Split::holdout))
    if (token >= 1000) from_second.push_back(token);
  CHECK(from_second.size() == 100);
  CHECK_FALSE(mixed->undivided(Split::train)->holds_out());
  CHECK_THAT(error_of([&] { Sampler(none, {.context = 8, .split = Split::holdout}); }),
             StartsWith("usage: "));
  CHECK_THAT(error_of([&] { Sampler(mixed, {.context = 600}); }), Contains("too short"));
  const Scratch scratch;
  const auto text = [&](const std::string& content) {
    return Corpus::from_text({.path = scratch.put(content, content), .tokenizer = "char"});
  };
  CHECK_THAT(error_of([&] {
               Corpus::from_mixture({{text("ab"), 1}, {text("cd"), 1}});
             }),
             Contains("ab' and '") && Contains("cd' have different vocabularies"));
}

TEST_CASE("examples and texts mix", "[mixture]") {
  const Scratch scratch;
  const std::string lines =
      scratch.put("a.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"text\": \"xyz\"}\n");
  const auto examples =
      Corpus::from_examples({.path = lines, .tokenizer = "byte", .holdout = 0, .ending = "."});
  const auto text =
      Corpus::from_text({.path = scratch.put("a.txt", std::string(100, 'q')), .tokenizer = "byte"});
  const auto mixed = Corpus::from_mixture({{examples, 1}, {text, 1}});
  const Batch batch = make_batch(*mixed, {.context = 6, .batch = 4, .seed = 3}, 0);
  CHECK(batch.labelled == 3 + 3 + 2 * 6);
  int64_t counted = 0;
  for (int64_t i = 0; i < 24; ++i) counted += batch.labels[0].at(i) != kIgnoredLabel ? 1 : 0;
  CHECK(counted == batch.labelled);
  CHECK(cuts_of(*mixed, Split::train, 2).cut == 2);
  CHECK(mixed->tokenizer() != nullptr);
}

TEST_CASE("samplers stop at any moment") {
  const auto corpus = counting();
  for (int i = 0; i < 200; ++i) {
    Sampler sampler(corpus, {.context = 16, .batch = 32, .seed = 1, .ahead = 1 + i % 4});
    for (int n = 0; n < i % 3; ++n) sampler.next();
    if (i % 5 == 0) sampler.seek(i);
  }
}
