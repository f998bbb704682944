// Checks that ranks run the same lines of Lua on distributed tensors. Before they communicate, and at the end
// of each line of the prompt, all ranks compare what they are about to do. If they differ, every rank gets an
// error, and none waits for another.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.h"

namespace het {

// Used from one thread, and by every rank of the communicator alike.
class Agreement {
 public:
  // `interrupted`: whether this rank was asked to stop; absent: never. `world` must outlive it.
  explicit Agreement(Communicator& world, std::function<bool()> interrupted = {});

  // This rank is about to do `what` with `detail`. Throws Error(usage) on all ranks if `what` or `detail`
  // differ between them, or if a rank was asked to stop. The message shows `detail` only where `what` is the
  // same.
  void on(const std::string& what, const std::string& detail = "");

  // This rank is at the end of a line. Returns the text of each rank, by rank. Waits for all: a rank that is
  // about to do something else first gets its error, then reaches the end of its line, too.
  std::vector<std::string> at_end(const std::string& place, const std::string& own);

 private:
  struct Word {
    int64_t digest, flags;
  };
  std::vector<Word> exchange(const std::string& what, int64_t flags);
  std::vector<std::string> gather_text(const std::string& own);

  Communicator& world_;
  std::function<bool()> interrupted_;
  std::unique_ptr<Collective> gather_;
};

}  // namespace het
