#include "core/io/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/units.h"

namespace het {
namespace {

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// The path in the same folder whose name is nearest; empty when none is near.
std::string neighbour(const std::string& path) {
  constexpr int kMostEntries = 10'000;  // of a folder that is looked through
  const size_t slash = path.rfind('/');
  const std::string before = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  std::vector<std::string> names;
  std::error_code problem;
  for (std::filesystem::directory_iterator entry(folder_of(path), problem), end;
       !problem && entry != end && static_cast<int>(names.size()) < kMostEntries; entry.increment(problem))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  const std::string near = nearest_name(path.substr(before.size()), names);
  return near.empty() ? near : before + near;
}

[[noreturn]] void fail_open(const std::string& path, int error) {
  if (error == ENOENT) {
    struct stat folder;
    if (const std::string parent = folder_of(path); stat(parent.c_str(), &folder) != 0)
      fail_usage("there is no file '{}': the folder '{}' does not exist", path, parent);
    if (path.empty()) fail_usage("an empty path names no file");
    const std::string near = neighbour(path);
    fail_usage("there is no file '{}'{}", path,
               near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
  }
  const bool machine = error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
  fail(machine ? ErrorKind::environment : ErrorKind::usage, "cannot open '{}': {}", path,
       std::strerror(error));
}

// An open file or an Error; its state in `state`.
int open_to_read(const std::string& path, struct stat& state) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_open(path, errno);
  if (fstat(descriptor, &state) != 0 || S_ISDIR(state.st_mode)) {
    close(descriptor);
    fail_usage("'{}' is a folder; a file is wanted", path);
  }
  return descriptor;
}

constexpr const char* kStaged = ".next";

// Make the names in the folder of a file last. False: the disk did not confirm it.
bool flush_folder_of(const std::string& path) {
  const Descriptor folder(open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.get() < 0 || fsync(folder.get()) == 0 || errno == EINVAL || errno == ENOTSUP;
}

// Where writing goes: the file that a link leads to, so that the link stays.
std::string resolved(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string result = real;
  std::free(real);
  return result;
}

}  // namespace

std::string read_file(const std::string& path) {
  struct stat state {};
  const Descriptor file(open_to_read(path, state));
  std::string content;
  content.resize(static_cast<size_t>(std::max<off_t>(state.st_size, 0)) +
                 1);  // one more: to meet the end at once
  size_t have = 0;
  for (;;) {
    const ssize_t got = read(file.get(), content.data() + have, content.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail_environment("reading '{}' failed after {}: {}", path, show_bytes(static_cast<double>(have)),
                       std::strerror(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
    if (have == content.size()) content.resize(2 * have);
  }
  content.resize(have);
  return content;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  struct stat state {};
  const Descriptor file(open_to_read(path, state));
  if (!S_ISREG(state.st_mode))
    fail_usage("'{}' is not a regular file, so it cannot be mapped into memory", path);
  bytes_ = state.st_size;
  if (bytes_ == 0) return;
  // Writable but private: who writes to a tensor of this file changes a copy of the page.
  void* address =
      mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED)
    fail_environment("cannot map '{}' ({}) into memory: {}", path, show_bytes(static_cast<double>(bytes_)),
                     std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
}

AtomicFile::AtomicFile(const std::string& path) : path_(resolved(path)) {
  struct stat state {};
  if (stat(path_.c_str(), &state) == 0 && !S_ISREG(state.st_mode))
    fail_usage("cannot write '{}': it is {}", path_,
               S_ISDIR(state.st_mode) ? "a folder" : "not a regular file");
  temporary_ = path_ + ".writing-" + std::to_string(getpid());
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ >= 0) return;
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS) fail_write(error);
  if (error == ENOENT) {
    const std::string folder = folder_of(path_);
    if (stat(folder.c_str(), &state) != 0)
      fail_usage("cannot write '{}': the folder '{}' does not exist", path_, folder);
    fail_usage("cannot write '{}': no file can be made in the folder '{}'", path_, folder);
  }
  fail_usage("cannot write '{}': {}", path_, std::strerror(error));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(temporary_.c_str());
}

void AtomicFile::fail_write(int error) const {
  struct stat state {};
  const bool previous = stat(path_.c_str(), &state) == 0;
  const char* reason = error == ENOSPC   ? "the disk is full"
                       : error == EDQUOT ? "the disk quota is used up"
                       : error == EFBIG  ? "the file grew past the size allowed here"
                                         : std::strerror(error);
  fail_environment("writing '{}' failed after {}: {}; {}", path_, show_bytes(static_cast<double>(written_)),
                   reason, previous ? "the previous file is kept" : "nothing was written");
}

void AtomicFile::write(const void* data, int64_t bytes) {
  HET_REQUIRE(descriptor_ >= 0, path_);
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put =
        ::write(descriptor_, from, static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_write(errno);
    from += put;
    bytes -= put;
    written_ += put;
  }
}

void AtomicFile::finish(const std::string& name) {
  HET_REQUIRE(descriptor_ >= 0, path_);
  if (fsync(descriptor_) != 0) fail_write(errno);
  if (rename(temporary_.c_str(), name.c_str()) != 0) fail_write(errno);
  // From here on the new file stands under its name; closing and the folder's flush only make it last.
  const int closed = close(std::exchange(descriptor_, -1));
  if (!flush_folder_of(name) || closed != 0)
    fail_environment("'{}' is written, but the disk did not confirm it: {}", name, std::strerror(errno));
}

void AtomicFile::commit() { finish(path_); }
void AtomicFile::stage() { finish(path_ + kStaged); }

void write_file(const std::string& path, std::string_view content, bool staged) {
  AtomicFile file(path);
  file.write(content);
  staged ? file.stage() : file.commit();
}

std::string staged_path(const std::string& path) { return resolved(path) + kStaged; }

void commit_staged(const std::string& path) {
  const std::string staged = staged_path(path), real = resolved(path);
  if (rename(staged.c_str(), real.c_str()) != 0 || !flush_folder_of(real))
    fail_environment("cannot put '{}' in the place of '{}': {}", staged, real, std::strerror(errno));
}

void drop_staged(const std::string& path) {
  const std::string staged = staged_path(path);
  if (unlink(staged.c_str()) != 0 && errno != ENOENT)
    fail_environment("cannot remove '{}': {}", staged, std::strerror(errno));
}

}  // namespace het
