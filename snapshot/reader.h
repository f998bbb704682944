// Reads snapshot files in place, and those in a store by range: only what is asked for is fetched. Files come
// from strangers: the header and the manifest are checked when the file is opened, the data chunk by chunk
// before any of it is used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "snapshot/layout.h"
#include "snapshot/manifest.h"
#include "snapshot/source.h"

namespace het {

// Used from several threads.
class SnapshotFile : public std::enable_shared_from_this<SnapshotFile> {
 public:
  // Throws Error(usage) when the file is missing, unfinished, damaged or of another format.
  static std::shared_ptr<const SnapshotFile> open(const Path& path,
                                                  SnapshotAccess access = SnapshotAccess::automatic) {
    return open(file_source(path, access));
  }
  static std::shared_ptr<const SnapshotFile> open(std::unique_ptr<const SnapshotSource> source);

  const SnapshotManifest& manifest() const { return manifest_; }
  const std::string& path() const { return source_->name(); }  // or the URL
  int64_t bytes() const { return source_->bytes(); }

  // The elements of `slice`, packed, from the unit at `index` of the manifest, which has them all. What
  // lies side by side in a mapped file is a view of the file; writing to the tensor changes what later reads
  // of it give, not the file. Throws Error(usage) naming the tensor and the chunk when the data does not
  // match its checksum.
  Tensor read(size_t index, const TensorSlice& slice) const;
  Tensor read(size_t index) const { return read(index, manifest_.units[index].slice); }

  // Check every chunk: what is damaged, as sentences.
  std::vector<std::string> verify() const;

 private:
  class ChunkReader;

  explicit SnapshotFile(std::unique_ptr<const SnapshotSource> source);
  void read_headers();
  // Throws Error(usage) when the bytes of a chunk are not those that were written.
  void check(size_t index, int64_t number, const std::byte* data) const;
  bool matches(size_t index, int64_t number, const std::byte* data) const;
  const std::byte* mapped_chunk(size_t index, int64_t number) const;
  Tensor view(size_t index, int64_t begin, TensorType type) const;
  int64_t chunk_bytes(size_t index, int64_t number) const;
  std::string damage_of(size_t index, int64_t number) const;

  std::unique_ptr<const SnapshotSource> source_;
  SnapshotManifest manifest_;
  std::vector<int64_t> first_chunk_;                    // of each unit
  mutable std::unique_ptr<std::atomic<bool>[]> valid_;  // by chunk; of mapped files
};

}  // namespace het
