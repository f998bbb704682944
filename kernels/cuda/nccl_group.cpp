#include "kernels/cuda/nccl_group.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/nccl_library.h"

namespace het::HET_CUDA {
namespace {

constexpr std::chrono::seconds kLinger{2};  // for peers to be done with a group too, before it is taken down
constexpr size_t kMostUnderWay = 64;  // of one stream: more could fill the driver's queue, where NCCL waits

class NcclCollective final : public Collective {
 public:
  NcclCollective(std::shared_ptr<NcclGroup> group, NcclLane& lane, const CollectiveRequest& request)
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
  NcclLane& lane_;
  mutable NcclOperation operation_;
};

bool all_equal(const std::vector<int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<NcclContext> context, std::shared_ptr<Communicator> host)
    : context_(std::move(context)), host_(std::move(host)), detector_(*host_->failure_detector()) {
  {
    const Lock lock(context_->mutex);
    context_->groups.push_back(this);
  }
  // Outside of the lock: a host that is dead already calls at once.
  detector_.watch(this, [context = context_.get()](const std::string& cause) { context->fail(cause); });
}

void NcclGroup::abort(std::string_view why) {
  host_->abort(why);  // calls watch()'s function
  context_->fail(lost_text(self(), why));
}

std::vector<int> NcclGroup::peers_of(const NcclLane& lane) const {
  return lane.channel.is_message() ? std::vector<int>{lane.channel.peer(rank())} : all_peers();
}

std::vector<int> NcclGroup::all_peers() const {
  std::vector<int> peers;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) peers.push_back(peer);
  return peers;
}

std::string NcclGroup::reason_for(const TrackedOperation& operation) const {
  const std::string& cause = context_->cause();
  return cause.starts_with("lost ") ? during_text(cause, operation.request)
                                    : fmt::format("{} failed: {}", text_of(operation.request), cause);
}

void NcclGroup::throw_cause() const { throw Error(ErrorKind::peer, context_->cause()); }

// The peers are done with the group as well, or are given up: a communicator that goes away takes what it
// shares with them along.
NcclGroup::~NcclGroup() {
  detector_.unwatch(this);
  Lock lock(context_->mutex);
  const nccl::Functions& nccl = context_->nccl;
  for (NcclLane& lane : lanes_)
    if (context_->alive() && lane.comm != nullptr) nccl.CommFinalize(lane.comm);
  const CommClock::time_point since = CommClock::now();
  for (NcclLane& lane : lanes_) {
    nccl::Result state = nccl::in_progress;
    bool lost = false;  // perhaps a peer that was done with the group: the state decides
    while (context_->alive() && lane.comm != nullptr) {
      if (nccl.CommGetAsyncError(lane.comm, &state) != nccl::success) state = nccl::internal_error;
      if (state != nccl::in_progress || lost || CommClock::now() - since > kLinger) break;
      pause(lock, since);
      lock.unlock();
      lost = !lost_among(all_peers(), detector_).empty();
      lock.lock();
    }
    context_->await_failure(lock);
    if (lane.comm == nullptr) continue;
    if (state == nccl::success)
      nccl.CommDestroy(lane.comm);
    else
      nccl.CommAbort(lane.comm);
    lane.comm = nullptr;
  }
  std::erase(context_->groups, this);
  for (NcclLane& lane : lanes_)
    if (lane.stream != nullptr) cudaStreamDestroy(lane.stream);
  lock.unlock();
  cudaFree(scratch_);
}

std::unique_ptr<Collective> NcclGroup::prepare(const CollectiveRequest& request) {
  require_valid(request, rank(), size());
  return std::make_unique<NcclCollective>(shared_from_this(), lane_for(request), request);
}

NcclLane& NcclGroup::lane_for(const CollectiveRequest& request) {
  const OperationChannel channel = channel_of(request, rank());
  const bool exchanges = request.kind == CollectiveKind::all_to_all;
  const Lock lock(context_->mutex);
  if (NcclLane* const lane = find_queue(lanes_, channel)) {
    if (exchanges && !lane->exchanges) {
      lane->exchanges = true;
      lane->connected = false;  // NCCL connects the pairs with the first exchange
    }
    return *lane;
  }
  NcclLane& lane = lanes_.emplace_back();
  lane.channel = channel;
  lane.exchanges = exchanges;
  lane.under_way.reserve(kMostUnderWay);
  return lane;
}

// Blocks of each rank: by the collective that is made for it where they are equal, else one by one, at once.
nccl::Result NcclGroup::blocks(NcclLane& lane, const CollectiveRequest& request, const std::byte* in,
                               std::byte* out) {
  const nccl::Functions& nccl = context_->nccl;
  const nccl::Type type = nccl_type(request.dtype);
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

nccl::Result NcclGroup::all_to_all(NcclLane& lane, const CollectiveRequest& request, const std::byte* in,
                                   std::byte* out) {
  const nccl::Functions& nccl = context_->nccl;
  const nccl::Type type = nccl_type(request.dtype);
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

nccl::Result NcclGroup::enqueue(NcclLane& lane, const CollectiveRequest& request, const std::byte* in,
                                std::byte* out) {
  const nccl::Functions& nccl = context_->nccl;
  const nccl::Type type = nccl_type(request.dtype);
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

void NcclGroup::start(NcclLane& lane, NcclOperation& operation, const std::byte* in, std::byte* out) {
  NcclContext& context = *context_;
  Lock lock(context.mutex);
  HET_REQUIRE(!operation.started, operation.request.label);
  const auto require_alive = [&] {
    context.await_failure(lock);
    if (!context.alive()) throw_cause();
  };
  require_alive();
  HET_REQUIRE(lane.connected, operation.request.label);
  const CommClock::time_point now = CommClock::now();
  for (context.reap(); lane.under_way.size() >= kMostUnderWay; context.reap()) {
    pause(lock, now);
    require_alive();
  }
  operation.queued = operation.warned = false;
  operation.waited_since = operation.lost_since = operation.error_since = {};
  context.begin(lane, operation, now);
  context.changed.notify_all();
  std::optional<Error> problem;
  try {
    check(cudaEventRecord(operation.ready, context.compute), "record an event");
    check(cudaStreamWaitEvent(lane.stream, operation.ready, 0), "wait for an event");
    nccl::Result result = enqueue(lane, operation.request, in, out);
    while (in_progress(lane, result)) {
      pause(lock, now);
      result = nccl::in_progress;
      if (!context.alive()) break;
    }
    if (context.alive()) {
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
  context.await_failure(lock);
  if (operation.failed) context.end_wait(operation);  // throws
  bytes_sent_.fetch_add(leaving(operation.request), std::memory_order_relaxed);
}

void NcclGroup::wait(NcclOperation& operation) {
  NcclContext& context = *context_;
  Lock lock(context.mutex);
  HET_REQUIRE(operation.started, operation.request.label);
  context.await_failure(lock);
  context.end_wait(operation);
  check(cudaStreamWaitEvent(context.compute, operation.done, 0), "wait for an event");
}

bool NcclGroup::done(NcclOperation& operation) {
  const Lock lock(context_->mutex);
  context_->reap();
  return operation.finished;
}

CollectiveTimes NcclGroup::times(NcclOperation& operation) {
  const Lock lock(context_->mutex);
  context_->reap();
  return operation.times;
}

// A handle goes away: nothing may touch its memory afterwards. What was waited for ends in its time.
void NcclGroup::drop(NcclOperation& operation) {
  Lock lock(context_->mutex);
  const CommClock::time_point since = CommClock::now();
  if (operation.started && !operation.finished) {
    context_->reap();
    if (!operation.finished) {
      lock.unlock();
      abort(given_up_text(operation.request));
      lock.lock();
    }
  }
  while (!operation.finished) {
    context_->reap();
    if (!operation.finished) pause(lock, since);
  }
  for (NcclLane& lane : lanes_)
    std::erase_if(lane.under_way,
                  [&](const OperationQueue::Run& run) { return run.operation == &operation; });
}

}  // namespace het::HET_CUDA
