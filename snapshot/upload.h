// Copies finished snapshot files into a store. An object has its name once all of it is there, and a snapshot
// is whole when the units of its files cover the state: nothing else marks it as finished.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "snapshot/snapshot.h"

namespace het {

struct UploadedFile {
  std::string key;
  int64_t bytes = 0;
  bool was_there = false;  // the same file, from an earlier try
};
// Each file gets the name that its manifest gives it; a file that the store has already is not sent again.
// Files do not change meanwhile, and are read twice: all chunks are checked before the first byte is sent.
// `options.progress` counts the bytes of all files. Throws Error(usage) for a file that is damaged.
std::vector<UploadedFile> upload(ObjectStore& store, const std::vector<Path>& files,
                                 const TransferOptions& options = {});

}  // namespace het
