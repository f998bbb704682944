// The samples of a run by their numbers, and batches of them. Private to core/data: Sampler hands them out.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/data/packing.h"
#include "core/data/sampler.h"

namespace het {

// Tokens that stand before and behind each window of a text.
struct Surroundings {
  std::vector<int32_t> before, behind;

  int64_t count() const { return static_cast<int64_t>(before.size() + behind.size()); }
};

// Immutable. The corpus outlives it.
class Samples {
 public:
  // Throws as Sampler does.
  Samples(const Corpus& corpus, const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }  // with defaults
  PackedExamples packed() const { return packed_; }
  // The batch whose first sample is number `cursor`.
  Batch batch(int64_t cursor) const;

 private:
  void add_pieces(const Corpus& corpus);
  void add_rows(const Corpus& corpus);
  int64_t count_of(const Corpus& corpus) const;
  Example example(const Corpus& corpus, int64_t index, int64_t row) const;
  std::vector<Example> examples_of(const Corpus& corpus, int64_t number, int64_t row) const;
  void fill_examples(const Corpus& corpus, int64_t number, int64_t row, int32_t* inputs, int32_t* labels,
                     int32_t* starts) const;
  void fill(int64_t number, int32_t* inputs, int32_t* labels, int32_t* starts) const;
  int64_t labelled(int64_t number) const;

  const Corpus& corpus_;
  SamplerOptions options_;
  // Of documents: the first piece of each in the split, and the number of pieces.
  std::map<const Corpus*, std::vector<int64_t>> pieces_;
  std::map<const Corpus*, PackedRows> rows_;  // of those that pack; empty: samples are not shared
  PackedExamples packed_;
  std::vector<int32_t> special_;  // tokens that are not masked, ascending
  Surroundings around_;           // of windows
};

}  // namespace het
