// One end of a connection between processes of a run that exchange snapshot files: frames, and the bytes of
// files after them. The other end is cut off when it is slow: every wait ends in an Error(peer) that names
// it. Internal to the exchange. A connection is used by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/descriptor.h"
#include "core/net/socket.h"

namespace het {

// Ends all waits of those who share it, now and from now on. Thread-safe.
class StopSignal {
 public:
  StopSignal();
  void set();
  bool is_set() const { return set_; }
  // Until it or `other` is set, or the deadline passes.
  void wait_until(Deadline deadline, const StopSignal& other) const;
  int number() const { return event_.number(); }  // readable when set

 private:
  Descriptor event_;
  std::atomic<bool> set_ = false;
};

class ExchangeConnection {
 public:
  // `progress`: a frame has to pass within this time, of a file's bytes 64 KiB or the rest. `stop` outlives
  // the connection.
  ExchangeConnection(Descriptor socket, std::string who, std::chrono::milliseconds progress,
                     const StopSignal& stop);

  const std::string& who() const { return who_; }
  // The other end has closed the connection, as it may at any time.
  bool is_lost() const { return lost_; }
  // For work between waits: throws what a wait would.
  void check_stopped() const;
  // Let the wait of another thread that uses the connection end.
  void shut_down() const;

  void send(std::string_view bytes);
  // The content of the next frame, at most kMostExchangeFrameBytes. Its first byte may take until
  // `begins_by`.
  std::string receive_frame(Deadline begins_by);
  std::string receive_frame() { return receive_frame(std::chrono::steady_clock::now() + progress_); }
  // Nothing: until `begins_by` no byte came, or the other end closed the connection between frames.
  std::optional<std::string> next_frame(Deadline begins_by);
  void receive(void* into, int64_t count);
  void receive_until(char* into, size_t count, Deadline deadline);
  // Bytes of a file, without a copy in this process. Throws Error(environment) when the file has fewer.
  void send_file(const Descriptor& file, int64_t offset, int64_t count);

 private:
  class Progress;

  bool ready(Ready ready, Deadline deadline) const;
  [[noreturn]] void lose();
  [[noreturn]] void late() const;

  Descriptor socket_;
  std::string who_;
  std::chrono::milliseconds progress_;
  const StopSignal* stop_;
  bool lost_ = false;
};

// Who connects, and how long it waits.
struct ExchangeIdentity {
  std::string address;                      // numeric, of this machine
  std::string run, secret;                  // both ends have the same
  std::chrono::milliseconds connect{5000};  // until the other end has proved that it is of the run
  std::chrono::milliseconds progress{10'000};
  bool idle = false;  // the other end serves this connection at idle priority
};
// The digest that the hellos of these connections have as their group.
std::string exchange_group(bool idle);
// A connection whose two ends have proved to each other that they are of one run. Throws Error(peer) naming
// the endpoint, Error(usage) for one that is not numeric.
ExchangeConnection connect_exchange(const Endpoint& endpoint, const ExchangeIdentity& identity,
                                    const StopSignal& stop);

}  // namespace het
