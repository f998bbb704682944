// `hetrun --workers N`: several local ranks, each a process of its own. The launcher serves the store in
// which they find each other, merges what they print, and ends them all when one ends badly.
#pragma once

#include <string>
#include <vector>

namespace het::lua {

// Run this program `workers` times with `words` (its arguments without --workers). Rank 0 writes to the
// terminal; what the others say on standard error is prefixed with their rank, their standard output is
// dropped. Returns the first failing rank's exit code, 75 when it was killed, 0 when all ended well.
//
// `elastic`: a rank that is lost is an event, and ends no other; the first one that is left speaks for the
// run. Returns 0 when any rank ended well, else as above.
int launch(int workers, const std::vector<std::string>& words, bool elastic = false);

// In a rank of an elastic launch(): from here on what this process writes is the run's output.
void speak_for_run();

// In rank 0 of launch(): the pipe on which it says what ends it, which the launcher tells when it has heard
// all ranks; negative: there is none.
int pipe_to_launcher();

}  // namespace het::lua
