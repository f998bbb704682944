// Reads snapshot files in place. Files come from strangers: the header and the manifest are checked when the
// file is opened, the data chunk by chunk before any of it is used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/tensor/tensor.h"
#include "snapshot/layout.h"
#include "snapshot/manifest.h"

namespace het {

// How the data is read: mapped, or with pread, as on network file systems.
enum class SnapshotAccess : uint8_t { automatic, mapped, read };

// Used from several threads.
class SnapshotFile : public std::enable_shared_from_this<SnapshotFile> {
 public:
  // Throws Error(usage) when the file is missing, unfinished, damaged or of another format.
  static std::shared_ptr<const SnapshotFile> open(const Path& path,
                                                  SnapshotAccess access = SnapshotAccess::automatic);

  const SnapshotManifest& manifest() const { return manifest_; }
  const std::string& path() const { return file_.path; }
  int64_t bytes() const { return file_.bytes; }

  // The elements of `slice`, packed, from the unit at `index` of the manifest, which has them all. All of a
  // unit in a mapped file is a view of the file; writing to the tensor changes what later reads of it give,
  // not the file. Throws Error(usage) naming the tensor and the chunk when the data does not match its
  // checksum.
  Tensor read(size_t index, const TensorSlice& slice) const;
  Tensor read(size_t index) const { return read(index, manifest_.units[index].slice); }

  // Check every chunk: what is damaged, as sentences.
  std::vector<std::string> verify() const;

 private:
  SnapshotFile(const Path& path, SnapshotAccess access);
  void read_headers();
  // The bytes of a chunk, checked; `scratch` holds them where the file is not mapped.
  const std::byte* chunk(size_t index, int64_t number, std::vector<std::byte>& scratch) const;
  std::string damage_of(size_t index, int64_t number) const;

  OpenFile file_;
  std::optional<MappedFile> mapped_;
  SnapshotManifest manifest_;
  std::vector<int64_t> first_chunk_;                    // of each unit
  mutable std::unique_ptr<std::atomic<bool>[]> valid_;  // by chunk; of mapped files
};

}  // namespace het
