#include <catch2/catch.hpp>
#include <list>
#include <thread>

#include "core/base/error.h"
#include "core/comm/operations.h"

using namespace het;
using Kind = CollectiveKind;

namespace {

CollectiveRequest sum_of(const std::string& label) {
  return {Kind::all_reduce, DType::f32, {1}, -1, 0, Reduction::sum, label};
}

std::string error_of(OperationTracker& tracker, TrackedOperation& operation) {
  try {
    tracker.end_wait(operation);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::peer);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("an operation is under way from its start until it is finished", "[comm]") {
  OperationTracker tracker;
  OperationQueue queue;
  TrackedOperation first, second;
  CHECK(first.finished);
  CHECK(queue.first() == nullptr);
  const auto now = CommClock::now();
  tracker.begin(queue, first, now);
  tracker.begin(queue, second, now);
  CHECK(queue.first() == &first);
  CHECK(first.started);
  CHECK(!first.finished);
  CHECK(first.times.started == now);
  tracker.finish_first(queue);
  CHECK(first.finished);
  CHECK(first.times.finished >= now);
  CHECK(queue.first() == &second);
  CHECK(queue.sequence == 1);
  CHECK(error_of(tracker, first).empty());
  CHECK(!first.started);
}

TEST_CASE("an operation started again before its first run is over is finished with its last run", "[comm]") {
  OperationTracker tracker;
  OperationQueue queue;
  TrackedOperation operation;
  tracker.begin(queue, operation, CommClock::now());
  tracker.end_wait(operation);
  tracker.begin(queue, operation, CommClock::now());
  tracker.finish_first(queue);
  CHECK(!operation.finished);
  tracker.finish_first(queue);
  CHECK(operation.finished);
  CHECK(queue.sequence == 2);
}

TEST_CASE("the wait for an operation that was lost throws its reason until it is started again", "[comm]") {
  OperationTracker tracker;
  OperationQueue queue;
  TrackedOperation operation;
  tracker.begin(queue, operation, CommClock::now());
  tracker.lose(operation, "rank 1 is gone");
  tracker.finish_first(queue);
  CHECK(error_of(tracker, operation) == "rank 1 is gone");
  tracker.begin(queue, operation, CommClock::now());
  tracker.finish_first(queue);
  CHECK(error_of(tracker, operation).empty());
}

TEST_CASE("only the first failure counts, and others wait until it is through", "[comm]") {
  OperationTracker tracker;
  OperationTracker::Lock lock(tracker.mutex);
  CHECK(tracker.alive());
  tracker.await_failure(lock);  // there is none: at once
  REQUIRE(tracker.begin_failure(lock, "rank 1 is gone"));
  CHECK(!tracker.alive());
  CHECK(!tracker.dead());
  CHECK(!tracker.begin_failure(lock, "again, by the thread that ends it"));
  bool counted = true, dead_after_failing = false, dead_after_waiting = false;  // checked on this thread
  std::thread other([&] {
    OperationTracker::Lock own(tracker.mutex);
    counted = tracker.begin_failure(own, "rank 2 is gone");
    dead_after_failing = tracker.dead();
  });
  std::thread user([&] {
    OperationTracker::Lock own(tracker.mutex);
    tracker.await_failure(own);
    dead_after_waiting = tracker.dead();
  });
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
  tracker.end_failure();
  lock.unlock();
  other.join();
  user.join();
  CHECK(!counted);
  CHECK(dead_after_failing);
  CHECK(dead_after_waiting);
  CHECK(tracker.dead());
  CHECK(tracker.cause() == "rank 1 is gone");
}

TEST_CASE("collectives share a queue, messages one for each pair, direction and tag", "[comm]") {
  const auto message = [](Kind kind, int peer, int tag) {
    return channel_of({kind, DType::f32, {1}, peer, tag, Reduction::sum, "x"}, 1);
  };
  CHECK(!channel_of(sum_of("w"), 1).is_message());
  CHECK(channel_of(sum_of("w"), 1) == channel_of({Kind::broadcast, DType::f32, {1}, 2, 0}, 1));
  CHECK(message(Kind::send, 2, 5) == OperationChannel{1, 2, 5});
  CHECK(message(Kind::receive, 2, 5) == OperationChannel{2, 1, 5});
  CHECK(message(Kind::send, 2, 5).peer(1) == 2);
  CHECK(message(Kind::receive, 2, 5).peer(1) == 2);
  std::list<OperationQueue> queues(2);
  queues.back().channel = message(Kind::send, 2, 5);
  CHECK(find_queue(queues, channel_of(sum_of("w"), 1)) == &queues.front());
  CHECK(find_queue(queues, message(Kind::send, 2, 5)) == &queues.back());
  CHECK(find_queue(queues, message(Kind::send, 2, 6)) == nullptr);
  CHECK(find_queue(queues, message(Kind::receive, 2, 5)) == nullptr);
}

TEST_CASE("a failure is one sentence: which rank, why, during what", "[comm]") {
  const CollectiveRequest request = sum_of("w");
  CHECK(text_of(request) == "all-reduce of w");
  CHECK(text_of(sum_of("gradients of layer embedding")) == "gradient all-reduce of layer embedding");
  CHECK(text_of(sum_of("gradients")) == "gradient all-reduce");
  CHECK(text_of(sum_of("gradientsome")) == "all-reduce of gradientsome");
  CollectiveRequest gather = sum_of("parameters of layer head");
  gather.kind = CollectiveKind::reduce_scatter;
  CHECK(text_of(gather) == "parameter reduce-scatter of layer head");
  CHECK(given_up_text(request) == "all-reduce of w was given up");

  const std::string who = "rank 2 on host-b", lost = lost_text(who, "connection closed");
  CHECK(lost == "lost rank 2 on host-b (connection closed)");
  CHECK(lost_text("rank 1", lost) == lost);  // what it says of another is passed on
  const std::string whole = during_text(lost, request);
  CHECK(whole == "lost rank 2 on host-b (connection closed) during all-reduce of w");
  CHECK(during_text(whole, sum_of("loss")) == whole);
  const std::string forming = "lost rank 2 (did not join within 1.0 s) while forming group 'g'";
  CHECK(during_text(forming, request) == forming);

  const auto since = CommClock::now() - std::chrono::milliseconds(1500);
  const auto about = [](std::string text) {  // without the time
    const size_t digits = text.find_first_of("0123456789", text.find("1."));
    return text.erase(digits, text.find(' ', digits) - digits);
  };
  CHECK(about(waiting_text(since, "rank 2", false, "x")) ==
        "waiting  s for rank 2 (has not arrived) during x");
  CHECK(about(waiting_text(since, "rank 2", true, "x")) == "waiting  s for rank 2 (no answer) during x");
  CHECK(about(timeout_text(since, "rank 2", false, "x")) ==
        "lost rank 2 (did not arrive within  s) during x");
  CHECK(about(timeout_text(since, "rank 2", true, "x")) == "lost rank 2 (no answer for  s) during x");
}
