// A snapshot file in the memory of the host, written again and again in place: its pages are there already,
// so that a snapshot costs one copy of the state and its checksums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/descriptor.h"
#include "snapshot/writer.h"

namespace het {

// Used from one thread.
class SnapshotSlot {
 public:
  // `folder` is there, and lies in the host's memory (tmpfs). `name`: of the file while it is no snapshot,
  // alone in the folder.
  SnapshotSlot(std::string folder, std::string name);
  ~SnapshotSlot();  // the file stays, as of a process that dies
  SnapshotSlot(const SnapshotSlot&) = delete;
  SnapshotSlot& operator=(const SnapshotSlot&) = delete;

  // Like write_snapshot, to snapshot_path() in the folder. What the slot held is gone from the start. Throws
  // Error(environment) when the memory has no room.
  SnapshotManifest write(SnapshotManifest manifest, const std::vector<SnapshotPart>& parts);

  // Of the snapshot that it holds; empty: none.
  const std::string& path() const { return published_; }
  int64_t bytes() const { return mapped_bytes_; }  // of memory
  void remove();                                   // the file, and the memory

 private:
  void withdraw();
  void require(int64_t bytes);
  void open();
  void unmap();

  const std::string folder_, name_;
  std::string published_;
  Descriptor file_;
  std::byte* mapped_ = nullptr;
  int64_t mapped_bytes_ = 0;
};

}  // namespace het
