// Offers this process's snapshot files to the members that keep replicas of them. Whoever offers waits for
// nothing: each peer has a thread and a queue of one, in which a newer file replaces one whose offer has not
// begun. So replicas lag behind where the network is slower than snapshots come, by a number that is known.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "snapshot/exchange_client.h"

namespace het {

struct ReplicaSenderOptions {
  ExchangeIdentity identity;
  Endpoint from;  // of the SnapshotServer that serves what is offered
  // Gets a sentence when a peer does not answer or keeps no replica, once until it keeps one again; on the
  // peer's thread.
  std::function<void(const std::string& sentence)> warn;
  std::chrono::milliseconds retry{1000};  // after which a peer that did not answer is asked again
};

// Thread-safe; has a thread for each peer.
class ReplicaSender {
 public:
  explicit ReplicaSender(ReplicaSenderOptions options);
  ~ReplicaSender();  // ends offers that are under way
  ReplicaSender(const ReplicaSender&) = delete;
  ReplicaSender& operator=(const ReplicaSender&) = delete;

  // `file`, as to_string(SnapshotName) gives it, has `bytes` and stays where it is served until the replica
  // is made, or a newer one is offered.
  void offer(const Endpoint& peer, const std::string& file, int64_t bytes);
  // The peer gets no more offers: it has left, or keeps other members' replicas.
  void forget(const Endpoint& peer);

  struct Peer {
    Endpoint endpoint;
    std::string stored;         // the last file that it has a replica of; empty: none
    int64_t behind = 0;         // offers after that one
    SnapshotTransfer transfer;  // all bytes so far
  };
  std::vector<Peer> peers() const;
  int64_t behind() const;  // of the peer that is furthest behind

 private:
  class Line;

  const ReplicaSenderOptions options_;
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, std::unique_ptr<Line>> lines_;
};

}  // namespace het
