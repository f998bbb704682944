// Whole files: read, mapped, and replaced without ever leaving a half-written one. Errors name the file and
// say what the system said: usage when the path is wrong, environment when the machine is at fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/io/files.h"

namespace het {

// The content of a file. Throws Error(usage) when it is missing, not readable or a folder.
std::string read_file(const Path& path);

// A regular file, open to be read. Throws Error(usage) like read_file, and for a pipe or a device.
struct OpenFile {
  explicit OpenFile(const Path& path);

  std::string path;
  Descriptor descriptor;
  int64_t bytes = 0;
  bool is_local = true;  // false: on a network file system, where mapped files are slow and end in SIGBUS

  // Read `count` bytes from `position` on. Throws Error(environment) when the disk fails, or the file ends.
  void read_at(int64_t position, void* to, int64_t count) const;
};

// A file mapped, to be read, for as long as the object lives. Reading a
// part that another process has cut off meanwhile faults; our own files are replaced, never cut.
class MappedFile {
 public:
  explicit MappedFile(const Path& path) : MappedFile(OpenFile(path)) {}
  explicit MappedFile(const OpenFile& file);  // throws Error(environment)
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Let [begin, begin + count) be written to; the file itself stays as it is. Memory that may be written
  // counts as the process's own, so only what is handed out is made so.
  void make_writable(int64_t begin, int64_t count) const;
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data_), static_cast<size_t>(bytes_)};
  }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Writes `path` by way of a temporary file beside it: write(), then commit() flushes to the disk and renames
// over `path`. Until commit() returns, and for good when anything fails or the object is dropped before, the
// previous file stays as it was. Used from one thread.
class AtomicFile {
 public:
  explicit AtomicFile(const Path& path);  // throws Error(usage) when the folder is missing or not writable
  // The same over the pages of `spent`, a file of the host beside it that is needed no more: in memory they
  // need not be allocated and cleared again. What is not written over keeps its bytes, and the file its
  // length.
  AtomicFile(const Path& path, const std::string& spent);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, int64_t bytes);  // throws Error(environment) when the disk is full
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }

  // For files that are written by position.
  // Past the page cache from now on, where the file system can: addresses, positions and sizes are then
  // multiples of 4096. False: it cannot.
  bool write_directly();
  void reserve(int64_t bytes);  // lets the file have this length; throws when the disk has no room for it
  void write_at(int64_t position, const void* data, int64_t bytes);
  void flush();  // what was written is on the disk

  void commit();
  // Flushes to the disk like commit(), but leaves the file beside `path`, as a file of a set that is to be
  // replaced together: when all of them are staged, commit_staged() puts each in its place.
  void stage();

 private:
  void check_target() const;
  void adopt(int descriptor);
  [[noreturn]] void fail_write(int error) const;
  bool write_through_cache();  // false: it was so already
  void finish(const Path& name);

  Path path_, temporary_;
  int descriptor_ = -1;
  int64_t written_ = 0;
};

// The name of the file that an AtomicFile called `name` writes first, which says host and process; and the
// other way round: what such a file is to become, by its name or path; nullopt where it is none.
std::string unfinished_name(std::string_view name);
std::optional<std::string_view> name_of_unfinished(std::string_view unfinished);
// Whether a process of this host that has ended was writing the file of this name.
bool was_left_unfinished(std::string_view name);

// The same in one call.
void write_file(const Path& path, std::string_view content, bool staged = false);

// Where stage() leaves what is to become `path`.
Path staged_path(const Path& path);
// What a staged file is to become, by its name or path; nullopt where it is none.
std::optional<std::string_view> name_of_staged(std::string_view staged);
// Put a staged file in its place, on the disk too; remove it, whether it is there or not. Throw
// Error(environment).
void commit_staged(const Path& path);
void drop_staged(const Path& path);

// Remove what processes of this host that have ended without finishing it, as when they were killed, were
// writing into this folder. What other hosts write into a shared folder stays.
void remove_unfinished(const Path& folder);

// Add `text` at the end of a file, which is created where it is missing. Throws Error.
void append_file(const Path& path, std::string_view text);
// Make a folder and those that it lies in. Throws Error(usage).
void make_folder(const Path& path);

// When a file was written last, in seconds since 1970; 0 where that cannot be found out.
int64_t modified_at(const Path& path);

// Where the library keeps what it has measured or chosen between runs, of this user; empty where there is no
// home.
std::string cache_folder();

}  // namespace het
