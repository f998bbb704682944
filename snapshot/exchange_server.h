// Serves the snapshot files in folders of this process to other processes of the run: which there are, their
// bytes by range, and offers of files to keep replicas of. It has a listening socket and threads: one that
// lets peers in, and one for each connection. Names without folders are all that a peer can say; links and
// other files are not served. A file that is removed while a connection reads it stays readable there.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/tcp_acceptor.h"
#include "snapshot/exchange_connection.h"
#include "snapshot/exchange_protocol.h"

namespace het {

// What became of an offer: a replica, or why there is none. Thread-safe.
class OfferOutcome {
 public:
  OfferOutcome() = default;
  explicit OfferOutcome(SnapshotResponse response) { finish(std::move(response)); }
  // SnapshotTransfer or SnapshotRefusal. The first one counts.
  void finish(SnapshotResponse response);
  // Waits for it; nothing when `within` passes or `stop` is set before.
  std::optional<SnapshotResponse> wait(std::chrono::milliseconds within, const StopSignal& stop) const;

 private:
  mutable std::mutex mutex_;
  std::optional<SnapshotResponse> response_;
  StopSignal done_;
};

struct SnapshotServerOptions {
  std::string address;               // numeric, of this machine; never every address
  int port = 0;                      // 0: any that is free
  std::string run, secret;           // the secret has 16 bytes or more
  std::vector<std::string> folders;  // the nearest first: of two files of one name the first is served
  // What to do with an offer; absent: it is refused. Called by several threads, returns at once, may be
  // called until the server is gone.
  std::function<std::shared_ptr<OfferOutcome>(const SnapshotOffer&)> on_offer;
  // Gets a sentence about a peer that was cut off: it is not of the run, slow, or sends what is no request.
  // Called by several threads. Only a few times: a peer cannot fill a log.
  std::function<void(const std::string& sentence)> warn;
  // At most, at once. A new one ends the one that has asked nothing for longest, or is refused.
  size_t connections = 64;
  std::chrono::milliseconds hello_within{2000};  // of a new connection
  std::chrono::milliseconds progress{10'000};    // of a frame, or of 64 KiB of a file
  std::chrono::milliseconds idle{60'000};        // between requests
};

class SnapshotServer {
 public:
  // Throws Error(usage) for a short secret or an address that is not this machine's, Error(environment) when
  // the port is taken.
  static std::unique_ptr<SnapshotServer> start(SnapshotServerOptions options);
  // Ends all connections.
  ~SnapshotServer();
  SnapshotServer(const SnapshotServer&) = delete;
  SnapshotServer& operator=(const SnapshotServer&) = delete;

  const Endpoint& endpoint() const { return acceptor_->endpoint(); }

 private:
  struct Session;
  struct ServedFile;

  explicit SnapshotServer(SnapshotServerOptions options);
  void admit(Acceptor::Arrival arrival);
  bool make_room();
  void serve(Session& session);
  void answer(Session& session, ServedFile& file, const std::string& content);
  void answer(Session& session, ServedFile& file, const ListSnapshots&);
  void answer(Session& session, ServedFile& file, const ReadSnapshot& request);
  void answer(Session& session, ServedFile& file, const SnapshotOffer& offer);
  void respond(Session& session, const SnapshotResponse& response) const;
  ServedFile open(const std::string& name) const;
  void warn(const std::string& sentence);

  const SnapshotServerOptions options_;
  StopSignal stop_;
  std::atomic<size_t> offers_ = 0;  // that are waited for
  std::mutex mutex_;                // of what follows
  std::list<std::unique_ptr<Session>> sessions_;
  size_t warnings_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace het
