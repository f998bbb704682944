#include "snapshot/exchange_connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include "core/base/error.h"
#include "core/comm/tcp_hello.h"
#include "core/net/frame.h"
#include "core/net/proof.h"
#include "snapshot/exchange_protocol.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLeastProgress = 64 << 10;  // bytes of a file

}  // namespace

StopSignal::StopSignal() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) fail_environment("cannot make an eventfd: {}", std::strerror(errno));
}

void StopSignal::set() {
  set_ = true;
  ::eventfd_write(event_.number(), 1);
}

void StopSignal::wait_until(Deadline deadline, const StopSignal& other) const {
  wait_for(event_, Ready::read, deadline, other.number());
}

// The deadline of a transfer: it moves on with the bytes.
class ExchangeConnection::Progress {
 public:
  explicit Progress(std::chrono::milliseconds within) : within_(within), deadline_(Clock::now() + within) {}
  Deadline deadline() const { return deadline_; }
  void add(int64_t bytes) {
    moved_ += bytes;
    if (moved_ < kLeastProgress) return;
    moved_ = 0;
    deadline_ = Clock::now() + within_;
  }

 private:
  std::chrono::milliseconds within_;
  Deadline deadline_;
  int64_t moved_ = 0;
};

ExchangeConnection::ExchangeConnection(Descriptor socket, std::string who, std::chrono::milliseconds progress,
                                       const StopSignal& stop)
    : socket_(std::move(socket)), who_(std::move(who)), progress_(progress), stop_(&stop) {}

void ExchangeConnection::shut_down() const { ::shutdown(socket_.number(), SHUT_RDWR); }

void ExchangeConnection::lose() {
  lost_ = true;
  fail(ErrorKind::peer, "{} closed the connection", who_);
}

void ExchangeConnection::late() const {
  fail(ErrorKind::peer, "{} is too slow: it moved too little within {} ms", who_, progress_.count());
}

// False: the deadline passed.
bool ExchangeConnection::ready(Ready ready, Deadline deadline) const {
  const bool found = wait_for(socket_, ready, deadline, stop_->number());
  check_stopped();
  return found;
}

void ExchangeConnection::check_stopped() const {
  if (stop_->is_set()) fail(ErrorKind::peer, "the connection to {} was ended here", who_);
}

void ExchangeConnection::send(std::string_view bytes) {
  const Deadline deadline = Clock::now() + progress_;
  while (!bytes.empty()) {
    const long sent = send_some(socket_, bytes);
    if (sent < 0) lose();
    bytes.remove_prefix(static_cast<size_t>(sent));
    if (sent == 0 && !ready(Ready::write, deadline)) late();
  }
}

void ExchangeConnection::receive_until(char* into, size_t count, Deadline deadline) {
  while (count > 0) {
    const long got = receive_some(socket_, into, count);
    if (got < 0) lose();
    into += got;
    count -= static_cast<size_t>(got);
    if (got == 0 && !ready(Ready::read, deadline)) late();
  }
}

std::string ExchangeConnection::receive_frame(Deadline begins_by) {
  if (!ready(Ready::read, begins_by)) late();
  const Deadline deadline = Clock::now() + progress_;
  std::string head(kFrameHeaderBytes, '\0');
  receive_until(head.data(), head.size(), deadline);
  std::string content(frame_bytes(head, kMostExchangeFrameBytes) - kFrameHeaderBytes, '\0');
  receive_until(content.data(), content.size(), deadline);
  return content;
}

std::optional<std::string> ExchangeConnection::next_frame(Deadline begins_by) {
  if (!ready(Ready::read, begins_by)) return std::nullopt;
  char first = 0;
  const ssize_t seen = ::recv(socket_.number(), &first, 1, MSG_PEEK);
  if (seen == 0) return std::nullopt;
  return receive_frame(begins_by);
}

void ExchangeConnection::receive(void* into, int64_t count) {
  Progress progress(progress_);
  auto* to = static_cast<char*>(into);
  while (count > 0) {
    const long got = receive_some(socket_, to, static_cast<size_t>(count));
    if (got < 0) lose();
    to += got;
    count -= got;
    progress.add(got);
    if (got == 0 && !ready(Ready::read, progress.deadline())) late();
    if (stop_->is_set()) ready(Ready::read, progress.deadline());
  }
}

void ExchangeConnection::send_file(const Descriptor& file, int64_t offset, int64_t count) {
  Progress progress(progress_);
  constexpr int64_t kAtOnce = 4 << 20;
  off_t position = offset;
  for (const int64_t end = offset + count; position < end;) {
    const ssize_t sent = ::sendfile(socket_.number(), file.number(), &position,
                                    static_cast<size_t>(std::min(kAtOnce, end - position)));
    if (sent > 0) progress.add(sent);
    if (sent > 0 && !stop_->is_set()) continue;
    if (sent == 0) fail_environment("a file that {} asked for ends at byte {}", who_, position);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) lose();
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
      fail_environment("a file that {} asked for cannot be sent: {}", who_, std::strerror(errno));
    if (!ready(Ready::write, progress.deadline())) late();
  }
}

std::string exchange_group(bool idle) {
  return digest_of_name(idle ? "snapshots at idle priority" : "snapshots");
}

ExchangeConnection connect_exchange(const Endpoint& endpoint, const ExchangeIdentity& identity,
                                    const StopSignal& stop) {
  const std::string who = to_string(endpoint);
  const Deadline deadline = Clock::now() + identity.connect;
  int error = 0;
  Descriptor socket = begin_connect(endpoint, identity.address, error);
  if (socket && error == 0) {
    const bool connected = wait_for(socket, Ready::write, deadline, stop.number());
    if (stop.is_set()) fail(ErrorKind::peer, "the connection to {} was ended here", who);
    error = connected ? connect_error(socket) : ETIMEDOUT;
  }
  if (error != 0) fail(ErrorKind::peer, "cannot connect to {}: {}", who, std::strerror(error));
  ExchangeConnection connection(std::move(socket), who, identity.progress, stop);
  const auto receive = [&](size_t count) {
    std::string bytes(count, '\0');
    connection.receive_until(bytes.data(), count, deadline);
    return bytes;
  };
  const std::string greeting = receive(kGreetingBytes);
  if (!is_greeting(greeting)) fail(ErrorKind::peer, "what answers at {} is no process of a run", who);
  Hello hello;
  hello.run = digest_of_name(identity.run);
  hello.group = exchange_group(identity.idle);
  hello.nonce = random_bytes(kHelloNonceBytes);
  const std::string message = write_hello(hello, greeting, identity.secret);
  connection.send(message);
  const auto reply = read_reply(receive(kReplyBytes), greeting, message, identity.secret);
  if (!reply) fail(ErrorKind::peer, "what answers at {} does not know the secret of this run", who);
  if (reply->verdict != Verdict::accepted)
    fail(ErrorKind::peer, "{} serves no snapshots of this run: {}", who,
         reply->verdict == Verdict::other_secret ? "its secret is another one" : "it is of another run");
  return connection;
}

}  // namespace het
