#include "core/base/parallel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

#include "core/base/error.h"
#include "core/base/sequential.h"

namespace het {

int core_count() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;
}

namespace {

using Clock = std::chrono::steady_clock;

int initial_threads() {
  int wanted = 0;
  if (const char* text = std::getenv("OMP_NUM_THREADS"))
    std::from_chars(text, text + std::strlen(text), wanted);
  return wanted > 0 ? std::min(wanted, core_count()) : core_count();
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How one thread waits for another: it spins for as long as waking up takes, then sleeps. Where waits are
// mostly longer than that (others use the cores, or there is little to do), it sleeps at once.
class Waiter {
 public:
  template <typename Ready, typename Sleep>
  void wait(const Ready& ready, const Sleep& sleep) {
    if (ready()) return;
    constexpr std::chrono::microseconds kSpin{60};
    constexpr int kMostTrust = 8, kPausesPerLook = 64;
    const auto begin = Clock::now();
    bool done = false;
    while (trust_ > 0 && !done && Clock::now() - begin < kSpin)
      for (int i = 0; i < kPausesPerLook && !(done = ready()); ++i) relax();
    while (!done && !(done = ready())) sleep();
    const bool brief = Clock::now() - begin < 2 * kSpin;
    trust_ = brief ? std::min(trust_ + 1, kMostTrust) : std::max(trust_ - 1, 0);
  }

 private:
  int trust_ = 1;
};

thread_local bool inside = false;  // a part runs on this thread

// A job is a function and a count of parts. Each thread begins with separate parts (those equal to its
// index modulo the threads: the data they touched last is near), then takes what others have not begun: a
// thread that the system put aside delays no other. Whoever takes a part is the only one: jobs are numbered,
// and the counts of parts that are free carry the number. One who comes late finds another number, or none
// free; one who takes a part knows that the job is not over, and so that what it read of the job is the
// job's.
class Pool {
 public:
  Pool() { set_size(initial_threads()); }
  ~Pool() { stop(); }

  int size() const { return threads_.load(std::memory_order_relaxed); }

  void resize(int threads) {
    const std::lock_guard lock(owner_);
    stop();
    set_size(threads);
  }

  void run(int64_t parts, detail::PartFunction function, const void* body) {
    std::unique_lock owner(owner_, std::defer_lock);
    if (inside || size() == 1 || !owner.try_lock()) {  // nested, or another thread's turn: run alone
      for (int64_t part = 0; part < parts; ++part) function(body, part);
      return;
    }
    start();
    const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
    function_.store(function, std::memory_order_relaxed);
    body_.store(body, std::memory_order_relaxed);
    left_.store(parts, std::memory_order_relaxed);
    for (int i = 0; i < size(); ++i) {
      const int64_t own = (parts - i + size() - 1) / size();
      own_[static_cast<size_t>(i)].free.store(
          uint64_t{job} << 32 | static_cast<uint64_t>(std::max<int64_t>(own, 0)), std::memory_order_relaxed);
    }
    job_.store(job, std::memory_order_release);
    job_.notify_all();
    take(0, job);
    waiter_.wait([&] { return left_.load(std::memory_order_acquire) == 0; },
                 [&] {
                   if (const int64_t left = left_.load(std::memory_order_acquire); left != 0)
                     left_.wait(left, std::memory_order_acquire);
                 });
  }

 private:
  // The parts i, i + threads, i + 2 threads, ... of thread i: the job's number, and how many are free; the
  // last go first.
  struct alignas(64) Own {
    std::atomic<uint64_t> free{0};
  };

  void set_size(int threads) {
    threads_ = threads;
    own_ = std::vector<Own>(static_cast<size_t>(threads));
  }

  void start() {
    while (static_cast<int>(workers_.size()) < size() - 1) {
      const int index = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back(
          [this, index, seen = job_.load(std::memory_order_relaxed)] { work(index, seen); });
    }
  }

  void work(int index, uint32_t seen) {
    Waiter waiter;
    for (;;) {
      waiter.wait([&] { return job_.load(std::memory_order_acquire) != seen; },
                  [&] { job_.wait(seen, std::memory_order_acquire); });
      seen = job_.load(std::memory_order_acquire);
      if (stopping_.load(std::memory_order_relaxed)) return;
      take(index, seen);
    }
  }

  void take(int index, uint32_t job) {
    const auto function = function_.load(std::memory_order_relaxed);
    const void* body = body_.load(std::memory_order_relaxed);
    const int threads = size();
    int64_t done = 0;
    inside = true;
    for (int turn = 0; turn < threads; ++turn) {
      const int whose = (index + turn) % threads;
      for (int64_t part; (part = next(whose, threads, job)) >= 0; ++done) function(body, part);
    }
    inside = false;
    if (done > 0 && left_.fetch_sub(done, std::memory_order_acq_rel) == done) left_.notify_one();
  }

  // A part that no thread has taken; -1: there is none, or the job is over.
  int64_t next(int whose, int threads, uint32_t job) {
    std::atomic<uint64_t>& free = own_[static_cast<size_t>(whose)].free;
    uint64_t value = free.load(std::memory_order_acquire);
    for (;;) {
      const auto count = static_cast<int64_t>(value & 0xffffffff);
      if (value >> 32 != job || count == 0) return -1;
      if (free.compare_exchange_weak(value, value - 1, std::memory_order_acq_rel))
        return whose + (count - 1) * threads;
    }
  }

  void stop() {
    stopping_ = true;
    job_.fetch_add(1, std::memory_order_release);
    job_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
  }

  std::mutex owner_;  // of the thread whose job runs
  std::vector<std::thread> workers_;
  std::vector<Own> own_;
  std::atomic<int> threads_{1};
  std::atomic<detail::PartFunction> function_{nullptr};
  std::atomic<const void*> body_{nullptr};
  std::atomic<int64_t> left_{0};  // parts that are not done
  std::atomic<uint32_t> job_{0};
  std::atomic<bool> stopping_{false};
  Waiter waiter_;  // of the thread whose job runs
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

SequentialScope::SequentialScope() : before_(std::exchange(inside, true)) {}
SequentialScope::~SequentialScope() { inside = before_; }

int thread_count() { return inside ? 1 : pool().size(); }
void set_thread_count(int count) {
  HET_REQUIRE(count >= 1, count);
  pool().resize(count);
}
void detail::run_parts(int64_t parts, PartFunction function, const void* body) {
  pool().run(parts, function, body);
}

}  // namespace het
