#include "snapshot/replica_sender.h"

#include <algorithm>
#include <condition_variable>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/visible.h"

namespace het {

// What goes to one peer.
class ReplicaSender::Line {
 public:
  Line(const ReplicaSenderOptions& options, Endpoint endpoint)
      : options_(options), client_(options.identity) {
    state_.endpoint = std::move(endpoint);
    thread_ = std::thread([this] { run(); });
  }
  ~Line() {
    client_.stop();
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  void offer(const std::string& file, int64_t bytes) {
    std::lock_guard lock(mutex_);
    queued_ = SnapshotOffer{file, bytes, to_string(options_.from)};
    ++state_.behind;
    ++offers_;
    changed_.notify_all();
  }
  Peer state() const {
    std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || queued_; });
      if (ending_) return;
      const SnapshotOffer offer = *std::exchange(queued_, std::nullopt);
      const int64_t number = offers_;
      lock.unlock();
      const bool answered = send(offer, number);
      lock.lock();
      if (answered) continue;
      changed_.wait_for(lock, options_.retry, [this] { return ending_ || queued_; });
      if (!queued_) queued_ = offer;
    }
  }

  // False: the peer did not answer.
  bool send(const SnapshotOffer& offer, int64_t number) {
    try {
      const SnapshotResponse response = client_.offer(state_.endpoint, offer);
      if (const auto* refusal = std::get_if<SnapshotRefusal>(&response)) {
        warn(fmt::format("{} keeps no replica of '{}': {}", to_string(state_.endpoint), offer.file,
                         visible(refusal->sentence)));
        return true;
      }
      const auto& transfer = std::get<SnapshotTransfer>(response);
      std::lock_guard lock(mutex_);
      state_.stored = offer.file;
      state_.behind = offers_ - number;
      state_.transfer.transferred += transfer.transferred;
      state_.transfer.copied += transfer.copied;
      warned_ = false;
      return true;
    } catch (const Error& error) {
      if (!client_.is_stopped())
        warn(fmt::format("'{}' has no replica yet: {}", offer.file, error.sentence()));
      return false;
    }
  }

  void warn(const std::string& sentence) {
    if (!std::exchange(warned_, true) && options_.warn != nullptr) options_.warn(sentence);
  }

  const ReplicaSenderOptions& options_;
  PeerSnapshots client_;
  bool warned_ = false;       // the thread's
  mutable std::mutex mutex_;  // of what follows; the thread alone changes `stored` and reads `endpoint`
  std::condition_variable changed_;
  Peer state_;
  int64_t offers_ = 0;
  std::optional<SnapshotOffer> queued_;
  bool ending_ = false;
  std::thread thread_;
};

ReplicaSender::ReplicaSender(ReplicaSenderOptions options) : options_(std::move(options)) {}
ReplicaSender::~ReplicaSender() = default;

void ReplicaSender::offer(const Endpoint& peer, const std::string& file, int64_t bytes) {
  HET_REQUIRE(parse_snapshot_name(file) && bytes > 0, file, bytes);
  std::lock_guard lock(mutex_);
  auto& line = lines_[to_string(peer)];
  if (line == nullptr) line = std::make_unique<Line>(options_, peer);
  line->offer(file, bytes);
}

void ReplicaSender::forget(const Endpoint& peer) {
  std::unique_ptr<Line> line;  // ends without the lock
  std::lock_guard lock(mutex_);
  if (const auto found = lines_.find(to_string(peer)); found != lines_.end()) {
    line = std::move(found->second);
    lines_.erase(found);
  }
}

std::vector<ReplicaSender::Peer> ReplicaSender::peers() const {
  std::lock_guard lock(mutex_);
  std::vector<Peer> peers;
  for (const auto& [name, line] : lines_) peers.push_back(line->state());
  return peers;
}

int64_t ReplicaSender::behind() const {
  int64_t most = 0;
  for (const Peer& peer : peers()) most = std::max(most, peer.behind);
  return most;
}

}  // namespace het
