// The one thread pool. Work is split statically, so that a result depends on the number of threads only
// through where the splits fall, and never on timing. Its threads are OpenMP's; a build with -Dthreads=std
// replaces them by std::thread workers that the thread sanitizer understands.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace het {

// Threads that parallel_for uses. Initially every core this process may run on (OMP_NUM_THREADS counts).
int thread_count();
// Set by --threads before any kernel is prepared. count >= 1.
void set_thread_count(int count);

// A contiguous share [begin, end) of `total` items for part `index` of `parts`; sizes differ by at most one.
struct Range {
  int64_t begin, end;
};
constexpr Range share_of(int64_t total, int64_t parts, int64_t index) {
  const int64_t base = total / parts, extra = total % parts;
  const int64_t begin = index * base + (index < extra ? index : extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

namespace detail {
using PartFunction = void (*)(const void* body, int64_t part);
void run_parts(int64_t parts, PartFunction function, const void* body);
}  // namespace detail

// Call body(part) once for each part in [0, parts), parts spread round over the threads; returns when all are
// done. The body must not throw. Calls from inside a body run on the calling thread alone.
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
