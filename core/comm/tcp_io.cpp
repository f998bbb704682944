#include "core/comm/tcp_io.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "core/base/error.h"
#include "core/comm/tcp_connection.h"
#include "core/net/socket.h"

namespace het {
namespace {

constexpr std::chrono::milliseconds kToLeave{1000}, kToLeaveAtEnd{20};

}  // namespace

TcpIo::TcpIo() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) fail_environment("cannot make an epoll or eventfd: {}", std::strerror(errno));
  epoll_event event{EPOLLIN, {}};
  ::epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, wake_.number(), &event);
  thread_ = std::thread([this] { serve(); });
  calling_ = std::thread([this] { serve_calls(); });
}

TcpIo::~TcpIo() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    const auto until = std::chrono::steady_clock::now() + kToLeaveAtEnd;
    for (Leaving& leaving : leaving_)
      if (!leaving.messages) leaving.until = std::min(leaving.until, until);
  }
  wake();
  called_.notify_all();
  thread_.join();
  calling_.join();
}

void TcpIo::wake() const { ::eventfd_write(wake_.number(), 1); }

uint64_t TcpIo::add(const std::shared_ptr<TcpConnection>& connection, int socket) {
  std::lock_guard lock(mutex_);
  const uint64_t number = ++last_;
  connections_[number] = connection;
  epoll_event event{EPOLLIN, {}};
  event.data.u64 = number;
  if (::epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, socket, &event) != 0)
    fail_environment("epoll takes no more connections: {}", std::strerror(errno));
  return number;
}

void TcpIo::want_write(uint64_t number, int socket, bool wanted) {
  epoll_event event{EPOLLIN, {}};
  if (wanted) event.events |= EPOLLOUT;
  event.data.u64 = number;
  ::epoll_ctl(epoll_.number(), EPOLL_CTL_MOD, socket, &event);
}

void TcpIo::remove(uint64_t number, int socket) {
  std::shared_ptr<TcpConnection> connection;  // goes after the lock
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  connection = std::move(found->second);
  connections_.erase(found);
  ::epoll_ctl(epoll_.number(), EPOLL_CTL_DEL, socket, nullptr);
}

void TcpIo::call(std::function<void()> body) {
  std::lock_guard lock(mutex_);
  calls_.push_back(std::move(body));
  called_.notify_all();
}

void TcpIo::see_off(Descriptor socket, std::string rest, bool messages) {
  Leaving leaving{std::move(socket), std::move(rest), 0, std::chrono::steady_clock::now() + kToLeave,
                  messages};
  if (is_done(leaving)) return;
  {
    std::lock_guard lock(mutex_);
    leaving_.push_back(std::move(leaving));
  }
  wake();
}

// Whether nothing is left to do but to close the socket. What came and was not read would have close() reset
// the connection, and the other end lose what it has not received yet: so it is read here.
bool TcpIo::is_done(Leaving& leaving) {
  if (leaving.sent < leaving.rest.size()) {
    const long sent = send_some(leaving.socket, std::string_view(leaving.rest).substr(leaving.sent));
    if (sent < 0) return true;
    leaving.sent += static_cast<size_t>(sent);
    if (leaving.sent < leaving.rest.size()) return false;
    ::shutdown(leaving.socket.number(), SHUT_WR);
  }
  char unread[4096];
  long got = 0;
  while ((got = receive_some(leaving.socket, unread, sizeof unread)) > 0) {
  }
  int on_the_way = 0;
  return got < 0 || ::ioctl(leaving.socket.number(), SIOCOUTQ, &on_the_way) != 0 || on_the_way == 0;
}

std::shared_ptr<TcpConnection> TcpIo::find(uint64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(number);
  return found == connections_.end() ? nullptr : found->second;
}

void TcpIo::serve() {
  constexpr int kEvents = 64, kLookAgainMs = 1;
  epoll_event events[kEvents];
  while (true) {
    int wait = -1;
    {
      std::lock_guard lock(mutex_);
      const auto now = std::chrono::steady_clock::now();
      leaving_.remove_if([now](Leaving& leaving) { return is_done(leaving) || now >= leaving.until; });
      if (!leaving_.empty()) wait = kLookAgainMs;
      if (ending_ && leaving_.empty()) return;
    }
    const int count = ::epoll_wait(epoll_.number(), events, kEvents, wait);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == 0) {
        eventfd_t ignored = 0;
        ::eventfd_read(wake_.number(), &ignored);
        continue;
      }
      const std::shared_ptr<TcpConnection> connection = find(events[i].data.u64);
      if (connection == nullptr) continue;
      if ((events[i].events & EPOLLOUT) != 0) connection->writable();
      if ((events[i].events & ~uint32_t{EPOLLOUT}) != 0) connection->readable();
    }
  }
}

void TcpIo::serve_calls() {
  std::unique_lock lock(mutex_);
  while (true) {
    called_.wait(lock, [&] { return ending_ || !calls_.empty(); });
    if (calls_.empty()) return;
    const std::function<void()> body = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    body();
    lock.lock();
  }
}

}  // namespace het
