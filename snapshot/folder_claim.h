// The claim of a run on a folder that it saves in: while it trains, another run that would write there, and
// replace or remove what it does not know, is refused.
//
// A file in the folder says which run has it. Each process of the run holds a shared lock on that file until
// its claim goes, or the process does; whoever finds no lock may write another run there. The last
// process that lets go removes the file. On a file system without locks, and in a folder where no file can be
// written, a claim always succeeds. Whoever removes the file, as with the whole folder, ends the claim:
// renew() before each write takes it again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/io/files.h"

namespace het {

class FolderClaim {
 public:
  FolderClaim() = default;  // of none
  // `field`: that names the folder, for errors. `run`: a number that the ranks of a run have in common and no
  // other run has. The folder is made where it is missing. Claims of one process on one folder share its
  // lock, also those of several runs, which follow each other. Throws Error(usage) where another run has the
  // folder.
  FolderClaim(const Path& folder, const char* field, int64_t run);

  // Claims the folder again where the file of the claim is gone. Throws Error(environment) where another run
  // has it since.
  void renew();

 private:
  struct Lock;
  Path folder_;
  std::string field_;
  int64_t run_ = 0;
  std::shared_ptr<Lock> lock_;  // null: there are no locks
};

}  // namespace het
