// The operations of communicators that fail together (one group between hosts, or all groups of a GPU): which
// are under way, how a failure ends them, what a wait throws, and the sentences that name them. The transport
// decides when an operation is done and finds out who is missing. For communicators of core/comm and of
// devices.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/comm/communicator.h"

namespace het {

// What one queue of a group carries: its collectives (-1), or the messages between two ranks with one tag.
struct OperationChannel {
  int from = -1, to = -1, tag = 0;  // ranks of the group

  bool is_message() const { return from >= 0; }
  int peer(int rank) const { return rank == from ? to : from; }  // of messages: the other end
  bool operator==(const OperationChannel&) const = default;
};
OperationChannel channel_of(const CollectiveRequest& request, int rank);

// A prepared operation. Guarded by the tracker's mutex; `finished` is read without it too.
struct TrackedOperation {
  CollectiveRequest request;
  int64_t run = 0;                   // how often it was started
  bool started = false;              // and not yet waited for
  bool failed = false;               // the last run; then
  std::string reason;                // the error of its wait
  std::atomic<bool> finished{true};  // the last run is over; nothing touches its memory
  CollectiveTimes times;
};

// Operations that run one after the other. Guarded by the tracker's mutex. Reserve `under_way` when
// operations are prepared: nothing is allocated in a step.
struct OperationQueue {
  struct Run {
    TrackedOperation* operation;
    int64_t run;  // an operation can be under way twice, where a wait does not stop the host
  };
  OperationChannel channel;
  std::vector<Run> under_way;  // oldest first
  int64_t sequence = 0;        // runs finished

  TrackedOperation* first() const { return under_way.empty() ? nullptr : under_way.front().operation; }
};

// The queue in `queues` (of OperationQueue) that carries `channel`; null: there is none.
template <typename Queues>
auto find_queue(Queues& queues, const OperationChannel& channel) -> decltype(&*queues.begin()) {
  const auto found =
      std::find_if(queues.begin(), queues.end(), [&](const auto& queue) { return queue.channel == channel; });
  return found == queues.end() ? nullptr : &*found;
}

// Functions that take a Lock need it held, those that wait give it back meanwhile. The others need the mutex
// held unless they say otherwise.
class OperationTracker {
 public:
  using Lock = std::unique_lock<std::mutex>;

  std::mutex mutex;                 // of the life, of operations and queues, and of what the owner adds
  std::condition_variable changed;  // an operation finished, a failure is over, or what the owner adds

  // A run begins: at the end of its queue, as started by its caller at `now`.
  void begin(OperationQueue& queue, TrackedOperation& operation, CommClock::time_point now);
  // The oldest run of a queue is over. An operation that was started again since goes on.
  void finish_first(OperationQueue& queue);
  // A run under way is lost: its wait throws Error(peer, reason) once it is finished.
  void lose(TrackedOperation& operation, std::string reason);
  // The end of a wait. Throws the reason of an operation that was lost.
  void end_wait(TrackedOperation& operation);

  // A failure goes from alive to failing to dead. While failing the owner ends what is under way; operations'
  // memory may still be touched.
  bool alive() const { return life_ == Life::alive; }  // also without the mutex
  bool dead() const { return life_ == Life::dead; }    // also without the mutex
  // True: alive, and failing from here on; the caller ends the operations and calls end_failure(). False: it
  // has failed before. Then this returns when it is dead, or at once on the thread that is ending it.
  // `cause`: as reported to the peers; of the first failure alone.
  bool begin_failure(Lock& lock, std::string cause);
  void end_failure();
  // Until no failure is half through: alive or dead.
  void await_failure(Lock& lock);
  void await_death(Lock& lock);
  // Why it is not alive. Without the mutex once it is dead.
  const std::string& cause() const { return cause_; }

 private:
  enum class Life : uint8_t { alive, failing, dead };
  std::atomic<Life> life_{Life::alive};
  std::string cause_;
  std::thread::id failing_thread_;
};

// The sentences, alike for all transports and, as far as they can be, on all ranks. `who`: "rank 2 on
// host-b". "lost rank 2 on host-b (connection closed)"; of a `why` that says so itself: as it is.
std::string lost_text(std::string_view who, std::string_view why);
// "lost rank 2 on host-b (connection closed) during all-reduce of w"; a cause that says during what stays.
std::string during_text(std::string_view cause, const CollectiveRequest& request);
// "waiting 1.5 s for rank 2 on host-b (has not arrived) during all-reduce of w"; `has_come`: "no answer".
std::string waiting_text(CommClock::time_point since, std::string_view who, bool has_come,
                         std::string_view what);
// The same when the time is over: "lost rank 2 on host-b (did not arrive within 1.5 s) during all-reduce of
// w"; "no answer for 1.5 s".
std::string timeout_text(CommClock::time_point since, std::string_view who, bool has_come,
                         std::string_view what);
// "all-reduce of w was given up"
std::string given_up_text(const CollectiveRequest& request);

}  // namespace het
