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

std::string lost_text(std::string_view who, std::string_view why) {
  return why.starts_with("lost ") ? std::string(why) : fmt::format("lost {} ({})", who, why);
}

std::string during_text(std::string_view cause, const CollectiveRequest& request) {
  for (const std::string_view said : {" during ", " while forming "})
    if (cause.find(said) != std::string_view::npos) return std::string(cause);
  return fmt::format("{} during {}", cause, text_of(request));
}

std::string waiting_text(CommClock::time_point since, std::string_view who, bool has_come,
                         std::string_view what) {
  return fmt::format("waiting {:.1f} s for {} ({}) during {}", seconds_since(since), who,
                     has_come ? "no answer" : "has not arrived", what);
}

std::string timeout_text(CommClock::time_point since, std::string_view who, bool has_come,
                         std::string_view what) {
  return fmt::format("lost {} ({} {:.1f} s) during {}", who,
                     has_come ? "no answer for" : "did not arrive within", seconds_since(since), what);
}

std::string given_up_text(const CollectiveRequest& request) {
  return fmt::format("{} was given up", text_of(request));
}

}  // namespace het
