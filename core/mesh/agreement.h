// Ranks that run the same lines of Lua on distributed tensors: before they communicate, and at the end of
// each line of the prompt, they tell each other what they are about to do. Ranks that do different things get
// an error, all of them, instead of waiting for each other.
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

  // This rank is about to do `what`; `detail` has to be the same, too, and is told where `what` is. Throws
  // Error(usage) on all ranks when one is about to do something else, or was asked to stop.
  void on(const std::string& what, const std::string& detail = "");

  // This rank has come to the end of a line; returns what each rank says there, by rank. Waits for all: a
  // rank that is about to do something else gets its error first, and then comes here, too.
  std::vector<std::string> at_end(const std::string& place, const std::string& own);

 private:
  struct Word {
    int64_t digest, flags;
  };
  std::vector<Word> exchange(const std::string& what, int64_t flags);
  std::vector<std::string> tell_all(const std::string& own);

  Communicator& world_;
  std::function<bool()> interrupted_;
  std::unique_ptr<Collective> gather_;
};

// What each rank of a group has, told to all, by rank.
std::vector<std::string> tell_all(Communicator& group, const std::string& own, const std::string& label);

}  // namespace het
