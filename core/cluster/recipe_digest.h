// What members of a run compare of their recipes: a hash of all of it in the first line, then a line "name =
// value" for each setting, from which messages say what differs. The hash alone decides.
#pragma once

#include <string>
#include <string_view>

namespace het {

bool same_recipe(std::string_view a, std::string_view b);

struct RecipeDifference {
  std::string first, second;  // "steps = 40", "steps = 50"; the hashes where all settings are alike
};
// Of two recipes that are not the same. A setting that one of them lacks is "steps not set" there.
RecipeDifference difference_of(std::string_view a, std::string_view b);

}  // namespace het
