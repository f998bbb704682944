#include "tests/unit/core/metadata_server.h"

#include <algorithm>
#include <array>
#include <chrono>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/unit/core/cluster_testing.h"

namespace het::testing {

std::string http_reply(int status, std::string_view body, std::string_view headers) {
  return fmt::format("HTTP/1.1 {} Reason\r\n{}Content-Length: {}\r\n\r\n{}", status, headers, body.size(),
                     body);
}

int MetadataServer::Seen::count(std::string_view request) const {
  return static_cast<int>(std::count(requests.begin(), requests.end(), request));
}

MetadataServer::MetadataServer(Handler handler, int port)
    : at_{"127.0.0.1", port}, handler_(std::move(handler)) {
  listener_ = listen_at(at_);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK)) fail_environment("no pipe");
  wake_read_ = Descriptor(pipe[0]);
  wake_write_ = Descriptor(pipe[1]);
  thread_ = std::thread([this] { serve(); });
}

MetadataServer::~MetadataServer() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  (void)!::write(wake_write_.number(), "x", 1);
  thread_.join();
}

void MetadataServer::release(const std::string& reply) {
  std::lock_guard lock(mutex_);
  released_ = reply;
  (void)!::write(wake_write_.number(), "x", 1);
}

MetadataServer::Seen MetadataServer::seen() const {
  std::lock_guard lock(mutex_);
  return seen_;
}

bool MetadataServer::wait(const std::function<bool(const Seen&)>& is_so) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kStoreHung, [&] { return is_so(seen_); });
}

void MetadataServer::serve() {
  while (true) {
    std::vector<pollfd> waited{{listener_.number(), POLLIN, 0}, {wake_read_.number(), POLLIN, 0}};
    for (const Connection& connection : connections_)
      waited.push_back({connection.socket.number(), POLLIN, 0});
    ::poll(waited.data(), waited.size(), -1);
    if (waited[1].revents && !wake_up()) return;
    for (size_t i = 2; i < waited.size(); ++i)
      if (waited[i].revents) receive(connections_[i - 2]);
    std::erase_if(connections_, [](const Connection& connection) { return connection.done; });
    std::string who;
    if (waited[0].revents)
      if (Descriptor socket = accept_from(listener_, who)) {
        connections_.emplace_back();
        connections_.back().socket = std::move(socket);
      }
    std::lock_guard lock(mutex_);
    seen_.connections = static_cast<int>(connections_.size());
    changed_.notify_all();
  }
}

bool MetadataServer::wake_up() {
  std::array<char, 16> bytes{};
  (void)!::read(wake_read_.number(), bytes.data(), bytes.size());
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  const std::optional<std::string> reply = std::exchange(released_, std::nullopt);
  if (!reply) return true;
  for (Connection& connection : connections_)
    if (std::exchange(connection.waits, false)) {
      --seen_.waiting;
      send(connection, *reply);
    }
  return true;
}

void MetadataServer::receive(Connection& connection) {
  std::array<char, 4096> bytes{};
  const long got = receive_some(connection.socket, bytes.data(), bytes.size());
  if (got < 0) {
    connection.done = true;
    if (!connection.waits) return;
    std::lock_guard lock(mutex_);
    --seen_.waiting;
    ++seen_.given_up;
    changed_.notify_all();
    return;
  }
  connection.in.append(bytes.data(), static_cast<size_t>(got));
  answer(connection);
}

void MetadataServer::answer(Connection& connection) {
  const size_t end = connection.in.find("\r\n\r\n");
  if (end == connection.in.npos) return;
  MetadataRequest request;
  request.head = connection.in.substr(0, end + 2);
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const size_t length = request.head.find(kLength);
  const size_t bytes =
      length == request.head.npos ? 0 : std::stoul(request.head.substr(length + kLength.size()));
  if (connection.in.size() < end + 4 + bytes) return;
  request.body = connection.in.substr(end + 4, bytes);
  connection.in.clear();
  const size_t space = request.head.find(' ');
  request.method = request.head.substr(0, space);
  request.target = request.head.substr(space + 1, request.head.find(' ', space + 1) - space - 1);
  const std::optional<std::string> reply = handler_(request);
  {
    std::lock_guard lock(mutex_);
    seen_.requests.push_back(request.method + " " + request.target);
    if (!reply) ++seen_.waiting;
    changed_.notify_all();
  }
  connection.waits = !reply;
  if (reply) send(connection, *reply);
}

void MetadataServer::send(Connection& connection, const std::string& reply) {
  std::string_view rest = reply;
  while (!rest.empty()) {
    const long sent = send_some(connection.socket, rest);
    if (sent < 0) break;  // the client wants no more
    rest.remove_prefix(static_cast<size_t>(sent));
    if (!rest.empty() &&
        !wait_for(connection.socket, Ready::write, std::chrono::steady_clock::now() + kStoreHung))
      break;
  }
  connection.done = !rest.empty() || reply.empty();
}

}  // namespace het::testing
