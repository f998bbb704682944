// Work beside what the thread pool is there for (parallel.h).
#pragma once

namespace het {

// While it lives, parallel_for and parallel_parts run on this thread alone, and thread_count() is 1 here.
class SequentialScope {
 public:
  SequentialScope();
  ~SequentialScope();
  SequentialScope(const SequentialScope&) = delete;
  SequentialScope& operator=(const SequentialScope&) = delete;

 private:
  const bool before_;
};

}  // namespace het
