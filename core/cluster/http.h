// HTTP as a client, over libcurl, which only http.cpp sees. Internal to core/cluster.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace het {

struct HttpOptions {
  std::string source;  // interface or numeric address to connect from; empty: the route decides
  std::string ca_file, certificate_file, key_file;  // for https
};

struct HttpRequest {
  std::string url, body;             // a POST
  std::vector<std::string> headers;  // "Name: value"
  std::chrono::milliseconds timeout{10'000};
  bool once = false;  // never sent a second time, not even when a kept connection turns out to be dead
};

struct HttpReply {
  long status = 0;   // 0: there was no whole reply
  bool sent = true;  // the server may have seen the request
  std::string body;
  std::string problem;  // without a whole reply: why
};

// Keeps connections for later requests. Thread-safe.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();
  HttpReply post(const HttpRequest& request);

 private:
  struct Handle;
  std::unique_ptr<Handle> take();

  HttpOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

// A POST whose reply comes line by line, without an end. Used from one thread, but for end().
class HttpStream {
 public:
  // `request.timeout` bounds connecting only.
  HttpStream(const HttpOptions& options, const HttpRequest& request);
  ~HttpStream();
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  // The next line; nothing when the deadline passes or after end(). Throws Error(peer) when the
  // reply has ended.
  std::optional<std::string> next_line(std::chrono::steady_clock::time_point deadline);
  void end();  // a next_line() that waits, and all later ones

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::atomic<bool> ended_ = false;
};

}  // namespace het
