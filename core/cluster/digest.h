// What members of a run compare of their recipes, and of their data: a hash of all of it in the first line,
// then a line "name = value" for each setting, from which messages say what differs. The hash alone decides.
#pragma once

#include <string>
#include <string_view>

namespace het {

bool same_digest(std::string_view a, std::string_view b);

struct DigestDifference {
  std::string first, second;  // "steps = 40", "steps = 50"; "hash 1f3a" where all settings are alike
};
// Of two digests that are not the same. A setting that one of them lacks is "steps not set" there.
DigestDifference difference_of(std::string_view a, std::string_view b);

}  // namespace het
