// Which known name a misspelt one may mean.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace het {

// The name nearest to `word` by edit distance (Damerau-Levenshtein: insert, delete, replace, swap of
// neighbours), capitals or not, when it is near enough to be meant; of equals the first by the alphabet, so
// that all ranks say the same. A name that begins with `word` is one edit away and comes before others as
// near; one that `word` continues with an underscore (batch_size for batch) two. Empty when no name is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace het
