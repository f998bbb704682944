// The listening socket of a process for a kind of connection that tcp_hello.h opens: the mesh, or the
// exchange of snapshots. It outlives generations: a connection whose Hello proves that it is of this run goes
// to the fabric of its generation; one of a lower generation is refused and learns the newest number; one of
// a higher generation is parked until that generation is opened here. Unauthenticated peers block no other:
// each has a deadline, and the oldest goes when there are too many.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/descriptor.h"
#include "core/comm/tcp_hello.h"
#include "core/net/socket.h"

namespace het {

struct AcceptorOptions {
  std::string address;                           // numeric, of this machine; never every address
  int port = 0;                                  // 0: any that is free
  std::string run;                               // its name: both ends of a connection have the same
  std::string secret;                            // and this; 16 bytes or more
  std::chrono::milliseconds hello_within{2000};  // of an accepted connection; then it is closed
  size_t unauthenticated = 64;                   // at once
  size_t parked = 64;                            // at once
  std::chrono::milliseconds park_for{5000};      // then the other end has to connect again
  // Gets a sentence about a peer that was not let in, one for each address and only a few; on the acceptor's
  // thread. Calls nothing here.
  std::function<void(const std::string& sentence)> warn;
};

// Thread-safe; has a thread.
class Acceptor {
 public:
  // A connection that proved itself. Whoever takes it answers with a Reply.
  struct Arrival {
    Hello hello;
    std::string greeting, message;  // what the Reply refers to
    Descriptor socket;
    std::string who;  // "10.0.0.7:4711"
  };
  using Deliver = std::function<void(Arrival)>;

  // Throws Error(usage) for a short secret or an address that is not this machine's, Error(environment) when
  // the port is taken.
  explicit Acceptor(AcceptorOptions options);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }
  const AcceptorOptions& options() const { return options_; }

  // From now on connections of `generation`, parked ones first, go to `deliver`, which is called by one
  // thread at a time and calls nothing here but answer(). The number is higher than of every generation
  // before.
  void open(int64_t generation, Deliver deliver);
  // No call of its `deliver` comes any more; connections of `generation` are refused.
  void close(int64_t generation);

  // Send the Reply. False: the connection is closed already.
  bool answer(const Arrival& arrival, Reply reply) const;
  // Addresses of peers that did not know the secret, a few of them.
  std::vector<std::string> rejected() const;

 private:
  struct Unauthenticated {
    Descriptor socket;
    std::string who, greeting, bytes;
    Deadline until;
  };
  struct Parked {
    Arrival arrival;
    Deadline until;
  };

  void serve();
  std::chrono::milliseconds next_deadline(Deadline now) const;
  void accept_all(Deadline now);
  void read(Unauthenticated& peer, Deadline now);
  void sort(Arrival arrival, Deadline now);
  void drop_late(Deadline now);
  void warn_of(const std::string& who, const char* reason);

  const AcceptorOptions options_;
  const std::string run_;  // digest
  Endpoint endpoint_;
  Descriptor listener_, wake_;
  std::atomic<bool> ending_ = false;
  mutable std::mutex mutex_;  // of all below
  int64_t newest_ = -1;       // opened
  Deliver deliver_;           // of the newest generation; absent: it is closed
  std::list<Unauthenticated> unauthenticated_;
  std::list<Parked> parked_;
  Deadline deaf_until_{};
  std::set<std::string> rejected_, warned_;
  std::thread thread_;
};

}  // namespace het
