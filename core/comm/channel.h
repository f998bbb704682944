// What a way of communication (loopback, TCP) gives to the collectives written once over it: connections of
// one group, and on them channels of messages between pairs of ranks. Internal to core/comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace het {

// Thrown by a Channel: the connection to `peer` broke. Whether the peer died or left is for the group to find
// out.
struct LostPeer {
  int peer;
  std::string what;
};

// One channel: messages between this rank and each peer, in the order posted on both ends; both ends agree on
// the bytes. Used by one thread, except interrupt().
class Channel {
 public:
  virtual ~Channel() = default;
  // Post a message. Returns at once; the memory is in use until sent()/received() has returned true for it.
  // It may travel only when this thread waits.
  virtual void send(int peer, const std::byte* from, int64_t bytes) = 0;
  virtual void receive(int peer, std::byte* to, int64_t bytes) = 0;
  // Wait for the oldest message posted to (from) the peer and not yet waited for. False: interrupt() was
  // called or the connections were cut; wait again. A message is sent once its receiver has posted for it.
  virtual bool sent(int peer) = 0;
  virtual bool received(int peer) = 0;
  // Have a wait in progress return false. May come to nothing when the wait is just beginning: call again.
  virtual void interrupt() = 0;
};

// The connections of one group. Thread-safe; outlives its channels.
class Connections {
 public:
  virtual ~Connections() = default;
  virtual std::unique_ptr<Channel> open_channel(uint64_t number) = 0;
  // Close all connections, so that peers notice. Afterwards nothing reads or writes posted memory, waits
  // return false, and posting throws LostPeer.
  virtual void cut() = 0;
  // Call `gone(peer)`, from a thread of the connections, when a connection closes while no one waits for that
  // peer: it died, left, or is done. Called once, before any channel is opened; no call comes after
  // unwatch().
  virtual void watch(std::function<void(int peer)> gone) = 0;
  virtual void unwatch() = 0;
  virtual std::string host(int peer) const = 0;  // of any rank of the group
  virtual bool gone(int peer) const = 0;         // its connection is known to have closed
};

}  // namespace het
