// Helpers of the tests of TCP connections: the two ends of one, and an end that is played by hand.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/comm/tcp_acceptor.h"
#include "core/comm/tcp_frames.h"
#include "core/comm/tcp_hello.h"
#include "core/net/proof.h"
#include "core/net/socket.h"
#include "tests/unit/core/comm_testing.h"

namespace het::testing {

inline Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

inline std::pair<Descriptor, Descriptor> tcp_pair() {
  Endpoint endpoint{"127.0.0.1", 0};
  const Descriptor listener = listen_at(endpoint);
  Descriptor first = connect_to(endpoint, "", soon());
  std::string who;
  Descriptor second;
  while (!second) second = accept_from(listener, who);
  return {std::move(first), std::move(second)};
}

inline void write_all(const Descriptor& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    if (!wait_for(socket, Ready::write, soon())) fail(ErrorKind::bug, "the test could not write");
    const long sent = send_some(socket, bytes);
    if (sent < 0) return;  // closed by the other end
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

// `count` bytes; fewer when the other end closes the connection.
inline std::string read_bytes(const Descriptor& socket, size_t count) {
  std::string bytes;
  std::vector<char> piece(64 * 1024);
  while (bytes.size() < count) {
    if (!wait_for(socket, Ready::read, soon())) fail(ErrorKind::bug, "the test waited for bytes in vain");
    const long got = receive_some(socket, piece.data(), std::min(piece.size(), count - bytes.size()));
    if (got < 0) break;
    bytes.append(piece.data(), static_cast<size_t>(got));
  }
  return bytes;
}
inline bool is_closed(const Descriptor& socket) { return read_bytes(socket, 1).empty(); }

inline std::string text_of(const Frame& frame) {
  std::string text(kFrameBytes, '\0');
  write_frame(frame, reinterpret_cast<std::byte*>(text.data()));
  return text;
}
inline std::optional<Frame> next_frame(const Descriptor& socket) {
  const std::string text = read_bytes(socket, kFrameBytes);
  return text.size() == kFrameBytes ? read_frame(reinterpret_cast<const std::byte*>(text.data()))
                                    : std::nullopt;
}

inline Hello hello_of(const std::string& run, int64_t generation, const std::string& group, int from,
                      int to) {
  Hello hello;
  hello.run = digest_of_name(run);
  hello.generation = generation;
  hello.group = digest_of_name(group);
  hello.from = from;
  hello.to = to;
  hello.nonce = random_bytes(kHelloNonceBytes);
  return hello;
}

// A peer that says hello by hand.
struct HandPeer {
  Descriptor socket;
  std::string greeting, message;

  explicit HandPeer(const Endpoint& endpoint) : socket(connect_to(endpoint, "", soon())) {
    greeting = read_bytes(socket, kGreetingBytes);
  }
  void say(const Hello& hello, const std::string& secret) {
    message = write_hello(hello, greeting, secret);
    write_all(socket, message);
  }
  // Nothing: the connection was closed, or what came proves nothing.
  std::optional<Reply> reply(const std::string& secret) const {
    return read_reply(read_bytes(socket, kReplyBytes), greeting, message, secret);
  }
};

// Arrivals as they are delivered.
class Inbox {
 public:
  void put(Acceptor::Arrival arrival) {
    std::lock_guard lock(mutex_);
    arrivals_.push_back(std::move(arrival));
    changed_.notify_all();
  }
  Acceptor::Arrival take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, soon(), [&] { return !arrivals_.empty(); }))
      fail(ErrorKind::bug, "nothing was delivered");
    Acceptor::Arrival arrival = std::move(arrivals_.front());
    arrivals_.erase(arrivals_.begin());
    return arrival;
  }
  size_t size() {
    std::lock_guard lock(mutex_);
    return arrivals_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Acceptor::Arrival> arrivals_;
};

}  // namespace het::testing
