// How a snapshot file is laid out:
//
//   header page | data of the units | manifest
//
// Every part begins at a multiple of 4096 bytes, so that files are written with direct I/O and read in place.
// The header says where the manifest is and carries its checksum; it is written last, after all else is on
// the disk. A file without a valid header was never finished.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

namespace het {

inline constexpr int64_t kSnapshotPage = 4096;
inline constexpr int64_t kSnapshotChunk = 4 << 20;  // of a unit, with a checksum of its own

constexpr int64_t round_up_to_page(int64_t bytes) {
  return (bytes + kSnapshotPage - 1) / kSnapshotPage * kSnapshotPage;
}
constexpr int64_t chunks_of(int64_t bytes) { return (bytes + kSnapshotChunk - 1) / kSnapshotChunk; }

// Host memory at a page boundary, for direct I/O.
struct FreePages {
  void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t(kSnapshotPage)); }
};
using PageMemory = std::unique_ptr<std::byte[], FreePages>;
inline PageMemory page_memory(int64_t bytes) {
  return PageMemory(new (std::align_val_t(kSnapshotPage)) std::byte[static_cast<size_t>(bytes)]);
}

struct SnapshotHeader {
  int64_t manifest_offset = 0;
  int64_t manifest_bytes = 0;  // a multiple of 8: Cap'n Proto counts in words
  uint32_t manifest_checksum = 0;
  bool operator==(const SnapshotHeader&) const = default;

  int64_t file_bytes() const { return manifest_offset + round_up_to_page(manifest_bytes); }
};

using HeaderPage = std::array<std::byte, kSnapshotPage>;
HeaderPage encode_header(const SnapshotHeader& header);
// `page`: the first bytes of a file of `file_bytes`. Throws Error(usage) naming the file at `path`.
SnapshotHeader parse_header(std::span<const std::byte> page, int64_t file_bytes, const std::string& path);

}  // namespace het
