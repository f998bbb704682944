#include "snapshot/slot.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "snapshot/layout.h"
#include "snapshot/snapshot.h"

namespace het {

SnapshotSlot::SnapshotSlot(std::string folder, std::string name)
    : folder_(std::move(folder)), name_(std::move(name)) {}

SnapshotSlot::~SnapshotSlot() { unmap(); }

void SnapshotSlot::unmap() {
  if (mapped_ != nullptr) munmap(mapped_, static_cast<size_t>(mapped_bytes_));
  mapped_ = nullptr;
  mapped_bytes_ = 0;
}

void SnapshotSlot::open() {
  const std::string path = folder_ + "/" + name_;
  unmap();
  file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file_.number() < 0) fail_environment("cannot create '{}': {}", path, std::strerror(errno));
}

// The file is no snapshot from here on.
void SnapshotSlot::withdraw() {
  if (!published_.empty()) {
    const bool moved = std::rename(published_.c_str(), (folder_ + "/" + name_).c_str()) == 0;
    published_.clear();
    if (!moved) file_ = {};  // removed by someone: another file
  }
  if (file_.number() < 0) open();
  if (mapped_ != nullptr) std::memset(mapped_, 0, kSnapshotPage);  // the header
}

void SnapshotSlot::require(int64_t bytes) {
  if (bytes <= mapped_bytes_) return;
  unmap();
  // Without it the first write to a page without memory behind it would kill the process.
  if (const int error = posix_fallocate(file_.number(), 0, bytes); error != 0)
    fail_environment("no room for a snapshot of {} bytes in '{}': {}", bytes, folder_, std::strerror(error));
  void* const memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_POPULATE, file_.number(), 0);
  if (memory == MAP_FAILED)
    fail_environment("cannot map a snapshot of {} bytes in '{}': {}", bytes, folder_, std::strerror(errno));
  mapped_ = static_cast<std::byte*>(memory);
  mapped_bytes_ = bytes;
}

SnapshotManifest SnapshotSlot::write(SnapshotManifest manifest, const std::vector<SnapshotPart>& parts) {
  manifest = lay_out(std::move(manifest), parts);
  const int64_t data_end = end_of_data(manifest);
  withdraw();
  require(data_end);
  for (size_t i = 0; i < parts.size(); ++i) {
    SnapshotUnit& unit = manifest.units[i];
    const int64_t bytes = manifest.bytes_of(unit);
    for (int64_t begin = 0; begin < bytes; begin += kSnapshotChunk) {
      const int64_t count = std::min(kSnapshotChunk, bytes - begin);
      std::byte* const to = mapped_ + unit.offset + begin;
      parts[i].read(to, begin, count);
      unit.checksums.push_back(crc32c(to, count));  // while it is in the cache
    }
  }
  const std::vector<std::byte> message = encode_manifest(manifest);
  const auto message_bytes = static_cast<int64_t>(message.size());
  require(data_end + round_up_to_page(message_bytes));
  // At the end of the file, which never gets shorter: whoever has it mapped may still read all of it.
  const SnapshotHeader header{mapped_bytes_ - round_up_to_page(message_bytes), message_bytes,
                              crc32c(message.data(), message_bytes)};
  std::memcpy(mapped_ + header.manifest_offset, message.data(), message.size());
  const HeaderPage page = encode_header(header);
  std::memcpy(mapped_, page.data(), page.size());
  const std::string path = snapshot_path(Path(folder_), manifest).text;
  if (std::rename((folder_ + "/" + name_).c_str(), path.c_str()) != 0)
    fail_environment("cannot rename '{}/{}': {}", folder_, name_, std::strerror(errno));
  published_ = path;
  return manifest;
}

void SnapshotSlot::remove() {
  if (!published_.empty()) unlink(published_.c_str());
  unlink((folder_ + "/" + name_).c_str());
  published_.clear();
  unmap();
  file_ = {};
}

}  // namespace het
