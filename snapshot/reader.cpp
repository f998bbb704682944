#include "snapshot/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/error.h"

namespace het {
namespace {

int64_t bytes_of_chunk(int64_t unit_bytes, int64_t number) {
  return std::min(kSnapshotChunk, unit_bytes - number * kSnapshotChunk);
}

}  // namespace

std::shared_ptr<const SnapshotFile> SnapshotFile::open(const Path& path, SnapshotAccess access) {
  return std::shared_ptr<const SnapshotFile>(new SnapshotFile(path, access));
}

SnapshotFile::SnapshotFile(const Path& path, SnapshotAccess access) : file_(path) {
  if (access == SnapshotAccess::mapped || (access == SnapshotAccess::automatic && file_.is_local))
    mapped_.emplace(file_);
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
  file_.read_at(0, page.data(), std::min(kSnapshotPage, file_.bytes));
  const SnapshotHeader header = parse_header(
      std::span(page).first(static_cast<size_t>(std::min(kSnapshotPage, file_.bytes))), file_.bytes, path());
  std::vector<std::byte> message(static_cast<size_t>(header.manifest_bytes));
  file_.read_at(header.manifest_offset, message.data(), header.manifest_bytes);
  if (crc32c(message.data(), header.manifest_bytes) != header.manifest_checksum)
    fail_usage("'{}' is damaged: the manifest does not match its checksum", path());
  manifest_ = parse_manifest(message, header.manifest_offset, path());
}

std::string SnapshotFile::damage_of(size_t index, int64_t number) const {
  const SnapshotUnit& unit = manifest_.units[index];
  return fmt::format("'{}' is damaged: chunk {} of {} of '{}' {}, at byte {}, does not match its checksum",
                     path(), number + 1, unit.checksums.size(), manifest_.tensors[unit.tensor].name,
                     to_string(unit.slice), unit.offset + number * kSnapshotChunk);
}

const std::byte* SnapshotFile::chunk(size_t index, int64_t number, std::vector<std::byte>& scratch) const {
  const SnapshotUnit& unit = manifest_.units[index];
  const int64_t bytes = bytes_of_chunk(manifest_.bytes_of(unit), number);
  const int64_t position = unit.offset + number * kSnapshotChunk;
  std::atomic<bool>& valid = valid_[static_cast<size_t>(first_chunk_[index] + number)];
  const std::byte* data = nullptr;
  if (mapped_) {
    data = mapped_->data() + position;
    if (valid.load(std::memory_order_acquire)) return data;
  } else {
    scratch.resize(static_cast<size_t>(bytes));
    file_.read_at(position, scratch.data(), bytes);
    data = scratch.data();
  }
  if (crc32c(data, bytes) != unit.checksums[static_cast<size_t>(number)])
    fail_usage("{}", damage_of(index, number));
  if (manifest_.tensors[unit.tensor].type.dtype == DType::boolean &&
      std::any_of(data, data + bytes, [](std::byte b) { return b > std::byte{1}; }))
    fail_usage("'{}' is no valid snapshot: '{}' has booleans other than 0 and 1", path(),
               manifest_.tensors[unit.tensor].name);
  valid.store(true, std::memory_order_release);
  return data;
}

Tensor SnapshotFile::read(size_t index, const TensorSlice& slice) const {
  const SnapshotUnit& unit = manifest_.units[index];
  const DType dtype = manifest_.tensors[unit.tensor].type.dtype;
  HET_REQUIRE(shared_elements(unit.slice, slice) == slice.elements(), to_string(unit.slice),
              to_string(slice));
  const int64_t bytes = manifest_.bytes_of(unit);
  std::vector<std::byte> scratch;
  if (mapped_ && slice == unit.slice && bytes > 0) {
    for (int64_t number = 0; number < chunks_of(bytes); ++number) chunk(index, number, scratch);
    mapped_->make_writable(unit.offset, bytes);
    auto* data = const_cast<std::byte*>(mapped_->data()) + unit.offset;
    return {std::make_shared<Buffer>(data, bytes, shared_from_this()),
            Layout::contiguous({dtype, slice.shape()})};
  }
  Tensor result({dtype, slice.shape()});
  int64_t current = -1;  // the chunk that `data` is
  const std::byte* data = nullptr;
  each_run(unit.slice, slice, het::bytes_of(dtype), [&](int64_t from, int64_t to, int64_t count) {
    while (count > 0) {
      const int64_t number = from / kSnapshotChunk, within = from % kSnapshotChunk;
      if (number != current) data = chunk(index, current = number, scratch);
      const int64_t piece = std::min(count, kSnapshotChunk - within);
      std::memcpy(result.bytes() + to, data + within, static_cast<size_t>(piece));
      from += piece;
      to += piece;
      count -= piece;
    }
  });
  return result;
}

std::vector<std::string> SnapshotFile::verify() const {
  std::vector<std::string> damages;
  std::vector<std::byte> bytes;
  for (size_t index = 0; index < manifest_.units.size(); ++index) {
    const SnapshotUnit& unit = manifest_.units[index];
    for (int64_t number = 0; number < static_cast<int64_t>(unit.checksums.size()); ++number) {
      bytes.resize(static_cast<size_t>(bytes_of_chunk(manifest_.bytes_of(unit), number)));
      // From the file, not the mapping: pages that were written to differ, and a bad disk ends in an error.
      file_.read_at(unit.offset + number * kSnapshotChunk, bytes.data(), static_cast<int64_t>(bytes.size()));
      if (crc32c(bytes.data(), static_cast<int64_t>(bytes.size())) !=
          unit.checksums[static_cast<size_t>(number)])
        damages.push_back(damage_of(index, number));
    }
  }
  return damages;
}

}  // namespace het
