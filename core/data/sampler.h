// Batches of windows of a corpus, of its examples, or of rows of several examples or documents. Sample number
// i of a run is a pure function of (corpus, context, seed, i): the order depends neither on batch,
// micro-batch nor rank, and a run goes on at any cursor. A thread of the Sampler's own makes batches ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/data/corpus.h"
#include "core/tensor/tensor.h"

namespace het {

class Samples;

enum class Objective : uint8_t {
  next_token,  // labels are the inputs shifted by one
  // BERT's: 15 % of the tokens are to be guessed, 80/10/10 masked, random, left; other labels -100. Special
  // tokens are neither guessed nor drawn.
  masked,
};

inline constexpr int32_t kIgnoredLabel = -100;

struct SamplerOptions {
  int64_t context = 0;     // tokens of a sample
  int64_t batch = 1;       // samples of a step, over all ranks
  int64_t microbatch = 0;  // samples of a micro-batch; 0: the batch; must divide this rank's samples
  int64_t first = 0;       // this rank's samples of each batch: [first, first + count)
  int64_t count = 0;       // 0: all from first
  Split split = Split::train;
  uint64_t seed = 0;
  int64_t start = 0;  // cursor: samples drawn before
  Objective objective = Objective::next_token;
  double mask_share = 0.15;
  // Of the masked objective: do the tokens that the tokenizer has around a text, such as [CLS] and [SEP],
  // stand around each window? They count in the context.
  bool surrounded = false;
  // -1: the tokenizer's; where it has none, the corpus's vocabulary size, so that the model needs one more.
  int32_t mask_token = -1;
  int ahead = 2;  // batches made ahead; 0: none, and no thread
};

// The micro-batches of one step: inputs and labels i32[microbatch · rows, context]; samples of preferences
// have two rows, which stand together (Corpus::rows). Where samples are rows of several examples, also
// i32[microbatch, context] where the example of each token begins in its row; padding stands alone.
struct Batch {
  std::vector<Tensor> inputs, labels, starts;
  int64_t cursor = 0;  // number of the batch's first sample in the run
  // Labels that count in the whole batch, over all ranks; of preferences, samples that have any.
  int64_t labelled = 0;
};

// How the examples of a split lie in a context.
struct ExampleCuts {
  int64_t examples = 0;
  int64_t cut = 0;    // longer than the context: their ends are left out
  int64_t empty = 0;  // of these: without a label that counts before the cut
};
ExampleCuts cuts_of(const Corpus& corpus, Split split, int64_t context);

// How the examples and documents to train on lie in rows that they share.
struct PackedExamples {
  int64_t examples = 0, rows = 0;
  int64_t tokens = 0;  // of the examples; rows have `context` each
  int64_t pieces = 0;  // of documents: those that fit in a row are one
};

// Where sample `index` starts in its split: a golden-ratio sequence, spread evenly over any part of it. The
// seed decides where training's begins; the holdout's does not depend on it.
int64_t sample_start(const SamplerOptions& options, int64_t positions, int64_t index);

// The batch whose first sample is number `cursor`, on the calling thread.
Batch make_batch(const Corpus& corpus, const SamplerOptions& options, int64_t cursor);

// Used from one thread.
class Sampler {
 public:
  // Throws Error(usage) when the split is shorter than a sample (tokens there and needed) or has no examples,
  // or sizes do not fit.
  Sampler(std::shared_ptr<const Corpus> corpus, SamplerOptions options);
  ~Sampler();  // stops the thread; waits at most for the batch it is making
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // The next batch. What its making threw is thrown here.
  Batch next();
  // Samples handed out since the run's beginning: a run that seeks here continues exactly.
  int64_t cursor() const { return cursor_; }
  void seek(int64_t cursor);
  void close();  // ends its thread: batches are then made when they are asked for
  const SamplerOptions& options() const;
  const Corpus& corpus() const { return *corpus_; }
  PackedExamples packed() const;  // of all corpora that pack; no rows where none does

 private:
  struct Ahead;
  std::shared_ptr<const Corpus> corpus_;
  std::shared_ptr<const Samples> samples_;
  int64_t cursor_;
  std::unique_ptr<Ahead> ahead_;
};

}  // namespace het
