#include "core/comm/group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/comm/exchange.h"
#include "core/comm/operations.h"

namespace het {
namespace {

using std::chrono::milliseconds;
using Lock = OperationTracker::Lock;

// Thrown on a communication thread when its communicator has failed.
struct GaveUp {};

class Group;

struct Operation : TrackedOperation {
  std::shared_ptr<Scratch> scratch;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int64_t mark = 0;  // of a message that was posted: what is to be awaited for it
};

// All collectives of a group, or the messages of one channel, with the thread that runs them.
struct Queue : OperationQueue {
  std::unique_ptr<Channel> io;
  std::optional<ChannelState> state;
  std::shared_ptr<Scratch> scratch;
  std::condition_variable work;
  size_t prepared = 0;  // operations that there are: each is under way once at most
  size_t posted = 0;    // messages: the oldest ones under way that the channel has
  bool asked = false;   // a caller wants to know who is missing, and interrupts the channel until it does
  std::vector<int> missing;    // the answer: ranks of the group
  std::vector<bool> has_come;  // of the missing: whether they took part in this operation at all
  std::thread thread;
};

class Group final : public Communicator, public FailureDetector, public std::enable_shared_from_this<Group> {
 public:
  Group(GroupOptions options, std::unique_ptr<Connections> connections)
      : options_(std::move(options)),
        size_(static_cast<int>(options_.ranks.size())),
        connections_(std::move(connections)) {
    connections_->watch([this](int peer) { peer_gone(peer); });
  }

  ~Group() override {
    connections_->unwatch();
    {
      const Lock lock(tracker_.mutex);
      closing_ = true;
      for (Queue& queue : queues_) queue.work.notify_all();
    }
    for (Queue& queue : queues_) queue.thread.join();
    connections_->cut();
    queues_.clear();
  }

  const std::string& name() const override { return options_.name; }
  int rank() const override { return options_.rank; }
  int size() const override { return size_; }
  const std::vector<int>& ranks() const override { return options_.ranks; }
  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override;
  void abort(std::string_view why) override {
    const std::string cause = lost_text(self(), why);
    fail(cause == why ? cause : fmt::format("this rank gave up: {}", why), cause);
  }

  FailureDetector* failure_detector() override { return this; }
  const Timeouts& timeouts() const override { return options_.timeouts; }
  std::string peer_name(int peer) const override {
    return to_string(PendingPeer{fabric_rank(peer), connections_->host(peer)});
  }
  std::string lost(int peer) override;
  void post_waiting(int64_t sequence) override { options_.board->post_position(name(), sequence); }
  bool is_waiting(int peer, int64_t sequence) override {
    return options_.board->position_of(name(), fabric_rank(peer)) == sequence;
  }
  void watch(const void* key, std::function<void(const std::string&)> dead) override;
  void unwatch(const void* key) override;

  void start(Queue& queue, Operation& operation, const std::byte* in, std::byte* out);
  void wait(Queue& queue, Operation& operation);
  void drop(Queue& queue, Operation& operation);

 private:
  std::string self() const { return peer_name(rank()); }
  int fabric_rank(int peer) const { return options_.ranks[peer]; }
  Queue& queue_for(const CollectiveRequest& request);
  void serve(Queue& queue);
  void run(Queue& queue, Operation& operation);
  void post_messages(Queue& queue);
  void interrupted(Queue& queue);
  void hold(Queue& queue, CommClock::time_point release);
  struct Missing {
    PendingPeer rank;
    bool has_come;
  };
  std::vector<Missing> who_is_missing(Queue& queue, const Operation& operation);
  bool say_waiting_for(const std::vector<Missing>& missing);
  std::string sentence(Queue& queue, const Operation& operation, CommClock::time_point since, bool over,
                       std::vector<PendingPeer>& suspects);
  std::optional<std::string> why(int peer) { return options_.board->reason_of(name(), fabric_rank(peer)); }
  void peer_gone(int peer);
  void fail_for(const Operation& operation, const LostPeer& peer);
  void fail(const std::string& reason, const std::string& cause);
  std::string reason_for(const Operation& operation) const;

  const GroupOptions options_;
  const int size_;
  std::unique_ptr<Connections> connections_;
  std::atomic<int64_t> bytes_sent_{0};

  OperationTracker tracker_;  // its mutex is of all below; `changed` also says that a question was answered
  std::string reason_;        // why it is not alive; written once
  bool closing_ = false;
  std::list<Queue> queues_;

  struct Watcher {
    const void* key;
    std::function<void(const std::string&)> dead;
  };
  std::recursive_mutex notifying_;  // of watchers_; held while they are called
  std::vector<Watcher> watchers_;
};

class Handle final : public Collective {
 public:
  Handle(std::shared_ptr<Group> group, Queue& queue, CollectiveRequest request,
         std::shared_ptr<Scratch> scratch)
      : group_(std::move(group)), queue_(queue) {
    operation_.request = std::move(request);
    operation_.scratch = std::move(scratch);
  }
  ~Handle() override { group_->drop(queue_, operation_); }

  void start(const std::byte* in, std::byte* out) override { group_->start(queue_, operation_, in, out); }
  bool done() const override { return operation_.finished.load(std::memory_order_acquire); }
  void wait() override { group_->wait(queue_, operation_); }
  const CollectiveRequest& request() const override { return operation_.request; }
  CollectiveTimes times() const override { return operation_.times; }

 private:
  std::shared_ptr<Group> group_;
  Queue& queue_;
  Operation operation_;
};

std::unique_ptr<Collective> Group::prepare(const CollectiveRequest& request) {
  require_valid(request, rank(), size_);
  Queue& queue = queue_for(request);
  const int64_t bytes = scratch_bytes_of(request, rank(), size_);
  const Lock lock(tracker_.mutex);
  queue.under_way.reserve(++queue.prepared);
  // Operations prepared before keep the smaller scratch; they may be running on it.
  if (queue.scratch == nullptr || queue.scratch->bytes < bytes)
    queue.scratch = std::make_shared<Scratch>(make_scratch(bytes, size_));
  return std::make_unique<Handle>(shared_from_this(), queue, request, queue.scratch);
}

// Channel 0 of the connections carries the collectives, channel 1 + tag messages: queues that differ in peer
// or direction alone have wires of their own on it.
Queue& Group::queue_for(const CollectiveRequest& request) {
  const OperationChannel channel = channel_of(request, rank());
  const Lock lock(tracker_.mutex);
  if (Queue* const queue = find_queue(queues_, channel)) return *queue;
  Queue& queue = queues_.emplace_back();
  queue.channel = channel;
  queue.io = connections_->open_channel(channel.is_message() ? 1 + static_cast<uint64_t>(channel.tag) : 0);
  queue.state.emplace(
      *queue.io, size_, [this, &queue] { interrupted(queue); }, bytes_sent_);
  queue.thread = std::thread([this, &queue] { serve(queue); });
  return queue;
}

void Group::start(Queue& queue, Operation& operation, const std::byte* in, std::byte* out) {
  const Lock lock(tracker_.mutex);
  HET_REQUIRE(!operation.started, operation.request.label);
  if (!tracker_.alive()) throw Error(ErrorKind::peer, reason_for(operation));
  operation.in = in;
  operation.out = out;
  tracker_.begin(queue, operation, CommClock::now());
  queue.work.notify_one();
}

void Group::wait(Queue& queue, Operation& operation) {
  const CommClock::time_point since = CommClock::now();
  Lock lock(tracker_.mutex);
  HET_REQUIRE(operation.started, operation.request.label);
  const auto finished = [&] { return operation.finished.load(std::memory_order_relaxed); };
  const Timeouts& timeouts = options_.timeouts;
  std::vector<PendingPeer> suspects;
  const auto in_time = [&](milliseconds limit) {
    return tracker_.changed.wait_until(lock, since + std::min(limit, timeouts.timeout), finished);
  };
  const bool takes_long = !in_time(post_waiting_after(timeouts.warn_after, timeouts.timeout));
  if (takes_long) {
    lock.unlock();
    say_waiting_for(who_is_missing(queue, operation));
    lock.lock();
  }
  if (!in_time(timeouts.warn_after) && timeouts.warn_after < timeouts.timeout) {
    lock.unlock();
    const std::string text = sentence(queue, operation, since, false, suspects);
    if (!text.empty() && timeouts.warn) timeouts.warn(text);
    lock.lock();
  }
  if (!in_time(timeouts.timeout)) {
    lock.unlock();
    const std::string text = sentence(queue, operation, since, true, suspects);
    if (!text.empty()) {
      if (options_.silent)
        for (const PendingPeer& one : suspects) options_.silent(one.rank);
      fail(text, text);
    }
    lock.lock();
    tracker_.changed.wait(lock, finished);
  }
  tracker_.end_wait(operation);
  lock.unlock();
  if (takes_long) options_.board->post_waiting({});
}

// A handle goes away: nothing may touch its memory afterwards.
void Group::drop(Queue& queue, Operation& operation) {
  Lock lock(tracker_.mutex);
  --queue.prepared;
  if (!operation.started) return;
  if (!operation.finished) {
    lock.unlock();
    // As a rule because another group has failed.
    std::string why = options_.board->cause();
    if (why.empty()) why = given_up_text(operation.request);
    abort(why);
    lock.lock();
    tracker_.changed.wait(lock, [&] { return operation.finished.load(); });
  }
}

// The life of a queue's thread.
void Group::serve(Queue& queue) {
  Lock lock(tracker_.mutex);
  while (true) {
    queue.work.wait(lock, [&] { return closing_ || queue.first() != nullptr; });
    if (queue.first() == nullptr) return;
    auto& operation = static_cast<Operation&>(*queue.first());
    operation.times.begun = CommClock::now();
    bool done = false;
    if (tracker_.alive()) {
      lock.unlock();
      try {
        run(queue, operation);
        done = true;
      } catch (const GaveUp&) {
      } catch (const LostPeer& peer) {
        fail_for(operation, peer);
      } catch (const std::exception& error) {
        fail(fmt::format("{} failed: {}", text_of(operation.request), error.what()),
             during_text(lost_text(self(), error.what()), operation.request));
      }
      lock.lock();
    }
    if (!done) {
      tracker_.await_death(lock);
      tracker_.lose(operation, reason_for(operation));
    }
    tracker_.finish_first(queue);
    if (queue.posted > 0) --queue.posted;
    tracker_.changed.notify_all();
  }
}

void Group::run(Queue& queue, Operation& operation) {
  queue.state->begin_operation();
  CommClock::time_point release;
  const bool paced = options_.pacer != nullptr && size_ > 1;
  if (paced) {
    meet(operation.request, rank(), size_, *queue.state);
    release = options_.pacer->release(operation.request, options_.ranks, rank(), CommClock::now());
  }
  if (paced || !queue.channel.is_message()) {
    run_collective(operation.request, rank(), size_, *queue.state, operation.in, operation.out,
                   *operation.scratch);
  } else {
    post_messages(queue);
    if (operation.request.kind == CollectiveKind::send)
      queue.state->await_sent(operation.request.peer, operation.mark);
    else
      queue.state->await_received(operation.request.peer, operation.mark);
  }
  if (paced) hold(queue, release);
}

// The oldest message and some that follow it: the other end answers them while this one is on its way.
void Group::post_messages(Queue& queue) {
  constexpr size_t kAtOnce = 4;
  std::array<Operation*, kAtOnce> next{};
  size_t count = 0;
  {
    const Lock lock(tracker_.mutex);
    for (; queue.posted < std::min(queue.under_way.size(), kAtOnce); ++queue.posted)
      next[count++] = static_cast<Operation*>(queue.under_way[queue.posted].operation);
  }
  for (Operation* const operation : std::span(next).first(count))
    operation->mark = post_message(operation->request, *queue.state, operation->in, operation->out);
}

void Group::hold(Queue& queue, CommClock::time_point release) {
  Lock lock(tracker_.mutex);
  queue.work.wait_until(lock, release, [&] { return !tracker_.alive(); });
  if (!tracker_.alive()) throw GaveUp{};
}

// On the thread of the queue, when a wait of its channel was interrupted: to give up, or to tell who is
// missing.
void Group::interrupted(Queue& queue) {
  {
    const Lock lock(tracker_.mutex);
    if (!tracker_.alive()) throw GaveUp{};
    if (!queue.asked) return;
    queue.asked = false;  // an interrupt while we find out asks nothing new
  }
  const std::vector<int> missing = queue.state->unfinished();
  const Lock lock(tracker_.mutex);
  queue.missing = missing;
  queue.has_come.assign(missing.size(), false);
  for (size_t i = 0; i < missing.size(); ++i) queue.has_come[i] = queue.state->any_came(missing[i]);
  tracker_.changed.notify_all();
}

// Who keeps `operation` waiting; empty when it has finished or failed meanwhile, or it cannot be found out.
std::vector<Group::Missing> Group::who_is_missing(Queue& queue, const Operation& operation) {
  constexpr milliseconds kAskEvery{2}, kAskFor{1000};
  const auto over = [&] { return operation.finished.load() || !tracker_.alive(); };
  Lock lock(tracker_.mutex);
  if (over()) return {};
  const TrackedOperation* const running = queue.first();
  queue.asked = true;
  queue.missing.clear();
  const CommClock::time_point until = CommClock::now() + kAskFor;
  while (!over() && queue.missing.empty() && queue.first() == running && CommClock::now() < until) {
    lock.unlock();
    queue.io->interrupt();
    lock.lock();
    tracker_.changed.wait_for(lock, kAskEvery, [&] { return over() || !queue.missing.empty(); });
  }
  queue.asked = false;
  std::vector<Missing> missing;
  if (over()) return missing;
  for (size_t i = 0; i < queue.missing.size(); ++i) {
    const int peer = queue.missing[i];
    missing.push_back({{fabric_rank(peer), connections_->host(peer)}, queue.has_come[i]});
  }
  return missing;
}

// Others who wait for this rank shall not suspect it. Whether there was anything to say.
bool Group::say_waiting_for(const std::vector<Missing>& missing) {
  std::vector<PendingPeer> ranks;
  for (const Missing& one : missing) ranks.push_back(one.rank);
  if (!ranks.empty()) options_.board->post_waiting(ranks);
  return !ranks.empty();
}

// Who keeps `operation` waiting: one sentence, and the suspects. `over`: the time is. Empty when the
// operation has finished or failed meanwhile.
std::string Group::sentence(Queue& queue, const Operation& operation, CommClock::time_point since, bool over,
                            std::vector<PendingPeer>& suspects) {
  const std::vector<Missing> missing = who_is_missing(queue, operation);
  std::string what = text_of(operation.request);
  {
    const Lock lock(tracker_.mutex);
    if (operation.finished.load() || !tracker_.alive()) return {};
    if (queue.first() != &operation) what += fmt::format(", behind {}", text_of(queue.first()->request));
  }
  const auto text = over ? timeout_text : waiting_text;
  if (!say_waiting_for(missing)) return text(since, "a rank that is not known", false, what);
  std::vector<PendingPeer> ranks;
  for (const Missing& one : missing) ranks.push_back(one.rank);
  suspects = options_.board->suspects(ranks);
  const bool all_came = std::all_of(suspects.begin(), suspects.end(), [&](const PendingPeer& one) {
    return std::any_of(missing.begin(), missing.end(),
                       [&](const Missing& other) { return other.rank.rank == one.rank && other.has_come; });
  });
  return text(since, to_string(suspects), all_came, what);
}

// A connection broke: that peer left, and said why, or died. What it said is passed on as it is.
void Group::fail_for(const Operation& operation, const LostPeer& peer) {
  std::string cause;
  if (const std::optional<std::string> said = why(peer.peer)) {
    cause = lost_text(peer_name(peer.peer), *said);
  } else {
    cause = options_.board->describe_loss(peer_name(peer.peer), peer.what);
    if (is_late(operation.times.begun, options_.timeouts.timeout)) {
      const PendingPeer lost{fabric_rank(peer.peer), connections_->host(peer.peer)};
      const std::vector<PendingPeer> suspects = options_.board->suspects({lost});
      if (suspects != std::vector{lost})
        cause = timeout_text(operation.times.begun, to_string(suspects), false, text_of(operation.request));
    }
  }
  cause = during_text(cause, operation.request);
  fail(cause, cause);
}

// What a wait for the operation throws, or its start, when the group is not alive.
std::string Group::reason_for(const Operation& operation) const {
  return reason_.starts_with("lost ") ? during_text(reason_, operation.request) : reason_;
}

// A connection closed while perhaps no operation here waits for that peer. If it failed, so do we; a peer
// that is done, or died, is the matter of those that wait for it.
void Group::peer_gone(int peer) {
  if (!tracker_.alive()) return;
  const std::optional<std::string> said = why(peer);
  if (!said) return;
  const std::string cause = lost_text(peer_name(peer), *said);
  fail(cause, cause);
}

// `reason`: what waits throw here, with their operation. `cause`: as reported to the peers.
void Group::fail(const std::string& reason, const std::string& cause) {
  {
    Lock lock(tracker_.mutex);
    if (!tracker_.begin_failure(lock, cause)) return;
    reason_ = reason;
    for (Queue& queue : queues_) queue.work.notify_all();
  }
  options_.board->post_reason(name(), cause);  // before the peers see the connections close
  connections_->cut();
  {
    const Lock lock(tracker_.mutex);
    tracker_.end_failure();
  }
  std::lock_guard lock(notifying_);
  for (const Watcher& watcher : std::exchange(watchers_, {})) watcher.dead(cause);
}

std::string Group::lost(int peer) {
  if (peer == rank() || !connections_->gone(peer)) return {};
  if (const std::optional<std::string> said = why(peer)) return lost_text(peer_name(peer), *said);
  return options_.board->describe_loss(peer_name(peer), "connection closed");
}

void Group::watch(const void* key, std::function<void(const std::string&)> dead) {
  std::lock_guard notifying(notifying_);
  {
    const Lock lock(tracker_.mutex);
    if (!tracker_.dead()) {
      watchers_.push_back({key, std::move(dead)});
      return;
    }
  }
  dead(tracker_.cause());
}

void Group::unwatch(const void* key) {
  std::lock_guard lock(notifying_);
  std::erase_if(watchers_, [&](const Watcher& watcher) { return watcher.key == key; });
}

}  // namespace

int place_in_group(const std::vector<int>& ranks, int rank, int size) {
  int place = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    HET_REQUIRE(ranks[i] >= 0 && ranks[i] < size, ranks[i], size);
    HET_REQUIRE(std::count(ranks.begin(), ranks.end(), ranks[i]) == 1, ranks[i]);
    if (ranks[i] == rank) place = static_cast<int>(i);
  }
  HET_REQUIRE(place >= 0, rank);
  return place;
}

std::string did_not_join(const std::string& group, const std::vector<PendingPeer>& missing,
                         milliseconds waited) {
  return fmt::format("lost {} (did not join within {:.1f} s) while forming group '{}'", to_string(missing),
                     static_cast<double>(waited.count()) / 1e3, group);
}

void GroupList::require_alive() const {
  std::lock_guard lock(mutex_);
  if (aborted_) throw Error(ErrorKind::peer, why_);
}

void GroupList::add(const std::shared_ptr<Communicator>& group) {
  std::unique_lock lock(mutex_);
  std::erase_if(groups_, [](const auto& g) { return g.expired(); });
  groups_.push_back(group);
  if (!aborted_) return;
  lock.unlock();
  group->abort(why_);
}

void GroupList::abort(std::string_view why) {
  std::vector<std::weak_ptr<Communicator>> groups;
  {
    std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    why_ = why;
    groups = groups_;
  }
  for (const auto& group : groups)
    if (const auto alive = group.lock()) alive->abort(why);
}

std::shared_ptr<Communicator> make_group(GroupOptions options, std::unique_ptr<Connections> connections) {
  return std::make_shared<Group>(std::move(options), std::move(connections));
}

}  // namespace het
