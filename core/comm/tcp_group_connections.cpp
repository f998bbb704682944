#include "core/comm/tcp_group_connections.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace het {

// Used by one thread, except interrupt().
class TcpChannel final : public Channel {
 public:
  TcpChannel(const std::vector<std::shared_ptr<TcpConnection>>& connections,
             const std::vector<PendingPeer>& ranks, std::shared_ptr<TcpGroupConnections::Watch> watch,
             uint64_t channel)
      : ranks_(ranks), watch_(std::move(watch)) {
    for (const std::shared_ptr<TcpConnection>& connection : connections)
      peers_.push_back({connection, connection == nullptr ? nullptr : &connection->channel(channel)});
    std::lock_guard lock(watch_->mutex);
    watch_->channels.push_back(this);
  }
  ~TcpChannel() override {
    std::lock_guard lock(watch_->mutex);
    std::erase(watch_->channels, this);
  }

  void send(int peer, const std::byte* from, int64_t bytes) override {
    Peer& p = peers_[static_cast<size_t>(peer)];
    posted(peer, p.connection->post_send(*p.end, from, bytes));
    ++p.sends;
  }
  void receive(int peer, std::byte* to, int64_t bytes) override {
    Peer& p = peers_[static_cast<size_t>(peer)];
    posted(peer, p.connection->post_receive(*p.end, to, bytes));
    ++p.receives;
  }
  bool sent(int peer) override { return wait(peer, true, peers_[static_cast<size_t>(peer)].sent); }
  bool received(int peer) override { return wait(peer, false, peers_[static_cast<size_t>(peer)].received); }

  void interrupt() override {
    std::lock_guard lock(mutex_);
    interrupted_ = true;
    if (waits_for_ != nullptr) waits_for_->connection->wake(*waits_for_->end);
  }

 private:
  struct Peer {
    std::shared_ptr<TcpConnection> connection;
    ChannelEnd* end = nullptr;
    int64_t sends = 0, receives = 0;  // posted so far
    int64_t sent = 0, received = 0;   // and waited for
    bool posted = false;              // and not yet flushed
  };

  void posted(int peer, bool open) {
    if (!open) throw LostPeer{peer, "connection closed by this rank"};
    peers_[static_cast<size_t>(peer)].posted = any_posted_ = true;
  }

  // What belongs together goes in one packet: what was posted travels when the thread waits.
  void flush() {
    if (!std::exchange(any_posted_, false)) return;
    for (Peer& peer : peers_)
      if (std::exchange(peer.posted, false)) peer.connection->flush();
  }

  bool wait(int peer, bool send, int64_t& count) {
    flush();
    Peer& p = peers_[static_cast<size_t>(peer)];
    if (p.connection->is_done(*p.end, send, count + 1)) return ++count, true;
    {
      std::lock_guard lock(mutex_);
      waits_for_ = &p;
      interrupted_ = false;
    }
    require_peers();
    const TcpConnection::State state = p.connection->wait(*p.end, send, count + 1, interrupted_);
    {
      std::lock_guard lock(mutex_);
      waits_for_ = nullptr;
    }
    switch (state) {
      case TcpConnection::State::done: return ++count, true;
      case TcpConnection::State::mismatch: refuse(p, peer);
      case TcpConnection::State::gone: lost(peer);
      case TcpConnection::State::interrupted:
      case TcpConnection::State::cut: break;
    }
    return false;
  }

  // A wait for one peer also ends when another with a message under way is gone: it cannot complete.
  // Whoever is gone interrupts the channels after that, so that this is seen.
  void require_peers() {
    for (size_t i = 0; i < peers_.size(); ++i) {
      const Peer& p = peers_[i];
      if (p.connection == nullptr || !p.connection->gone()) continue;
      if (!p.connection->is_done(*p.end, true, p.sends) || !p.connection->is_done(*p.end, false, p.receives))
        lost(static_cast<int>(i));
    }
  }

  [[noreturn]] void lost(int peer) const {
    const TcpConnection& connection = *peers_[static_cast<size_t>(peer)].connection;
    throw LostPeer{peer, connection.broken() ? "it sent what no rank sends"
                         : connection.left() ? "it left"
                                             : "connection closed"};
  }

  [[noreturn]] void refuse(const Peer& p, int peer) const {
    const std::string other = to_string(ranks_[static_cast<size_t>(peer)]);
    const Mismatch sizes = p.connection->mismatch(*p.end);
    if (sizes.sends)
      fail(ErrorKind::peer, "{} expects {} bytes where this rank sends {}", other, sizes.expected,
           sizes.sent);
    fail(ErrorKind::peer, "{} sends {} bytes where this rank expects {}", other, sizes.sent, sizes.expected);
  }

  const std::vector<PendingPeer>& ranks_;
  const std::shared_ptr<TcpGroupConnections::Watch> watch_;
  std::vector<Peer> peers_;
  bool any_posted_ = false;
  std::mutex mutex_;
  Peer* waits_for_ = nullptr;  // guarded by mutex_
  std::atomic<bool> interrupted_ = false;
};

TcpGroupConnections::TcpGroupConnections(std::shared_ptr<TcpIo> io, std::vector<TcpPeer> peers, int self,
                                         std::function<void(int, bool)> ended)
    : io_(std::move(io)), watch_(std::make_shared<Watch>()) {
  for (size_t peer = 0; peer < peers.size(); ++peer) {
    ranks_.push_back(peers[peer].rank);
    connections_.push_back(nullptr);
    if (static_cast<int>(peer) == self) continue;
    const int rank = peers[peer].rank.rank;
    connections_.back() = std::make_shared<TcpConnection>(
        std::move(peers[peer].socket), *io_, [watch = watch_, ended, peer, rank](bool goodbye) {
          if (ended) ended(rank, goodbye);
          {
            std::lock_guard lock(watch->mutex);
            for (TcpChannel* channel : watch->channels) channel->interrupt();
          }
          std::lock_guard lock(watch->calling);
          const std::function<void(int)> gone = watch->gone;  // which may call unwatch()
          if (gone) gone(static_cast<int>(peer));
        });
  }
}

TcpGroupConnections::~TcpGroupConnections() {
  unwatch();
  cut();
}

std::unique_ptr<Channel> TcpGroupConnections::open_channel(uint64_t number) {
  HET_REQUIRE(number < kMostChannels, number);
  return std::make_unique<TcpChannel>(connections_, ranks_, watch_, number);
}

void TcpGroupConnections::cut() {
  for (const auto& connection : connections_)
    if (connection != nullptr) connection->cut();
}

void TcpGroupConnections::watch(std::function<void(int)> gone) {
  {
    std::lock_guard lock(watch_->calling);
    watch_->gone = std::move(gone);
  }
  for (const auto& connection : connections_)
    if (connection != nullptr) connection->start();
}

void TcpGroupConnections::unwatch() {
  std::lock_guard lock(watch_->calling);
  watch_->gone = nullptr;
}

std::string TcpGroupConnections::host(int peer) const { return ranks_[static_cast<size_t>(peer)].host; }

bool TcpGroupConnections::gone(int peer) const {
  const auto& connection = connections_[static_cast<size_t>(peer)];
  return connection != nullptr && connection->gone();
}

}  // namespace het
