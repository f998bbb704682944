#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/cluster/embedded_store.h"
#include "core/cluster/secret.h"
#include "core/cluster/store_protocol.h"
#include "core/net/socket.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// One connection that has been let in.
class Line {
 public:
  Line(const StoreClientOptions& options, Deadline deadline) : options_(&options) {
    socket_ = connect_to(parse_endpoint(options.endpoint), options.source, deadline);
    const Greeting greeting = read_greeting(receive(kGreetingFrameBytes, deadline));
    const std::string nonce = random_bytes(kNonceBytes);
    send(write_auth({nonce, client_proof(options.secret, greeting, nonce)}), deadline);
    const AuthOk auth_ok = read_auth_ok(receive(kGreetingFrameBytes, deadline));
    if (!auth_ok.refusal.empty()) fail_usage("{}", auth_ok.refusal);
    if (!equal_proofs(auth_ok.proof, server_proof(options.secret, greeting, nonce)))
      fail_usage("what answers at {} does not know the shared secret: it is not this run's store",
                 options.endpoint);
    instance_ = greeting.instance;
  }

  const std::string& instance() const { return instance_; }
  void send(std::string_view content, Deadline deadline) {
    const std::string frame = write_frame(content);
    for (size_t sent = 0; sent < frame.size();) {
      const long moved = send_some(socket_, std::string_view(frame).substr(sent));
      if (moved < 0) lost();
      sent += static_cast<size_t>(moved);
      if (moved == 0 && !wait_for(socket_, Ready::write, deadline)) late();
    }
  }
  std::string receive(size_t limit, Deadline deadline) {
    while (true) {
      if (auto content = poll(limit, deadline, -1)) return std::move(*content);
      late();
    }
  }
  // The content of the next frame; nothing when the deadline passes or `wake` is ready before it is whole.
  std::optional<std::string> poll(size_t limit, Deadline deadline, int wake) {
    while (true) {
      const size_t bytes = frame_bytes(in_, limit);
      if (bytes && in_.size() >= bytes) {
        std::string content = in_.substr(kFrameHeaderBytes, bytes - kFrameHeaderBytes);
        in_.erase(0, bytes);
        return content;
      }
      if (!wait_for(socket_, Ready::read, deadline, wake)) return std::nullopt;
      constexpr size_t kAtOnce = 256 << 10;
      const size_t before = in_.size();
      in_.resize(before + kAtOnce);
      const long got = receive_some(socket_, in_.data() + before, kAtOnce);
      in_.resize(before + static_cast<size_t>(std::max(got, 0L)));
      if (got < 0) lost();
    }
  }

 private:
  [[noreturn]] void lost() const {
    fail(ErrorKind::peer, "the connection to the store at {} broke", options_->endpoint);
  }
  [[noreturn]] void late() const {
    fail(ErrorKind::peer, "the store at {} did not answer within {} ms", options_->endpoint,
         options_->timeout.count());
  }

  const StoreClientOptions* options_;
  Descriptor socket_;
  std::string instance_, in_;
};

StoreResponse checked(StoreResponse response) {
  if (response.failed) throw Error(response.error, response.sentence);
  return response;
}

// What passes between client and server; that it does not is the fault of who serves the store.
template <typename Body>
auto talk(const StoreClientOptions& options, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (options.server.empty() || error.kind() != ErrorKind::peer) throw;
    fail(ErrorKind::peer, "{}, who serves the store, does not answer: {}", options.server, error.sentence());
  }
}

// Connect again to the server that one knew.
std::unique_ptr<Line> same_server(const StoreClientOptions& options, const std::string& instance,
                                  Deadline deadline) {
  auto line = talk(options, [&] { return std::make_unique<Line>(options, deadline); });
  if (line->instance() != instance)
    fail(ErrorKind::peer, "the store at {} was restarted and has forgotten this run", options.endpoint);
  return line;
}

class EmbeddedWatch final : public StoreWatch {
 public:
  EmbeddedWatch(std::shared_ptr<const StoreClientOptions> options, std::string instance, std::string prefix,
                int64_t from)
      : options_(std::move(options)),
        instance_(std::move(instance)),
        prefix_(std::move(prefix)),
        next_(from) {
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) fail_environment("cannot make an eventfd: {}", std::strerror(errno));
    open();
  }

  std::vector<StoreEvent> next(milliseconds timeout) override {
    const Deadline deadline = Clock::now() + timeout;
    while (!closed_) {
      try {
        if (!line_) open();
        auto content = line_->poll(kAnswerFrameBytes, deadline, wake_.number());
        if (!content) return {};
        StoreResponse response = read_response(*content);
        if (response.failed) final_ = true;
        response = checked(std::move(response));
        if (response.events.empty()) continue;
        next_ = response.events.back().entry.revision + 1;
        return std::move(response.events);
      } catch (const Error&) {
        // A connection that broke is made once more; from where it was, nothing is lost.
        if (final_ || !line_) throw;
        line_.reset();
      }
    }
    return {};
  }
  void close() override {
    closed_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.number(), &one, sizeof one);
  }

 private:
  void open() {
    const Deadline deadline = Clock::now() + options_->timeout;
    auto line = same_server(*options_, instance_, deadline);
    StoreRequest request;
    request.kind = StoreRequest::Kind::watch;
    request.key = prefix_;
    request.revision = next_;
    const std::string content = talk(*options_, [&] {
      line->send(write_request(request), deadline);
      return line->receive(kAnswerFrameBytes, deadline);
    });
    const StoreResponse response = checked(read_response(content));
    if (next_ <= 0) next_ = response.revision + 1;
    line_ = std::move(line);
  }

  std::shared_ptr<const StoreClientOptions> options_;
  std::string instance_, prefix_;
  int64_t next_;
  Descriptor wake_;
  std::unique_ptr<Line> line_;
  bool final_ = false;
  std::atomic<bool> closed_ = false;
};

class EmbeddedStore final : public Store {
 public:
  explicit EmbeddedStore(StoreClientOptions options)
      : options_(std::make_shared<const StoreClientOptions>(std::move(options))) {
    const auto start = Clock::now();
    const Deadline deadline = start + std::max(options_->timeout, options_->connect_timeout);
    auto warn_at = start + options_->warn_after;
    while (!line_) {
      try {
        line_ = std::make_unique<Line>(*options_, std::min(deadline, Clock::now() + options_->timeout));
      } catch (const Error& error) {
        constexpr Clock::duration kShortest = milliseconds(20), kLongest = milliseconds(500);
        const auto now = Clock::now();
        const auto pause = std::clamp((now - start) / 20, kShortest, kLongest);
        if (error.kind() != ErrorKind::peer) throw;
        if (now + pause >= deadline) {
          if (options_->server.empty()) throw;
          fail(ErrorKind::peer, "{}; {} should serve the store there", error.sentence(), options_->server);
        }
        if (now >= warn_at && options_->warn) {
          options_->warn(fmt::format(
              "waited {:.1f} s for {} at {}: {}", std::chrono::duration<double>(now - start).count(),
              options_->server.empty() ? "who serves the store" : options_->server + " to serve the store",
              options_->endpoint, error.sentence()));
          warn_at = now + options_->warn_after;
        }
        std::this_thread::sleep_for(pause);
      }
    }
    instance_ = line_->instance();
  }

  void follow_restarts() override { follows_ = true; }
  std::string describe() const override { return "the embedded store at " + options_->endpoint; }

  StoreLease grant(milliseconds ttl) override {
    StoreRequest request = of(StoreRequest::Kind::grant);
    request.ttl_ms = ttl.count();
    const StoreResponse response = ask(request, false);
    const milliseconds granted(response.ttl_ms);
    return {response.lease, granted, std::min(granted / 3, kReturn / 3)};
  }
  void keep_alive(int64_t lease) override { ask(of(StoreRequest::Kind::keep_alive, "", "", lease), true); }
  void revoke(int64_t lease) override { ask(of(StoreRequest::Kind::revoke, "", "", lease), true); }

  std::optional<StoreEntry> get(const std::string& key) override {
    check_store_key(key);
    const StoreResponse response = ask(of(StoreRequest::Kind::get, key), true);
    if (response.events.empty()) return std::nullopt;
    return response.events[0].entry;
  }
  StoreListing list(const std::string& prefix) override {
    check_store_prefix(prefix);
    StoreResponse response = ask(of(StoreRequest::Kind::list, prefix), true);
    StoreListing listing;
    listing.revision = response.revision;
    for (StoreEvent& event : response.events) listing.entries.push_back(std::move(event.entry));
    return listing;
  }
  int64_t put(const std::string& key, const std::string& value, int64_t lease) override {
    return ask(of(StoreRequest::Kind::put, key, value, lease), true).revision;
  }
  std::optional<int64_t> create(const std::string& key, const std::string& value, int64_t lease) override {
    return changed(ask(of(StoreRequest::Kind::create, key, value, lease), false));
  }
  std::optional<int64_t> replace(const std::string& key, const std::string& value, int64_t revision,
                                 int64_t lease) override {
    StoreRequest request = of(StoreRequest::Kind::replace, key, value, lease);
    request.revision = revision;
    return changed(ask(request, false));
  }
  bool remove(const std::string& key) override {
    check_store_key(key);
    return ask(of(StoreRequest::Kind::remove, key), false).done;
  }
  std::unique_ptr<StoreWatch> watch(const std::string& prefix, int64_t from) override {
    check_store_prefix(prefix);
    std::string instance;
    {
      std::lock_guard lock(mutex_);
      instance = instance_;
    }
    return std::make_unique<EmbeddedWatch>(options_, std::move(instance), prefix, from);
  }

 private:
  static StoreRequest of(StoreRequest::Kind kind, const std::string& key = "", const std::string& value = "",
                         int64_t lease = 0) {
    StoreRequest request;
    request.kind = kind;
    request.key = key;
    request.value = value;
    request.lease = lease;
    return request;
  }
  static std::optional<int64_t> changed(const StoreResponse& response) {
    return response.done ? std::optional(response.revision) : std::nullopt;
  }

  // Over the one connection, made again when it broke. `repeatable`: asking twice does what asking once does,
  // so a request whose response was lost is asked again.
  StoreResponse ask(const StoreRequest& request, bool repeatable) {
    if (request.kind == StoreRequest::Kind::put || request.kind == StoreRequest::Kind::create ||
        request.kind == StoreRequest::Kind::replace) {
      check_store_key(request.key);
      check_store_value(request.key, request.value);
    }
    const std::string content = write_request(request);
    const Deadline deadline = Clock::now() + options_->timeout;
    const Turn turn(*this, deadline);
    for (int attempt = 0;; ++attempt) {
      bool sent = false;
      try {
        if (!line_) line_ = connect(deadline);
        sent = true;
        return checked_line(talk(*options_, [&] {
          line_->send(content, deadline);
          return line_->receive(kAnswerFrameBytes, deadline);
        }));
      } catch (const Refused& refused) {
        throw Error(refused.kind, refused.sentence);
      } catch (const Error&) {
        line_.reset();
        if (attempt > 0 || Clock::now() >= deadline || (sent && !repeatable)) throw;
      }
    }
  }

  // To the server that it knew, or to one that was started again.
  std::unique_ptr<Line> connect(Deadline deadline) {
    if (!follows_) return same_server(*options_, instance_, deadline);
    auto line = talk(*options_, [&] { return std::make_unique<Line>(*options_, deadline); });
    std::lock_guard lock(mutex_);
    instance_ = line->instance();
    return line;
  }

  // What the store itself refused, apart from what went wrong on the way.
  struct Refused {
    ErrorKind kind;
    std::string sentence;
  };
  static StoreResponse checked_line(const std::string& content) {
    StoreResponse response = read_response(content);
    if (response.failed) throw Refused{response.error, response.sentence};
    return response;
  }

  std::shared_ptr<const StoreClientOptions> options_;
  // The connection is one caller's at a time; the others wait for it no longer than their deadlines.
  class Turn {
   public:
    Turn(EmbeddedStore& store, Deadline deadline) : store_(store) {
      std::unique_lock lock(store_.mutex_);
      if (!store_.freed_.wait_until(lock, deadline, [&] { return !store_.busy_; }))
        fail(ErrorKind::peer, "the store at {} did not answer within {} ms", store_.options_->endpoint,
             store_.options_->timeout.count());
      store_.busy_ = true;
    }
    ~Turn() {
      std::lock_guard lock(store_.mutex_);
      store_.busy_ = false;
      store_.freed_.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    EmbeddedStore& store_;
  };

  std::mutex mutex_;
  std::condition_variable freed_;
  bool busy_ = false;
  std::unique_ptr<Line> line_;  // of whose turn it is
  std::string instance_;        // written by whose turn it is, under the mutex
  std::atomic<bool> follows_ = false;
};

}  // namespace

std::shared_ptr<Store> connect_store(StoreClientOptions options) {
  return std::make_shared<EmbeddedStore>(std::move(options));
}

}  // namespace het
