#include "core/data/data_files.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fnmatch.h>

#include "core/base/error.h"
#include "core/io/file.h"

namespace het {
namespace {

using SeenFiles = std::set<std::pair<uint64_t, uint64_t>>;

// Regular files of a folder and of the folders in it, and the links. Folders that may not be read are left
// out. Links to folders are not followed: they may lead in a circle.
void collect_files(const Path& folder, std::vector<DataFile>& files, SeenFiles& seen,
                   std::vector<Path>& links, int depth) {
  constexpr int kMostDepth = 64;
  if (depth > kMostDepth) fail_usage("the folder '{}' lies more than {} deep", folder.text, kMostDepth);
  std::vector<FolderEntry> entries;
  try {
    entries = list_folder(folder);
  } catch (const Error& error) {
    if (depth == 0 || error.kind() != ErrorKind::usage) throw;
    return;
  }
  for (const FolderEntry& entry : entries) {
    const Path path = folder.child(entry.name);
    if (entry.kind == FileKind::link) links.push_back(path);
    if (!path.opener().problem(path.text, false, path.purpose).empty()) continue;
    if (entry.kind == FileKind::file && seen.insert(entry.file).second) files.push_back({path, entry.bytes});
    if (entry.kind == FileKind::folder) collect_files(path, files, seen, links, depth + 1);
  }
}

DataFiles files_below(const Path& folder) {
  DataFiles found;
  SeenFiles seen;
  std::vector<Path> links;
  collect_files(folder, found.files, seen, links, 0);
  for (const Path& link : links) {  // after all files: what the folder has is read once, by its name
    const auto file = kind_of(link) == FileKind::file ? entry_of(link) : std::nullopt;
    if (!file)
      ++found.links;
    else if (seen.insert(file->file).second)
      found.files.push_back({link, file->bytes});
  }
  return found;
}

// The files of a folder whose names match.
DataFiles files_like(const Path& pattern) {
  const std::string folder = folder_of(pattern.text);
  const std::string names = pattern.text.substr(pattern.text.rfind('/') + 1);
  DataFiles found;
  for (const FolderEntry& entry : list_folder(pattern.with(folder))) {
    if (fnmatch(names.c_str(), entry.name.c_str(), FNM_PERIOD) != 0) continue;
    const Path path = pattern.with(pattern.text.substr(0, pattern.text.rfind('/') + 1) + entry.name);
    if (kind_of(path) != FileKind::file) continue;
    if (const auto file = entry_of(path)) found.files.push_back({path, file->bytes});
  }
  return found;
}

bool is_pattern(const Path& path) {
  const size_t name = path.text.rfind('/') + 1;  // 0 where there is no slash
  return path.text.find_first_of("*?[", name) != std::string::npos && kind_of(path) == FileKind::none;
}

}  // namespace

void require_known_format(std::string_view content, const std::string& path) {
  const auto begins = [&](std::string_view magic) { return content.starts_with(magic); };
  const auto by_pandas = [&](const char* format, const char* reader) {
    fail_usage(
        "'{}' is {} file, which is not read; as lines of JSON it is: python3 -c \"import pandas; "
        "pandas.{}('{}').to_json('{}.jsonl', orient='records', lines=True)\"",
        path, format, reader, path, path);
  };
  const auto by_program = [&](const char* program) {
    fail_usage("'{}' is compressed, and read once it is not: {} '{}'", path, program, path);
  };
  if (begins("PAR1")) by_pandas("a Parquet", "read_parquet");
  if (begins("ARROW1")) by_pandas("an Arrow", "read_feather");
  if (begins("\x1f\x8b\x08")) by_program("gunzip --keep");
  if (begins("\x28\xb5\x2f\xfd")) by_program("unzstd");
  if (begins("\xfd"
             "7zXZ"))
    by_program("unxz --keep");
  if (begins("PK\x03\x04")) by_program("unzip");
}

DataFiles data_files(const Path& path, std::string_view ending) {
  DataFiles found;
  if (kind_of(path) == FileKind::folder) {
    found = files_below(path);
    std::erase_if(found.files, [&](const DataFile& file) { return !file.path.text.ends_with(ending); });
    if (found.files.empty())
      fail_usage("the folder '{}' holds no {}files{}", path.text,
                 ending.empty() ? "" : fmt::format("{} ", ending),
                 found.links == 0 ? "" : fmt::format("; {} links in it are not followed", found.links));
  } else if (is_pattern(path)) {
    found = files_like(path);
    if (found.files.empty()) fail_usage("no file matches '{}'", path.text);
  } else {
    found.files = {{path, 0}};
  }
  std::sort(found.files.begin(), found.files.end(),
            [](const DataFile& a, const DataFile& b) { return a.path.text < b.path.text; });
  return found;
}

}  // namespace het
