#include "kernels/cuda/nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include <dlfcn.h>

#include "core/base/error.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/nccl_api.h"

namespace het::HET_CUDA {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kFile = "libnccl.so.2";
constexpr int kLeastVersion = 21800;  // non-blocking messages, and the fields of nccl_api.h

constexpr milliseconds kLook{5};      // how often operations under way are looked at
constexpr milliseconds kGrace{20};    // for what a lost peer sent before
constexpr milliseconds kName{500};    // after an error of NCCL's, for the host to hear who is lost
constexpr milliseconds kSay{100};     // for others to say that they wait as well
constexpr seconds kLinger{2};         // for peers to be done with a group too, before it is taken down
constexpr seconds kDrain{30};         // for the GPU to end what was aborted
constexpr size_t kMostUnderWay = 64;  // of one stream: more could fill the driver's queue, where NCCL waits
constexpr int kChannelCtas = 8;       // of a channel: all channels together leave room for the kernels
constexpr int64_t kSequences = 1ll << 40;  // our operations on the board, apart from the host's
constexpr int64_t kScratchBytes = 256;

double seconds_since(CommClock::time_point then) {
  return std::chrono::duration<double>(CommClock::now() - then).count();
}

// As it numbers itself: 22809 is 2.28.9.
std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

struct Opened {
  OpenLibrary library;
  nccl::Functions functions{};
  int version = 0;
};

Opened open_nccl() {
  Opened opened{open_library(kFile)};
  void* const handle = opened.library.handle;
  if (handle == nullptr) return opened;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && opened.library.problem.empty())
      opened.library.problem = fmt::format("{} has no function {}", opened.library.path, name);
  };
  nccl::Functions& f = opened.functions;
  find(f.GetVersion, "ncclGetVersion");
  find(f.GetUniqueId, "ncclGetUniqueId");
  find(f.CommInitRankConfig, "ncclCommInitRankConfig");
  find(f.CommFinalize, "ncclCommFinalize");
  find(f.CommDestroy, "ncclCommDestroy");
  find(f.CommAbort, "ncclCommAbort");
  find(f.CommGetAsyncError, "ncclCommGetAsyncError");
  find(f.GetErrorString, "ncclGetErrorString");
  find(f.GetLastError, "ncclGetLastError");
  find(f.GroupStart, "ncclGroupStart");
  find(f.GroupEnd, "ncclGroupEnd");
  find(f.AllReduce, "ncclAllReduce");
  find(f.Reduce, "ncclReduce");
  find(f.Broadcast, "ncclBroadcast");
  find(f.AllGather, "ncclAllGather");
  find(f.ReduceScatter, "ncclReduceScatter");
  find(f.Send, "ncclSend");
  find(f.Recv, "ncclRecv");
  if (!opened.library.problem.empty()) return opened;
  f.GetVersion(&opened.version);
  if (opened.version < kLeastVersion)
    opened.library.problem = fmt::format("{} is version {}; {} or newer is needed", opened.library.path,
                                         nccl_version_text(opened.version), nccl_version_text(kLeastVersion));
  return opened;
}

// Once for the process.
const Opened& library() {
  static const Opened opened = open_nccl();
  return opened;
}

nccl::Type type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return nccl::f32;
    case DType::f64: return nccl::f64;
    case DType::bf16: return nccl::bf16;
    case DType::f16: return nccl::f16;
    case DType::i32: return nccl::i32;
    case DType::i64: return nccl::i64;
    default: return nccl::u8;  // booleans are only moved
  }
}

enum class Life : uint8_t {
  alive,
  failing,  // the cause is known; operations are being aborted
  dead,
};

class NcclGroup;

// An operation, prepared. Guarded by the traffic's mutex.
struct Operation {
  CollectiveRequest request;
  cudaEvent_t ready = nullptr;  // on the compute stream: the operand is there
  cudaEvent_t done = nullptr;   // on the lane's stream
  int64_t run = 0;              // how often it was started
  bool started = false;         // and not yet waited for
  bool queued = false;          // NCCL has taken it up; `done` is recorded
  bool finished = true;
  bool failed = false;
  std::string reason;                                                 // why it failed
  CommClock::time_point waited_since{}, lost_since{}, error_since{};  // noticed; zero: not so
  bool warned = false;
  CollectiveTimes times;
};

// One communicator of NCCL's with its stream, on which operations run in their order: all collectives of a
// group, or the messages of one channel.
struct Lane {
  int from = -1, to = -1, tag = 0;  // of a channel, ranks of the group; -1: the collectives
  int peer = -1;                    // the other end of a channel
  bool exchanges = false;           // some collective sends from each rank to each
  nccl::Comm* comm = nullptr;
  cudaStream_t stream = nullptr;
  bool connected = false;
  int64_t sequence = 0;  // operations seen finished
  struct Run {
    Operation* operation;
    int64_t run;
  };
  std::vector<Run> under_way;  // at most kMostUnderWay: nothing is allocated in a step
};

}  // namespace

// All communicators of one device, from the first until a failure: one that fails takes all others with it,
// because ncclCommAbort of one can wait for kernels of another that will never end. NCCL is called with the
// mutex held, never for long: nothing here blocks, but for an abort.
class Traffic {
 public:
  explicit Traffic(const Context& context)
      : nccl(library().functions), ordinal(context.ordinal), compute(context.stream) {
    monitor_ = std::thread([this] { monitor(); });
  }
  ~Traffic() {
    {
      std::lock_guard lock(mutex);
      closing_ = true;
      changed.notify_all();
    }
    monitor_.join();
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  // Abort everything. `cause`: what peers are told, and what the operations' reasons end with; `whole`: it is
  // a reason as it stands. Returns when nothing touches the memory of operations any more.
  void fail(const std::string& cause, bool whole = false);
  // Take from the lanes what is done.
  void reap();
  // Throws Error(peer) with the reason of an operation that was lost, unless that was thrown before.
  void throw_untold();
  [[noreturn]] void throw_failed(const Operation& operation);

  const nccl::Functions& nccl;
  const int ordinal;
  const cudaStream_t compute;

  std::mutex mutex;  // of all below and of all groups
  std::condition_variable changed;
  Life life = Life::alive;
  std::string cause;
  bool cause_whole = false;
  std::vector<NcclGroup*> groups;

 private:
  void monitor();
  void look(std::unique_lock<std::mutex>& lock);

  bool closing_ = false;
  std::thread::id failing_thread_;
  std::string untold_;  // the reason of an operation that was lost; empty: none, or it was told
  std::thread monitor_;
};

namespace {

class NcclGroup final : public Communicator, public std::enable_shared_from_this<NcclGroup> {
 public:
  NcclGroup(std::shared_ptr<Traffic> traffic, std::shared_ptr<Communicator> host)
      : traffic_(std::move(traffic)), host_(std::move(host)), witness_(*host_->witness()) {
    {
      std::lock_guard lock(traffic_->mutex);
      traffic_->groups.push_back(this);
    }
    // Outside of the lock: a host that is dead already calls at once.
    witness_.watch(this, [traffic = traffic_.get()](const std::string& cause) { traffic->fail(cause); });
  }
  ~NcclGroup() override;

  const std::string& name() const override { return host_->name(); }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::vector<int>& ranks() const override { return host_->ranks(); }
  int64_t bytes_sent() const override { return bytes_sent_.load(std::memory_order_relaxed); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override;
  void settle() override;
  void abort(std::string_view why) override {
    host_->abort(why);  // tells us through the witness
    traffic_->fail(fmt::format("group '{}' was aborted on {}: {}", name(), call(rank()), why));
  }

  void start(Lane& lane, Operation& operation, const std::byte* in, std::byte* out);
  void wait(Operation& operation);
  bool done(Operation& operation);
  CollectiveTimes times(Operation& operation);
  void drop(Operation& operation);

  std::list<Lane>& lanes() { return lanes_; }
  const std::shared_ptr<Communicator>& host() const { return host_; }
  Witness& witness() const { return witness_; }
  std::string call(int peer) const { return witness_.call(peer); }
  std::vector<int> peers_of(const Lane& lane) const;
  std::vector<int> all_peers() const;
  std::string reason_for(const Operation& operation) const;

 private:
  struct Entry;
  Lane& lane_for(const CollectiveRequest& request);
  std::vector<Entry> exchange(const std::vector<Entry>& own);
  std::vector<Entry> agree(const std::vector<Lane*>& fresh);
  void begin(Lane& lane, const Entry& entry);
  void warm(Lane& lane);
  template <typename Ready>
  void await_peers(const std::vector<Lane*>& lanes, const Ready& ready);
  nccl::Result enqueue(Lane& lane, const CollectiveRequest& request, const std::byte* in, std::byte* out);
  nccl::Result blocks(Lane& lane, const CollectiveRequest& request, const std::byte* in, std::byte* out);
  nccl::Result all_to_all(Lane& lane, const CollectiveRequest& request, const std::byte* in, std::byte* out);
  int64_t leaving(const CollectiveRequest& request) const;
  [[noreturn]] void throw_cause() const;
  bool in_progress(Lane& lane, nccl::Result result);
  void fail_named(const std::vector<int>& peers, const std::string& what, const Error& error);

  std::shared_ptr<Traffic> traffic_;
  std::shared_ptr<Communicator> host_;
  Witness& witness_;
  std::list<Lane> lanes_;
  std::byte* scratch_ = nullptr;  // of the device: for barriers and first messages
  std::atomic<int64_t> bytes_sent_{0};
};

class NcclCollective final : public Collective {
 public:
  NcclCollective(std::shared_ptr<NcclGroup> group, Lane& lane, const CollectiveRequest& request)
      : group_(std::move(group)), lane_(lane) {
    operation_.request = request;
    for (cudaEvent_t* event : {&operation_.ready, &operation_.done})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "make an event");
  }
  ~NcclCollective() override {
    group_->drop(operation_);
    cudaEventDestroy(operation_.ready);
    cudaEventDestroy(operation_.done);
  }
  void start(const std::byte* in, std::byte* out) override { group_->start(lane_, operation_, in, out); }
  bool done() const override { return group_->done(operation_); }
  void wait() override { group_->wait(operation_); }
  const CollectiveRequest& request() const override { return operation_.request; }
  CollectiveTimes times() const override { return group_->times(operation_); }

 private:
  std::shared_ptr<NcclGroup> group_;
  Lane& lane_;
  mutable Operation operation_;
};

// Wait a little, with the lock given back meanwhile.
void pause(std::unique_lock<std::mutex>& lock, CommClock::time_point since) {
  lock.unlock();
  if (CommClock::now() - since < microseconds(100))
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(microseconds(50));
  lock.lock();
}

}  // namespace

void Traffic::reap() {
  if (life != Life::alive) return;  // what ends now was aborted
  for (NcclGroup* group : groups)
    for (Lane& lane : group->lanes())
      while (!lane.under_way.empty()) {
        const auto [operation, run] = lane.under_way.front();
        if (operation->run == run) {  // else it was started again since, behind others of this stream
          if (!operation->queued || cudaEventQuery(operation->done) != cudaSuccess) break;
          operation->finished = true;
          operation->times.finished = CommClock::now();
        }
        lane.under_way.erase(lane.under_way.begin());
        ++lane.sequence;
      }
}

void Traffic::throw_untold() {
  if (!untold_.empty()) throw Error(ErrorKind::peer, std::exchange(untold_, {}));
}

void Traffic::throw_failed(const Operation& operation) {
  untold_.clear();
  throw Error(ErrorKind::peer, operation.reason);
}

void Traffic::fail(const std::string& why, bool whole) {
  std::vector<std::shared_ptr<Communicator>> hosts;
  std::unique_lock lock(mutex);
  if (life != Life::alive) {
    if (failing_thread_ != std::this_thread::get_id()) changed.wait(lock, [&] { return life == Life::dead; });
    return;
  }
  reap();
  life = Life::failing;
  failing_thread_ = std::this_thread::get_id();
  cause = why;
  cause_whole = whole;
  for (NcclGroup* group : groups) {
    hosts.push_back(group->host());
    for (Lane& lane : group->lanes())
      for (const Lane::Run& run : lane.under_way) {
        Operation& operation = *run.operation;
        operation.failed = true;
        operation.reason = whole ? why : group->reason_for(operation);
        if (untold_.empty()) untold_ = operation.reason;
      }
  }
  lock.unlock();
  for (const auto& host : hosts) host->abort(why);  // tells the peers
  lock.lock();

  cudaSetDevice(ordinal);
  // As one group: every communicator has been told to end before the first waits for its kernels.
  nccl.GroupStart();
  for (NcclGroup* group : groups)
    for (Lane& lane : group->lanes())
      if (lane.comm != nullptr) nccl.CommAbort(std::exchange(lane.comm, nullptr));
  nccl.GroupEnd();
  const CommClock::time_point since = CommClock::now();
  for (NcclGroup* group : groups)
    for (Lane& lane : group->lanes()) {
      while (lane.stream != nullptr && cudaStreamQuery(lane.stream) == cudaErrorNotReady &&
             CommClock::now() - since < kDrain)
        std::this_thread::sleep_for(microseconds(100));
      for (const Lane::Run& run : lane.under_way) {
        run.operation->finished = true;
        run.operation->times.finished = CommClock::now();
      }
      lane.under_way.clear();
    }
  life = Life::dead;
  failing_thread_ = {};
  changed.notify_all();
}

// Watches operations under way for what they cannot notice themselves.
void Traffic::monitor() {
  cudaSetDevice(ordinal);
  std::unique_lock lock(mutex);
  const auto busy = [&] {
    for (NcclGroup* group : groups)
      for (const Lane& lane : group->lanes())
        if (!lane.under_way.empty()) return true;
    return false;
  };
  while (!closing_) {
    if (life != Life::alive || !busy()) {
      changed.wait(lock);
      continue;
    }
    look(lock);
    changed.wait_for(lock, kLook, [&] { return closing_; });
  }
}

namespace {

// The oldest operation of a lane, as seen with the lock held; asked about without it.
struct Suspect {
  std::shared_ptr<Communicator> host;
  Witness* witness;
  Operation* operation;
  int64_t run;
  std::vector<int> peers;
  int64_t sequence;
  bool is_channel;
  CommClock::time_point since;
  std::string what;   // "all_reduce of 'w' in group 'g'"
  std::string error;  // of NCCL's
  std::string lost;
};

// "rank 0 (h) has waited 1.0 s for <what>: rank 2 (h) has not arrived", or is held up by one that has not.
std::string sentence(Witness& witness, int rank, const std::string& what, CommClock::time_point since,
                     std::vector<int> missing, std::optional<int64_t> sequence) {
  std::string text =
      fmt::format("{} has waited {:.1f} s for {}", witness.call(rank), seconds_since(since), what);
  if (sequence) {  // those who wait for the same are not to blame
    witness.say_waiting(*sequence);
    std::this_thread::sleep_for(kSay);
    std::vector<int> to_blame;
    for (const int peer : missing)
      if (!witness.is_waiting(peer, *sequence)) to_blame.push_back(peer);
    missing = std::move(to_blame);
  }
  if (missing.empty()) return text + "; all ranks say that they wait for it, but the GPUs do not finish it";
  for (size_t i = 0; i < missing.size(); ++i)
    text += fmt::format("{} {} has not arrived", i == 0 ? ":" : ",", witness.call(missing[i]));
  return text;
}

}  // namespace

void Traffic::look(std::unique_lock<std::mutex>& lock) {
  reap();
  std::vector<Suspect> suspects;
  for (NcclGroup* group : groups)
    for (Lane& lane : group->lanes()) {
      if (lane.under_way.empty()) continue;
      Operation& operation = *lane.under_way.front().operation;
      // While its own GPU still computes, nobody else is to blame.
      if (operation.queued && cudaEventQuery(operation.ready) != cudaSuccess) continue;
      if (operation.waited_since == CommClock::time_point{}) operation.waited_since = CommClock::now();
      nccl::Result error = nccl::success;
      if (lane.comm != nullptr) nccl.CommGetAsyncError(lane.comm, &error);
      Suspect& suspect = suspects.emplace_back();
      suspect.host = group->host();
      suspect.witness = &group->witness();
      suspect.operation = &operation;
      suspect.run = operation.run;
      suspect.peers = group->peers_of(lane);
      suspect.sequence = kSequences + lane.sequence;
      suspect.is_channel = lane.peer >= 0;
      suspect.since = operation.waited_since;
      suspect.what = fmt::format("{} of '{}' in group '{}'", name_of(operation.request.kind),
                                 operation.request.label, group->name());
      if (error != nccl::success && error != nccl::in_progress)
        suspect.error =
            fmt::format("NCCL says \"{}\" ({})", nccl.GetErrorString(error), nccl.GetLastError(lane.comm));
    }
  lock.unlock();
  for (Suspect& suspect : suspects)
    for (const int peer : suspect.peers)
      if (suspect.lost.empty()) suspect.lost = suspect.witness->lost(peer);
  lock.lock();

  const CommClock::time_point now = CommClock::now();
  reap();
  for (const Suspect& suspect : suspects) {
    const auto is_there = [&] {
      if (life != Life::alive) return false;
      for (NcclGroup* group : groups)
        for (const Lane& lane : group->lanes())
          if (!lane.under_way.empty() && lane.under_way.front().operation == suspect.operation &&
              lane.under_way.front().run == suspect.run)
            return true;
      return false;
    };
    if (!is_there()) continue;
    Operation& operation = *suspect.operation;
    const auto for_long = [&](CommClock::time_point& first, bool so, milliseconds long_enough) {
      if (!so) return false;
      if (first == CommClock::time_point{}) first = now;
      return now - first >= long_enough;
    };
    const Patience& patience = suspect.witness->patience();
    if (for_long(operation.lost_since, !suspect.lost.empty(), kGrace)) {
      lock.unlock();
      fail(suspect.lost);
      lock.lock();
      return;
    }
    if (for_long(operation.error_since, !suspect.error.empty(), kName)) {
      lock.unlock();
      fail(suspect.error);
      lock.lock();
      return;
    }
    const auto waited = now - suspect.since;
    const bool too_long = waited >= patience.timeout;
    if (!too_long && (operation.warned || waited < patience.warn_after)) continue;
    operation.warned = true;
    lock.unlock();
    const std::string text =
        sentence(*suspect.witness, suspect.host->rank(), suspect.what, suspect.since, suspect.peers,
                 suspect.is_channel ? std::nullopt : std::optional(suspect.sequence));
    lock.lock();
    if (!is_there()) continue;
    lock.unlock();
    if (too_long)
      fail(text, true);
    else if (patience.warn)
      patience.warn(text);
    lock.lock();
  }
}

namespace {

std::vector<int> NcclGroup::peers_of(const Lane& lane) const {
  return lane.peer >= 0 ? std::vector<int>{lane.peer} : all_peers();
}

std::vector<int> NcclGroup::all_peers() const {
  std::vector<int> peers;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) peers.push_back(peer);
  return peers;
}

std::string NcclGroup::reason_for(const Operation& operation) const {
  return fmt::format("{}: {} of '{}' in group '{}' failed after {:.1f} s: {}", call(rank()),
                     name_of(operation.request.kind), operation.request.label, name(),
                     seconds_since(operation.times.started), traffic_->cause);
}

void NcclGroup::throw_cause() const {
  throw Error(ErrorKind::peer, traffic_->cause_whole ? traffic_->cause
                                                     : fmt::format("{}: group '{}' failed: {}", call(rank()),
                                                                   name(), traffic_->cause));
}

// The peers are done with the group as well, or are given up: a communicator that goes away takes what it
// shares with them along.
NcclGroup::~NcclGroup() {
  witness_.unwatch(this);
  std::unique_lock lock(traffic_->mutex);
  const nccl::Functions& nccl = traffic_->nccl;
  for (Lane& lane : lanes_)
    if (traffic_->life == Life::alive && lane.comm != nullptr) nccl.CommFinalize(lane.comm);
  const CommClock::time_point since = CommClock::now();
  const auto lost = [&] {
    for (int peer = 0; peer < size(); ++peer)
      if (!witness_.lost(peer).empty()) return true;
    return false;
  };
  for (Lane& lane : lanes_) {
    nccl::Result state = nccl::in_progress;
    while (traffic_->life == Life::alive && lane.comm != nullptr) {
      if (nccl.CommGetAsyncError(lane.comm, &state) != nccl::success) state = nccl::internal_error;
      if (state != nccl::in_progress || CommClock::now() - since > kLinger || lost()) break;
      pause(lock, since);
    }
    traffic_->changed.wait(lock, [&] { return traffic_->life != Life::failing; });
    if (lane.comm == nullptr) continue;
    if (state == nccl::success)
      nccl.CommDestroy(lane.comm);
    else
      nccl.CommAbort(lane.comm);
    lane.comm = nullptr;
  }
  std::erase(traffic_->groups, this);
  for (Lane& lane : lanes_)
    if (lane.stream != nullptr) cudaStreamDestroy(lane.stream);
  lock.unlock();
  cudaFree(scratch_);
}

std::unique_ptr<Collective> NcclGroup::prepare(const CollectiveRequest& request) {
  const std::vector<std::string> problems = problems_of(request, rank(), size());
  if (!problems.empty()) throw Error(ErrorKind::bug, fmt::format("{}", fmt::join(problems, "; ")));
  return std::make_unique<NcclCollective>(shared_from_this(), lane_for(request), request);
}

Lane& NcclGroup::lane_for(const CollectiveRequest& request) {
  Lane wanted;
  if (request.kind == CollectiveKind::send || request.kind == CollectiveKind::receive) {
    const bool sends = request.kind == CollectiveKind::send;
    wanted.peer = request.peer;
    wanted.from = sends ? rank() : request.peer;
    wanted.to = sends ? request.peer : rank();
    wanted.tag = request.tag;
  }
  std::lock_guard lock(traffic_->mutex);
  for (Lane& lane : lanes_)
    if (lane.from == wanted.from && lane.to == wanted.to && lane.tag == wanted.tag) {
      if (request.kind == CollectiveKind::all_to_all && !lane.exchanges) {
        lane.exchanges = true;
        lane.connected = false;  // NCCL connects the pairs with the first exchange
      }
      return lane;
    }
  wanted.exchanges = request.kind == CollectiveKind::all_to_all;
  wanted.under_way.reserve(kMostUnderWay);
  return lanes_.emplace_back(std::move(wanted));
}

// ---- connecting ----

// What a rank says of a lane that it is about to connect.
struct NcclGroup::Entry {
  int32_t from = -1, to = -1, tag = 0, rank = 0;
  int32_t exchanges = 0, has_id = 0, is_new = 1;
  nccl::UniqueId id{};
};

// What every rank says, by rank.
std::vector<NcclGroup::Entry> NcclGroup::exchange(const std::vector<Entry>& own) {
  CollectiveRequest request;
  request.kind = CollectiveKind::all_gather;
  request.dtype = DType::i64;
  request.counts.assign(static_cast<size_t>(size()), 1);
  request.label = "which GPUs are to be connected";
  const auto run = [&](const void* in, void* out) {
    const std::unique_ptr<Collective> gather = host_->prepare(request);
    gather->start(static_cast<const std::byte*>(in), static_cast<std::byte*>(out));
    gather->wait();
  };
  const auto count = static_cast<int64_t>(own.size());
  std::vector<int64_t> counts(static_cast<size_t>(size()));
  run(&count, counts.data());
  std::vector<Entry> all(static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0})));
  request.dtype = DType::u8;
  for (size_t r = 0; r < counts.size(); ++r)
    request.counts[r] = counts[r] * static_cast<int64_t>(sizeof(Entry));
  run(own.data(), all.data());
  return all;
}

// The id of each lane's communicator, made by rank 0 of the group or by the sender. All ranks find out alike
// when one lacks its part.
std::vector<NcclGroup::Entry> NcclGroup::agree(const std::vector<Lane*>& fresh) {
  const nccl::Functions& nccl = traffic_->nccl;
  std::vector<Entry> own;
  for (const Lane* lane : fresh) {
    Entry& entry = own.emplace_back();
    entry.from = lane->from;
    entry.to = lane->to;
    entry.tag = lane->tag;
    entry.rank = rank();
    entry.exchanges = lane->exchanges ? 1 : 0;
    entry.is_new = lane->comm == nullptr ? 1 : 0;
    const int maker = lane->peer < 0 ? 0 : lane->from;
    if (rank() == maker && entry.is_new != 0)
      entry.has_id = nccl.GetUniqueId(&entry.id) == nccl::success ? 1 : 0;
  }
  const std::vector<Entry> all = exchange(own);
  std::vector<Entry> ids;
  std::string problem;
  for (const Entry& entry : all) {
    const auto same = [&](const Entry& other) {
      return other.from == entry.from && other.to == entry.to && other.tag == entry.tag;
    };
    const int maker = entry.from < 0 ? 0 : entry.from;
    const auto others = std::count_if(all.begin(), all.end(), same);
    if (others != (entry.from < 0 ? size() : 2)) {
      problem = entry.from < 0
                    ? fmt::format("not every rank of group '{}' has collectives to connect for", name())
                    : fmt::format("of the message from {} to {} with tag {}, only {} has its end",
                                  call(entry.from), call(entry.to), entry.tag, call(entry.rank));
    } else if (entry.rank == maker && entry.is_new != 0 && entry.has_id == 0) {
      problem = fmt::format(
          "NCCL of {} could not begin: it finds no network, perhaps; NCCL_DEBUG=INFO says more", call(maker));
    }
    if (entry.rank == maker) ids.push_back(entry);
  }
  if (!problem.empty()) {
    traffic_->fail(problem);
    std::lock_guard lock(traffic_->mutex);
    throw_cause();
  }
  return ids;
}

// True while the lane's communicator is at work beside us. Throws when it has failed.
bool NcclGroup::in_progress(Lane& lane, nccl::Result result) {
  if (traffic_->life != Life::alive) return true;
  const nccl::Functions& nccl = traffic_->nccl;
  if (result == nccl::in_progress && nccl.CommGetAsyncError(lane.comm, &result) != nccl::success)
    result = nccl::internal_error;
  if (result == nccl::success || result == nccl::in_progress) return result == nccl::in_progress;
  throw Error(ErrorKind::peer, fmt::format("NCCL says \"{}\" ({})", nccl.GetErrorString(result),
                                           lane.comm == nullptr ? "" : nccl.GetLastError(lane.comm)));
}

// NCCL names no rank: the host may, in a while. Of no effect when the failure is known already.
void NcclGroup::fail_named(const std::vector<int>& peers, const std::string& what, const Error& error) {
  const CommClock::time_point since = CommClock::now();
  std::string lost;
  while (error.kind() == ErrorKind::peer && lost.empty() && CommClock::now() - since < kName) {
    {
      std::lock_guard lock(traffic_->mutex);
      if (traffic_->life != Life::alive) break;
    }
    for (const int peer : peers)
      if (lost.empty()) lost = witness_.lost(peer);
    if (lost.empty()) std::this_thread::sleep_for(kLook);
  }
  const std::string cause = lost.empty() ? error.what() : lost;
  if (what.empty())
    traffic_->fail(cause);
  else
    traffic_->fail(fmt::format("{}: {}: {}", call(rank()), what, cause), true);
}

void NcclGroup::begin(Lane& lane, const Entry& entry) {
  if (lane.comm != nullptr) return;
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "say which priorities it has");
  check(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, highest), "make a stream");
  nccl::Config config;
  config.blocking = 0;
  if (lane.peer >= 0) config.max_ctas = kChannelCtas;
  const int ranks = lane.peer < 0 ? size() : 2;
  const int place = lane.peer < 0 ? rank() : (rank() == lane.from ? 0 : 1);
  in_progress(lane, traffic_->nccl.CommInitRankConfig(&lane.comm, ranks, entry.id, place, &config));
}

// Pairs of ranks are connected with their first message: here, where nobody waits in another order.
void NcclGroup::warm(Lane& lane) {
  const nccl::Functions& nccl = traffic_->nccl;
  nccl::Result result = nccl::success;
  if (lane.peer >= 0) {
    result = rank() == lane.from ? nccl.Send(scratch_, 1, nccl::u8, 1, lane.comm, lane.stream)
                                 : nccl.Recv(scratch_, 1, nccl::u8, 0, lane.comm, lane.stream);
  } else {
    nccl.GroupStart();
    for (int peer = 0; peer < size(); ++peer) {
      nccl.Send(scratch_, 1, nccl::u8, peer, lane.comm, lane.stream);
      nccl.Recv(scratch_ + kScratchBytes / 2, 1, nccl::u8, peer, lane.comm, lane.stream);
    }
    result = nccl.GroupEnd();
  }
  in_progress(lane, result);
}

// Until `ready` of every lane, asked with the lock held.
template <typename Ready>
void NcclGroup::await_peers(const std::vector<Lane*>& lanes, const Ready& ready) {
  const Patience& patience = witness_.patience();
  const std::string what = fmt::format("its GPU to be connected with those of group '{}'", name());
  const CommClock::time_point since = CommClock::now();
  CommClock::time_point lost_since{};
  bool warned = false;
  std::unique_lock lock(traffic_->mutex);
  for (;;) {
    traffic_->changed.wait(lock, [&] { return traffic_->life != Life::failing; });
    if (traffic_->life != Life::alive) throw_cause();
    std::vector<int> missing;
    bool whole = false;  // the group's own lane is not ready
    for (Lane* lane : lanes) {
      if (ready(*lane)) continue;
      whole |= lane->peer < 0;
      for (const int peer : peers_of(*lane))
        if (std::find(missing.begin(), missing.end(), peer) == missing.end()) missing.push_back(peer);
    }
    if (missing.empty() && !whole) return;
    lock.unlock();
    std::string lost;
    for (const int peer : missing)
      if (lost.empty()) lost = witness_.lost(peer);
    const CommClock::time_point now = CommClock::now();
    if (!lost.empty() && lost_since == CommClock::time_point{}) lost_since = now;
    if (!lost.empty() && now - lost_since >= kGrace) {
      traffic_->fail(lost);
    } else if (now - since >= patience.timeout) {
      traffic_->fail(sentence(witness_, rank(), what, since, missing, kSequences - 1), true);
    } else if (!warned && now - since >= patience.warn_after) {
      warned = true;
      const std::string text = sentence(witness_, rank(), what, since, missing, kSequences - 1);
      if (patience.warn) patience.warn(text);
    }
    std::this_thread::sleep_for(microseconds(200));
    lock.lock();
  }
}

void NcclGroup::settle() {
  std::vector<Lane*> fresh;
  {
    std::unique_lock lock(traffic_->mutex);
    traffic_->changed.wait(lock, [&] { return traffic_->life != Life::failing; });
    if (traffic_->life != Life::alive) throw_cause();
    for (Lane& lane : lanes_)
      if (!lane.connected) fresh.push_back(&lane);
  }
  const std::vector<Entry> ids = agree(fresh);
  if (fresh.empty()) return;
  if (scratch_ == nullptr)
    check(cudaMalloc(reinterpret_cast<void**>(&scratch_), kScratchBytes), "allocate memory");
  try {
    {
      std::lock_guard lock(traffic_->mutex);
      for (Lane* lane : fresh) {
        if (traffic_->life != Life::alive) break;
        const auto entry = std::find_if(ids.begin(), ids.end(), [&](const Entry& e) {
          return e.from == lane->from && e.to == lane->to && e.tag == lane->tag;
        });
        HET_REQUIRE(entry != ids.end(), lane->from, lane->to);
        begin(*lane, *entry);
      }
    }
    const auto is_idle = [&](Lane& lane) { return !in_progress(lane, nccl::in_progress); };
    await_peers(fresh, is_idle);
    {
      std::lock_guard lock(traffic_->mutex);
      for (Lane* lane : fresh)
        if (traffic_->life == Life::alive && (lane->peer >= 0 || lane->exchanges)) warm(*lane);
    }
    await_peers(fresh, is_idle);
    await_peers(fresh, [](const Lane& lane) { return cudaStreamQuery(lane.stream) != cudaErrorNotReady; });
  } catch (const Error& error) {
    fail_named(all_peers(), fmt::format("the GPUs of group '{}' could not be connected", name()), error);
    std::lock_guard lock(traffic_->mutex);
    throw_cause();
  }
  std::lock_guard lock(traffic_->mutex);
  for (Lane* lane : fresh) lane->connected = true;
}

// ---- operations ----

bool all_equal(const std::vector<int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
}

// Blocks of each rank: by the collective that is made for it where they are equal, else one by one, at once.
nccl::Result NcclGroup::blocks(Lane& lane, const CollectiveRequest& request, const std::byte* in,
                               std::byte* out) {
  const nccl::Functions& nccl = traffic_->nccl;
  const nccl::Type type = type_of(request.dtype);
  const nccl::Op op = request.reduction == Reduction::max ? nccl::max : nccl::sum;
  const bool reduces = request.kind == CollectiveKind::reduce_scatter;
  const auto count = static_cast<size_t>(request.counts[0]);
  if (all_equal(request.counts)) {
    if (count == 0) return nccl::success;
    return reduces ? nccl.ReduceScatter(in, out, count, type, op, lane.comm, lane.stream)
                   : nccl.AllGather(in, out, count, type, lane.comm, lane.stream);
  }
  const int64_t width = bytes_of(request.dtype);
  int64_t at = 0;
  nccl.GroupStart();
  for (int root = 0; root < size(); ++root) {
    const int64_t bytes = request.counts[root] * width;
    const auto elements = static_cast<size_t>(request.counts[root]);
    const bool own = root == rank();
    if (bytes > 0 && reduces)
      nccl.Reduce(in + at, own ? out : nullptr, elements, type, op, root, lane.comm, lane.stream);
    else if (bytes > 0)
      nccl.Broadcast(own ? in : out + at, out + at, elements, type, root, lane.comm, lane.stream);
    at += bytes;
  }
  return nccl.GroupEnd();
}

nccl::Result NcclGroup::all_to_all(Lane& lane, const CollectiveRequest& request, const std::byte* in,
                                   std::byte* out) {
  const nccl::Functions& nccl = traffic_->nccl;
  const nccl::Type type = type_of(request.dtype);
  const int64_t width = bytes_of(request.dtype);
  nccl.GroupStart();
  for (int peer = 0; peer < size(); ++peer) {
    const int64_t there = request.counts[rank() * size() + peer],
                  here = request.counts[peer * size() + rank()];
    if (there > 0) nccl.Send(in, static_cast<size_t>(there), type, peer, lane.comm, lane.stream);
    if (here > 0) nccl.Recv(out, static_cast<size_t>(here), type, peer, lane.comm, lane.stream);
    in += there * width;
    out += here * width;
  }
  return nccl.GroupEnd();
}

nccl::Result NcclGroup::enqueue(Lane& lane, const CollectiveRequest& request, const std::byte* in,
                                std::byte* out) {
  const nccl::Functions& nccl = traffic_->nccl;
  const nccl::Type type = type_of(request.dtype);
  const nccl::Op op = request.reduction == Reduction::max ? nccl::max : nccl::sum;
  const auto count = static_cast<size_t>(request.counts.empty() ? 0 : request.counts[0]);
  switch (request.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast:
    case CollectiveKind::reduce_scatter: return blocks(lane, request, in, out);
    case CollectiveKind::all_to_all: return all_to_all(lane, request, in, out);
    case CollectiveKind::barrier:
      return nccl.AllReduce(scratch_, scratch_, 1, nccl::u8, nccl::max, lane.comm, lane.stream);
    default: break;
  }
  if (count == 0) return nccl::success;
  switch (request.kind) {
    case CollectiveKind::all_reduce: return nccl.AllReduce(in, out, count, type, op, lane.comm, lane.stream);
    case CollectiveKind::broadcast:
      return nccl.Broadcast(rank() == request.peer ? in : out, out, count, type, request.peer, lane.comm,
                            lane.stream);
    case CollectiveKind::send: return nccl.Send(in, count, type, 1, lane.comm, lane.stream);
    default: return nccl.Recv(out, count, type, 0, lane.comm, lane.stream);
  }
}

// Bytes that leave this rank when blocks travel round a ring.
int64_t NcclGroup::leaving(const CollectiveRequest& request) const {
  const int64_t bytes = input_elements(request, rank(), size()) * bytes_of(request.dtype), n = size();
  switch (request.kind) {
    case CollectiveKind::all_reduce: return 2 * (n - 1) * bytes / n;
    case CollectiveKind::reduce_scatter: return (n - 1) * bytes / n;
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast:
      return (n - 1) * output_elements(request, rank(), size()) * bytes_of(request.dtype) / n;
    case CollectiveKind::all_to_all:
      return bytes - request.counts[rank() * n + rank()] * bytes_of(request.dtype);
    default: return bytes;
  }
}

void NcclGroup::start(Lane& lane, Operation& operation, const std::byte* in, std::byte* out) {
  Traffic& traffic = *traffic_;
  std::unique_lock lock(traffic.mutex);
  HET_REQUIRE(!operation.started, operation.request.label);
  const auto require_alive = [&] {
    traffic.changed.wait(lock, [&] { return traffic.life != Life::failing; });
    if (traffic.life != Life::alive) throw_cause();
  };
  require_alive();
  HET_REQUIRE(lane.connected, operation.request.label);
  const CommClock::time_point now = CommClock::now();
  for (traffic.reap(); lane.under_way.size() >= kMostUnderWay; traffic.reap()) {
    pause(lock, now);
    require_alive();
  }
  ++operation.run;
  operation.started = true;
  operation.queued = operation.finished = operation.failed = operation.warned = false;
  operation.waited_since = operation.lost_since = operation.error_since = {};
  operation.times = {now, now, {}};
  lane.under_way.push_back({&operation, operation.run});
  traffic.changed.notify_all();
  std::optional<Error> problem;
  try {
    check(cudaEventRecord(operation.ready, traffic.compute), "record an event");
    check(cudaStreamWaitEvent(lane.stream, operation.ready, 0), "wait for an event");
    nccl::Result result = enqueue(lane, operation.request, in, out);
    while (in_progress(lane, result)) {
      pause(lock, now);
      result = nccl::in_progress;
      if (traffic.life != Life::alive) break;
    }
    if (traffic.life == Life::alive) {
      check(cudaEventRecord(operation.done, lane.stream), "record an event");
      operation.queued = true;
    }
  } catch (const Error& error) {
    problem = error;
  }
  if (problem) {
    lock.unlock();
    fail_named(peers_of(lane), "", *problem);
    lock.lock();
  }
  traffic.changed.wait(lock, [&] { return traffic.life != Life::failing; });
  if (operation.failed) {
    operation.started = false;
    traffic.throw_failed(operation);
  }
  bytes_sent_.fetch_add(leaving(operation.request), std::memory_order_relaxed);
}

void NcclGroup::wait(Operation& operation) {
  Traffic& traffic = *traffic_;
  std::unique_lock lock(traffic.mutex);
  HET_REQUIRE(operation.started, operation.request.label);
  operation.started = false;
  traffic.changed.wait(lock, [&] { return traffic.life != Life::failing; });
  if (operation.failed) traffic.throw_failed(operation);
  check(cudaStreamWaitEvent(traffic.compute, operation.done, 0), "wait for an event");
}

bool NcclGroup::done(Operation& operation) {
  std::lock_guard lock(traffic_->mutex);
  traffic_->reap();
  return operation.finished;
}

CollectiveTimes NcclGroup::times(Operation& operation) {
  std::lock_guard lock(traffic_->mutex);
  traffic_->reap();
  return operation.times;
}

// A handle goes away: nothing may touch its memory afterwards. What was waited for ends in its time.
void NcclGroup::drop(Operation& operation) {
  std::unique_lock lock(traffic_->mutex);
  const CommClock::time_point since = CommClock::now();
  if (operation.started && !operation.finished) {
    traffic_->reap();
    if (!operation.finished) {
      lock.unlock();
      abort(fmt::format("{} of '{}' was given up", name_of(operation.request.kind), operation.request.label));
      lock.lock();
    }
  }
  while (!operation.finished) {
    traffic_->reap();
    if (!operation.finished) pause(lock, since);
  }
  for (Lane& lane : lanes_)
    std::erase_if(lane.under_way, [&](const Lane::Run& run) { return run.operation == &operation; });
}

}  // namespace

// ---- the device's side ----

DirectWay Interconnect::way() {
  DirectWay way;
  if (!library().library.problem.empty()) {
    way.problem = library().library.problem;
    return way;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, context_.ordinal), "say what it is");
  way.library = "NCCL " + nccl_version_text(library().version);
  for (const char byte : properties.uuid.bytes)
    way.device += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return way;
}

std::shared_ptr<Communicator> Interconnect::connect(std::shared_ptr<Communicator> host) {
  HET_REQUIRE(host->witness() != nullptr, host->name());
  bool is_dead = true;
  if (traffic_ != nullptr) {
    std::unique_lock lock(traffic_->mutex);
    traffic_->changed.wait(lock, [&] { return traffic_->life != Life::failing; });
    is_dead = traffic_->life == Life::dead;
  }
  if (is_dead) traffic_ = std::make_shared<Traffic>(context_);
  return std::make_shared<NcclGroup>(traffic_, std::move(host));
}

void Interconnect::synchronize() {
  if (traffic_ == nullptr) return check(cudaStreamSynchronize(context_.stream), "finish its work");
  // Not cudaStreamSynchronize: its wait for a peer that is lost could not be ended.
  const CommClock::time_point since = CommClock::now();
  CommClock::time_point dead_since{};
  cudaError_t result = cudaSuccess;
  while ((result = cudaStreamQuery(context_.stream)) == cudaErrorNotReady) {
    std::unique_lock lock(traffic_->mutex);
    if (traffic_->life == Life::dead) {
      if (dead_since == CommClock::time_point{}) dead_since = CommClock::now();
      if (CommClock::now() - dead_since > kDrain)
        fail_environment("the GPU does not end what was aborted: {}", traffic_->cause);
    }
    pause(lock, since);
  }
  std::unique_lock lock(traffic_->mutex);
  traffic_->changed.wait(lock, [&] { return traffic_->life != Life::failing; });
  traffic_->reap();
  traffic_->throw_untold();
  lock.unlock();
  check(result, "finish its work");
}

void Interconnect::close() {
  if (traffic_ == nullptr) return;
  bool used = false;
  {
    std::lock_guard lock(traffic_->mutex);
    used = !traffic_->groups.empty();
  }
  if (used) traffic_->fail("its device is no more");
}

LibraryReport find_nccl() {
  const Opened& opened = library();
  return {"NCCL", opened.library.path, opened.version == 0 ? "" : nccl_version_text(opened.version),
          opened.library.problem};
}

}  // namespace het::HET_CUDA
