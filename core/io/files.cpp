#include "core/io/files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace het {
namespace {

int flags_of(OpenMode mode) {
  switch (mode) {
    case OpenMode::read: return O_RDONLY;
    case OpenMode::folder: return O_RDONLY | O_DIRECTORY;
    case OpenMode::replace: return O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW;
    case OpenMode::append: return O_WRONLY | O_CREAT | O_APPEND;
  }
  return O_RDONLY;
}

FileKind kind_of_mode(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::file;
  if (S_ISDIR(mode)) return FileKind::folder;
  return S_ISLNK(mode) ? FileKind::link : FileKind::other;
}

class HostFiles final : public Files {
 public:
  int open(const std::string& path, OpenMode mode, Purpose) override {
    const int descriptor = ::open(path.c_str(), flags_of(mode) | O_CLOEXEC, 0666);
    return descriptor < 0 ? -errno : descriptor;
  }
  FileKind kind(const std::string& path, Purpose) override {
    struct stat status {};
    return stat(path.c_str(), &status) != 0 ? FileKind::none : kind_of_mode(status.st_mode);
  }
  int make_folders(const std::string& path) override {
    std::error_code problem;
    std::filesystem::create_directories(path, problem);
    return -problem.value();
  }
  int rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) != 0 ? -errno : 0;
  }
  int remove(const std::string& path) override { return unlink(path.c_str()) != 0 ? -errno : 0; }
  int flush_folder_of(const std::string& path) override {
    return flush_folder(Descriptor(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  }
  std::string target(const std::string& path) override {
    char* real = realpath(path.c_str(), nullptr);
    if (real == nullptr) return path;
    std::string result = real;
    std::free(real);
    return result;
  }
  std::string problem(const std::string&, bool, Purpose) override { return {}; }
};

}  // namespace

Files& host_files() {
  static HostFiles files;  // stateless
  return files;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

int flush_folder(const Descriptor& folder) {
  // File systems that cannot flush a folder have nothing to lose.
  return !folder || fsync(folder.number()) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : -errno;
}

FileKind kind_of(const Path& path) { return path.opener().kind(path.text, path.purpose); }

ErrorKind kind_of_failure(int error) {
  const bool machine = error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
  return machine ? ErrorKind::environment : ErrorKind::usage;
}

std::vector<FolderEntry> list_folder(const Path& folder) {
  const int descriptor = folder.opener().open(folder.text, OpenMode::folder, folder.purpose);
  if (descriptor < 0)
    fail(kind_of_failure(-descriptor), "cannot read the folder '{}': {}", folder.text,
         std::strerror(-descriptor));
  DIR* stream = fdopendir(descriptor);
  if (stream == nullptr) {
    const int error = errno;
    close(descriptor);
    errno = error;
    fail_environment("cannot read the folder '{}': {}", folder.text, std::strerror(errno));
  }
  std::vector<FolderEntry> entries;
  while (const dirent* each = readdir(stream)) {
    const std::string name = each->d_name;
    struct stat status {};
    // What vanished meanwhile is not listed.
    if (name == "." || name == ".." || fstatat(descriptor, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    const FileKind kind = kind_of_mode(status.st_mode);
    entries.push_back(
        {name, kind, kind == FileKind::link ? 0 : status.st_size, {status.st_dev, status.st_ino}});
  }
  closedir(stream);
  std::sort(entries.begin(), entries.end(),
            [](const FolderEntry& a, const FolderEntry& b) { return a.name < b.name; });
  return entries;
}

std::optional<FolderEntry> entry_of(const Path& path) {
  struct stat status {};
  const Descriptor file(path.opener().open(path.text, OpenMode::read, path.purpose));
  if (!file || fstat(file.number(), &status) != 0) return std::nullopt;
  return FolderEntry{path.text, kind_of_mode(status.st_mode), status.st_size, {status.st_dev, status.st_ino}};
}

bool has_openat2() {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  const Descriptor probe(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof how)));
  return probe.number() >= 0;
}

int open_by_components(int folder, const std::string& name, int flags, unsigned mode) {
  if (name.starts_with('/')) return -EXDEV;
  Descriptor at(fcntl(folder, F_DUPFD_CLOEXEC, 0));
  if (!at) return -errno;
  for (size_t begin = 0;;) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part == "..") return -EXDEV;
    const bool last = end == name.size();
    const int next = openat(at.number(), part.empty() ? "." : part.c_str(),
                            (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC, mode);
    struct stat status {};
    const int error = errno;
    if (next < 0 && error == ENOTDIR && fstatat(at.number(), part.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
      return S_ISLNK(status.st_mode) ? -ELOOP : -ENOTDIR;
    if (next < 0) return -error;
    if (last) {
      if ((flags & O_PATH) != 0 && fstat(next, &status) == 0 && S_ISLNK(status.st_mode)) {
        close(next);
        return -ELOOP;
      }
      return next;
    }
    at = Descriptor(next);
    begin = end + 1;
  }
}

int open_beneath(int folder, const std::string& name, int flags, unsigned mode) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const std::string relative = name.empty() ? "." : name;
  const auto opened = static_cast<int>(syscall(SYS_openat2, folder, relative.c_str(), &how, sizeof how));
  if (opened >= 0) return opened;
  if (errno != ENOSYS && errno != EPERM) return -errno;  // EPERM: an older seccomp filter around us
  return open_by_components(folder, relative, flags, mode);
}

}  // namespace het
