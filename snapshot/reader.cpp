#include "snapshot/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/error.h"

namespace het {
namespace {

constexpr int64_t kWindow = 16;  // chunks that are read together where the file is not mapped

}  // namespace

// The chunks of a unit as a read comes to need them: in place where the file is mapped, else several that
// follow one another at once.
class SnapshotFile::ChunkReader {
 public:
  // `needed`: by chunk; they are asked for in ascending order.
  ChunkReader(const SnapshotFile& file, size_t index, std::vector<bool> needed)
      : file_(file), index_(index), needed_(std::move(needed)) {}

  const std::byte* get(int64_t number) {
    if (number == current_) return data_;
    current_ = number;
    if (file_.source_->mapped() != nullptr) return data_ = file_.mapped_chunk(index_, number);
    if (number < first_ || number >= end_) fetch(number);
    data_ = window_.data() + (number - first_) * kSnapshotChunk;
    file_.check(index_, number, data_);
    return data_;
  }

 private:
  void fetch(int64_t number) {
    const auto chunks = static_cast<int64_t>(needed_.size());
    first_ = end_ = number;
    int64_t bytes = 0;
    while (end_ < chunks && end_ - first_ < kWindow && needed_[static_cast<size_t>(end_)])
      bytes += file_.chunk_bytes(index_, end_++);
    window_.resize(static_cast<size_t>(bytes));
    file_.source_->read_at(file_.manifest_.units[index_].offset + first_ * kSnapshotChunk, window_.data(),
                           bytes);
  }

  const SnapshotFile& file_;
  const size_t index_;
  const std::vector<bool> needed_;
  int64_t current_ = -1;
  const std::byte* data_ = nullptr;  // of the current one
  int64_t first_ = 0, end_ = 0;      // chunks in the window
  std::vector<std::byte> window_;
};

std::shared_ptr<const SnapshotFile> SnapshotFile::open(std::unique_ptr<const SnapshotSource> source) {
  return std::shared_ptr<const SnapshotFile>(new SnapshotFile(std::move(source)));
}

SnapshotFile::SnapshotFile(std::unique_ptr<const SnapshotSource> source) : source_(std::move(source)) {
  read_headers();
  int64_t chunks = 0;
  for (const SnapshotUnit& unit : manifest_.units) {
    first_chunk_.push_back(chunks);
    chunks += static_cast<int64_t>(unit.checksums.size());
  }
  valid_ = std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(chunks));
}

// Both are read into memory of their own: what was checked cannot change afterwards.
void SnapshotFile::read_headers() {
  HeaderPage page{};
  const int64_t first = std::min(kSnapshotPage, bytes());
  source_->read_at(0, page.data(), first);
  const SnapshotHeader header =
      parse_header(std::span(page).first(static_cast<size_t>(first)), bytes(), path());
  std::vector<std::byte> message(static_cast<size_t>(header.manifest_bytes));
  source_->read_at(header.manifest_offset, message.data(), header.manifest_bytes);
  if (crc32c(message.data(), header.manifest_bytes) != header.manifest_checksum)
    fail_usage("'{}' is damaged: the manifest does not match its checksum", path());
  manifest_ = parse_manifest(message, header.manifest_offset, path());
}

int64_t SnapshotFile::chunk_bytes(size_t index, int64_t number) const {
  return std::min(kSnapshotChunk, manifest_.bytes_of(manifest_.units[index]) - number * kSnapshotChunk);
}

std::string SnapshotFile::damage_of(size_t index, int64_t number) const {
  const SnapshotUnit& unit = manifest_.units[index];
  return fmt::format("'{}' is damaged: chunk {} of {} of '{}' {}, at byte {}, does not match its checksum",
                     path(), number + 1, unit.checksums.size(), manifest_.tensors[unit.tensor].name,
                     to_string(unit.slice), unit.offset + number * kSnapshotChunk);
}

bool SnapshotFile::matches(size_t index, int64_t number, const std::byte* data) const {
  return crc32c(data, chunk_bytes(index, number)) ==
         manifest_.units[index].checksums[static_cast<size_t>(number)];
}

void SnapshotFile::check(size_t index, int64_t number, const std::byte* data) const {
  if (!matches(index, number, data)) fail_usage("{}", damage_of(index, number));
  const SnapshotTensor& tensor = manifest_.tensors[manifest_.units[index].tensor];
  if (tensor.type.dtype == DType::boolean &&
      std::any_of(data, data + chunk_bytes(index, number), [](std::byte b) { return b > std::byte{1}; }))
    fail_usage("'{}' is no valid snapshot: '{}' has booleans other than 0 and 1", path(), tensor.name);
}

const std::byte* SnapshotFile::mapped_chunk(size_t index, int64_t number) const {
  const std::byte* data = source_->mapped()->data() + manifest_.units[index].offset + number * kSnapshotChunk;
  std::atomic<bool>& valid = valid_[static_cast<size_t>(first_chunk_[index] + number)];
  if (!valid.load(std::memory_order_acquire)) {
    check(index, number, data);
    valid.store(true, std::memory_order_release);
  }
  return data;
}

// What lies side by side in a unit of a mapped file, from a byte of the unit on.
Tensor SnapshotFile::view(size_t index, int64_t begin, TensorType type) const {
  const int64_t bytes = type.bytes(), first = manifest_.units[index].offset + begin;
  for (int64_t number = begin / kSnapshotChunk; number * kSnapshotChunk < begin + bytes; ++number)
    mapped_chunk(index, number);
  const MappedFile& mapped = *source_->mapped();
  mapped.make_writable(first, bytes);
  auto* data = const_cast<std::byte*>(mapped.data()) + first;
  return {std::make_shared<Buffer>(data, bytes, shared_from_this()), Layout::contiguous(std::move(type))};
}

Tensor SnapshotFile::read(size_t index, const TensorSlice& slice) const {
  const SnapshotUnit& unit = manifest_.units[index];
  const DType dtype = manifest_.tensors[unit.tensor].type.dtype;
  HET_REQUIRE(shared_elements(unit.slice, slice) == slice.elements(), to_string(unit.slice),
              to_string(slice));
  const int64_t bytes = manifest_.bytes_of(unit), chunks = chunks_of(bytes);
  const bool all = slice == unit.slice && bytes > 0;
  const MappedFile* mapped = source_->mapped();
  if (mapped != nullptr && !slice.is_empty()) {
    const std::vector<Layout> boxes = views(slice, unit.slice, dtype);
    if (boxes.size() == 1 && boxes.front().is_contiguous())
      return view(index, boxes.front().offset * het::bytes_of(dtype), {dtype, slice.shape()});
  }
  Tensor result({dtype, slice.shape()});
  if (all) {
    source_->read_at(unit.offset, result.bytes(), bytes);
    for (int64_t number = 0; number < chunks; ++number)
      check(index, number, result.bytes() + number * kSnapshotChunk);
    return result;
  }
  std::vector<bool> needed(static_cast<size_t>(chunks));
  const int64_t element = het::bytes_of(dtype);
  if (mapped == nullptr)
    each_run(unit.slice, slice, element, [&](int64_t from, int64_t, int64_t count) {
      for (int64_t number = from / kSnapshotChunk; number * kSnapshotChunk < from + count; ++number)
        needed[static_cast<size_t>(number)] = true;
    });
  ChunkReader reader(*this, index, std::move(needed));
  each_run(unit.slice, slice, element, [&](int64_t from, int64_t to, int64_t count) {
    while (count > 0) {
      const int64_t number = from / kSnapshotChunk, within = from % kSnapshotChunk;
      const int64_t piece = std::min(count, kSnapshotChunk - within);
      std::memcpy(result.bytes() + to, reader.get(number) + within, static_cast<size_t>(piece));
      from += piece;
      to += piece;
      count -= piece;
    }
  });
  return result;
}

std::vector<std::string> SnapshotFile::verify() const {
  std::vector<std::string> damages;
  std::vector<std::byte> window;
  for (size_t index = 0; index < manifest_.units.size(); ++index) {
    const SnapshotUnit& unit = manifest_.units[index];
    const int64_t bytes = manifest_.bytes_of(unit), chunks = chunks_of(bytes);
    for (int64_t first = 0; first < chunks; first += kWindow) {
      const int64_t begin = first * kSnapshotChunk, count = std::min(kWindow * kSnapshotChunk, bytes - begin);
      window.resize(static_cast<size_t>(count));
      // From the file, not the mapping: pages that were written to differ, and a bad disk ends in an error.
      source_->read_at(unit.offset + begin, window.data(), count);
      for (int64_t number = first; number < std::min(first + kWindow, chunks); ++number)
        if (!matches(index, number, window.data() + (number - first) * kSnapshotChunk))
          damages.push_back(damage_of(index, number));
    }
  }
  return damages;
}

}  // namespace het
