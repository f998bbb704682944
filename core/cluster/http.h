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
  std::string url, body;
  std::string method = "POST";       // or "GET", "PUT"
  std::vector<std::string> headers;  // "Name: value"
  std::chrono::milliseconds timeout{10'000};
  std::chrono::milliseconds connect_timeout{2'000};  // of it
  size_t reply_bytes = 256 << 20;                    // at most, of the reply's head and of its body
  bool once = false;  // never sent a second time, not even when a kept connection turns out to be dead
};

struct HttpReply {
  long status = 0;   // 0: there was no whole reply
  bool sent = true;  // the server may have seen the request
  std::string body;
  std::string etag;     // the header, as it came; empty: none
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

// Requests of one thread, one after the other, over connections that are kept; another thread can end them.
class HttpSession {
 public:
  explicit HttpSession(HttpOptions options);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  HttpReply send(const HttpRequest& request);
  // From any thread: the request that is under way is given up now, its connection closed; later ones are not
  // sent.
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
  HttpOptions options_;
  std::atomic<bool> ended_ = false;
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
