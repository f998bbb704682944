// Reads snapshot files of other processes of the run from their SnapshotServers: lists, ranges of bytes, and
// whole files; chunks that a previous version has are not sent again. Every wait has an end; every
// failure is an Error(peer) that names the peer, or an Error(environment) of this machine's disk.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/files.h"
#include "snapshot/exchange_connection.h"
#include "snapshot/exchange_protocol.h"

namespace het {

// What a file that is fetched has to be, beyond what its name says.
struct FetchOptions {
  std::optional<Path> previous;  // an earlier version; its chunks may be copied
  std::optional<int64_t> bytes;  // of the whole file
  // A file beside the one to be made, written over and renamed where it is as long as that one; it is gone
  // then.
  std::optional<std::string> spent;
};

// Thread-safe: each call has a connection to itself, which is kept for the next one.
class PeerSnapshots {
 public:
  explicit PeerSnapshots(ExchangeIdentity identity) : identity_(std::move(identity)) {}
  PeerSnapshots(const PeerSnapshots&) = delete;
  PeerSnapshots& operator=(const PeerSnapshots&) = delete;

  // What the peer holds, the newest version first.
  std::vector<ServedSnapshot> list(const Endpoint& peer);
  // Bytes [offset, offset + bytes) of a file, unchecked: checksums are the reader's. Throws when the file has
  // fewer.
  void read_range(const Endpoint& peer, const std::string& file, int64_t offset, int64_t bytes, void* into);
  // The file, put at `into` when all of it is there and every chunk matches its checksum; until then, and
  // when anything fails, what was there stays. Uses the memory of a chunk and of two manifests.
  //
  // A chunk is copied from the previous file where both have the same slice of a tensor with the same
  // checksum, and checked again. Chunks that differ have equal checksums (CRC-32C) once in 2^32.
  SnapshotTransfer fetch(const Endpoint& peer, const std::string& file, const Path& into,
                         const FetchOptions& options = {});
  // Offers a file to the peer and waits until it has a replica (SnapshotTransfer) or says why not
  // (SnapshotRefusal).
  SnapshotResponse offer(const Endpoint& peer, const SnapshotOffer& offer);

  // Calls in progress, and all to come, end with an Error(peer).
  void stop() { stop_.set(); }
  bool is_stopped() const { return stop_.is_set(); }

 private:
  template <typename Body>
  auto with_connection(const Endpoint& peer, const Body& body);

  const ExchangeIdentity identity_;
  StopSignal stop_;
  std::mutex mutex_;  // of what follows
  std::list<std::pair<Endpoint, ExchangeConnection>> idle_;
};

}  // namespace het
