// The store in a folder: an object is a file. Nothing has to be installed for it. A file has its name once
// all of it is on the disk; to be removed it loses its name first.
#pragma once

#include <memory>

#include "snapshot/store/store.h"

namespace het {

std::unique_ptr<ObjectStore> open_file_store(const Path& folder);

}  // namespace het
