#include "core/run/tier.h"

#include <array>

namespace het {

std::string_view name_of(Tier tier) {
  static constexpr std::array<std::string_view, kTiers> kNames = {"live", "memory", "disk", "store"};
  return kNames.at(static_cast<size_t>(tier));
}

}  // namespace het
