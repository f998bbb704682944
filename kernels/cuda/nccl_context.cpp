#include "kernels/cuda/nccl_context.h"

#include "core/base/error.h"
#include "kernels/cuda/nccl_group.h"
#include "kernels/cuda/nccl_library.h"

namespace het::HET_CUDA {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kSay{100};  // for others to say that they wait as well

// The oldest operation of a lane, as seen with the lock held; asked about without it.
struct Suspect {
  std::shared_ptr<Communicator> host;
  FailureDetector* detector;
  NcclOperation* operation;
  int64_t run;
  std::vector<int> peers;
  int64_t sequence;
  bool is_message;
  CommClock::time_point since;
  std::string what;   // "all-reduce of w"
  std::string error;  // of NCCL's
  std::string lost;
};

}  // namespace

NcclContext::NcclContext(const Context& context)
    : nccl(nccl_library().functions), ordinal(context.ordinal), compute(context.stream) {
  monitor_ = std::thread([this] { monitor(); });
}

NcclContext::~NcclContext() {
  {
    const Lock lock(mutex);
    closing_ = true;
    changed.notify_all();
  }
  monitor_.join();
}

void NcclContext::reap() {
  if (!alive()) return;  // what ends now was aborted
  for (NcclGroup* group : groups)
    for (NcclLane& lane : group->lanes())
      while (!lane.under_way.empty()) {
        const NcclOperation& operation = lane.oldest();
        // Else it was started again since, behind others of this stream.
        if (operation.run == lane.under_way.front().run &&
            (!operation.queued || cudaEventQuery(operation.done) != cudaSuccess))
          break;
        finish_first(lane);
      }
}

void NcclContext::throw_untold() {
  if (!untold_.empty()) throw Error(ErrorKind::peer, std::exchange(untold_, {}));
}

void NcclContext::end_wait(NcclOperation& operation) {
  if (operation.failed) untold_.clear();
  OperationTracker::end_wait(operation);
}

void NcclContext::fail(const std::string& why) {
  std::vector<std::shared_ptr<Communicator>> hosts;
  Lock lock(mutex);
  reap();  // of no effect when it has failed before
  if (!begin_failure(lock, why)) return;
  for (NcclGroup* group : groups) {
    hosts.push_back(group->host());
    for (NcclLane& lane : group->lanes())
      for (const OperationQueue::Run& run : lane.under_way) {
        lose(*run.operation, group->reason_for(*run.operation));
        if (untold_.empty()) untold_ = run.operation->reason;
      }
  }
  lock.unlock();
  for (const auto& host : hosts) host->abort(why);  // informs the peers
  lock.lock();

  cudaSetDevice(ordinal);
  // As one group: every communicator has been asked to end before the first waits for its kernels.
  nccl.GroupStart();
  for (NcclGroup* group : groups)
    for (NcclLane& lane : group->lanes())
      if (lane.comm != nullptr) nccl.CommAbort(std::exchange(lane.comm, nullptr));
  nccl.GroupEnd();
  const CommClock::time_point since = CommClock::now();
  for (NcclGroup* group : groups)
    for (NcclLane& lane : group->lanes()) {
      while (lane.stream != nullptr && cudaStreamQuery(lane.stream) == cudaErrorNotReady &&
             CommClock::now() - since < kDrain)
        std::this_thread::sleep_for(microseconds(100));
      while (!lane.under_way.empty()) finish_first(lane);
    }
  end_failure();
}

// Watches operations under way for what they cannot notice themselves.
void NcclContext::monitor() {
  cudaSetDevice(ordinal);
  Lock lock(mutex);
  const auto busy = [&] {
    for (NcclGroup* group : groups)
      for (const NcclLane& lane : group->lanes())
        if (!lane.under_way.empty()) return true;
    return false;
  };
  while (!closing_) {
    if (!alive() || !busy()) {
      changed.wait(lock);
      continue;
    }
    look(lock);
    changed.wait_for(lock, kLook, [&] { return closing_; });
  }
}

void NcclContext::look(Lock& lock) {
  reap();
  std::vector<Suspect> suspects;
  for (NcclGroup* group : groups)
    for (NcclLane& lane : group->lanes()) {
      if (lane.under_way.empty()) continue;
      NcclOperation& operation = lane.oldest();
      // While this rank's GPU still computes, no other rank is suspected.
      if (operation.queued && cudaEventQuery(operation.ready) != cudaSuccess) continue;
      if (operation.waited_since == CommClock::time_point{}) operation.waited_since = CommClock::now();
      nccl::Result error = nccl::success;
      if (lane.comm != nullptr) nccl.CommGetAsyncError(lane.comm, &error);
      Suspect& suspect = suspects.emplace_back();
      suspect.host = group->host();
      suspect.detector = &group->failure_detector();
      suspect.operation = &operation;
      suspect.run = operation.run;
      suspect.peers = group->peers_of(lane);
      suspect.sequence = kSequences + lane.sequence;
      suspect.is_message = lane.channel.is_message();
      suspect.since = operation.waited_since;
      suspect.what = text_of(operation.request);
      if (error != nccl::success && error != nccl::in_progress)
        suspect.error =
            fmt::format("NCCL says \"{}\" ({})", nccl.GetErrorString(error), nccl.GetLastError(lane.comm));
    }
  lock.unlock();
  for (Suspect& suspect : suspects) suspect.lost = lost_among(suspect.peers, *suspect.detector);
  lock.lock();

  const CommClock::time_point now = CommClock::now();
  reap();
  for (const Suspect& suspect : suspects) {
    const auto is_there = [&] {
      if (!alive()) return false;
      for (NcclGroup* group : groups)
        for (const NcclLane& lane : group->lanes())
          if (!lane.under_way.empty() && lane.under_way.front().operation == suspect.operation &&
              lane.under_way.front().run == suspect.run)
            return true;
      return false;
    };
    if (!is_there()) continue;
    NcclOperation& operation = *suspect.operation;
    const auto for_long = [&](CommClock::time_point& first, bool so, milliseconds long_enough) {
      if (!so) return false;
      if (first == CommClock::time_point{}) first = now;
      return now - first >= long_enough;
    };
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
    const Timeouts& timeouts = suspect.detector->timeouts();
    const Due due = due_after(now - suspect.since, operation.warned, timeouts);
    if (due == Due::nothing) continue;
    operation.warned = true;
    lock.unlock();
    const std::string text =
        waiting_sentence(*suspect.detector, suspect.what, suspect.since, due == Due::failure, suspect.peers,
                         suspect.is_message ? std::nullopt : std::optional(suspect.sequence));
    lock.lock();
    if (!is_there()) continue;
    lock.unlock();
    if (due == Due::failure)
      fail(text);
    else if (timeouts.warn)
      timeouts.warn(text);
    lock.lock();
  }
}

void pause(OperationTracker::Lock& lock, CommClock::time_point since) {
  lock.unlock();
  if (CommClock::now() - since < microseconds(100))
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(microseconds(50));
  lock.lock();
}

Due due_after(CommClock::duration waited, bool warned, const Timeouts& timeouts) {
  if (waited >= timeouts.timeout) return Due::failure;
  return !warned && waited >= timeouts.warn_after ? Due::warning : Due::nothing;
}

std::string lost_among(const std::vector<int>& peers, FailureDetector& detector) {
  std::string lost;
  for (const int peer : peers)
    if (lost.empty()) lost = detector.lost(peer);
  return lost;
}

std::string waiting_sentence(FailureDetector& detector, const std::string& what, CommClock::time_point since,
                             bool over, std::vector<int> missing, std::optional<int64_t> sequence) {
  const auto text = over ? timeout_text : waiting_text;
  if (sequence) {  // those who wait for the same are no suspects
    detector.post_waiting(*sequence);
    std::this_thread::sleep_for(kSay);
    std::vector<int> suspects;
    for (const int peer : missing)
      if (!detector.is_waiting(peer, *sequence)) suspects.push_back(peer);
    missing = std::move(suspects);
  }
  if (missing.empty()) return text(since, "the GPUs, for which all ranks wait", true, what);
  std::string who;
  for (const int peer : missing) who += (who.empty() ? "" : ", ") + detector.peer_name(peer);
  return text(since, who, false, what);
}

}  // namespace het::HET_CUDA
