// A metadata service for the tests of notices: HTTP on loopback, whose replies a test states.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/descriptor.h"
#include "core/net/socket.h"

namespace het::testing {

struct MetadataRequest {
  std::string method, target;
  std::string head;  // with the request line
  std::string body;

  bool has(std::string_view header) const {
    return head.find("\r\n" + std::string(header) + "\r\n") != head.npos;
  }
};

// A reply as it is sent. `headers`: each with its end of line.
std::string http_reply(int status, std::string_view body = "", std::string_view headers = "");

class MetadataServer {
 public:
  // What to send, in the server's thread; nothing: the request waits, for release() or in vain. After "" the
  // connection is closed.
  using Handler = std::function<std::optional<std::string>(const MetadataRequest&)>;

  explicit MetadataServer(Handler handler, int port = 0);
  ~MetadataServer();
  MetadataServer(const MetadataServer&) = delete;
  MetadataServer& operator=(const MetadataServer&) = delete;

  std::string url() const { return "http://" + to_string(at_); }
  // Sends this to all that wait, now.
  void release(const std::string& reply);

  struct Seen {
    std::vector<std::string> requests;  // "GET /target"
    int waiting = 0;                    // requests, now
    int connections = 0;                // now
    int given_up = 0;                   // requests whose connection was closed while they waited

    int count(std::string_view request) const;
  };
  Seen seen() const;
  // Until what was seen is so; false: the test has hung.
  bool wait(const std::function<bool(const Seen&)>& is_so) const;

 private:
  struct Connection {
    Descriptor socket;
    std::string in;
    bool waits = false, done = false;
  };
  void serve();
  bool wake_up();  // false: the server ends
  void receive(Connection& connection);
  void answer(Connection& connection);
  void send(Connection& connection, const std::string& reply);

  Endpoint at_;
  Handler handler_;
  Descriptor listener_, wake_read_, wake_write_;
  std::vector<Connection> connections_;  // of the thread

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool ended_ = false;
  std::optional<std::string> released_;
  Seen seen_;
  std::thread thread_;
};

}  // namespace het::testing
