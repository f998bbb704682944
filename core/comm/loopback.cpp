#include "core/comm/loopback.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "core/base/error.h"
#include "core/comm/group.h"

namespace het {
namespace {

struct Message {
  std::byte* memory;  // sends only read it
  int64_t bytes;
};

// One direction of one channel between two ranks.
struct Box {
  std::deque<Message> sends, receives;  // posted, without a partner yet; one of the two is empty
  int64_t matched = 0;                  // copied so far
};

struct Member {
  bool here = false, gone = false;
};

// What the members of a group share; all under one mutex.
struct Meeting {
  explicit Meeting(size_t size) : members(size) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Member> members;
  std::map<std::tuple<uint64_t, int, int>, Box> boxes;  // by channel, sender, receiver
};

class LoopbackChannel final : public Channel {
 public:
  LoopbackChannel(std::shared_ptr<Meeting> meeting, int rank, uint64_t channel)
      : meeting_(std::move(meeting)), rank_(rank), channel_(channel) {}

  void send(int peer, const std::byte* from, int64_t bytes) override {
    post(peer, box_to(peer), {const_cast<std::byte*>(from), bytes}, true);
  }
  void receive(int peer, std::byte* to, int64_t bytes) override {
    post(peer, box_from(peer), {to, bytes}, false);
  }
  bool sent(int peer) override { return wait(peer, box_to(peer), sent_[peer]); }
  bool received(int peer) override { return wait(peer, box_from(peer), received_[peer]); }

  void interrupt() override {
    std::lock_guard lock(meeting_->mutex);
    interrupted_ = true;
    meeting_->changed.notify_all();
  }

 private:
  Box& box(int from, int to) {
    std::lock_guard lock(meeting_->mutex);
    return meeting_->boxes[{channel_, from, to}];
  }
  Box& box_to(int peer) { return box(rank_, peer); }
  Box& box_from(int peer) { return box(peer, rank_); }

  void require_connection(int peer) const {
    if (meeting_->members[rank_].gone || meeting_->members[peer].gone)
      throw LostPeer{peer, "its thread has left"};
  }

  void post(int peer, Box& box, Message message, bool is_send) {
    std::lock_guard lock(meeting_->mutex);
    require_connection(peer);
    std::deque<Message>& others = is_send ? box.receives : box.sends;
    if (others.empty()) {
      (is_send ? box.sends : box.receives).push_back(message);
      return;
    }
    const Message other = others.front();
    HET_REQUIRE(other.bytes == message.bytes, other.bytes, message.bytes);
    others.pop_front();
    std::byte* const to = is_send ? other.memory : message.memory;
    const std::byte* const from = is_send ? message.memory : other.memory;
    if (message.bytes > 0) std::memcpy(to, from, static_cast<size_t>(message.bytes));
    ++box.matched;
    meeting_->changed.notify_all();
  }

  bool wait(int peer, Box& box, int64_t& waited_for) {
    std::unique_lock lock(meeting_->mutex);
    const Member& self = meeting_->members[rank_];
    const Member& other = meeting_->members[peer];
    interrupted_ = false;
    meeting_->changed.wait(
        lock, [&] { return self.gone || box.matched > waited_for || other.gone || interrupted_; });
    if (self.gone) return false;
    if (box.matched > waited_for) {
      ++waited_for;
      return true;
    }
    if (other.gone) require_connection(peer);
    return false;
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
  uint64_t channel_;
  std::map<int, int64_t> sent_, received_;  // by peer: waited for so far
  bool interrupted_ = false;                // guarded by the meeting's mutex
};

class LoopbackConnections final : public Connections {
 public:
  LoopbackConnections(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  std::unique_ptr<Channel> open_channel(uint64_t number) override {
    return std::make_unique<LoopbackChannel>(meeting_, rank_, number);
  }
  void cut() override {
    std::lock_guard lock(meeting_->mutex);
    meeting_->members[rank_].gone = true;
    for (auto& [key, box] : meeting_->boxes) {
      if (std::get<1>(key) == rank_) box.sends.clear();
      if (std::get<2>(key) == rank_) box.receives.clear();
    }
    meeting_->changed.notify_all();
  }
  void watch(std::function<void(int)>) override {}  // waits look at all members themselves
  void unwatch() override {}
  std::string host(int) const override { return {}; }  // one for all
  bool gone(int peer) const override {
    std::lock_guard lock(meeting_->mutex);
    return meeting_->members[peer].gone;
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

// Where the fabrics of one process find each other.
struct Lobby {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
  std::shared_ptr<KeyValue> words = make_memory_key_value();  // of their boards
};

class LoopbackFabric final : public Fabric {
 public:
  LoopbackFabric(std::shared_ptr<Lobby> lobby, int rank, int size, LoopbackOptions options)
      : lobby_(std::move(lobby)),
        rank_(rank),
        size_(size),
        options_(std::move(options)),
        board_(std::make_shared<StatusBoard>(lobby_->words, "loopback", rank)) {
    if (options_.pacer) pacer_ = options_.pacer();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::shared_ptr<Communicator> group(const std::string& name, std::vector<int> ranks,
                                      std::shared_ptr<Pacer> pacer) override {
    groups_.require_alive();
    const int place = place_in_group(ranks, rank_, size_);
    const std::shared_ptr<Meeting> meeting = meeting_of(name, ranks.size());
    join(*meeting, place, name, ranks);
    auto group = make_group(
        {name, std::move(ranks), place, options_.timeouts, board_, pacer != nullptr ? pacer : pacer_},
        std::make_unique<LoopbackConnections>(meeting, place));
    groups_.add(group);
    return group;
  }

  void abort(std::string_view why) override {
    board_->note_cause(why);
    groups_.abort(why);
  }
  std::string cause() const override { return board_->cause(); }

 private:
  std::shared_ptr<Meeting> meeting_of(const std::string& name, size_t size) {
    std::lock_guard lock(lobby_->mutex);
    std::shared_ptr<Meeting>& meeting = lobby_->meetings[name];
    if (meeting == nullptr) meeting = std::make_shared<Meeting>(size);
    HET_REQUIRE(meeting->members.size() == size, name, size);
    return meeting;
  }

  void join(Meeting& meeting, int place, const std::string& name, const std::vector<int>& ranks) {
    constexpr std::chrono::milliseconds kLookForAbort{20};
    const CommClock::time_point until = CommClock::now() + options_.timeouts.timeout;
    std::unique_lock lock(meeting.mutex);
    HET_REQUIRE(!meeting.members[place].here, name, place);
    meeting.members[place].here = true;
    meeting.changed.notify_all();
    while (true) {
      std::vector<PendingPeer> missing;
      for (size_t i = 0; i < ranks.size(); ++i)
        if (!meeting.members[i].here) missing.push_back({ranks[i]});
      if (missing.empty()) return;
      groups_.require_alive();
      if (CommClock::now() >= until)
        throw Error(ErrorKind::peer, did_not_join(name, missing, options_.timeouts.timeout));
      meeting.changed.wait_for(lock, kLookForAbort);
    }
  }

  std::shared_ptr<Lobby> lobby_;
  int rank_, size_;
  LoopbackOptions options_;
  std::shared_ptr<StatusBoard> board_;
  std::shared_ptr<Pacer> pacer_;
  GroupList groups_;
};

}  // namespace

std::vector<std::shared_ptr<Fabric>> make_loopback(int size, const LoopbackOptions& options) {
  const auto lobby = std::make_shared<Lobby>();
  std::vector<std::shared_ptr<Fabric>> fabrics;
  for (int rank = 0; rank < size; ++rank)
    fabrics.push_back(std::make_shared<LoopbackFabric>(lobby, rank, size, options));
  return fabrics;
}

}  // namespace het
