// A relay between members that exchange snapshots, for tests of what networks do.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <poll.h>

#include "tests/unit/snapshot/exchange_testing.h"

namespace het::testing {

// Carries connections to a server, and changes or cuts what passes.
class Relay {
 public:
  struct Fault {
    bool to_client = true;  // the direction
    int64_t at = -1;        // byte of the direction, counted from 0; -1: none
    bool flips = true;      // a bit; else both directions end before the byte
    int silent = 0;         // connections that are let in first, and get no byte
  };

  Relay(const Endpoint& server, const Fault& fault) : server_(server), fault_(fault) {
    listener_ = listen_at(endpoint_);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stop_.set();
    thread_.join();
  }
  const Endpoint& endpoint() const { return endpoint_; }
  int64_t passed(bool to_client) const { return passed_[to_client ? 1 : 0]; }

 private:
  void run() {
    const auto never = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    for (int silent = fault_.silent; !stop_.is_set();) {
      wait_for(listener_, Ready::read, never, stop_.number());
      std::string who;
      const Descriptor client = accept_from(listener_, who);
      if (client && silent-- > 0) {
        wait_for(client, Ready::read, never, stop_.number());  // until it closes
        continue;
      }
      if (client) carry(client, connect_to(server_, "", soon()));
    }
  }
  // Until one of them closes, or the fault cuts.
  void carry(const Descriptor& client, const Descriptor& server) {
    passed_[0] = passed_[1] = 0;
    std::array<pollfd, 3> polled{
        {{client.number(), POLLIN, 0}, {server.number(), POLLIN, 0}, {stop_.number(), POLLIN, 0}}};
    while (::poll(polled.data(), polled.size(), 60'000) > 0 && polled[2].revents == 0)
      for (int direction = 0; direction < 2; ++direction) {
        if (polled[static_cast<size_t>(direction)].revents == 0) continue;
        std::string bytes(64 << 10, '\0');
        const long got = receive_some(direction == 0 ? client : server, bytes.data(), bytes.size());
        if (got < 0) return;
        bytes.resize(static_cast<size_t>(got));
        const int64_t within = fault_.at - passed_[direction];
        const bool hit =
            fault_.at >= 0 && fault_.to_client == (direction == 1) && within >= 0 && within < got;
        if (hit && fault_.flips) bytes[static_cast<size_t>(within)] ^= 0x10;
        if (hit && !fault_.flips) bytes.resize(static_cast<size_t>(within));
        passed_[direction] += got;  // before the other end has them
        write_all(direction == 0 ? server : client, bytes);
        if (hit && !fault_.flips) return;
      }
  }

  const Endpoint server_;
  const Fault fault_;
  Endpoint endpoint_{"127.0.0.1", 0};
  Descriptor listener_;
  std::atomic<int64_t> passed_[2] = {0, 0};
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace het::testing
