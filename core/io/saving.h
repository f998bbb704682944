// A set of files that is replaced together, written by a separate thread beside what the process does.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/io/files.h"

namespace het {

struct SavedFile {
  Path path;
  std::function<void()> stage;  // leaves what is to become `path` beside it (AtomicFile::stage)
};

// Stages all files in their order; when all of them are on the disk, each is put in its place, in the same
// order. When one cannot be staged, those that were are removed, the first one last: so whoever finds the
// first file staged knows that the set is unfinished. Used from one thread.
class Saving {
 public:
  explicit Saving(std::vector<SavedFile> files);
  ~Saving();  // waits; a failure not asked for is lost
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Throws what kept a file from being written.
  void wait();

 private:
  std::vector<SavedFile> files_;
  std::atomic<bool> done_{false};
  std::exception_ptr failure_;  // read when done
  std::thread thread_;
};

}  // namespace het
