// HTTP as a store's client needs it, over libcurl, which only web.cpp sees: bodies of any size straight from
// and into memory, a limit on time without progress instead of one on the whole, and cancelling.
// Internal to snapshot/store.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace het {

struct WebRequest {
  std::string method, url;
  std::map<std::string, std::string> headers;
  std::span<const std::byte> body;
  std::span<std::byte> into;  // gets the body of a reply with a status of 2xx; more than it holds is an error
  std::function<void(int64_t bytes)> progress;  // of either body
  std::stop_token cancelled;
};

struct WebReply {
  long status = 0;                             // of a whole reply, or of one that broke off; 0: none came
  std::map<std::string, std::string> headers;  // lower-case names
  std::string text;                            // the body, where it did not go into the request's memory
  int64_t received = 0;                        // bytes that did
  std::string problem;                         // empty: the reply is whole; else why not
  bool cancelled = false;
  bool lasting = false;  // with a problem: the same would happen again
  std::chrono::seconds retry_after{0};

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct WebOptions {
  std::string ca_file;  // empty: the system's
  bool direct = false;  // without a proxy, whatever the environment says
  std::chrono::milliseconds stall{30'000};
};

// Keeps connections for later requests. Used from several threads.
class WebClient {
 public:
  explicit WebClient(WebOptions options);
  ~WebClient();
  WebReply send(const WebRequest& request);

 private:
  struct Handle;
  std::unique_ptr<Handle> take();

  const WebOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

}  // namespace het
