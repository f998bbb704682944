// An imitation of a server that speaks S3, in this process: one bucket, "bucket", in memory. It checks what
// requests say of their content, keeps a log, and fails as the test wants.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/descriptor.h"
#include "core/net/socket.h"
#include "snapshot/store/store.h"

namespace het::testing {

struct S3Request {
  std::string method, path, body;                     // the path decoded: "/bucket/key"
  std::map<std::string, std::string> query, headers;  // decoded; lower-case names

  std::string key() const { return path.size() > 8 ? path.substr(8) : ""; }
  bool has(const std::string& name) const { return query.count(name) != 0; }
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct S3Reply {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;
  int64_t length = -1;  // that the header says; -1: of the body
};

// What goes wrong with one request.
struct S3Fault {
  int status = 0;       // answered without being done
  std::string code;     // of the error
  int retry_after = 0;  // seconds
  bool lost = false;    // done, but the connection ends before the answer
  int64_t cut = -1;     // the connection ends after so many bytes of the answer's body
  bool deaf = false;    // no answer, until the client goes
  std::function<void(S3Reply& reply)> edit;
};

class S3Server {
 public:
  S3Server();
  ~S3Server();

  // The environment of a client of it.
  EnvironmentLookup environment() const;
  StoreAccess access() const;  // with short waits, and parts of 64 KiB

  // What goes wrong: asked for every request, one at a time.
  class Faults {
   public:
    using Choose = std::function<S3Fault(const S3Request& request)>;
    Faults& operator=(Choose choose) {
      std::lock_guard lock(mutex_);
      choose_ = std::move(choose);
      return *this;
    }
    S3Fault operator()(const S3Request& request) {
      std::lock_guard lock(mutex_);
      return choose_ ? choose_(request) : S3Fault{};
    }

   private:
    std::mutex mutex_;
    Choose choose_;
  };
  Faults fault;
  bool conditional = true;                         // has If-None-Match
  int page = 1000;                                 // entries of a listing
  std::string begun = "2020-01-02T03:04:05.000Z";  // when uploads began

  struct Object {
    std::string content, token;
  };
  struct Upload {
    std::string key, token;
    std::map<int, std::string> parts;
  };
  std::map<std::string, Object> objects();
  void put(const std::string& key, const std::string& content);
  size_t uploads();  // that are under way
  std::vector<std::string> log();
  size_t count(const std::string& begin);  // requests whose line begins so
  int64_t bytes_served() const { return served_; }

  static constexpr const char* kAccess = "an-access-key";
  static constexpr const char* kSecret = "this/is+very.secret";

 private:
  void accept();
  void serve(const Descriptor& connection);
  bool receive(const Descriptor& connection, std::string& buffer, S3Request& request) const;
  bool send(const Descriptor& connection, const S3Request& request, const S3Reply& reply, int64_t cut);
  S3Reply answer(const S3Request& request);
  S3Reply get(const S3Request& request, const std::string& content) const;
  S3Reply put_object(const S3Request& request);
  S3Reply upload(const S3Request& request);
  S3Reply list(const S3Request& request) const;

  Endpoint at_{"127.0.0.1", 0};
  Descriptor listener_;
  std::atomic<bool> ended_{false};
  std::atomic<int64_t> served_{0};
  std::mutex mutex_;
  std::map<std::string, Object> objects_;
  std::map<std::string, Upload> uploads_;
  std::vector<std::string> log_;
  int next_upload_ = 0;
  std::vector<std::jthread> threads_;  // of connections; the accepting thread's
  std::jthread accepting_;
};

}  // namespace het::testing
