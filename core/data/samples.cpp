#include "core/data/samples.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/units.h"
#include "core/data/shuffle.h"

namespace het {
namespace {

constexpr int kMostAhead = 64;
constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15ull;  // 2^64 / golden ratio

uint64_t upper_half_of_product(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}

uint64_t word_of(const std::array<uint32_t, 4>& draw) {
  return static_cast<uint64_t>(draw[0]) << 32 | draw[1];
}

Surroundings surroundings_of(const Corpus& corpus, const SamplerOptions& o) {
  if (!o.surrounded || o.objective != Objective::masked || corpus.tokenizer() == nullptr) return {};
  return {corpus.tokenizer()->prefix(), corpus.tokenizer()->suffix()};
}

int64_t tokens_of_sample(const SamplerOptions& o, const Surroundings& around) {
  return o.context - around.count() + (o.objective == Objective::next_token ? 1 : 0);
}

// What the masked objective does to one token.
enum class Change : uint8_t { untouched, masked, random, kept };

// Devlin et al., "BERT" (2019): of the tokens chosen, 80 % become the mask, 10 % a random token, 10 % stay.
// Each is drawn by its place in the sample alone. Special tokens, `special` in ascending order, are not
// chosen.
class Masking {
 public:
  // `tokens`: the context's. They and `special` outlive it.
  Masking(const SamplerOptions& o, std::span<const int32_t> tokens, std::span<const int32_t> special,
          int64_t sample)
      : share_(o.mask_share),
        tokens_(tokens),
        special_(special),
        sample_(static_cast<uint64_t>(sample)),
        key_(philox_key(o.split == Split::train ? o.seed : 0, hash_of("mask"))) {
    std::vector<int64_t> places;  // that may be chosen, while none is
    for (int64_t i = 0; i < o.context; ++i) {
      if (is_special(i)) continue;
      if (chosen(draw(i))) return;
      places.push_back(i);
    }
    // A sample without any label would teach nothing.
    if (!places.empty()) forced_ = places[upper_half_of_product(word_of(draw(o.context)), places.size())];
  }

  Change change(int64_t i) const {
    const auto words = draw(i);
    if (is_special(i) || (!chosen(words) && i != forced_)) return Change::untouched;
    const float kind = uniform_of(words[1]);
    return kind < 0.8f ? Change::masked : kind < 0.9f ? Change::random : Change::kept;
  }
  int32_t random_token(int64_t i, int64_t vocabulary) const {
    const auto choices = static_cast<uint64_t>(vocabulary) - special_.size();
    auto token = static_cast<int32_t>(static_cast<uint64_t>(draw(i)[2]) * choices >> 32);
    for (const int32_t special : special_) token += token >= special ? 1 : 0;
    return token;
  }
  int64_t labelled() const {
    int64_t count = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(tokens_.size()); ++i)
      count += change(i) != Change::untouched ? 1 : 0;
    return count;
  }

 private:
  std::array<uint32_t, 4> draw(int64_t i) const { return philox(key_, static_cast<uint64_t>(i), sample_); }
  bool chosen(const std::array<uint32_t, 4>& words) const {
    return static_cast<double>(uniform_of(words[0])) < share_;
  }
  bool is_special(int64_t i) const {
    return std::binary_search(special_.begin(), special_.end(), tokens_[static_cast<size_t>(i)]);
  }

  double share_;
  std::span<const int32_t> tokens_, special_;
  uint64_t sample_;
  PhiloxKey key_;
  int64_t forced_ = -1;
};

// Where the window of sample `index` begins in its split.
int64_t window_start(const Corpus& corpus, const SamplerOptions& o, const Surroundings& around,
                     int64_t index) {
  return sample_start(o, corpus.view(o.split).count - tokens_of_sample(o, around) + 1, index);
}

// The tokens of sample `index` as they are given, before any is masked: the context's.
void copy_window(const Corpus& corpus, const SamplerOptions& o, const Surroundings& around, int64_t index,
                 int32_t* to) {
  to = std::copy(around.before.begin(), around.before.end(), to);
  const int64_t count = o.context - around.count();
  corpus.view(o.split).copy(window_start(corpus, o, around, index), count, to);
  std::copy(around.behind.begin(), around.behind.end(), to + count);
}

// Labels of an example that fit in a context.
int64_t labels_of(const Example& example, int64_t context) {
  return std::min(context, example.tokens.count - 1);
}
int64_t counted_labels(const Example& example, int64_t context) {
  if (example.counted == nullptr) return labels_of(example, context);
  const uint8_t* first = example.counted + 1;
  return std::count(first, first + labels_of(example, context), 1);
}

// Inputs and labels of an example, as far as they fit.
void copy_example(const Example& example, int64_t count, int32_t* inputs, int32_t* labels) {
  example.tokens.copy(0, count, inputs);
  example.tokens.copy(1, count, labels);
  if (example.counted == nullptr) return;
  for (int64_t i = 0; i < count; ++i)
    if (example.counted[i + 1] == 0) labels[i] = kIgnoredLabel;
}

void require_known(const Corpus& corpus, Split split, int32_t token, int64_t position) {
  if (token < 0 || token >= corpus.vocabulary_size())
    fail_usage("'{}' holds the token {} at position {} of its {} split; the vocabulary has {}", corpus.name(),
               token, position, name_of(split), corpus.vocabulary_size());
}

// A window of text, or of token ids.
void fill_window(const Corpus& corpus, const SamplerOptions& o, std::span<const int32_t> special,
                 const Surroundings& around, int64_t index, int32_t* inputs, int32_t* labels) {
  const TokenView tokens = corpus.view(o.split);
  const int64_t start = window_start(corpus, o, around, index);
  copy_window(corpus, o, around, index, inputs);
  if (o.objective == Objective::next_token) tokens.copy(start + 1, o.context, labels);
  for (int64_t i = 0; i < o.context; ++i)
    require_known(corpus, o.split, inputs[i], start + i - std::ssize(around.before));
  if (o.objective == Objective::next_token)
    return require_known(corpus, o.split, labels[o.context - 1], start + o.context);
  const std::vector<int32_t> given(inputs, inputs + o.context);
  const Masking masking(o, given, special, index);
  for (int64_t i = 0; i < o.context; ++i) {
    const Change change = masking.change(i);
    labels[i] = change == Change::untouched ? kIgnoredLabel : inputs[i];
    if (change == Change::masked) inputs[i] = o.mask_token;
    if (change == Change::random) inputs[i] = masking.random_token(i, corpus.vocabulary_size());
  }
}

void require_examples(const Corpus& corpus, const SamplerOptions& o) {
  if (o.objective != Objective::next_token)
    fail_usage("'{}' holds examples: they are for models that predict the next token", corpus.name());
  if (corpus.examples(o.split) == 0) {
    const int64_t count = corpus.examples(Split::train) + corpus.examples(Split::holdout);
    const bool is_train = o.split == Split::train;
    const char* advice = is_train     ? "use a smaller holdout"
                         : count == 1 ? "holdout = 0 evaluates nothing"
                                      : "use a larger holdout";
    fail_usage("'{}' holds {} {}{}, none of them {}; {}", corpus.name(), count,
               corpus.has_documents() ? "document" : "example", count == 1 ? "" : "s",
               is_train ? "to train on" : "held out", advice);
  }
  if (corpus.has_documents() && corpus.view(o.split).count == corpus.examples(o.split))
    fail_usage("the documents of '{}' {} have one token each; there is nothing to predict", corpus.name(),
               o.split == Split::train ? "to train on" : "held out");
}

// Throws unless the split has something to draw samples from, in every corpus of a mixture.
void require_samples(const Corpus& corpus, const SamplerOptions& o, const Surroundings& around) {
  for (const MixedCorpus& source : corpus.sources())
    if (source.weight > 0 && (o.split == Split::train || source.corpus->holds_out()))
      require_samples(*source.corpus, o, around);
  if (!corpus.sources().empty() && (o.split == Split::train || corpus.holds_out())) return;
  if (corpus.has_examples()) return require_examples(corpus, o);
  const int64_t have = corpus.view(o.split).count, need = tokens_of_sample(o, around);
  if (have >= need) return;
  if (o.split == Split::holdout && corpus.view(Split::train).count == 0)
    fail_usage(
        "'{}' is too short: it has {} tokens, a context of {} needs at least {}; use a longer text or a "
        "shorter context",
        corpus.name(), have, o.context, need);
  fail_usage(
      "'{}' is too short: its {} split has {} tokens, a context of {} needs at least {}; use a longer text{}",
      corpus.name(), name_of(o.split), have, o.context, need,
      o.split == Split::holdout ? ", a shorter context or a larger holdout" : " or a shorter context");
}

SamplerOptions completed(const Corpus& corpus, SamplerOptions o) {
  if (o.context < 1) fail_usage("a context of {} tokens is not possible; at least 1 is needed", o.context);
  if (o.batch < 1) fail_usage("a batch of {} samples is not possible; at least 1 is needed", o.batch);
  if (o.count == 0) o.count = o.batch - o.first;
  if (o.first < 0 || o.count < 1 || o.first + o.count > o.batch)
    fail_usage("samples {} to {} are asked of a batch of {}", o.first + 1, o.first + o.count, o.batch);
  if (o.microbatch == 0) o.microbatch = o.count;
  if (o.microbatch < 1 || o.count % o.microbatch != 0)
    fail_usage("a micro-batch of {} does not divide the {} samples of the batch", o.microbatch, o.count);
  if (o.start < 0) fail_usage("the cursor {} is before the first sample", o.start);
  if (o.ahead < 0 || o.ahead > kMostAhead)
    fail_usage("{} batches cannot be made ahead; 0 to {} can", o.ahead, kMostAhead);
  if (o.objective == Objective::masked) {
    if (!(o.mask_share > 0 && o.mask_share <= 1))
      fail_usage("mask_share = {} is not a share: above 0, up to 1", o.mask_share);
    if (o.mask_token < 0)
      o.mask_token =
          corpus.special_tokens().known_mask().value_or(static_cast<int32_t>(corpus.vocabulary_size()));
  }
  const Surroundings around = surroundings_of(corpus, o);
  if (around.count() >= o.context)
    fail_usage(
        "a context of {} tokens is full of the {} that the tokenizer of '{}' has around a text; {} is the "
        "least",
        o.context, around.count(), corpus.name(), around.count() + 1);
  require_samples(corpus, o, around);
  elements_of({o.batch, corpus.rows(), o.context});  // refuses a batch of more tokens than can be counted
  const int64_t tensors = o.split == Split::train && corpus.packs() ? 3 : 2;
  const int64_t bytes =
      tensors * TensorType{DType::i32, {o.count * corpus.rows(), o.context}}.bytes() * (o.ahead + 1);
  constexpr int64_t kSmall = int64_t{64} << 20;
  if (const int64_t available = bytes < kSmall ? bytes : available_memory(); bytes > available)
    fail_environment("batches of {} samples take {}; {} are available", o.count, show_bytes(bytes),
                     show_bytes(available));
  return o;
}

}  // namespace

ExampleCuts cuts_of(const Corpus& corpus, Split split, int64_t context) {
  ExampleCuts cuts;
  for (const MixedCorpus& source : corpus.sources()) {
    const ExampleCuts own = cuts_of(*source.corpus, split, context);
    cuts = {cuts.examples + own.examples, cuts.cut + own.cut, cuts.empty + own.empty};
  }
  const bool cuttable = corpus.has_examples() && !corpus.has_documents();
  const int64_t examples = cuttable ? corpus.examples(split) : 0;
  cuts.examples += examples;
  for (int64_t i = 0; i < examples; ++i) {
    bool cut = false, empty = false;
    for (int64_t row = 0; row < corpus.rows(); ++row) {
      const Example example = corpus.example(split, i, row);
      cut = cut || example.tokens.count > context + 1;
      empty = empty || counted_labels(example, context) == 0;
    }
    cuts.cut += cut ? 1 : 0;
    cuts.empty += cut && empty ? 1 : 0;
  }
  return cuts;
}

// Weyl's sequence: multiples of the golden ratio, modulo 1, fall ever more evenly over the text, so that
// every batch draws from all parts of it and no part is visited much more often than another. The seed moves
// the whole sequence.
int64_t sample_start(const SamplerOptions& o, int64_t positions, int64_t index) {
  const uint64_t origin =
      o.split == Split::train ? word_of(philox(philox_key(o.seed, hash_of("samples")), 0)) : 0;
  const uint64_t draw = origin + (static_cast<uint64_t>(index) + 1) * kGoldenRatio;
  return static_cast<int64_t>(upper_half_of_product(draw, static_cast<uint64_t>(positions)));
}

Samples::Samples(const Corpus& corpus, const SamplerOptions& options)
    : corpus_(corpus), options_(completed(corpus, options)), around_(surroundings_of(corpus, options)) {
  if (options_.objective == Objective::masked) {
    special_ = corpus.special_tokens().all;
    if (options_.mask_token < corpus.vocabulary_size()) special_.push_back(options_.mask_token);
    special_.insert(special_.end(), around_.before.begin(), around_.before.end());
    special_.insert(special_.end(), around_.behind.begin(), around_.behind.end());
    std::sort(special_.begin(), special_.end());
    special_.erase(std::unique(special_.begin(), special_.end()), special_.end());
  }
  add_pieces(corpus);
  if (options_.split == Split::train) add_rows(corpus);
}

// How documents of this corpus and of those that it mixes lie in pieces of a context. A piece begins with the
// last token that the one before it predicts.
void Samples::add_pieces(const Corpus& corpus) {
  for (const MixedCorpus& source : corpus.sources())
    if (source.weight > 0) add_pieces(*source.corpus);
  if (!corpus.has_documents() || pieces_.contains(&corpus)) return;
  std::vector<int64_t>& first = pieces_[&corpus];
  first.push_back(0);
  for (int64_t d = 0; d < corpus.examples(options_.split); ++d) {
    const int64_t labels = corpus.example(options_.split, d).tokens.count - 1;
    first.push_back(first.back() + (labels + options_.context - 1) / options_.context);
  }
}

// Examples of the split, or pieces of documents.
int64_t Samples::count_of(const Corpus& corpus) const {
  const auto found = pieces_.find(&corpus);
  return found == pieces_.end() ? corpus.examples(options_.split) : found->second.back();
}

Example Samples::example(const Corpus& corpus, int64_t index, int64_t row) const {
  const auto found = pieces_.find(&corpus);
  if (found == pieces_.end()) return corpus.example(options_.split, index, row);
  const auto next = std::upper_bound(found->second.begin(), found->second.end(), index);
  const Example document = corpus.example(options_.split, next - found->second.begin() - 1);
  const int64_t begin = (index - *(next - 1)) * options_.context;
  return {document.tokens.part(begin, std::min(options_.context + 1, document.tokens.count - begin))};
}

// Which examples share a row, of this corpus and of those that it mixes.
void Samples::add_rows(const Corpus& corpus) {
  for (const MixedCorpus& source : corpus.sources())
    if (source.weight > 0) add_rows(*source.corpus);
  if (!corpus.has_examples() || !corpus.packs() || rows_.contains(&corpus)) return;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count_of(corpus); ++i) {
    lengths.push_back(labels_of(example(corpus, i, 0), options_.context));
    packed_.tokens += lengths.back();
  }
  const PackedRows& rows =
      rows_.emplace(&corpus, pack_rows(lengths, options_.context, options_.seed)).first->second;
  (corpus.has_documents() ? packed_.pieces : packed_.examples) += static_cast<int64_t>(lengths.size());
  packed_.rows += rows.count();
}

// The examples of sample `number` of a corpus: one, or those of a row. In training each example or row comes
// once in an epoch, in an order that seed and epoch decide; examples held out come once, as they stand. None:
// the holdout has ended. `row`: of an example.
std::vector<Example> Samples::examples_of(const Corpus& corpus, int64_t number, int64_t row) const {
  const auto found = rows_.find(&corpus);
  const int64_t count = found == rows_.end() ? count_of(corpus) : found->second.count();
  if (options_.split == Split::holdout && number >= count) return {};
  const int64_t place = options_.split == Split::holdout
                            ? number
                            : permuted(options_.seed, number / count, count, number % count);
  if (found == rows_.end()) return {example(corpus, place, row)};
  std::vector<Example> examples;
  for (const int64_t i : found->second.row(place)) examples.push_back(example(corpus, i, 0));
  return examples;
}

// Examples from their first tokens on, one behind the other. What is left of the row is padding, whose labels
// are ignored. It stands behind the examples, where no token of a causal model sees it. `starts` may be null.
void Samples::fill_examples(const Corpus& corpus, int64_t number, int64_t row, int32_t* inputs,
                            int32_t* labels, int32_t* starts) const {
  const int64_t context = options_.context;
  std::fill_n(inputs, context, 0);
  std::fill_n(labels, context, kIgnoredLabel);
  int64_t at = 0;
  for (const Example& example : examples_of(corpus, number, row)) {
    const int64_t count = labels_of(example, context);
    copy_example(example, count, inputs + at, labels + at);
    if (corpus.has_documents())
      for (int64_t i = 0; i <= count; ++i)
        require_known(corpus, options_.split, i < count ? inputs[at + i] : labels[at + count - 1],
                      example.tokens.first - corpus.view(options_.split).first + i);
    if (starts != nullptr) std::fill_n(starts + at, count, static_cast<int32_t>(at));
    at += count;
  }
  if (starts != nullptr) std::iota(starts + at, starts + context, static_cast<int32_t>(at));
}

// Sample `number`, into rows of inputs, labels and starts.
void Samples::fill(int64_t number, int32_t* inputs, int32_t* labels, int32_t* starts) const {
  const auto& [corpus, index] = corpus_.sample(options_.split, number);
  if (corpus.has_examples()) {
    for (int64_t row = 0; row < corpus.rows(); ++row) {
      const int64_t at = row * options_.context;
      fill_examples(corpus, index, row, inputs + at, labels + at, starts);  // which preferences have none of
    }
    if (corpus.rows() > 1 && labelled(number) == 0)
      std::fill_n(labels, corpus.rows() * options_.context, kIgnoredLabel);
    return;
  }
  fill_window(corpus, options_, special_, around_, index, inputs, labels);
  if (starts != nullptr) std::fill_n(starts, options_.context, 0);
}

// Labels of sample `number` that count in the loss; of preferences, whether both answers have any.
int64_t Samples::labelled(int64_t number) const {
  const auto& [corpus, index] = corpus_.sample(options_.split, number);
  if (corpus.has_examples()) {
    const auto of_row = [&, index = index, &corpus = corpus](int64_t row) {
      int64_t count = 0;
      for (const Example& example : examples_of(corpus, index, row))
        count += counted_labels(example, options_.context);
      return count;
    };
    return corpus.rows() > 1 ? int64_t{of_row(0) > 0 && of_row(1) > 0} : of_row(0);
  }
  if (options_.objective == Objective::next_token) return options_.context;
  std::vector<int32_t> tokens(static_cast<size_t>(options_.context));
  copy_window(corpus, options_, around_, index, tokens.data());
  return Masking(options_, tokens, special_, index).labelled();
}

Batch Samples::batch(int64_t cursor) const {
  const SamplerOptions& o = options_;
  Batch batch;
  batch.cursor = cursor;
  const TensorType type{DType::i32, {o.microbatch * corpus_.rows(), o.context}};
  for (int64_t m = 0; m < o.count / o.microbatch; ++m) {
    Tensor inputs(type), labels(type), starts;
    if (!rows_.empty()) starts = Tensor(type);
    for (int64_t s = 0; s < o.microbatch; ++s) {
      const int64_t at = s * corpus_.rows() * o.context;
      fill(cursor + o.first + m * o.microbatch + s, inputs.data<int32_t>() + at, labels.data<int32_t>() + at,
           rows_.empty() ? nullptr : starts.data<int32_t>() + at);
    }
    batch.inputs.push_back(std::move(inputs));
    batch.labels.push_back(std::move(labels));
    if (!rows_.empty()) batch.starts.push_back(std::move(starts));
  }
  for (int64_t s = 0; s < o.batch; ++s) batch.labelled += labelled(cursor + s);
  return batch;
}

Batch make_batch(const Corpus& corpus, const SamplerOptions& options, int64_t cursor) {
  return Samples(corpus, options).batch(cursor);
}

}  // namespace het
