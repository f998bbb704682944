#include "core/data/token_files.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "core/data/data_files.h"

namespace het {
namespace {

constexpr int64_t kHeaderBytes = 256 * 4;                       // of llm.c's token files
constexpr int32_t kMagicGpt2 = 20240520, kVersionGpt2 = 1;      // u16 tokens
constexpr int32_t kMagicLlama3 = 20240801, kVersionLlama3 = 7;  // u32 tokens

int32_t int_at(const MappedFile& file, int64_t index) {
  int32_t value;
  std::memcpy(&value, file.data() + 4 * index, 4);
  return value;
}

// Stricter than is_text(), since it refuses: ids have bytes that no text has, the upper ones of small ids are
// 0.
bool looks_like_text(const MappedFile& file) {
  constexpr int64_t kLeast = 64, kMost = 4096;
  const auto* bytes = reinterpret_cast<const unsigned char*>(file.data());
  return file.bytes() >= kLeast &&
         std::all_of(bytes, bytes + std::min(file.bytes(), kMost),
                     [](unsigned char c) { return c >= ' ' || c == '\t' || c == '\n' || c == '\r'; });
}

// What a file says of itself that cannot be read, if it begins as one of llm.c's. That raw tokens begin so is
// much less likely.
std::optional<std::string> unknown_format(const MappedFile& file) {
  if (file.bytes() < kHeaderBytes) return std::nullopt;
  const int32_t magic = int_at(file, 0), version = int_at(file, 1);
  for (const auto& [known, its_version] :
       {std::pair{kMagicGpt2, kVersionGpt2}, std::pair{kMagicLlama3, kVersionLlama3}})
    if (magic == known && version != its_version)
      return fmt::format("has llm.c's magic number {} with version {}; version {} is read", magic, version,
                         its_version);
  return std::nullopt;
}

// nanoGPT's raw tokens, or llm.c's behind a header.
TokenFile tokens_in(const MappedFile& file, int raw_width) {
  const auto starts_with = [&](int32_t magic, int32_t version) {
    return file.bytes() >= kHeaderBytes && int_at(file, 0) == magic && int_at(file, 1) == version;
  };
  require_known_format(file.text(), file.path());
  const bool gpt2 = starts_with(kMagicGpt2, kVersionGpt2);
  if (const auto unknown = unknown_format(file)) fail_usage("'{}' {}", file.path(), *unknown);
  if (!gpt2 && !starts_with(kMagicLlama3, kVersionLlama3)) {
    if (looks_like_text(file))
      fail_usage("'{}' holds text, not token ids; data.text reads text", file.path());
    if (file.bytes() % (raw_width / 8) != 0)
      fail_usage(
          "'{}' has {} bytes, which is no whole number of {}-bit tokens; it is truncated, or of another "
          "width",
          file.path(), file.bytes(), raw_width);
    return {nullptr, file.data(), file.bytes() / (raw_width / 8), raw_width / 8};
  }
  const int width = gpt2 ? 2 : 4;
  const int64_t said = int_at(file, 2), bytes = file.bytes() - kHeaderBytes;
  if (said < 0 || said * width != bytes)
    fail_usage("'{}' is damaged: its header says {} tokens of {} bytes, but {} bytes follow it", file.path(),
               said, width, bytes);
  if (said == 0) fail_usage("'{}' holds a header but no tokens", file.path());
  return {nullptr, file.data() + kHeaderBytes, said, width};
}

// What the index of a Megatron data set says: a header of 34 bytes, then the length of each sequence (int32),
// where each begins in the tokens, in bytes, and the first sequence of each document (int64).
struct MegatronIndex {
  static constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
  static constexpr int64_t kHeader = 34, kSequencesAt = 18, kDocumentsAt = 26;  // how many there are (uint64)
  int width = 0;                                                                // bytes of a token
  int64_t tokens = 0;
};

template <typename T>
T value_at(const MappedFile& file, int64_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

MegatronIndex read_index(const MappedFile& file) {
  const std::string& path = file.path();
  const auto damaged = [&](std::string_view why) { fail_usage("'{}' is damaged: {}", path, why); };
  if (!file.text().starts_with(MegatronIndex::kMagic) || file.bytes() < MegatronIndex::kHeader)
    fail_usage("'{}' is no index of Megatron's: it does not begin with MMIDIDX", path);
  if (const auto version = value_at<uint64_t>(file, 9); version != 1)
    fail_usage("'{}' is a Megatron index of version {}; version 1 is read", path, version);
  const auto type = value_at<uint8_t>(file, 17);
  if (type != 4 && type != 8)
    fail_usage(
        "'{}' says that its tokens are of type {}; 4 (int32) and 8 (uint16) are read, as Megatron's "
        "preprocess_data.py writes "
        "them",
        path, type);
  MegatronIndex index{.width = type == 8 ? 2 : 4};
  const auto sequences = value_at<uint64_t>(file, MegatronIndex::kSequencesAt),
             documents = value_at<uint64_t>(file, MegatronIndex::kDocumentsAt);
  const auto rest = static_cast<uint64_t>(file.bytes() - MegatronIndex::kHeader);
  if (sequences > rest / 12 || documents > rest / 8 || rest < 12 * sequences + 8 * documents)
    damaged("it ends before its last entry");
  const auto count = static_cast<int64_t>(sequences);
  for (int64_t i = 0; i < count; ++i) {
    const auto length = value_at<int32_t>(file, MegatronIndex::kHeader + 4 * i);
    const auto begin = value_at<int64_t>(file, MegatronIndex::kHeader + 4 * count + 8 * i);
    if (length < 0) damaged(fmt::format("sequence {} has {} tokens", i, length));
    if (begin != index.tokens * index.width)
      damaged(fmt::format("sequence {} begins at byte {}, the one before it ends at {}", i, begin,
                          index.tokens * index.width));
    index.tokens += length;
  }
  return index;
}

Path with_ending(const Path& bin, std::string_view ending) {
  return bin.with(bin.text.substr(0, bin.text.size() - 4) + std::string(ending));
}

TokenFile megatron_tokens(const MappedFile& file, const MappedFile& index_file) {
  const MegatronIndex index = read_index(index_file);
  if (index.tokens * index.width != file.bytes())
    fail_usage("'{}' has {} bytes, its index {} tokens of {} bytes", file.path(), file.bytes(), index.tokens,
               index.width);
  return {nullptr, file.data(), index.tokens, index.width};
}

// Of the file with this path; null: it has none.
std::shared_ptr<const MappedFile> index_of(const Path& path) {
  if (!path.text.ends_with(".bin")) return nullptr;
  const Path index = with_ending(path, ".idx");
  return kind_of(index) == FileKind::file ? std::make_shared<const MappedFile>(index) : nullptr;
}

}  // namespace

TokenFile open_tokens(const Path& path, int raw_width) {
  auto file = std::make_shared<const MappedFile>(path);
  if (file->bytes() == 0) fail_usage("'{}' is empty: there is nothing to train on", path.text);
  auto index = index_of(path);
  TokenFile tokens = index ? megatron_tokens(*file, *index) : tokens_in(*file, raw_width);
  tokens.file = std::move(file);
  tokens.index = std::move(index);
  return tokens;
}

std::vector<int64_t> indexed_documents(const TokenFile& tokens) {
  if (tokens.index == nullptr) return {};
  const MappedFile& file = *tokens.index;
  const auto sequences = value_at<int64_t>(file, MegatronIndex::kSequencesAt),
             documents = value_at<int64_t>(file, MegatronIndex::kDocumentsAt);
  const int64_t pointers = MegatronIndex::kHeader + 4 * sequences;
  std::vector<int64_t> begins;
  int64_t before = 0;
  for (int64_t d = 0; d < documents; ++d) {
    const auto first = value_at<int64_t>(file, pointers + 8 * sequences + 8 * d);
    if (first < before || first > sequences)
      fail_usage("'{}' is damaged: document {} begins with sequence {} of {}, the one before it with {}",
                 file.path(), d, first, sequences, before);
    before = first;
    begins.push_back(first == sequences ? tokens.count
                                        : value_at<int64_t>(file, pointers + 8 * first) / tokens.width);
  }
  return begins;
}

std::vector<Path> token_files(const Path& path) {
  if (kind_of(path) == FileKind::none && kind_of(path.with(path.text + ".idx")) == FileKind::file)
    return {path.with(path.text + ".bin")};  // as Megatron names its data sets
  std::vector<Path> paths;
  for (const DataFile& file : data_files(path, ".bin").files)
    if (!file.path.text.ends_with(".idx")) paths.push_back(file.path);  // that is read with its .bin
  return paths;
}

}  // namespace het
