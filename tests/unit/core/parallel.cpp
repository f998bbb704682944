#include "core/base/parallel.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "core/base/sequential.h"

using namespace het;

TEST_CASE("shares cover every item once and differ by at most one") {
  for (const int64_t total : {0, 1, 7, 64, 1000})
    for (const int64_t parts : {1, 2, 3, 8}) {
      int64_t next = 0, least = total, most = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range range = share_of(total, parts, i);
        CHECK(range.begin == next);
        next = range.end;
        least = std::min(least, range.end - range.begin);
        most = std::max(most, range.end - range.begin);
      }
      CHECK(next == total);
      CHECK(most - least <= 1);
    }
}

TEST_CASE("parallel_for visits each item exactly once, whatever the grain") {
  for (const int64_t count : {0, 1, 5, 1000, 10007})
    for (const int64_t grain : {1, 64, 100000}) {
      std::vector<std::atomic<int>> visits(count);
      parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[i];
      });
      bool once = true;
      for (const auto& v : visits) once = once && v == 1;
      CHECK(once);
    }
}

TEST_CASE("work started inside a parallel body runs on that thread and is complete") {
  std::atomic<int64_t> sum{0};
  parallel_parts(
      4, [&](int64_t) { parallel_for(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; }); });
  CHECK(sum == 400);
}

TEST_CASE("inside a SequentialScope work stays on its thread") {
  const int before = thread_count();
  set_thread_count(3);
  {
    SequentialScope alone, nested;
    CHECK(thread_count() == 1);
    std::vector<std::thread::id> where(8);
    parallel_parts(8, [&](int64_t part) { where[static_cast<size_t>(part)] = std::this_thread::get_id(); });
    CHECK(where == std::vector(8, std::this_thread::get_id()));
  }
  CHECK(thread_count() == 3);
  set_thread_count(before);
}

// Plain counts: a part that ran twice, or after its job had ended, would show (and, under the thread
// sanitizer, one that ran at another's time).
TEST_CASE("each part of a job runs once, whoever asks and however many threads there are") {
  const int before = thread_count();
  for (const int threads : {4, 2, 1, 3}) {
    set_thread_count(threads);
    std::atomic<int64_t> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller)
      callers.emplace_back([&] {
        for (int round = 0; round < 2000; ++round) {
          std::vector<int> runs(static_cast<size_t>(1 + round % 9));
          parallel_parts(static_cast<int64_t>(runs.size()), [&](int64_t part) {
            ++runs[static_cast<size_t>(part)];
            parallel_for(3, 1, [&](int64_t, int64_t) {});
          });
          for (const int count : runs) wrong += count != 1;
        }
      });
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong == 0);
    CHECK(thread_count() == threads);
  }
  set_thread_count(before);
}
