// `hetrun --workers N`: several local ranks, each a separate process. The launcher serves the store in
// which they find each other, merges what they print, and ends them all when one ends badly.
#pragma once

#include <string>
#include <vector>

namespace het::lua {

struct LaunchOptions {
  int workers = 1;
  std::vector<std::string> words;  // the arguments that each rank is started with
  bool elastic = false;            // a rank that is lost ends no other
  bool respawn = false;            // and is started again
  std::string chaos;               // seed of faults that ranks have; they say when the lost are started again
  bool quiet = false;              // no word about processes
  std::string listen;  // "10.0.0.7:7777": where the store is served; empty: for this machine alone
  std::string join;    // such a place: the ranks join the run that is there
  std::string secret;  // of the run; empty: a new one
  bool etcd = false;   // the ranks meet there, not by the launcher's store
};

// Runs this program as several ranks. Rank 0 writes to the terminal; what the others say on standard error is
// prefixed with their rank, their standard output is dropped. Of an elastic run whichever rank is the first
// speaks. Returns the first failing rank's exit code, 75 when it was killed, 0 when all ended well; of an
// elastic run 0 when any rank did.
int launch(LaunchOptions options);

// In a rank of an elastic launch(): from here on what this process writes is the run's output.
void speak_for_run();
// The opposite: another rank speaks, and what this process prints goes nowhere.
void be_silent();

// In a rank of an elastic launch(): this process ends well, but the run goes on without it.
void say_left();
// In one with `chaos`: so many processes, which are lost or have left, are to be started again.
void bring_back(int processes);

// In rank 0 of launch(): the pipe to which it writes what ends it; the launcher prints that when all ranks
// have ended. Negative: there is none.
int pipe_to_launcher();

}  // namespace het::lua
