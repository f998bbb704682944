#include "core/comm/groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace het {

Communicator& Groups::group(const std::vector<int>& ranks) {
  std::shared_ptr<Communicator>& made = made_[ranks];
  if (made == nullptr) made = fabric_->group(fmt::format("ranks {}", fmt::join(ranks, ",")), ranks);
  return *made;
}

}  // namespace het
