// The one thread pool. Work is cut into parts beforehand, so that a result depends on the number of threads
// only through where the cuts fall, and never on which thread runs a part, or when.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/base/range.h"

namespace het {

// Threads that parallel_for uses; 1 inside a part. Initially every core this process may run on, or fewer
// where OMP_NUM_THREADS says so.
int thread_count();
// Cores that the scheduler lets this process use (containers and taskset count).
int core_count();
// Set by --threads before any kernel is prepared. count >= 1.
void set_thread_count(int count);

namespace detail {
using PartFunction = void (*)(const void* body, int64_t part);
void run_parts(int64_t parts, PartFunction function, const void* body);
}  // namespace detail

// Call body(part) once for each part in [0, parts), spread over the threads; returns when all are done. The
// body must not throw. Calls from inside a body, and while another thread's call runs, run on the calling
// thread alone.
template <typename Body>
void parallel_parts(int64_t parts, const Body& body) {
  if (parts <= 1) {
    if (parts == 1) body(int64_t{0});
    return;
  }
  detail::run_parts(
      parts, [](const void* b, int64_t part) { (*static_cast<const Body*>(b))(part); }, &body);
}

// Call body(begin, end) over disjoint ranges that cover [0, count), each of at least `grain` items: one call
// for each thread, or fewer where the work is too small to be worth a thread.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t most = grain > 0 ? (count + grain - 1) / grain : count;
  const int64_t parts = most < thread_count() ? most : thread_count();
  if (parts <= 1) return body(int64_t{0}, count);
  parallel_parts(parts, [&](int64_t part) {
    const Range range = share_of(count, parts, part);
    body(range.begin, range.end);
  });
}

}  // namespace het
