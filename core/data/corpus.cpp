#include "core/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/units.h"
#include "core/data/chat.h"
#include "core/data/data_files.h"
#include "core/data/token_files.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr size_t kChunkBytes = 1 << 20;  // of text encoded at once
constexpr int64_t kMostVocabulary = int64_t{1} << 31;

bool is_text(std::string_view content) {
  return content.find('\0') == std::string_view::npos && find_invalid_utf8(content) == std::string_view::npos;
}

struct FolderText {
  std::string text;
  int files = 0, skipped = 0;
};

FolderText read_texts(const DataFiles& found, const std::string& name, int64_t most_bytes) {
  FolderText result;
  std::pair<std::string, std::string> skipped;  // the first one that is no text: its path and how it begins
  for (const auto& [path, bytes] : found.files) {
    if (bytes == 0) continue;
    if (static_cast<int64_t>(result.text.size()) + bytes > most_bytes) {
      ++result.skipped;
      continue;
    }
    const std::string content = read_file(path);
    if (!is_text(content)) {
      if (result.skipped == 0) skipped = {path.text, content.substr(0, 8)};
      ++result.skipped;
      continue;
    }
    result.text += content;
    ++result.files;
  }
  if (result.files == 0) {
    require_known_format(skipped.second, skipped.first);
    fail_usage("'{}' holds no text files{}{}", name,
               result.skipped == 0
                   ? ""
                   : fmt::format(": its {} files are binary, not UTF-8, or larger than {} together",
                                 result.skipped, show_bytes(static_cast<double>(most_bytes))),
               found.links == 0 ? "" : fmt::format("; {} links in it are not followed", found.links));
  }
  result.skipped += found.links;
  return result;
}

// The end of a chunk that begins at `begin`: behind a whole code point.
size_t chunk_end(std::string_view text, size_t begin) {
  size_t end = std::min(text.size(), begin + kChunkBytes);
  while (end < text.size() && end > begin + 1 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;
  return end;
}

template <typename T>
std::shared_ptr<std::vector<T>> encode_as(const Tokenizer& tokenizer, std::string_view text) {
  auto tokens = std::make_shared<std::vector<T>>();
  const auto append = [&](std::string_view part) {
    for (const int32_t id : tokenizer.encode(part)) tokens->push_back(static_cast<T>(id));
  };
  if (!tokenizer.splits_anywhere()) {
    append(text);
    return tokens;
  }
  tokens->reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = chunk_end(text, begin);
    append(text.substr(begin, end - begin));
    begin = end;
  }
  tokens->shrink_to_fit();
  return tokens;
}

}  // namespace

std::string_view name_of(Split split) { return split == Split::train ? "train" : "holdout"; }

Split split_named(std::string_view name) {
  if (name == "train") return Split::train;
  if (name == "holdout") return Split::holdout;
  fail_usage("there is no split '{}'; there are 'train' and 'holdout'", name);
}

namespace {

int32_t token_at(const std::byte* data, int width) {
  if (width == 2) {
    uint16_t token;
    std::memcpy(&token, data, 2);
    return token;
  }
  uint32_t token;
  std::memcpy(&token, data, 4);
  return static_cast<int32_t>(token);
}

}  // namespace

int32_t TokenView::operator[](int64_t i) const {
  int32_t token;
  copy(i, 1, &token);
  return token;
}

void TokenView::copy(int64_t from, int64_t n, int32_t* to) const {
  HET_REQUIRE(from >= 0 && n >= 0 && from + n <= count, from, n, count);
  if (n == 0) return;
  int64_t at = first + from;
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), at,
                                [](int64_t place, const TokenPiece& p) { return place < p.first; });
  for (--piece; n > 0; ++piece) {
    const int64_t here = std::min(n, piece->first + piece->count - at);
    const std::byte* data = piece->data + (at - piece->first) * width;
    for (int64_t i = 0; i < here; ++i) to[i] = token_at(data + i * width, width);
    at += here;
    to += here;
    n -= here;
  }
}

void Corpus::add_piece(const std::byte* data, int64_t count, int width) {
  pieces_.push_back({data, all_.count, count});
  all_ = {pieces_, width, 0, all_.count + count};
}

int64_t Corpus::tokens() const {
  int64_t count = all_.count;
  for (const MixedCorpus& source : sources_) count += source.corpus->tokens();
  return count;
}

bool Corpus::holds_out() const {
  return sources_.empty() ? examples_or_tokens() > train_ : mixture_[1].has_value();
}

bool Corpus::packs() const {
  return packs_ || std::any_of(sources_.begin(), sources_.end(), [](const MixedCorpus& source) {
           return source.weight > 0 && source.corpus->packs();
         });
}

uint64_t Corpus::fingerprint() const {
  if (!sources_.empty()) {
    std::string all;
    for (const MixedCorpus& source : sources_)
      all += fmt::format("{} {:016x} ", source.weight, source.corpus->fingerprint());
    return hash_of(all);
  }
  constexpr int64_t kPlaces = 256, kTokens = 256;
  std::vector<int32_t> tokens(kTokens);
  std::string sample = fmt::format("{} {}", all_.count, vocabulary_);
  for (int64_t place = 0; place < kPlaces; ++place) {
    const int64_t from = all_.count / kPlaces * place, n = std::min(kTokens, all_.count - from);
    all_.copy(from, n, tokens.data());
    sample.append(reinterpret_cast<const char*>(tokens.data()), static_cast<size_t>(4 * n));
  }
  if (has_examples()) {
    sample.append(reinterpret_cast<const char*>(starts_.data()), 8 * starts_.size());
    sample.append(reinterpret_cast<const char*>(counted_.data()), counted_.size());
    if (packs_) sample += "packed";
    if (rows_ > 1) sample += "preferences";
  }
  return hash_of(sample);
}

void Corpus::set_holdout(double holdout) {
  if (!(holdout >= 0 && holdout < 1))
    fail_usage("holdout = {} is not a share: from 0 (nothing held out) to below 1, for example 0.1", holdout);
  train_ = static_cast<int64_t>(static_cast<double>(documents_ ? all_.count : examples_or_tokens()) *
                                (1 - holdout));
  if (!documents_) return;
  // Documents are held out whole: those that begin behind this token, and the last one at least.
  train_ = std::lower_bound(starts_.begin(), starts_.end(), train_) - starts_.begin();
  const int64_t count = examples_or_tokens();
  if (holdout == 0) return;
  train_ = std::clamp<int64_t>(train_, 0, std::max<int64_t>(1, count - 1));
  // One of them at least has a token to predict.
  const auto has_none = [&] { return all_.count - starts_[static_cast<size_t>(train_)] == count - train_; };
  while (train_ > 1 && has_none()) --train_;
}

namespace {

int32_t ending_of(const Corpus& corpus, const DocumentOptions& options) {
  if (options.ending_id) return *options.ending_id;
  const Tokenizer* tokenizer = corpus.tokenizer();
  const Json special = tokenizer == nullptr ? Json() : special_tokens_of(*tokenizer);
  const std::string* text = options.ending ? &*options.ending : as_string(find_member(special, "eos_token"));
  if (text == nullptr)
    fail_usage("packing of '{}' needs 'ending', the token behind each document{}", corpus.name(),
               tokenizer == nullptr ? ", as a number: there is no vocabulary that names one"
                                    : ": the tokenizer names none");
  if (tokenizer == nullptr)
    fail_usage("ending = \"{}\" needs the vocabulary of '{}'; a token's number does not", *text,
               corpus.name());
  const std::vector<int32_t> ids = tokenizer->encode(*text);
  if (ids.size() != 1)
    fail_usage("ending = \"{}\" is {} tokens; one token stands behind each document", *text, ids.size());
  return ids[0];
}

}  // namespace

void Corpus::divide(const DocumentOptions& options, std::span<const std::vector<int64_t>> known) {
  std::optional<int32_t> ending;
  bool ends = false;
  starts_ = {0};
  const auto begin_at = [&](int64_t token) {
    if (token > starts_.back()) starts_.push_back(token);
  };
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const TokenPiece& piece = pieces_[p];
    if (p < known.size() && !known[p].empty()) {
      for (const int64_t token : known[p]) begin_at(piece.first + token);
      begin_at(piece.first + piece.count);
      continue;
    }
    if (!ending) ending = ending_of(*this, options);
    for (int64_t i = 0; i < piece.count; ++i) {
      if (token_at(piece.data + i * all_.width, all_.width) != *ending) continue;
      begin_at(piece.first + i + 1);
      ends = true;
    }
  }
  if (ending && !ends)
    fail_usage("'{}' does not have the token {}, which {}", name_, *ending,
               options.ending || options.ending_id
                   ? "'ending' says stands behind each document"
                   : "by its vocabulary stands behind each document; 'ending' names another one");
  begin_at(all_.count);
  packs_ = documents_ = true;
}

int64_t Corpus::examples_or_tokens() const {
  return has_examples() ? (static_cast<int64_t>(starts_.size()) - 1) / rows_ : all_.count;
}

int64_t Corpus::examples(Split split) const {
  return split == Split::train ? train_ : examples_or_tokens() - train_;
}

Example Corpus::example(Split split, int64_t index, int64_t row) const {
  HET_REQUIRE(index >= 0 && index < examples(split) && row >= 0 && row < rows_, index, row);
  const auto which = static_cast<size_t>((index + (split == Split::train ? 0 : train_)) * rows_ + row);
  const int64_t begin = starts_[which];
  return {all_.part(begin, starts_[which + 1] - begin), counted_.empty() ? nullptr : counted_.data() + begin};
}

TokenView Corpus::view(Split split) const {
  const int64_t first = has_examples() ? starts_[static_cast<size_t>(train_ * rows_)] : train_;
  return split == Split::train ? all_.part(0, first) : all_.part(first, all_.count - first);
}

std::shared_ptr<const Corpus> Corpus::from_text(const TextCorpusOptions& options) {
  std::shared_ptr<Corpus> corpus(new Corpus);
  corpus->name_ = options.path.text;
  std::unique_ptr<MappedFile> file;
  FolderText folder;
  std::string_view text;
  const DataFiles found = data_files(options.path);
  if (found.files[0].path.text != options.path.text) {
    folder = read_texts(found, options.path.text, options.most_bytes);
    text = folder.text;
    corpus->files_ = folder.files;
    corpus->skipped_ = folder.skipped;
  } else {
    file = std::make_unique<MappedFile>(options.path);
    text = file->text();
    require_known_format(text, options.path.text);
    corpus->files_ = 1;
    if (text.empty()) fail_usage("'{}' is empty: there is nothing to train on", options.path.text);
  }
  const bool is_of_text = options.vocabulary.is_null() && options.tokenizer == "char";
  if (!options.vocabulary.is_null())
    corpus->tokenizer_ = tokenizer_from_json(options.vocabulary, "the vocabulary given");
  else if (!is_of_text)
    corpus->tokenizer_ = make_tokenizer(options.tokenizer, "", options.model);
  with_context([&] { return fmt::format("the text '{}'", options.path.text); },
               [&] {
                 if (is_of_text) corpus->tokenizer_ = make_tokenizer(options.tokenizer, text, options.model);
                 corpus->vocabulary_ = corpus->tokenizer_->vocabulary_size();
                 const auto keep = [&](auto tokens, int width) {
                   corpus->add_piece(reinterpret_cast<const std::byte*>(tokens->data()),
                                     static_cast<int64_t>(tokens->size()), width);
                   corpus->storage_ = std::move(tokens);
                 };
                 if (corpus->vocabulary_ <= 65536)
                   keep(encode_as<uint16_t>(*corpus->tokenizer_, text), 2);
                 else
                   keep(encode_as<uint32_t>(*corpus->tokenizer_, text), 4);
               });
  if (options.documents.packing) corpus->divide(options.documents, {});
  corpus->set_holdout(options.holdout);
  return corpus;
}

namespace {

void require_vocabulary(int64_t tokens) {
  if (tokens < 1 || tokens >= kMostVocabulary)
    fail_usage("a vocabulary of {} tokens is not possible", tokens);
}

}  // namespace

std::shared_ptr<const Corpus> Corpus::from_tokens(const TokenCorpusOptions& options) {
  if (options.width != 16 && options.width != 32)
    fail_usage("tokens of {} bits are not read; a token file has 16 or 32", options.width);
  std::shared_ptr<Corpus> corpus(new Corpus);
  corpus->name_ = options.path.text;
  auto files = std::make_shared<std::vector<TokenFile>>();
  std::vector<std::vector<int64_t>> documents;
  int64_t most = 0;
  for (const Path& where : token_files(options.path)) {
    const std::string& path = where.text;
    const TokenFile& tokens = files->emplace_back(open_tokens(where, options.width));
    if (tokens.width != files->front().width)
      fail_usage("'{}' has tokens of {} bits, '{}' of {}; the shards of a folder have one width", path,
                 8 * tokens.width, files->front().file->path(), 8 * files->front().width);
    corpus->add_piece(tokens.data, tokens.count, tokens.width);
    ++corpus->files_;
    if (options.documents.packing) documents.push_back(indexed_documents(tokens));
    if (options.vocabulary != 0 || !options.tokenizer.is_null() || !options.tokenizer_kind.empty()) continue;
    uint32_t greatest = 0;
    for (int64_t i = 0; i < tokens.count; ++i)
      greatest =
          std::max(greatest, static_cast<uint32_t>(token_at(tokens.data + i * tokens.width, tokens.width)));
    if (int64_t{greatest} + 1 >= kMostVocabulary)
      fail_usage(
          "'{}' holds the token {}, above every vocabulary (at most {}); is it a file of {}-bit tokens?",
          path, greatest, kMostVocabulary, tokens.width == 4 ? 16 : 32);
    most = std::max(most, int64_t{greatest});
  }
  corpus->storage_ = std::move(files);
  if (!options.tokenizer.is_null())
    corpus->tokenizer_ = tokenizer_from_json(options.tokenizer, "the vocabulary given");
  else if (!options.tokenizer_kind.empty())
    corpus->tokenizer_ = make_tokenizer(options.tokenizer_kind, "", options.tokenizer_model);
  const int64_t known = corpus->tokenizer_ ? corpus->tokenizer_->vocabulary_size() : 0;
  corpus->vocabulary_ = options.vocabulary != 0 ? options.vocabulary : known != 0 ? known : most + 1;
  require_vocabulary(corpus->vocabulary_);
  if (known > corpus->vocabulary_)
    fail_usage("vocab = {} is less than the {} tokens of the vocabulary given", corpus->vocabulary_, known);
  if (options.documents.packing) corpus->divide(options.documents, documents);
  corpus->set_holdout(options.holdout);
  return corpus;
}

std::shared_ptr<const Corpus> Corpus::from_mixture(std::vector<MixedCorpus> sources) {
  std::shared_ptr<Corpus> corpus(new Corpus);
  std::vector<double> weights, held;
  std::vector<std::string> names;
  std::optional<std::string> vocabulary;  // of the first that has a tokenizer
  for (const MixedCorpus& source : sources) {
    const Corpus& own = *source.corpus;
    weights.push_back(source.weight);
    held.push_back(own.holds_out() ? source.weight : 0);
    names.push_back(own.name());
    if (own.rows() != sources[0].corpus->rows())
      fail_usage("'{}' and '{}' do not mix: one of them holds preferences", sources[0].corpus->name(),
                 own.name());
    corpus->rows_ = own.rows();
    corpus->vocabulary_ = std::max(corpus->vocabulary_, own.vocabulary_size());
    corpus->files_ += own.files();
    corpus->skipped_ += own.skipped();
    if (own.tokenizer() == nullptr) continue;
    const std::string its = dump(own.tokenizer()->to_json());
    if (vocabulary && *vocabulary != its)
      fail_usage("'{}' and '{}' have different vocabularies; give them one, by `model` or `vocabulary`",
                 corpus->name_, own.name());
    if (vocabulary) continue;
    vocabulary = its;
    corpus->name_ = own.name();
    corpus->tokenizer_ = own.tokenizer_;
  }
  corpus->mixture_[0].emplace(weights);
  if (std::any_of(held.begin(), held.end(), [](double weight) { return weight > 0; }))
    corpus->mixture_[1].emplace(held);
  corpus->name_ = fmt::format("{}", fmt::join(names, " + "));
  corpus->sources_ = std::move(sources);
  return corpus;
}

std::shared_ptr<const Corpus> Corpus::undivided(Split split) const {
  std::shared_ptr<Corpus> all(new Corpus(*this));
  all->all_.pieces = all->pieces_;
  all->train_ = split == Split::train ? examples_or_tokens() : 0;
  std::vector<double> weights;
  for (MixedCorpus& source : all->sources_) {
    source.corpus = source.corpus->undivided(split);
    weights.push_back(source.weight);
  }
  all->mixture_[1].reset();
  if (split == Split::holdout && !weights.empty()) all->mixture_[1].emplace(weights);
  return all;
}

Corpus::Sample Corpus::sample(Split split, int64_t number) const {
  const auto& mixture = mixture_[split == Split::train ? 0 : 1];
  if (!mixture) return {*this, number};
  const auto [source, its] = mixture->place(number);
  return sources_[source].corpus->sample(split, its);
}

std::shared_ptr<const Corpus> Corpus::from_ids(const std::vector<int32_t>& ids, int64_t vocabulary,
                                               double holdout) {
  std::shared_ptr<Corpus> corpus(new Corpus);
  require_vocabulary(vocabulary);
  for (const int32_t id : ids)
    if (id < 0 || id >= vocabulary) fail_usage("token id {} is outside the vocabulary of {}", id, vocabulary);
  auto tokens = std::make_shared<std::vector<int32_t>>(ids);
  corpus->name_ = "the tokens given";
  corpus->add_piece(reinterpret_cast<const std::byte*>(tokens->data()), static_cast<int64_t>(tokens->size()),
                    4);
  corpus->storage_ = std::move(tokens);
  corpus->vocabulary_ = vocabulary;
  corpus->set_holdout(holdout);
  return corpus;
}

}  // namespace het
