// The files that a path of data names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/files.h"

namespace het {

struct DataFile {
  Path path;
  int64_t bytes = 0;
};

struct DataFiles {
  std::vector<DataFile> files;  // sorted by path
  int links = 0;                // that were not followed
};

// A file itself; of a folder the files in it and in its folders whose names end in `ending` (empty: all); of
// a pattern, such as "shards/*.bin", the files of that folder whose names match, as in a shell. Links to
// files are followed, each file is taken once. Throws Error(usage) where nothing is found.
DataFiles data_files(const Path& path, std::string_view ending = "");

// Throws Error(usage) for a file that begins as one of a format that is not read (Parquet, Arrow, or
// compressed), with a way to convert it.
void require_known_format(std::string_view content, const std::string& path);

}  // namespace het
