// How files are reached by path, and with whose rights. The engine reads and writes files only through a
// Path: a text and the Files that open it. host_files() has the rights of the process; a recipe's files are
// limited to what it was given (lua/recipe_files.h). A refusal is an Error(usage) with a sentence; what the
// system says is a negative errno, so that callers word it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/error.h"

namespace het {

// What a path is opened for. Limits differ: what the library reads as data, Lua modules that a recipe
// requires, and files that a recipe's own code opens.
enum class Purpose : uint8_t { data, module, own };

// replace: created, or emptied; append: created, or written at its end.
enum class OpenMode : uint8_t { read, folder, replace, append };

enum class FileKind : uint8_t { none, file, folder, link, other };

// Used from several threads at once.
class Files {
 public:
  Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  virtual ~Files() = default;

  // A file descriptor, or a negative errno.
  virtual int open(const std::string& path, OpenMode mode, Purpose purpose) = 0;
  // What stands at the path; `none` also where it may not be looked at.
  virtual FileKind kind(const std::string& path, Purpose purpose) = 0;
  // Make a folder and those that it lies in: 0, or a negative errno.
  virtual int make_folders(const std::string& path) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int remove(const std::string& path) = 0;
  // Make the names in the folder of a file last: 0, or a negative errno where the disk did not confirm it.
  virtual int flush_folder_of(const std::string& path) = 0;
  // Where writing to a path goes: the file that a link leads to, so that the link stays.
  virtual std::string target(const std::string& path) = 0;
  // Why a path would be refused, as a sentence; empty when it would not.
  virtual std::string problem(const std::string& path, bool writes, Purpose purpose) = 0;
};

// All that the process itself may do. Holds no state.
Files& host_files();

// A value: where a file is, and who opens it.
struct Path {
  Path() = default;
  Path(std::string where) : text(std::move(where)) {}
  Path(const char* where) : text(where) {}
  Path(std::string where, std::shared_ptr<Files> by, Purpose what = Purpose::data)
      : text(std::move(where)), files(std::move(by)), purpose(what) {}

  bool empty() const { return text.empty(); }
  // One that is opened in the same way: `name` in the folder that this is; this with `end` added.
  Path child(const std::string& name) const { return with(text + "/" + name); }
  Path with(std::string where) const { return {std::move(where), files, purpose}; }
  Files& opener() const { return files != nullptr ? *files : host_files(); }

  std::string text;
  std::shared_ptr<Files> files;  // null: host_files()
  Purpose purpose = Purpose::data;
};

FileKind kind_of(const Path& path);

// Who has to act on an errno with which opening ended: the machine (no descriptor, no memory, a bad disk),
// else the person.
ErrorKind kind_of_failure(int error);

struct FolderEntry {
  std::string name;
  FileKind kind = FileKind::none;
  int64_t bytes = 0;
  std::pair<uint64_t, uint64_t> file;  // device and number: equal for two names of one file
};
// What a folder holds, by name. A link has the kind link, with no bytes. Throws Error when it
// cannot be read.
std::vector<FolderEntry> list_folder(const Path& folder);

// The file or folder at a path, links followed; nothing where it cannot be opened to be read.
std::optional<FolderEntry> entry_of(const Path& path);

std::string folder_of(const std::string& path);  // "." of a name alone

// 0, or a negative errno where the disk did not confirm it. Of a descriptor that is none: 0.
int flush_folder(const Descriptor& folder);

// Open `name` beneath an open folder, never leaving it and following no link: by openat2 where the kernel has
// it, else one component after the other. `flags` as of open(2). A descriptor, or a negative errno (ELOOP,
// EXDEV: a link).
int open_beneath(int folder, const std::string& name, int flags, unsigned mode = 0666);
// The same without openat2, for kernels before 5.6.
int open_by_components(int folder, const std::string& name, int flags, unsigned mode = 0666);
bool has_openat2();

}  // namespace het
