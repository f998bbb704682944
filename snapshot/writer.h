// Writes snapshot files: data and manifest first, then the header, then the name. Whatever stops the writer
// at any point, the path holds the previous file or the whole new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/io/files.h"
#include "snapshot/manifest.h"

namespace het {

// A part of a tensor that is to be written.
struct SnapshotPart {
  std::string tensor;  // one of SnapshotManifest::tensors
  TensorSlice slice;
  // Copies the bytes [begin, begin + bytes) of the packed elements of the slice to `to`. Called in ascending
  // order on the thread that writes the snapshot.
  std::function<void(std::byte* to, int64_t begin, int64_t bytes)> read;
};

// The manifest with the units of `parts`, where they lie in the file. Checksums are still missing.
SnapshotManifest lay_out(SnapshotManifest manifest, const std::vector<SnapshotPart>& parts);

// Where the data of a file that was laid out ends.
int64_t end_of_data(const SnapshotManifest& manifest);

// Write a snapshot of `parts` to `path`, with direct I/O where the file system has it. `manifest` describes
// all but the units. Returns the manifest as written. Throws what `read` throws, Error(usage) where the path
// cannot be written, and Error(environment) when the disk is full or fails. `staged`: as AtomicFile::stage
// leaves it.
SnapshotManifest write_snapshot(const Path& path, SnapshotManifest manifest,
                                const std::vector<SnapshotPart>& parts, bool staged = false);

}  // namespace het
