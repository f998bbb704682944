// The manifest of a snapshot file as a value, and its Cap'n Proto form (snapshot.capnp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/plan/history.h"
#include "core/tensor/slice.h"

namespace het {

struct SnapshotTensor {
  std::string name;
  TensorType type;       // of the whole
  bool trained = false;  // a parameter, not state of the optimizer
  bool operator==(const SnapshotTensor&) const = default;
};

// A part of a tensor: its packed elements.
struct SnapshotUnit {
  size_t tensor = 0;  // index in SnapshotManifest::tensors
  TensorSlice slice;
  int64_t offset = 0;               // bytes from the start of the file
  std::vector<uint32_t> checksums;  // CRC-32C of each chunk of kSnapshotChunk bytes
  bool operator==(const SnapshotUnit&) const = default;
};

struct SnapshotManifest {
  std::string run;
  Version version;
  History history;          // that led to `version`
  std::string plan;         // as a recipe writes it; empty: one device
  int rank = 0, ranks = 1;  // of the plan: who wrote the file
  int64_t cursor = 0;       // index of the next training sample
  int64_t seed = 0;
  std::string about;                    // JSON: settings and results that the Lua library keeps
  std::vector<SnapshotTensor> tensors;  // the whole state, ascending by name
  std::vector<SnapshotUnit> units;      // the parts in the file, ascending by offset

  int64_t bytes_of(const SnapshotUnit& unit) const;
  int64_t data_bytes() const;  // of all units
  bool operator==(const SnapshotManifest&) const = default;
};

// Whole words, as they stand in the file.
std::vector<std::byte> encode_manifest(const SnapshotManifest& manifest);

// `message`: at an address that is a multiple of 8. `data_end`: where the data of the file ends, in bytes.
// The message may come from strangers: everything that SnapshotManifest states is checked. Throws
// Error(usage) naming the file at `path`.
SnapshotManifest parse_manifest(std::span<const std::byte> message, int64_t data_end,
                                const std::string& path);

}  // namespace het
