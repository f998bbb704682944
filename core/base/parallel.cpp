#include "core/base/parallel.h"

#include <algorithm>

#include <sched.h>

#include "core/base/error.h"

#ifdef HET_STD_THREADS
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace het {
namespace {

// Cores that the scheduler lets this process use (containers and taskset count).
int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;
}

}  // namespace

#ifdef HET_STD_THREADS
namespace {

// Workers wait on a condition for the next job; a job is a part function and a count of parts.
class Pool {
 public:
  ~Pool() { stop(); }

  int size() {
    std::lock_guard lock(mutex_);
    return threads_;
  }

  void resize(int threads) {
    stop();
    std::lock_guard lock(mutex_);
    threads_ = threads;
  }

  void run(int64_t parts, detail::PartFunction function, const void* body) {
    std::unique_lock lock(mutex_);
    if (busy_ || threads_ == 1) {  // nested, or another thread's turn: run alone
      lock.unlock();
      for (int64_t part = 0; part < parts; ++part) function(body, part);
      return;
    }
    busy_ = true;
    while (static_cast<int>(workers_.size()) < threads_ - 1) {
      const int index = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back([this, index, seen = job_] { work(index, seen); });
    }
    function_ = function;
    body_ = body;
    parts_ = parts;
    remaining_ = static_cast<int>(workers_.size());
    const int threads = threads_;
    ++job_;
    lock.unlock();
    start_.notify_all();
    for (int64_t part = 0; part < parts; part += threads) function(body, part);
    lock.lock();
    done_.wait(lock, [this] { return remaining_ == 0; });
    busy_ = false;
  }

 private:
  void work(int index, uint64_t seen) {
    std::unique_lock lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return stopping_ || job_ != seen; });
      if (stopping_) return;
      seen = job_;
      const auto function = function_;
      const void* body = body_;
      const int64_t parts = parts_;
      const int threads = threads_;
      lock.unlock();
      for (int64_t part = index; part < parts; part += threads) function(body, part);
      lock.lock();
      if (--remaining_ == 0) done_.notify_one();
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    start_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::vector<std::thread> workers_;
  detail::PartFunction function_ = nullptr;
  const void* body_ = nullptr;
  int64_t parts_ = 0;
  int threads_ = available_cores();
  int remaining_ = 0;
  uint64_t job_ = 0;
  bool busy_ = false, stopping_ = false;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

int thread_count() { return pool().size(); }
void set_thread_count(int count) {
  HET_REQUIRE(count >= 1, count);
  pool().resize(count);
}
void detail::run_parts(int64_t parts, PartFunction function, const void* body) {
  pool().run(parts, function, body);
}

#else

int thread_count() {
  static const bool limited = [] {
    omp_set_num_threads(std::min(omp_get_max_threads(), available_cores()));
    return true;
  }();
  (void)limited;
  return omp_in_parallel() ? 1 : omp_get_max_threads();
}
void set_thread_count(int count) {
  HET_REQUIRE(count >= 1, count);
  thread_count();
  omp_set_num_threads(count);
}
void detail::run_parts(int64_t parts, PartFunction function, const void* body) {
  if (omp_in_parallel()) {
    for (int64_t part = 0; part < parts; ++part) function(body, part);
    return;
  }
#pragma omp parallel for schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) function(body, part);
}

#endif

}  // namespace het
