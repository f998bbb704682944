#include "core/comm/tcp_acceptor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/net/proof.h"

namespace het {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kLeastSecretBytes = 16;
constexpr size_t kNamed = 8;  // addresses that are named

std::string host_of(const std::string& who) { return who.substr(0, who.rfind(':')); }

AcceptorOptions checked(AcceptorOptions options) {
  if (options.secret.size() < kLeastSecretBytes)
    fail_usage("the secret of the run has {} bytes; communication needs {} or more", options.secret.size(),
               kLeastSecretBytes);
  if (options.address.empty() || options.address == "0.0.0.0" || options.address == "::")
    fail_usage(
        "communication would listen at every address of this machine ('{}'); name one, such as 127.0.0.1",
        options.address);
  return options;
}

}  // namespace

Acceptor::Acceptor(AcceptorOptions options)
    : options_(checked(std::move(options))),
      run_(digest_of_name(options_.run)),
      endpoint_{options_.address, options_.port},
      listener_(listen_at(endpoint_)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) fail_environment("cannot make an eventfd: {}", std::strerror(errno));
  thread_ = std::thread([this] { serve(); });
}

Acceptor::~Acceptor() {
  ending_ = true;
  ::eventfd_write(wake_.number(), 1);
  thread_.join();
}

void Acceptor::open(int64_t generation, Deliver deliver) {
  std::lock_guard lock(mutex_);
  HET_REQUIRE(generation > newest_ && deliver_ == nullptr, generation, newest_);
  newest_ = generation;
  deliver_ = std::move(deliver);
  const Deadline now = Clock::now();
  for (Parked& parked : std::exchange(parked_, {})) sort(std::move(parked.arrival), now);
}

void Acceptor::close(int64_t generation) {
  std::lock_guard lock(mutex_);
  if (generation == newest_) deliver_ = nullptr;
}

bool Acceptor::answer(const Arrival& arrival, Reply reply) const {
  return send_some(arrival.socket, write_reply(reply, arrival.greeting, arrival.message, options_.secret)) ==
         static_cast<long>(kReplyBytes);
}

std::vector<std::string> Acceptor::rejected() const {
  std::lock_guard lock(mutex_);
  return {rejected_.begin(), rejected_.end()};
}

void Acceptor::serve() {
  std::vector<pollfd> polled;
  while (!ending_) {
    milliseconds wait{};
    {
      std::lock_guard lock(mutex_);
      const Deadline now = Clock::now();
      polled.clear();
      polled.push_back({wake_.number(), POLLIN, 0});
      polled.push_back({now < deaf_until_ ? -1 : listener_.number(), POLLIN, 0});
      for (const Unauthenticated& peer : unauthenticated_)
        polled.push_back({peer.socket.number(), POLLIN, 0});
      wait = next_deadline(now);
    }
    ::poll(polled.data(), polled.size(), static_cast<int>(wait.count()));
    std::lock_guard lock(mutex_);
    const Deadline now = Clock::now();
    size_t at = 2;
    for (Unauthenticated& peer : unauthenticated_)
      if (polled[at++].revents != 0) read(peer, now);
    unauthenticated_.remove_if([](const Unauthenticated& peer) { return !peer.socket; });
    if (polled[1].revents != 0) accept_all(now);
    drop_late(now);
  }
}

milliseconds Acceptor::next_deadline(Deadline now) const {
  Deadline next = now + std::chrono::minutes(1);
  if (deaf_until_ > now) next = std::min(next, deaf_until_);
  for (const Unauthenticated& peer : unauthenticated_) next = std::min(next, peer.until);
  for (const Parked& parked : parked_) next = std::min(next, parked.until);
  return std::max(std::chrono::ceil<milliseconds>(next - now), milliseconds(0));
}

void Acceptor::accept_all(Deadline now) {
  while (true) {
    Unauthenticated peer;
    peer.socket = accept_from(listener_, peer.who);
    if (!peer.socket) {
      constexpr milliseconds kPause{100};  // where descriptors ran out, poll would return again at once
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED && errno != EINTR)
        deaf_until_ = now + kPause;
      return;
    }
    peer.greeting = write_greeting(random_bytes(kHelloNonceBytes));
    peer.until = now + options_.hello_within;
    if (send_some(peer.socket, peer.greeting) != static_cast<long>(kGreetingBytes)) continue;
    if (unauthenticated_.size() >= options_.unauthenticated) unauthenticated_.pop_front();
    unauthenticated_.push_back(std::move(peer));
  }
}

// Take what has come of its Hello; its socket goes when it is complete or wrong.
void Acceptor::read(Unauthenticated& peer, Deadline now) {
  char bytes[kHelloBytes];
  const long got = receive_some(peer.socket, bytes, kHelloBytes - peer.bytes.size());
  if (got == 0) return;
  if (got > 0) peer.bytes.append(bytes, static_cast<size_t>(got));
  if (got > 0 && peer.bytes.size() < kHelloBytes) return;
  Arrival arrival;
  arrival.socket = Descriptor(peer.socket.release());
  const auto hello = read_hello(peer.bytes);
  if (!hello)
    return warn_of(peer.who, got < 0 ? "it closed the connection first" : "what it said is no hello");
  arrival.hello = *hello;
  arrival.greeting = std::move(peer.greeting);
  arrival.message = std::move(peer.bytes);
  arrival.who = std::move(peer.who);
  if (proves(arrival.message, arrival.greeting, options_.secret)) return sort(std::move(arrival), now);
  answer(arrival, {Verdict::other_secret, 0});
  if (rejected_.size() < kNamed) rejected_.insert(host_of(arrival.who));
  warn_of(arrival.who, "its shared secret is another one");
}

// A port scan is not to fill the log: a sentence for an address.
void Acceptor::warn_of(const std::string& who, const char* reason) {
  if (options_.warn == nullptr || warned_.size() >= kNamed || !warned_.insert(host_of(who)).second) return;
  options_.warn(fmt::format("{} was not let in at {}: {}", who, to_string(endpoint_), reason));
}

// Deliver, park or refuse.
void Acceptor::sort(Arrival arrival, Deadline now) {
  const int64_t generation = arrival.hello.generation;
  if (arrival.hello.run != run_) {
    answer(arrival, {Verdict::other_run, newest_});
    warn_of(arrival.who, "it is of another run");
  } else if (generation < newest_ || (generation == newest_ && deliver_ == nullptr)) {
    answer(arrival, {Verdict::over, newest_});
  } else if (generation == newest_) {
    deliver_(std::move(arrival));
  } else {
    if (parked_.size() >= options_.parked) parked_.pop_front();
    parked_.push_back({std::move(arrival), now + options_.park_for});
  }
}

void Acceptor::drop_late(Deadline now) {
  const auto late = [now](const auto& waiting) { return waiting.until <= now; };
  unauthenticated_.remove_if(late);
  parked_.remove_if(late);
}

}  // namespace het
