#include "core/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/file.h"

namespace het {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = 1 << 20;                         // of text encoded at once
constexpr int64_t kHeaderBytes = 256 * 4;                       // of llm.c's token files
constexpr int32_t kMagicGpt2 = 20240520, kVersionGpt2 = 1;      // u16 tokens
constexpr int32_t kMagicLlama3 = 20240801, kVersionLlama3 = 7;  // u32 tokens
constexpr int64_t kMostVocabulary = int64_t{1} << 31;

bool is_text(std::string_view content) {
  return content.find('\0') == std::string_view::npos && find_invalid_utf8(content) == std::string_view::npos;
}

// Regular files of a folder and the folders in it, sorted by path. Links to files count, links to folders are
// not followed: they may lead in a circle.
std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error), end;
  while (!error && entry != end) {
    std::error_code ignored;  // a file that vanished or cannot be looked at is no regular file
    if (entry->is_regular_file(ignored)) paths.push_back(entry->path().string());
    entry.increment(error);
  }
  if (error) fail_usage("cannot read the folder '{}': {}", folder, error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

struct FolderText {
  std::string text;
  int files = 0, skipped = 0;
};

FolderText read_folder(const std::string& folder, int64_t most_bytes) {
  FolderText result;
  for (const std::string& path : files_of(folder)) {
    std::error_code error;
    const int64_t bytes = static_cast<int64_t>(fs::file_size(path, error));
    if (error || bytes == 0) continue;
    if (static_cast<int64_t>(result.text.size()) + bytes > most_bytes) {
      ++result.skipped;
      continue;
    }
    const std::string content = read_file(path);
    if (!is_text(content)) {
      ++result.skipped;
      continue;
    }
    result.text += content;
    ++result.files;
  }
  if (result.files == 0)
    fail_usage("the folder '{}' holds no text files{}", folder,
               result.skipped == 0
                   ? ""
                   : fmt::format(": its {} files are binary, not UTF-8, or larger than {} together",
                                 result.skipped, show_bytes(static_cast<double>(most_bytes))));
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

int32_t int_at(const MappedFile& file, int64_t index) {
  int32_t value;
  std::memcpy(&value, file.data() + 4 * index, 4);
  return value;
}

}  // namespace

std::string_view name_of(Split split) { return split == Split::train ? "train" : "holdout"; }

Split split_named(std::string_view name) {
  if (name == "train") return Split::train;
  if (name == "holdout") return Split::holdout;
  fail_usage("there is no split '{}'; there are 'train' and 'holdout'", name);
}

int32_t TokenView::operator[](int64_t i) const {
  if (width == 2) {
    uint16_t token;
    std::memcpy(&token, data + 2 * i, 2);
    return token;
  }
  uint32_t token;
  std::memcpy(&token, data + 4 * i, 4);
  return static_cast<int32_t>(token);
}

void TokenView::copy(int64_t first, int64_t n, int32_t* to) const {
  HET_REQUIRE(first >= 0 && n >= 0 && first + n <= count, first, n, count);
  for (int64_t i = 0; i < n; ++i) to[i] = (*this)[first + i];
}

void Corpus::set_holdout(double holdout) {
  if (!(holdout >= 0 && holdout < 1))
    fail_usage("holdout = {} is not a share: from 0 (nothing held out) to below 1, for example 0.1", holdout);
  train_ = static_cast<int64_t>(static_cast<double>(all_.count) * (1 - holdout));
}

TokenView Corpus::view(Split split) const {
  return split == Split::train ? all_.part(0, train_) : all_.part(train_, all_.count - train_);
}

std::shared_ptr<const Corpus> Corpus::from_text(const TextCorpusOptions& options) {
  std::shared_ptr<Corpus> corpus(new Corpus);
  corpus->name_ = options.path;
  std::error_code error;
  std::unique_ptr<MappedFile> file;
  FolderText folder;
  std::string_view text;
  if (fs::is_directory(options.path, error)) {
    folder = read_folder(options.path, options.most_bytes);
    text = folder.text;
    corpus->files_ = folder.files;
    corpus->skipped_ = folder.skipped;
  } else {
    file = std::make_unique<MappedFile>(options.path);
    text = file->text();
    corpus->files_ = 1;
    if (text.empty()) fail_usage("'{}' is empty: there is nothing to train on", options.path);
  }
  with_context([&] { return fmt::format("the text '{}'", options.path); },
               [&] {
                 corpus->tokenizer_ = options.vocabulary.is_null()
                                          ? make_tokenizer(options.tokenizer, text, options.model)
                                          : tokenizer_from_json(options.vocabulary, "the vocabulary given");
                 corpus->vocabulary_ = corpus->tokenizer_->vocabulary_size();
                 const auto keep = [&](auto tokens, int width) {
                   corpus->all_ = {reinterpret_cast<const std::byte*>(tokens->data()), width,
                                   static_cast<int64_t>(tokens->size())};
                   corpus->storage_ = std::move(tokens);
                 };
                 if (corpus->vocabulary_ <= 65536)
                   keep(encode_as<uint16_t>(*corpus->tokenizer_, text), 2);
                 else
                   keep(encode_as<uint32_t>(*corpus->tokenizer_, text), 4);
               });
  corpus->set_holdout(options.holdout);
  return corpus;
}

std::shared_ptr<const Corpus> Corpus::from_tokens(const TokenCorpusOptions& options) {
  if (options.width != 16 && options.width != 32)
    fail_usage("tokens of {} bits are not read; a token file has 16 or 32", options.width);
  auto file = std::make_shared<const MappedFile>(options.path);
  if (file->bytes() == 0) fail_usage("'{}' is empty: there is nothing to train on", options.path);
  std::shared_ptr<Corpus> corpus(new Corpus);
  corpus->name_ = options.path;
  int width = options.width / 8;
  const bool gpt2 =
      file->bytes() >= kHeaderBytes && int_at(*file, 0) == kMagicGpt2 && int_at(*file, 1) == kVersionGpt2;
  const bool llama3 =
      file->bytes() >= kHeaderBytes && int_at(*file, 0) == kMagicLlama3 && int_at(*file, 1) == kVersionLlama3;
  if (gpt2 || llama3) {
    width = gpt2 ? 2 : 4;
    const int64_t said = int_at(*file, 2), bytes = file->bytes() - kHeaderBytes;
    if (said < 0 || said * width != bytes)
      fail_usage("'{}' is damaged: its header says {} tokens of {} bytes, but {} bytes follow it",
                 options.path, said, width, bytes);
    corpus->all_ = {file->data() + kHeaderBytes, width, said};
    if (said == 0) fail_usage("'{}' holds a header but no tokens", options.path);
  } else {
    if (file->bytes() % width != 0)
      fail_usage(
          "'{}' has {} bytes, which is no whole number of {}-bit tokens; it is truncated, or of another "
          "width",
          options.path, file->bytes(), options.width);
    corpus->all_ = {file->data(), width, file->bytes() / width};
  }
  corpus->storage_ = file;
  corpus->vocabulary_ = options.vocabulary;
  if (options.vocabulary == 0) {
    uint32_t most = 0;
    for (int64_t i = 0; i < corpus->all_.count; ++i)
      most = std::max(most, static_cast<uint32_t>(corpus->all_[i]));
    if (int64_t{most} + 1 >= kMostVocabulary)
      fail_usage("'{}' holds the token {}, which is none; is it a file of {}-bit tokens?", options.path, most,
                 width == 4 ? 16 : 32);
    corpus->vocabulary_ = int64_t{most} + 1;
  }
  if (corpus->vocabulary_ < 1) fail_usage("a vocabulary of {} tokens is not possible", corpus->vocabulary_);
  corpus->set_holdout(options.holdout);
  return corpus;
}

std::shared_ptr<const Corpus> Corpus::from_ids(const std::vector<int32_t>& ids, int64_t vocabulary,
                                               double holdout) {
  std::shared_ptr<Corpus> corpus(new Corpus);
  for (const int32_t id : ids)
    if (id < 0 || id >= vocabulary) fail_usage("token id {} is outside the vocabulary of {}", id, vocabulary);
  auto tokens = std::make_shared<std::vector<int32_t>>(ids);
  corpus->name_ = "the tokens given";
  corpus->all_ = {reinterpret_cast<const std::byte*>(tokens->data()), 4,
                  static_cast<int64_t>(tokens->size())};
  corpus->storage_ = std::move(tokens);
  corpus->vocabulary_ = vocabulary;
  corpus->set_holdout(holdout);
  return corpus;
}

}  // namespace het
