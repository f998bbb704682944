#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
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

constexpr size_t kBatchBytes = 1 << 20;  // of events in one StoreResponse, and queued for one client

struct Client {
  enum class Stage { auth, requests, watching, leaving } stage = Stage::auth;
  Descriptor socket;
  std::string who;
  Greeting greeting;
  Deadline deadline;         // of its auth, and of leaving
  std::string in, out;       // bytes that came and are not used yet; bytes to send
  size_t sent = 0;           // of `out`
  std::set<int64_t> leases;  // that it was granted, or kept alive
  Clock::time_point asked;   // last
  std::string prefix;        // watching: what,
  int64_t next = 0;          // and the first revision it has not seen
  bool gone = false;
};

StoreResponse failure(const Error& error) {
  StoreResponse response;
  response.failed = true;
  response.error = error.kind();
  response.sentence = error.sentence();
  return response;
}

StoreResponse from(const std::optional<int64_t>& revision) {
  StoreResponse response;
  response.done = revision.has_value();
  response.revision = revision.value_or(0);
  return response;
}

StoreResponse from(const StoreLease& lease) {
  StoreResponse response;
  response.lease = lease.id;
  response.ttl_ms = lease.ttl.count();
  return response;
}

StoreResponse from(StoreListing listing) {
  StoreResponse response;
  response.revision = listing.revision;
  for (StoreEntry& entry : listing.entries)
    response.events.push_back({StoreEvent::Kind::put, std::move(entry)});
  return response;
}

StoreResponse answer_to(const StoreRequest& request, Ledger& ledger, Clock::time_point now) {
  using Kind = StoreRequest::Kind;
  switch (request.kind) {
    case Kind::grant: return from(ledger.grant(milliseconds(request.ttl_ms), now));
    case Kind::keep_alive: ledger.keep_alive(request.lease, now); return {};
    case Kind::revoke: ledger.revoke(request.lease); return {};
    case Kind::get: {
      StoreResponse response;
      auto entry = ledger.get(request.key);
      response.done = entry.has_value();
      if (entry) response.events.push_back({StoreEvent::Kind::put, std::move(*entry)});
      return response;
    }
    case Kind::list: return from(ledger.list(request.key));
    case Kind::put: return from(std::optional(ledger.put(request.key, request.value, request.lease)));
    case Kind::create: return from(ledger.create(request.key, request.value, request.lease));
    case Kind::replace:
      return from(ledger.replace(request.key, request.value, request.revision, request.lease));
    case Kind::remove: {
      StoreResponse response;
      response.done = ledger.remove(request.key);
      return response;
    }
    case Kind::watch: break;
  }
  fail(ErrorKind::bug, "a watch was answered as a call");
}

// A client may ask with a revision or lease of a server that was here before: its numbers are other ones.
int64_t numbers_before() {
  int64_t number = 0;
  for (const char byte : random_bytes(4)) number = number << 8 | static_cast<unsigned char>(byte);
  constexpr int kOfOneServer = 20;  // bits; all fit the 53 of a double
  return number << kOfOneServer;
}

void refuse_every_address(const std::string& address) {
  if (address.empty() || address == "0.0.0.0" || address == "::" || address == "*")
    fail_usage("the store would listen at every address of this machine ('{}'); name one, such as 127.0.0.1",
               address);
}

class Server final : public StoreServer {
 public:
  explicit Server(StoreServerOptions options)
      : options_(std::move(options)), ledger_(options_.limits, numbers_before()) {
    refuse_every_address(options_.address);
    if (options_.secret.size() < kSecretBytes)
      fail_usage("the secret of the store has {} bytes; it needs {} or more", options_.secret.size(),
                 kSecretBytes);
    at_ = {options_.address, options_.port};
    listener_ = listen_at(at_);
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) fail_environment("cannot make an eventfd: {}", std::strerror(errno));
    instance_ = random_bytes(8);
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() override {
    ending_ = true;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.number(), &one, sizeof one);
    thread_.join();
  }

  std::string endpoint() const override { return to_string(at_); }
  std::vector<std::string> rejected() const override {
    std::lock_guard lock(mutex_);
    return {rejected_.begin(), rejected_.end()};
  }

 private:
  void serve() {
    Deadline end;  // of the goodbye
    for (bool ending = false; !ending || (somebody_listens(Clock::now()) && Clock::now() < end);) {
      const auto before = Clock::now();
      const milliseconds wait = poll_timeout(before);
      std::vector<pollfd> polled = interests();
      ::poll(polled.data(), polled.size(), static_cast<int>(wait.count()));
      const auto now = Clock::now();
      // Longer away than it meant to be: the process was stopped, and no member could keep a lease alive.
      constexpr milliseconds kStopped{50};
      if (now - last_round_ > wait + kStopped && last_round_ != Clock::time_point())
        ledger_.postpone_lapses(now - last_round_ - wait);
      last_round_ = now;
      if (ending_ && !std::exchange(ending, true)) end = now + options_.goodbye;

      size_t at = 2;
      for (Client& client : clients_) {
        const short ready = polled[at++].revents;
        if (ready & (POLLIN | POLLHUP | POLLERR)) read(client);
        flush(client);
        use(client, now);
      }
      if (polled[1].revents) accept_all(now);
      ledger_.lapse(now);
      for (Client& client : clients_) {
        feed(client);
        const bool bounded = client.stage == Client::Stage::auth || client.stage == Client::Stage::leaving;
        if (bounded && client.deadline <= now) client.gone = true;
      }
      // A member that dies closes its connection; one that lives and lost it comes back to keep its leases.
      for (const Client& client : clients_)
        if (client.gone)
          for (const int64_t lease : client.leases) ledger_.hasten(lease, now + kReturn);
      clients_.remove_if([](const Client& client) { return client.gone; });
    }
  }

  // At the end: whether a member is left to hear what has happened. A member that lives asks to keep its
  // lease alive; who has asked nothing for so long is stopped, or has heard all that it wants.
  bool somebody_listens(Clock::time_point now) const {
    return std::any_of(clients_.begin(), clients_.end(), [&](const Client& client) {
      return !client.out.empty() || now - client.asked < kReturn;
    });
  }

  // Until the next lapse or deadline.
  milliseconds poll_timeout(Clock::time_point now) const {
    constexpr milliseconds kLongest{1000}, kLook{20};
    milliseconds wait = ending_ ? kLook : kLongest;
    if (deaf_until_ > now) wait = std::chrono::ceil<milliseconds>(deaf_until_ - now);
    if (const auto next = ledger_.next_lapse())
      wait = std::min(wait, std::chrono::ceil<milliseconds>(*next - now));
    for (const Client& client : clients_) {
      if (has_work(client)) return milliseconds(0);
      if (client.stage == Client::Stage::auth || client.stage == Client::Stage::leaving)
        wait = std::min(wait, std::chrono::ceil<milliseconds>(client.deadline - now));
    }
    return std::max(wait, milliseconds(0));
  }
  // Something to do for it that no byte will announce.
  bool has_work(const Client& client) const {
    if (!client.out.empty()) return false;
    return client.stage == Client::Stage::watching && client.next <= ledger_.revision();
  }

  std::vector<pollfd> interests() const {
    std::vector<pollfd> polled;
    polled.reserve(clients_.size() + 2);
    polled.push_back({ending_ ? -1 : wake_.number(), POLLIN, 0});
    const bool room = clients_.size() < static_cast<size_t>(options_.clients) && Clock::now() >= deaf_until_;
    polled.push_back({room ? listener_.number() : -1, POLLIN, 0});
    for (const Client& client : clients_) {
      // A client that does not take its responses is not asked for more requests.
      short events = 0;
      if (client.out.empty())
        events |= POLLIN;
      else
        events |= POLLOUT;
      polled.push_back({client.socket.number(), events, 0});
    }
    return polled;
  }

  void accept_all(Clock::time_point now) {
    while (clients_.size() < static_cast<size_t>(options_.clients)) {
      Client client;
      client.socket = accept_from(listener_, client.who);
      if (!client.socket) {
        constexpr milliseconds kPause{100};  // where descriptors ran out, it would be reported again at once
        if (errno != EAGAIN && errno != EWOULDBLOCK) deaf_until_ = now + kPause;
        return;
      }
      client.greeting = {instance_, random_bytes(kNonceBytes)};
      client.deadline = now + options_.auth;
      client.asked = now;
      client.out = write_frame(write_greeting(client.greeting));
      clients_.push_back(std::move(client));
    }
  }

  void read(Client& client) {
    const size_t limit =
        kFrameHeaderBytes + (client.stage == Client::Stage::auth ? kGreetingFrameBytes : kQuestionFrameBytes);
    if (client.in.size() >= limit) return;
    const size_t before = client.in.size(), most = std::min<size_t>(limit - before, 64 << 10);
    client.in.resize(before + most);
    const long got = receive_some(client.socket, client.in.data() + before, most);
    client.in.resize(before + static_cast<size_t>(std::max(got, 0L)));
    if (got < 0) client.gone = true;
  }

  // Answer what has come whole, one at a time while the responses are taken.
  void use(Client& client, Clock::time_point now) {
    while (!client.gone && client.out.empty()) {
      const bool auth = client.stage == Client::Stage::auth;
      if (client.stage == Client::Stage::leaving) client.in.clear();
      try {
        const size_t bytes = frame_bytes(client.in, auth ? kGreetingFrameBytes : kQuestionFrameBytes);
        if (bytes == 0 || client.in.size() < bytes) return;
        const std::string content = client.in.substr(kFrameHeaderBytes, bytes - kFrameHeaderBytes);
        client.in.erase(0, bytes);
        if (auth)
          auth_ok(client, read_auth(content), now);
        else
          response(client, read_request(content), now);
      } catch (const Error&) {  // not one of ours, or not any more: there is nothing to say to it
        client.gone = true;
      }
      flush(client);
    }
  }

  void auth_ok(Client& client, const Auth& auth, Clock::time_point now) {
    AuthOk auth_ok;
    if (equal_proofs(auth.proof, client_proof(options_.secret, client.greeting, auth.nonce))) {
      auth_ok.proof = server_proof(options_.secret, client.greeting, auth.nonce);
      client.stage = Client::Stage::requests;
    } else {
      auth_ok.refusal = fmt::format("the store at {} refuses {}: its shared secret is another one",
                                    to_string(at_), client.who);
      constexpr size_t kNamed = 8;
      std::lock_guard lock(mutex_);
      if (rejected_.size() < kNamed) rejected_.insert(client.who.substr(0, client.who.rfind(':')));
      leave(client, now);
    }
    client.out += write_frame(write_auth_ok(auth_ok));
  }

  // Send what is queued, then go.
  void leave(Client& client, Clock::time_point now) {
    client.stage = Client::Stage::leaving;
    client.deadline = now + milliseconds(1000);
  }

  void response(Client& client, const StoreRequest& request, Clock::time_point now) {
    if (client.stage != Client::Stage::requests) fail(ErrorKind::peer, "a watch asks no further requests");
    client.asked = now;
    StoreResponse response;
    try {
      check_store_prefix(request.key);
      if (request.kind == StoreRequest::Kind::watch) {
        client.prefix = request.key;
        client.next = request.revision > 0 ? request.revision : ledger_.revision() + 1;
        client.stage = Client::Stage::watching;
        response.revision = ledger_.revision();
      } else {
        response = answer_to(request, ledger_, now);
        if (request.kind == StoreRequest::Kind::grant) client.leases.insert(response.lease);
        if (request.kind == StoreRequest::Kind::keep_alive) client.leases.insert(request.lease);
      }
    } catch (const Error& error) {
      response = failure(error);
    }
    std::string content = write_response(response);
    if (content.size() > kAnswerFrameBytes)
      content = write_response(failure(Error(
          ErrorKind::usage,
          fmt::format("what the store holds under '{}' is more than one response can carry", request.key))));
    client.out += write_frame(content);
  }

  // The next batch of events for one that watches and has taken the last.
  void feed(Client& client) {
    if (client.gone || client.stage != Client::Stage::watching || !client.out.empty()) return;
    StoreResponse response;
    if (client.next < ledger_.oldest() && client.next <= ledger_.revision()) {
      response = failure(
          Error(ErrorKind::peer, fmt::format("the store has forgotten the events from revision {} to {}",
                                             client.next, ledger_.oldest() - 1)));
      leave(client, Clock::now());
    } else {
      for (size_t bytes = 0; client.next <= ledger_.revision() && bytes < kBatchBytes; ++client.next) {
        const StoreEvent& event = ledger_.event(client.next);
        if (!event.entry.key.starts_with(client.prefix)) continue;
        bytes += event.entry.key.size() + event.entry.value.size();
        response.events.push_back(event);
      }
      if (response.events.empty()) return;
    }
    client.out += write_frame(write_response(response));
    flush(client);
  }

  void flush(Client& client) {
    while (!client.gone && !client.out.empty()) {
      const long sent = send_some(client.socket, std::string_view(client.out).substr(client.sent));
      if (sent < 0) client.gone = true;
      if (sent <= 0) return;
      client.sent += static_cast<size_t>(sent);
      if (client.sent < client.out.size()) continue;
      client.out.clear();
      client.sent = 0;
    }
    if (client.stage == Client::Stage::leaving && client.out.empty()) client.gone = true;
  }

  StoreServerOptions options_;
  Endpoint at_;
  Descriptor listener_, wake_;
  std::string instance_;
  std::atomic<bool> ending_ = false;
  mutable std::mutex mutex_;  // of what follows
  std::set<std::string> rejected_;
  std::thread thread_;
  // Of the thread.
  Ledger ledger_;
  std::list<Client> clients_;
  Clock::time_point last_round_, deaf_until_;
};

}  // namespace

std::unique_ptr<StoreServer> serve_store(StoreServerOptions options) {
  return std::make_unique<Server>(std::move(options));
}

}  // namespace het
