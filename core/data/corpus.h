// Tokens to train on: made from text files, or mapped from a file made earlier. A corpus is immutable; its
// first part is for training, the end is held out for validation. Samplers share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/data/mixture.h"
#include "core/data/tokenizer.h"

namespace het {

class Corpus;

enum class Split : uint8_t { train, holdout };
std::string_view name_of(Split split);     // "train", "holdout"
Split split_named(std::string_view name);  // throws Error(usage)

// Tokens that lie together in memory, [first, first + count) of a corpus.
struct TokenPiece {
  const std::byte* data = nullptr;
  int64_t first = 0, count = 0;
};

// Token ids of two or four bytes each, in pieces that follow each other without anything between. The pieces
// are the corpus's.
struct TokenView {
  std::span<const TokenPiece> pieces;
  int width = 2;      // bytes of one token: 2 or 4
  int64_t first = 0;  // in the corpus
  int64_t count = 0;

  int32_t operator[](int64_t i) const;
  void copy(int64_t from, int64_t n, int32_t* to) const;  // tokens [from, from + n)
  TokenView part(int64_t from, int64_t n) const { return {pieces, width, first + from, n}; }
};

// Of tokens that are documents, one behind the other.
struct DocumentOptions {
  // Are samples to train on rows of documents? One that is longer than the context is divided.
  bool packing = false;
  // The token behind each document: a text that is one token, or its id. Neither: the token that ends a text
  // by the tokenizer's folder. Not needed where an index names the documents.
  std::optional<std::string> ending = {};
  std::optional<int32_t> ending_id = {};
};

struct TextCorpusOptions {
  Path path;  // a file, or a folder: its text files, recursively, in sorted order
  std::string tokenizer = "char";
  Path model = {};       // of sentencepiece (file) and bpe (folder)
  Json vocabulary = {};  // of an earlier run; given, it is used instead of tokenizer and model
  double holdout = 0.1;  // share of the tokens, at the end, kept for validation
  int64_t most_bytes = int64_t{1} << 30;  // of a folder's text: files beyond are left out
  DocumentOptions documents = {};
};

struct ExampleCorpusOptions {
  Path path;  // a .jsonl file, or a folder: the .jsonl files in it, sorted by name
  std::string tokenizer = "huggingface";
  Path model = {};       // of the tokenizer
  Json vocabulary = {};  // of an earlier run; given, it is used instead of tokenizer and model
  double holdout = 0.1;  // share of the examples, at the end, kept for validation
  // Does the loss count prompts and what users say, too?
  bool counts_all = false;
  Path chat_template = {};  // a file; empty: the tokenizer's
  // What ends a text and a completion; nothing: the token that ends a text by the tokenizer's folder.
  std::optional<std::string> ending = {};
  // Are samples to train on rows of several examples?
  bool packing = false;
  // Lines have `chosen` and `rejected`: a sample is two rows, one of each.
  bool preferences = false;
};

// One example of a corpus, or a document: its tokens, and for each whether the loss counts its prediction;
// null: it counts all.
struct Example {
  TokenView tokens;
  const uint8_t* counted = nullptr;
};

struct TokenCorpusOptions {
  // nanoGPT's raw .bin, or llm.c's with its header of 256 int32; or a folder: the .bin files in it, sorted by
  // name, of one width.
  Path path;
  int width = 16;  // bits of a token in a raw file: 16 or 32
  double holdout = 0.1;
  // Tokens are checked against it; 0: the tokenizer's, or the greatest token found, plus one.
  int64_t vocabulary = 0;
  // What the tokens were made with, to read and write text: its JSON, or its kind and its file or folder.
  Json tokenizer = {};
  std::string tokenizer_kind = {};
  Path tokenizer_model = {};
  DocumentOptions documents = {};
};

// A corpus of a mixture, and its share of the samples in any unit.
struct MixedCorpus {
  std::shared_ptr<const Corpus> corpus;
  double weight = 1;
};

class Corpus {
 public:
  // Throw Error(usage): missing, empty or binary files, text the tokenizer cannot take, a holdout outside
  // [0, 1), odd sizes.
  static std::shared_ptr<const Corpus> from_text(const TextCorpusOptions& options);
  static std::shared_ptr<const Corpus> from_tokens(const TokenCorpusOptions& options);
  // Lines of JSON, each with `text`, `prompt` and `completion`, or `messages`; or preferences, each with
  // `chosen` and `rejected` (core/data/examples.h). Errors name file and line.
  static std::shared_ptr<const Corpus> from_examples(const ExampleCorpusOptions& options);
  // Tokens given directly; for tests and for the prompt.
  static std::shared_ptr<const Corpus> from_ids(const std::vector<int32_t>& ids, int64_t vocabulary,
                                                double holdout);

  // Samples of several corpora in these shares, each in its order (Mixture). Held out: samples of those that
  // hold something out. Throws Error(usage) for corpora of different vocabularies, and as Mixture does.
  static std::shared_ptr<const Corpus> from_mixture(std::vector<MixedCorpus> sources);

  // The same with all of it in one split, and nothing in the other. They share the tokens.
  std::shared_ptr<const Corpus> undivided(Split split) const;

  const std::string& name() const { return name_; }  // the path, for messages
  int64_t vocabulary_size() const { return vocabulary_; }
  int64_t tokens() const;
  // Of a mixture; empty otherwise. Samples are then those of its sources, and there is no `view` of all.
  const std::vector<MixedCorpus>& sources() const { return sources_; }
  bool holds_out() const;
  TokenView view(Split split) const;
  // Is it made of examples? Then samples are whole examples, not windows of `view`.
  bool has_examples() const { return !starts_.empty(); }
  // Are the examples documents, which samples have in pieces of a context?
  bool has_documents() const { return documents_; }
  int64_t examples(Split split) const;
  // Rows of a sample: 2 of preferences, the better answer and the other; else 1.
  int64_t rows() const { return rows_; }
  // Do several examples share a sample to train on: of this corpus, or of one that it mixes?
  bool packs() const;
  Example example(Split split, int64_t index, int64_t row = 0) const;
  int files() const { return files_; }                             // read
  int skipped() const { return skipped_; }                         // binary, links, beyond the size limit
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  // null for token files without one
  // Those of its tokenizer.
  SpecialTokens special_tokens() const { return tokenizer_ ? tokenizer_->special_tokens() : SpecialTokens(); }
  // Whose sample number `number` is, and which of its samples: this corpus's, or of one that it mixes.
  struct Sample {
    const Corpus& corpus;
    int64_t number;
  };
  Sample sample(Split split, int64_t number) const;
  // Of a sample of the tokens: corpora of the same size with different ones hardly have the same.
  uint64_t fingerprint() const;

 private:
  Corpus() = default;
  void add_piece(const std::byte* data, int64_t count, int width);
  void set_holdout(double holdout);
  // `known`: where documents begin in each piece of the tokens; empty: behind each ending.
  void divide(const DocumentOptions& options, std::span<const std::vector<int64_t>> known);
  int64_t examples_or_tokens() const;

  std::string name_;
  std::shared_ptr<const void> storage_;  // what the pieces point into
  std::vector<TokenPiece> pieces_;
  TokenView all_;
  int64_t train_ = 0;             // tokens of the first part, or examples
  std::vector<int64_t> starts_;   // of rows of examples, and where the last one ends
  int64_t rows_ = 1;              // of an example
  std::vector<uint8_t> counted_;  // one for each token of examples; none of documents
  bool packs_ = false, documents_ = false;
  int64_t vocabulary_ = 0;
  int files_ = 0, skipped_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<MixedCorpus> sources_;
  std::optional<Mixture> mixture_[2];  // by split; of the holdout nothing where no source holds anything out
};

}  // namespace het
