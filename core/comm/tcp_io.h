// The I/O thread of a fabric: it reads all its connections, writes what their senders could not write at
// once, and sees off sockets that were closed while bytes were still to be sent. A second thread calls what
// may take long, so that reading never waits for it. Internal to core/comm.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "core/base/descriptor.h"

namespace het {

class TcpConnection;

// Thread-safe. Not destroyed on one of its threads.
class TcpIo {
 public:
  TcpIo();   // throws Error(environment)
  ~TcpIo();  // sees off what remains: a second at most
  TcpIo(const TcpIo&) = delete;
  TcpIo& operator=(const TcpIo&) = delete;

  // Read the connection from now on, until remove(). Returns its number here.
  uint64_t add(const std::shared_ptr<TcpConnection>& connection, int socket);
  void want_write(uint64_t number, int socket, bool wanted);
  void remove(uint64_t number, int socket);
  // Call it on the second thread, after those before it.
  void call(std::function<void()> body);
  // Send `rest` and close the socket, not before the other end's machine has what was sent earlier or a
  // second is over. The destructor waits that long where `messages` are on the way, not for a goodbye.
  void see_off(Descriptor socket, std::string rest, bool messages);

 private:
  struct Leaving {
    Descriptor socket;
    std::string rest;
    size_t sent = 0;
    std::chrono::steady_clock::time_point until;
    bool messages = false;
  };
  static bool is_done(Leaving& leaving);
  void serve();
  void serve_calls();
  std::shared_ptr<TcpConnection> find(uint64_t number);
  void wake() const;

  Descriptor epoll_, wake_;
  std::mutex mutex_;  // of all below
  std::condition_variable called_;
  std::unordered_map<uint64_t, std::shared_ptr<TcpConnection>> connections_;
  uint64_t last_ = 0;  // number; 0 is the eventfd
  std::list<Leaving> leaving_;
  std::deque<std::function<void()>> calls_;
  bool ending_ = false;
  std::thread thread_, calling_;
};

}  // namespace het
