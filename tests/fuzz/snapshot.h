// What every fuzzer of snapshots asks: the bytes of a manifest give one that holds what it promises, or an
// Error of the usage kind, and take no more memory than a few times their size; those of a header likewise.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "snapshot/layout.h"
#include "snapshot/manifest.h"

namespace het::fuzz {

// True when the manifest was accepted. Aborts when it breaks the promise.
inline bool snapshot_manifest(std::string_view bytes) {
  constexpr int64_t kDataEnd = 1 << 24;
  std::vector<uint64_t> words(bytes.size() / 8);
  std::copy_n(bytes.data(), 8 * words.size(), reinterpret_cast<char*>(words.data()));
  try {
    const SnapshotManifest manifest = parse_manifest(std::as_bytes(std::span(words)), kDataEnd, "fuzz");
    int64_t end = kSnapshotPage;
    for (const SnapshotUnit& unit : manifest.units) {
      if (unit.tensor >= manifest.tensors.size() || unit.offset < end) std::abort();
      if (unit.slice.whole_shape() != manifest.tensors[unit.tensor].type.shape) std::abort();
      end = unit.offset + manifest.bytes_of(unit);
      if (static_cast<int64_t>(unit.checksums.size()) != chunks_of(manifest.bytes_of(unit))) std::abort();
    }
    if (end > kDataEnd) std::abort();
    const std::vector<std::byte> again = encode_manifest(manifest);
    std::vector<uint64_t> aligned(again.size() / 8);
    std::memcpy(aligned.data(), again.data(), again.size());
    if (!(parse_manifest(std::as_bytes(std::span(aligned)), kDataEnd, "fuzz") == manifest)) std::abort();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
}

// True when the header was accepted.
inline bool snapshot_header(std::string_view file) {
  try {
    const auto size = static_cast<int64_t>(file.size());
    const SnapshotHeader header = parse_header(std::as_bytes(std::span(file)), size, "fuzz");
    if (header.manifest_offset < kSnapshotPage || header.file_bytes() != size) std::abort();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
}

}  // namespace het::fuzz
