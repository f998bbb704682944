#include "core/data/sampler.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

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

int64_t tokens_of_sample(const SamplerOptions& o) {
  return o.context + (o.objective == Objective::next_token ? 1 : 0);
}

// What the masked objective does to one token.
enum class Change : uint8_t { untouched, masked, random, kept };

// Devlin et al., "BERT" (2019): of the tokens chosen, 80 % become the mask, 10 % a random token, 10 % stay.
// Each is drawn by its place in the sample alone.
class Masking {
 public:
  Masking(const SamplerOptions& o, int64_t vocabulary, int64_t sample)
      : share_(o.mask_share),
        context_(o.context),
        vocabulary_(vocabulary),
        sample_(static_cast<uint64_t>(sample)),
        key_(philox_key(o.split == Split::train ? o.seed : 0, hash_of("mask"))) {
    for (int64_t i = 0; i < context_ && any_ < 0; ++i)
      if (chosen(draw(i))) any_ = i;
    // A sample without any label would teach nothing.
    if (any_ < 0)
      forced_ = static_cast<int64_t>(
          upper_half_of_product(word_of(draw(context_)), static_cast<uint64_t>(context_)));
  }

  Change change(int64_t i) const {
    const auto words = draw(i);
    if (!chosen(words) && i != forced_) return Change::untouched;
    const float kind = uniform_of(words[1]);
    return kind < 0.8f ? Change::masked : kind < 0.9f ? Change::random : Change::kept;
  }
  int32_t random_token(int64_t i) const {
    return static_cast<int32_t>(static_cast<uint64_t>(draw(i)[2]) * static_cast<uint64_t>(vocabulary_) >> 32);
  }
  int64_t labelled() const {
    int64_t count = 0;
    for (int64_t i = 0; i < context_; ++i) count += change(i) != Change::untouched ? 1 : 0;
    return count;
  }

 private:
  std::array<uint32_t, 4> draw(int64_t i) const { return philox(key_, static_cast<uint64_t>(i), sample_); }
  bool chosen(const std::array<uint32_t, 4>& words) const {
    return static_cast<double>(uniform_of(words[0])) < share_;
  }

  double share_;
  int64_t context_, vocabulary_;
  uint64_t sample_;
  PhiloxKey key_;
  int64_t any_ = -1, forced_ = -1;
};

// Which example is sample number `index`: in training each comes once in an epoch, in an order that seed and
// epoch decide; those held out come once, as they stand. Nothing: the holdout has ended.
std::optional<Example> example_of(const Corpus& corpus, const SamplerOptions& o, int64_t index) {
  const int64_t count = corpus.examples(o.split);
  if (o.split == Split::train)
    return corpus.example(o.split, permuted(o.seed, index / count, count, index % count));
  return index < count ? std::optional(corpus.example(o.split, index)) : std::nullopt;
}

// Labels of an example that fit in a context.
int64_t labels_of(const Example& example, int64_t context) {
  return std::min(context, example.tokens.count - 1);
}
int64_t counted_labels(const Example& example, int64_t context) {
  const uint8_t* first = example.counted + 1;
  return std::count(first, first + labels_of(example, context), 1);
}

// One example from its first token on; what is left of the row is padding, whose labels are ignored. It
// stands behind the example, where no token of a causal model sees it.
void fill_example(const Corpus& corpus, const SamplerOptions& o, int64_t index, int32_t* inputs,
                  int32_t* labels) {
  std::fill_n(inputs, o.context, 0);
  std::fill_n(labels, o.context, kIgnoredLabel);
  const auto example = example_of(corpus, o, index);
  if (!example) return;
  const int64_t count = labels_of(*example, o.context);
  example->tokens.copy(0, count, inputs);
  example->tokens.copy(1, count, labels);
  for (int64_t i = 0; i < count; ++i)
    if (example->counted[i + 1] == 0) labels[i] = kIgnoredLabel;
}

// Sample number `index`, into rows of inputs and labels.
void fill_sample(const Corpus& all, const SamplerOptions& o, int64_t number, int32_t* inputs,
                 int32_t* labels) {
  const auto& [corpus, index] = all.sample(o.split, number);
  if (corpus.has_examples()) return fill_example(corpus, o, index, inputs, labels);
  const TokenView tokens = corpus.view(o.split);
  const int64_t start = sample_start(o, tokens.count - tokens_of_sample(o) + 1, index);
  tokens.copy(start, o.context, inputs);
  if (o.objective == Objective::next_token) tokens.copy(start + 1, o.context, labels);
  for (int64_t i = 0; i < o.context; ++i)
    if (inputs[i] < 0 || inputs[i] >= corpus.vocabulary_size())
      fail_usage("'{}' holds the token {} at position {} of its {} split; the vocabulary has {}",
                 corpus.name(), inputs[i], start + i, name_of(o.split), corpus.vocabulary_size());
  if (o.objective == Objective::next_token) {
    const int32_t last = labels[o.context - 1];
    if (last < 0 || last >= corpus.vocabulary_size())
      fail_usage("'{}' holds the token {} at position {} of its {} split; the vocabulary has {}",
                 corpus.name(), last, start + o.context, name_of(o.split), corpus.vocabulary_size());
    return;
  }
  const Masking masking(o, corpus.vocabulary_size(), index);
  for (int64_t i = 0; i < o.context; ++i) {
    const Change change = masking.change(i);
    labels[i] = change == Change::untouched ? kIgnoredLabel : inputs[i];
    if (change == Change::masked) inputs[i] = o.mask_token;
    if (change == Change::random) inputs[i] = masking.random_token(i);
  }
}

// Labels of sample `number` that count in the loss.
int64_t labels_of_sample(const Corpus& all, const SamplerOptions& o, int64_t number) {
  const auto& [corpus, index] = all.sample(o.split, number);
  if (corpus.has_examples()) {
    const auto example = example_of(corpus, o, index);
    return example ? counted_labels(*example, o.context) : 0;
  }
  if (o.objective == Objective::masked) return Masking(o, corpus.vocabulary_size(), index).labelled();
  return o.context;
}

void require_examples(const Corpus& corpus, const SamplerOptions& o) {
  if (o.objective != Objective::next_token)
    fail_usage("'{}' holds examples: they are for models that predict the next token", corpus.name());
  if (corpus.examples(o.split) == 0)
    fail_usage("'{}' holds {} examples, none of them {}; use a {} holdout", corpus.name(),
               corpus.examples(Split::train) + corpus.examples(Split::holdout),
               o.split == Split::train ? "to train on" : "held out",
               o.split == Split::train ? "smaller" : "larger");
}

// Throws unless the split has something to draw samples from, in every corpus of a mixture.
void require_samples(const Corpus& corpus, const SamplerOptions& o) {
  for (const MixedCorpus& source : corpus.sources())
    if (source.weight > 0 && (o.split == Split::train || source.corpus->holds_out()))
      require_samples(*source.corpus, o);
  if (!corpus.sources().empty() && (o.split == Split::train || corpus.holds_out())) return;
  if (corpus.has_examples()) return require_examples(corpus, o);
  const int64_t have = corpus.view(o.split).count, need = tokens_of_sample(o);
  if (have >= need) return;
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
    if (o.mask_token < 0) o.mask_token = static_cast<int32_t>(corpus.vocabulary_size());
  }
  require_samples(corpus, o);
  elements_of({o.batch, o.context});  // refuses a batch of more tokens than can be counted
  const int64_t bytes = 2 * TensorType{DType::i32, {o.count, o.context}}.bytes() * (o.ahead + 1);
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
  const int64_t examples = corpus.has_examples() ? corpus.examples(split) : 0;
  cuts.examples += examples;
  for (int64_t i = 0; i < examples; ++i) {
    const Example example = corpus.example(split, i);
    if (example.tokens.count <= context + 1) continue;
    ++cuts.cut;
    cuts.empty += counted_labels(example, context) == 0 ? 1 : 0;
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

Batch make_batch(const Corpus& corpus, const SamplerOptions& given, int64_t cursor) {
  const SamplerOptions o = completed(corpus, given);
  Batch batch;
  batch.cursor = cursor;
  const TensorType type{DType::i32, {o.microbatch, o.context}};
  for (int64_t m = 0; m < o.count / o.microbatch; ++m) {
    Tensor inputs(type), labels(type);
    for (int64_t s = 0; s < o.microbatch; ++s)
      fill_sample(corpus, o, cursor + o.first + m * o.microbatch + s, inputs.data<int32_t>() + s * o.context,
                  labels.data<int32_t>() + s * o.context);
    batch.inputs.push_back(std::move(inputs));
    batch.labels.push_back(std::move(labels));
  }
  for (int64_t s = 0; s < o.batch; ++s) batch.labelled += labels_of_sample(corpus, o, cursor + s);
  return batch;
}

// The thread that makes batches ahead, and what it shares with the Sampler: everything below `mutex` under
// it.
struct Sampler::Ahead {
  struct Item {
    Batch batch;
    std::exception_ptr error;
  };

  Ahead(std::shared_ptr<const Corpus> c, const SamplerOptions& o)
      : corpus(std::move(c)), options(o), next(o.start), thread([this] { run(); }) {}

  ~Ahead() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    room.notify_one();
    thread.join();
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      room.wait(lock, [&] { return stop || static_cast<int>(made.size()) < options.ahead; });
      if (stop) return;
      const int64_t cursor = next;
      const uint64_t at = generation;
      next += options.batch;
      lock.unlock();
      Item item = make(cursor);
      lock.lock();
      if (at != generation) continue;  // the sampler went elsewhere meanwhile
      made.push_back(std::move(item));
      ready.notify_one();
    }
  }

  Item make(int64_t cursor) const {
    Item item;
    try {
      item.batch = make_batch(*corpus, options, cursor);
    } catch (...) {
      item.error = std::current_exception();
    }
    return item;
  }

  Batch take() {
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return !made.empty(); });
    Item item = std::move(made.front());
    made.pop_front();
    lock.unlock();
    room.notify_one();
    if (item.error) std::rethrow_exception(item.error);
    return std::move(item.batch);
  }

  void seek(int64_t cursor) {
    {
      const std::lock_guard lock(mutex);
      made.clear();
      next = cursor;
      ++generation;
    }
    room.notify_one();
  }

  const std::shared_ptr<const Corpus> corpus;
  const SamplerOptions options;

  std::mutex mutex;
  std::condition_variable room, ready;
  std::deque<Item> made;
  int64_t next;
  uint64_t generation = 0;
  bool stop = false;
  std::thread thread;  // last: it starts when all above is there
};

Sampler::Sampler(std::shared_ptr<const Corpus> corpus, SamplerOptions options)
    : corpus_(std::move(corpus)), options_(completed(*corpus_, options)), cursor_(options_.start) {
  if (options_.ahead > 0) ahead_ = std::make_unique<Ahead>(corpus_, options_);
}

Sampler::~Sampler() = default;

Batch Sampler::next() {
  try {
    Batch batch = ahead_ ? ahead_->take() : make_batch(*corpus_, options_, cursor_);
    cursor_ += options_.batch;
    return batch;
  } catch (...) {
    seek(cursor_);  // the batch that failed is still the next one
    throw;
  }
}

void Sampler::seek(int64_t cursor) {
  if (cursor < 0) fail_usage("the cursor {} is before the first sample", cursor);
  cursor_ = cursor;
  if (ahead_) ahead_->seek(cursor);
}

void Sampler::close() { ahead_.reset(); }

}  // namespace het
