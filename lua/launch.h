// `hetrun --workers N`: several local ranks, each a process of its own. The launcher serves the store in
// which they find each other, merges what they print, and ends them all when one ends badly.
#pragma once

#include <string>
#include <vector>

namespace het::lua {

// Run this program `workers` times with `words` (its arguments without --workers). Rank 0 writes to the
// terminal; what the others say on standard error is prefixed with their rank, their standard output is
// dropped. Returns the first failing rank's exit code, 75 when it was killed, 0 when all ended well.
int launch(int workers, const std::vector<std::string>& words);

}  // namespace het::lua
