#include "core/comm/operations.h"

#include <utility>

#include "core/base/elapsed.h"
#include "core/base/error.h"

namespace het {

OperationChannel channel_of(const CollectiveRequest& request, int rank) {
  if (request.kind == CollectiveKind::send) return {rank, request.peer, request.tag};
  if (request.kind == CollectiveKind::receive) return {request.peer, rank, request.tag};
  return {};
}

void OperationTracker::begin(OperationQueue& queue, TrackedOperation& operation, CommClock::time_point now) {
  ++operation.run;
  operation.started = true;
  operation.failed = false;
  operation.finished.store(false, std::memory_order_relaxed);
  operation.times = {now, now, {}};
  queue.under_way.push_back({&operation, operation.run});
}

void OperationTracker::finish_first(OperationQueue& queue) {
  const auto [operation, run] = queue.under_way.front();
  queue.under_way.erase(queue.under_way.begin());
  ++queue.sequence;
  if (operation->run != run) return;
  operation->times.finished = CommClock::now();
  operation->finished.store(true, std::memory_order_release);
}

void OperationTracker::lose(TrackedOperation& operation, std::string reason) {
  operation.failed = true;
  operation.reason = std::move(reason);
}

void OperationTracker::end_wait(TrackedOperation& operation) {
  operation.started = false;
  if (operation.failed) throw Error(ErrorKind::peer, operation.reason);
}

bool OperationTracker::begin_failure(Lock& lock, std::string cause) {
  if (!alive()) {
    if (failing_thread_ != std::this_thread::get_id()) await_death(lock);
    return false;
  }
  life_ = Life::failing;
  failing_thread_ = std::this_thread::get_id();
  cause_ = std::move(cause);
  return true;
}

void OperationTracker::end_failure() {
  life_ = Life::dead;
  failing_thread_ = {};
  changed.notify_all();
}

void OperationTracker::await_failure(Lock& lock) {
  changed.wait(lock, [&] { return life_ != Life::failing; });
}

void OperationTracker::await_death(Lock& lock) {
  changed.wait(lock, [&] { return life_ == Life::dead; });
}

std::string text_of(const CollectiveRequest& request, std::string_view group) {
  return fmt::format("{} in group '{}'", text_of(request), group);
}

std::string given_up_text(const CollectiveRequest& request) {
  return fmt::format("{} was given up", text_of(request));
}

std::string failure_text(std::string_view who, const TrackedOperation& operation, std::string_view group) {
  return fmt::format("{}: {} failed after {:.1f} s", who, text_of(operation.request, group),
                     seconds_since(operation.times.begun));
}

std::string failure_text(std::string_view who, std::string_view group) {
  return fmt::format("{}: group '{}' failed", who, group);
}

std::string abort_text(std::string_view who, std::string_view group, std::string_view why) {
  return fmt::format("group '{}' was aborted on {}: {}", group, who, why);
}

std::string waiting_text(std::string_view who, CommClock::time_point since, std::string_view what) {
  return fmt::format("{} has waited {:.1f} s for {}", who, seconds_since(since), what);
}

}  // namespace het
