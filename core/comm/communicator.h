// Collectives between the ranks of a group. A Communicator prepares operations once, as a device prepares
// kernels; running one allocates nothing. It knows nothing of plans, of who is a member, or of what to do
// when a peer is lost: then it is dead, says so in one sentence, and the next generation makes a new one.
//
// Order: every rank of a group starts the same collectives in the same order. They run in that order on a
// thread of the communicator (or a stream of its device), while the caller computes. Each channel (peer,
// direction, tag) of send and receive has a separate thread, so that no message waits for an unrelated one.
// A Communicator and its Collectives are used from one thread at a time; abort() comes from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/dtype.h"

namespace het {

enum class CollectiveKind : uint8_t {
  all_reduce,      // in, out: counts[0] elements; out may be in
  all_gather,      // in: counts[rank]; out: all blocks in rank order; in may be its place in out
  reduce_scatter,  // in: all blocks in rank order; out: the reduced block counts[rank]; out may be its place
                   // in in
  broadcast,       // counts[0] elements from rank `peer` (in) to every rank (out); there, in may be out
  grouped_broadcast,  // each rank broadcasts its block counts[rank]: the result of all_gather, never padded
  all_to_all,         // counts[from * size + to]; in: blocks by receiver; out: blocks by sender
  send,               // counts[0] elements (in) to rank `peer`
  receive,            // counts[0] elements (out) from rank `peer`
  barrier,            // no data
};
std::string_view name_of(CollectiveKind kind);

enum class Reduction : uint8_t { sum, max };

// What every rank of the group asks alike (but for the two ends of a message). Ranks are those of the group.
struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::barrier;
  DType dtype = DType::f32;
  std::vector<int64_t> counts;  // elements, as above; zero is allowed everywhere
  int peer = -1;                // of broadcast: the root; of send and receive: the other end
  int tag = 0;                  // of send and receive: the channel; messages of one channel keep their order
  Reduction reduction = Reduction::sum;
  std::string label;  // the tensor, for messages and traces

  bool operator==(const CollectiveRequest&) const = default;
};
// Elements that `rank` of `size` reads and writes.
int64_t input_elements(const CollectiveRequest& request, int rank, int size);
int64_t output_elements(const CollectiveRequest& request, int rank, int size);
// All that is wrong with a request on this rank; empty: nothing.
std::vector<std::string> problems_of(const CollectiveRequest& request, int rank, int size);
// Throws Error(bug) with all of them when there are any.
void require_valid(const CollectiveRequest& request, int rank, int size);
// "all-reduce of w"; of the gradients of something "gradient all-reduce of layer embedding".
std::string text_of(const CollectiveRequest& request);

using CommClock = std::chrono::steady_clock;

// When the last run of an operation was started by its caller, taken up by the communication thread (messages
// may be announced before), and done.
struct CollectiveTimes {
  CommClock::time_point started, begun, finished;
};

// One prepared operation. Destroying one that runs aborts its communicator.
class Collective {
 public:
  virtual ~Collective() = default;
  // Queue the operation. The memory is the operation's until wait() returns or throws. Throws Error(peer)
  // when the communicator is dead, Error(bug) when the last start was not waited for.
  virtual void start(const std::byte* in, std::byte* out) = 0;
  virtual bool done() const = 0;  // wait() would return, or throw, at once
  // Until the operation is done. Throws Error(peer) with one sentence that names who is missing or lost.
  virtual void wait() = 0;
  virtual const CollectiveRequest& request() const = 0;
  virtual CollectiveTimes times() const = 0;  // of the last run that was waited for
};

struct Timeouts;
class FailureDetector;

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;
  virtual const std::vector<int>& ranks() const = 0;  // of the fabric, by rank of the group
  // Throws Error(bug) with problems_of(request). May allocate and make a thread; nothing travels.
  virtual std::unique_ptr<Collective> prepare(const CollectiveRequest& request) = 0;
  // Called by every member at the same place, when all that belongs together has been prepared and before any
  // of it starts: connects what is not connected yet. Throws Error(peer) naming who is missing.
  virtual void connect() {}
  // Fail every pending and later wait with Error(peer), and have the peers notice. From any thread. Returns
  // when nothing touches the memory of pending operations from outside any more.
  virtual void abort(std::string_view why) = 0;
  virtual int64_t bytes_sent() const = 0;  // since it was made
  // What it knows of its members; null: nothing.
  virtual FailureDetector* failure_detector() { return nullptr; }
};

// Prepares a collective, runs it this once and waits for it.
void run_once(Communicator& group, const CollectiveRequest& request, const void* in, void* out);
// The text of each rank of a group, by rank, on every rank. `label` names it in messages.
std::vector<std::string> all_gather_text(Communicator& group, const std::string& own,
                                         const std::string& label);

// Holds a finished operation back, as if its bytes had taken a slower way: core/comm/shaped.h.
class Pacer {
 public:
  virtual ~Pacer() = default;
  // When an operation that all its ranks have reached, at `arrived`, may be done: called then, before its
  // bytes travel. `ranks`: the group's, in the fabric; `rank`: this one's place among them. From any thread.
  virtual CommClock::time_point release(const CollectiveRequest& request, const std::vector<int>& ranks,
                                        int rank, CommClock::time_point arrived) = 0;
};

// How long to wait for other ranks, and who is warned.
struct Timeouts {
  std::chrono::milliseconds warn_after{10'000};  // of one wait(): then `warn` is called, once
  std::chrono::milliseconds timeout{60'000};     // of one wait(), and of making a group: then it fails
  std::function<void(const std::string& sentence)> warn;  // from any thread; absent: no warning
};

// What the host's communicator of a group knows of the members, for one that carries the same group's
// operands another way (between GPUs) and would not notice by itself who is lost. Ranks are the group's.
// Thread-safe.
class FailureDetector {
 public:
  virtual ~FailureDetector() = default;
  virtual const Timeouts& timeouts() const = 0;
  virtual std::string peer_name(int peer) const = 0;  // "rank 3 on host", of any rank of the group
  // "lost rank 1 on host (connection closed)", or why it gave up; empty: it is there, for all we know.
  virtual std::string lost(int peer) = 0;
  // This rank waits long for operation number `sequence`; and whether a peer says that it does.
  virtual void post_waiting(int64_t sequence) = 0;
  virtual bool is_waiting(int peer, int64_t sequence) = 0;
  // Call `dead(cause)` once, from any thread, when the communicator has failed or was aborted; at once if it
  // already has. No call comes after unwatch(), which waits for one that is under way on another thread.
  virtual void watch(const void* key, std::function<void(const std::string& cause)> dead) = 0;
  virtual void unwatch(const void* key) = 0;
};

// All ranks of one generation of a run, as seen by one of them. Makes communicators. Thread-safe.
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The communicator of `ranks` (distinct, this rank among them). Every member calls it with the same list
  // and a name that is used once in the fabric's life, and waits there for the others; members that share
  // several groups make them in the same order. `pacer` holds back what this group does; null: the fabric's.
  // Throws Error(peer) naming who did not come.
  virtual std::shared_ptr<Communicator> group(const std::string& name, std::vector<int> ranks,
                                              std::shared_ptr<Pacer> pacer = nullptr) = 0;
  // Abort every communicator made, and every group being made.
  virtual void abort(std::string_view why) = 0;
  // Why the first of them failed here, as reported to the others; empty: none has.
  virtual std::string cause() const = 0;
};

}  // namespace het
