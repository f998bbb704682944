// What processes of a run say to each other about the snapshot files that they hold, as values, and their
// form in frames (exchange.capnp). A request is followed by its response; the bytes of a file follow the
// frame of SnapshotData. Readers take hostile bytes: what they return is in the ranges stated here, anything
// else is an Error(peer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "snapshot/snapshot.h"

namespace het {

inline constexpr size_t kMostExchangeFrameBytes = 1 << 20;
inline constexpr int64_t kMostBytesInFlight = 64 << 20;  // of files, asked for on one connection
inline constexpr size_t kMostListedFiles = 4096;         // the newest; they fit in a frame

struct ListSnapshots {
  bool operator==(const ListSnapshots&) const = default;
};
struct ReadSnapshot {
  std::string file;  // as to_string(SnapshotName) gives it
  int64_t offset = 0;
  int64_t bytes = 0;  // 1 to kMostBytesInFlight
  bool operator==(const ReadSnapshot&) const = default;
};
// A file that the receiver may keep a replica of.
struct SnapshotOffer {
  std::string file;   // as to_string(SnapshotName) gives it
  int64_t bytes = 0;  // of the whole file, at least 1
  std::string from;   // endpoint of the server that has it
  bool operator==(const SnapshotOffer&) const = default;
};
using SnapshotRequest = std::variant<ListSnapshots, ReadSnapshot, SnapshotOffer>;

// A file that a server holds.
struct ServedSnapshot {
  std::string file;
  SnapshotName name;  // what `file` says
  int64_t bytes = 0;
  int64_t folder = 0;  // index in the folders that are served, the nearest first
  bool operator==(const ServedSnapshot&) const = default;
};
struct SnapshotRefusal {
  std::string sentence;
  bool operator==(const SnapshotRefusal&) const = default;
};
struct SnapshotData {
  int64_t bytes = 0;       // that follow the frame: 1 to kMostBytesInFlight
  int64_t file_bytes = 0;  // of the whole file, at least `bytes`
  bool operator==(const SnapshotData&) const = default;
};
struct OfferPending {  // said once a second while a replica is made
  bool operator==(const OfferPending&) const = default;
};
// Bytes of a file that was fetched, but for padding: those that came from the peer, and those that a previous
// version had.
struct SnapshotTransfer {
  int64_t transferred = 0, copied = 0;
  bool operator==(const SnapshotTransfer&) const = default;
};
using SnapshotResponse =
    std::variant<SnapshotRefusal, std::vector<ServedSnapshot>, SnapshotData, OfferPending, SnapshotTransfer>;

// The content of a frame.
std::string encode_request(const SnapshotRequest& request);
std::string encode_response(const SnapshotResponse& response);
SnapshotRequest parse_request(std::string_view content);
SnapshotResponse parse_response(std::string_view content);

}  // namespace het
