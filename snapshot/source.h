// Where the bytes of a snapshot file are read from: a file, mapped or with pread, or an object in a store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/io/file.h"
#include "snapshot/store/store.h"

namespace het {

// How a file is read: mapped, or with pread, as on network file systems.
enum class SnapshotAccess : uint8_t { automatic, mapped, read };

// Used from several threads.
class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  virtual const std::string& name() const = 0;  // the path, or the URL
  virtual int64_t bytes() const = 0;
  // Throws Error where the bytes cannot be had.
  virtual void read_at(int64_t position, std::byte* to, int64_t count) const = 0;
  virtual const MappedFile* mapped() const { return nullptr; }
};

// Throws Error(usage) when there is no such file or object.
std::unique_ptr<const SnapshotSource> file_source(const Path& path,
                                                  SnapshotAccess access = SnapshotAccess::automatic);
std::unique_ptr<const SnapshotSource> object_source(std::shared_ptr<ObjectStore> store,
                                                    const std::string& key);

}  // namespace het
