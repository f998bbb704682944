#include "core/io/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/base/units.h"

namespace het {
namespace {

// The path in the same folder whose name is nearest; empty when none is near, or the folder may not be read.
std::string neighbour(const Path& path) {
  constexpr size_t kMostEntries = 10'000;  // of a folder that is looked through
  const size_t slash = path.text.rfind('/');
  const std::string before = slash == std::string::npos ? "" : path.text.substr(0, slash + 1);
  std::vector<std::string> names;
  try {
    Path folder = path.with(folder_of(path.text));
    folder.purpose = Purpose::module;  // for its names alone
    for (FolderEntry& entry : list_folder(folder)) {
      names.push_back(std::move(entry.name));
      if (names.size() == kMostEntries) break;
    }
  } catch (const Error&) {  // the file is missing all the same
  }
  const std::string own = path.text.substr(before.size());
  std::erase(names, own);  // a link that leads nowhere
  const std::string near = nearest_name(own, names);
  return near.empty() ? near : before + near;
}

[[noreturn]] void fail_open(const Path& path, int error) {
  if (error == ENOENT) {
    if (path.empty()) fail_usage("an empty path names no file");
    const std::string parent = folder_of(path.text);
    if (kind_of(path.with(parent)) == FileKind::none)
      fail_usage("there is no file '{}': the folder '{}' does not exist", path.text, parent);
    const std::string near = neighbour(path);
    fail_usage("there is no file '{}'{}", path.text,
               near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
  }
  fail(kind_of_failure(error), "cannot open '{}': {}", path.text, std::strerror(error));
}

// An open file or an Error; its state in `state`.
Descriptor open_to_read(const Path& path, struct stat& state) {
  Descriptor file(path.opener().open(path.text, OpenMode::read, path.purpose));
  if (file.number() < 0) fail_open(path, -file.release());
  if (fstat(file.number(), &state) != 0) fail_open(path, errno);
  if (S_ISDIR(state.st_mode)) fail_usage("'{}' is a folder; a file is wanted", path.text);
  return file;
}

constexpr std::string_view kStaged = ".next";
constexpr std::string_view kWriting = ".writing-";  // and the host in 8 hexadecimal digits, "-", the process
constexpr size_t kHostDigits = 8;

// Stands for the processes among which a number means one: of this host, in this container.
std::string host_digits() {
  char name[256] = {}, space[64] = {};
  gethostname(name, sizeof name - 1);
  if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = 0;
  return fmt::format(
      "{:08x}", crc32c(space, std::strlen(space), crc32c(name, static_cast<int64_t>(std::strlen(name)))));
}

// Of the name of a file that is being written.
struct Unfinished {
  std::string_view finished, host, process;
};
std::optional<Unfinished> parse_unfinished(std::string_view name) {
  const size_t at = name.rfind(kWriting);
  if (at == name.npos) return std::nullopt;
  const std::string_view tail = name.substr(at + kWriting.size());
  // Without the host, as files had it until it was in their names: of no host.
  if (!tail.empty() && tail.find_first_not_of("0123456789") == tail.npos)
    return Unfinished{name.substr(0, at), {}, tail};
  const std::string_view host = tail.substr(0, kHostDigits);
  const std::string_view rest = name.substr(at + kWriting.size() + host.size());
  if (host.size() != kHostDigits || host.find_first_not_of("0123456789abcdef") != host.npos ||
      rest.size() < 2 || rest[0] != '-' || rest.find_first_not_of("0123456789", 1) != rest.npos)
    return std::nullopt;
  return Unfinished{name.substr(0, at), host, rest.substr(1)};
}

bool flush_folder_of(const Path& path) {
  const int error = -path.opener().flush_folder_of(path.text);
  if (error != 0) errno = error;
  return error == 0;
}

Path resolved(const Path& path) { return path.with(path.opener().target(path.text)); }

// All of `text`, or the errno that kept it from being written.
int write_all(int descriptor, const char* from, int64_t bytes, int64_t& written) {
  while (bytes > 0) {
    const ssize_t put =
        ::write(descriptor, from, static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30)));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    from += put;
    bytes -= put;
    written += put;
  }
  return 0;
}

}  // namespace

std::string read_file(const Path& path) {
  struct stat state {};
  const Descriptor file = open_to_read(path, state);
  std::string content;
  content.resize(static_cast<size_t>(std::max<off_t>(state.st_size, 0)) +
                 1);  // one more: to meet the end at once
  size_t have = 0;
  for (;;) {
    const ssize_t got = read(file.number(), content.data() + have, content.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail_environment("reading '{}' failed after {}: {}", path.text, show_bytes(static_cast<double>(have)),
                       std::strerror(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
    if (have == content.size()) content.resize(2 * have);
  }
  content.resize(have);
  return content;
}

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  const std::string base = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!base.empty()) return base + "/hetrun";
  return home.empty() ? "" : home + "/.cache/hetrun";
}

OpenFile::OpenFile(const Path& where) : path(where.text) {
  struct stat state {};
  descriptor = open_to_read(where, state);
  if (!S_ISREG(state.st_mode))
    fail_usage("'{}' is not a regular file, so it cannot be mapped into memory", path);
  bytes = state.st_size;
  struct statfs system {};
  // Numbers of file systems: linux/magic.h and the kernel's sources of each.
  constexpr uint32_t kRemote[] = {0x6969,     0x517b,     0xfe534d42, 0xff534d42,  // NFS, SMB, SMB 2, CIFS
                                  0x01021997, 0x65735546, 0x00c36400, 0x0bd00bd0,  // 9p, FUSE, Ceph, Lustre
                                  0x47504653, 0x19830326};                         // GPFS, BeeGFS
  if (fstatfs(descriptor.number(), &system) == 0)
    is_local = std::find(std::begin(kRemote), std::end(kRemote), static_cast<uint32_t>(system.f_type)) ==
               std::end(kRemote);
}

void OpenFile::read_at(int64_t position, void* to, int64_t count) const {
  auto* into = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = pread(descriptor.number(), into, static_cast<size_t>(count), position);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      fail_environment("reading '{}' failed at byte {}: {}", path, position,
                       got == 0 ? "the file ends there" : std::strerror(errno));
    into += got;
    position += got;
    count -= got;
  }
}

MappedFile::MappedFile(const OpenFile& file) : path_(file.path), bytes_(file.bytes) {
  if (bytes_ == 0) return;
  void* address =
      mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_PRIVATE, file.descriptor.number(), 0);
  if (address == MAP_FAILED)
    fail_environment("cannot map '{}' ({}) into memory: {}", path_, show_bytes(static_cast<double>(bytes_)),
                     std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
}

void MappedFile::make_writable(int64_t begin, int64_t count) const {
  if (count <= 0) return;
  HET_REQUIRE(begin >= 0 && begin + count <= bytes_, begin, count, bytes_);
  const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  const int64_t first = begin / page * page;
  // Private: who writes to a tensor of this file changes a copy of the page.
  if (mprotect(const_cast<std::byte*>(data_) + first, static_cast<size_t>(begin + count - first),
               PROT_READ | PROT_WRITE) != 0)
    fail_environment("there is no memory for {} of '{}': {}", show_bytes(static_cast<double>(count)), path_,
                     std::strerror(errno));
}

bool was_left_unfinished(std::string_view name) {
  const auto unfinished = parse_unfinished(name);
  struct stat state {};
  return unfinished && unfinished->host == host_digits() &&
         ::stat(fmt::format("/proc/{}", unfinished->process).c_str(), &state) != 0 && errno == ENOENT;
}

void remove_unfinished(const Path& folder) {
  try {
    for (const FolderEntry& entry : list_folder(folder))
      if (entry.kind == FileKind::file && was_left_unfinished(entry.name))
        folder.opener().remove(folder.child(entry.name).text);
  } catch (const Error&) {  // there is no such folder yet, or it cannot be read: the write says so
  }
}

std::string unfinished_name(std::string_view name) {
  return fmt::format("{}{}{}-{}", name, kWriting, host_digits(), getpid());
}

std::optional<std::string_view> name_of_unfinished(std::string_view unfinished) {
  const auto parsed = parse_unfinished(unfinished);
  return parsed ? std::optional(parsed->finished) : std::nullopt;
}

AtomicFile::AtomicFile(const Path& path)
    : path_(resolved(path)), temporary_(path_.with(unfinished_name(path_.text))) {
  check_target();
  temporary_.purpose = Purpose::data;  // the library's own: no code of a recipe's may open it
  adopt(path_.opener().open(temporary_.text, OpenMode::replace, temporary_.purpose));
}

AtomicFile::AtomicFile(const Path& path, const std::string& spent)
    : path_(path), temporary_(path_.with(unfinished_name(path_.text))) {
  check_target();
  if (std::rename(spent.c_str(), temporary_.text.c_str()) != 0) {  // someone has removed it
    temporary_.purpose = Purpose::data;
    adopt(path_.opener().open(temporary_.text, OpenMode::replace, temporary_.purpose));
    return;
  }
  const int descriptor = ::open(temporary_.text.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  const int error = errno;
  if (descriptor < 0) ::unlink(temporary_.text.c_str());
  adopt(descriptor < 0 ? -error : descriptor);
}

void AtomicFile::check_target() const {
  const FileKind kind = kind_of(path_);
  if (kind != FileKind::none && kind != FileKind::file)
    fail_usage("cannot write '{}': it is {}", path_.text,
               kind == FileKind::folder ? "a folder" : "not a regular file");
  if (const std::string refusal = path_.opener().problem(path_.text, true, path_.purpose); !refusal.empty())
    fail_usage("{}", refusal);
}

// A descriptor of the temporary file, or a negative errno: then it throws.
void AtomicFile::adopt(int descriptor) {
  if (descriptor >= 0) {
    descriptor_ = descriptor;
    return;
  }
  const int error = -descriptor;
  if (error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS) fail_write(error);
  if (error == ENOENT) {
    const std::string folder = folder_of(path_.text);
    if (kind_of(path_.with(folder)) == FileKind::none)
      fail_usage("cannot write '{}': the folder '{}' does not exist", path_.text, folder);
    fail_usage("cannot write '{}': no file can be made in the folder '{}'", path_.text, folder);
  }
  fail_usage("cannot write '{}': {}", path_.text, std::strerror(error));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  try {
    path_.opener().remove(temporary_.text);
  } catch (const Error&) {  // who opened it is gone; what kept the file from being written says more
  }
}

void AtomicFile::fail_write(int error) const {
  const bool previous = kind_of(path_) != FileKind::none;
  const char* reason = error == ENOSPC   ? "the disk is full"
                       : error == EDQUOT ? "the disk quota is used up"
                       : error == EFBIG  ? "the file grew past the size allowed here"
                                         : std::strerror(error);
  fail_environment("writing '{}' failed after {}: {}; {}", path_.text,
                   show_bytes(static_cast<double>(written_)), reason,
                   previous ? "the previous file is kept" : "nothing was written");
}

void AtomicFile::write(const void* data, int64_t bytes) {
  HET_REQUIRE(descriptor_ >= 0, path_.text);
  if (const int error = write_all(descriptor_, static_cast<const char*>(data), bytes, written_))
    fail_write(error);
}

bool AtomicFile::write_directly() {
  const int flags = fcntl(descriptor_, F_GETFL);
  return flags >= 0 && fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0;
}

bool AtomicFile::write_through_cache() {
  const int flags = fcntl(descriptor_, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0 && fcntl(descriptor_, F_SETFL, flags & ~O_DIRECT) == 0;
}

void AtomicFile::reserve(int64_t bytes) {
  HET_REQUIRE(descriptor_ >= 0, path_.text);
  if (fallocate(descriptor_, 0, 0, bytes) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail_write(errno);
  if (ftruncate(descriptor_, bytes) != 0) fail_write(errno);
}

void AtomicFile::write_at(int64_t position, const void* data, int64_t bytes) {
  HET_REQUIRE(descriptor_ >= 0, path_.text);
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = pwrite(descriptor_, from, static_cast<size_t>(bytes), position);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && write_through_cache()) continue;  // its blocks are larger than 4096
    if (put < 0) fail_write(errno);
    from += put;
    position += put;
    bytes -= put;
    written_ += put;
  }
}

void AtomicFile::flush() {
  if (fdatasync(descriptor_) != 0) fail_write(errno);
}

void AtomicFile::finish(const Path& name) {
  HET_REQUIRE(descriptor_ >= 0, path_.text);
  if (fsync(descriptor_) != 0) fail_write(errno);
  if (const int error = -path_.opener().rename(temporary_.text, name.text)) fail_write(error);
  // From here on the new file stands under its name; closing and the folder's flush only make it last.
  const int closed = close(std::exchange(descriptor_, -1));
  if (!flush_folder_of(name) || closed != 0)
    fail_environment("'{}' is written, but the disk did not confirm it: {}", name.text, std::strerror(errno));
}

void AtomicFile::commit() { finish(path_); }
void AtomicFile::stage() { finish(staged_path(path_)); }

void write_file(const Path& path, std::string_view content, bool staged) {
  AtomicFile file(path);
  file.write(content);
  staged ? file.stage() : file.commit();
}

Path staged_path(const Path& path) {
  Path real = resolved(path);
  return real.with(fmt::format("{}{}", real.text, kStaged));
}

std::optional<std::string_view> name_of_staged(std::string_view staged) {
  if (!staged.ends_with(kStaged)) return std::nullopt;
  return staged.substr(0, staged.size() - kStaged.size());
}

void commit_staged(const Path& path) {
  const Path staged = staged_path(path), real = resolved(path);
  const int error = -real.opener().rename(staged.text, real.text);
  if (error != 0 || !flush_folder_of(real))
    fail_environment("cannot put '{}' in the place of '{}': {}", staged.text, real.text,
                     std::strerror(error != 0 ? error : errno));
}

void drop_staged(const Path& path) {
  const Path staged = staged_path(path);
  const int error = -staged.opener().remove(staged.text);
  if (error != 0 && error != ENOENT)
    fail_environment("cannot remove '{}': {}", staged.text, std::strerror(error));
}

void append_file(const Path& path, std::string_view text) {
  const Descriptor file(path.opener().open(path.text, OpenMode::append, path.purpose));
  if (file.number() < 0) fail_usage("cannot open {} to write: {}", path.text, std::strerror(-file.number()));
  struct stat before {};
  const bool is_regular = fstat(file.number(), &before) == 0 && S_ISREG(before.st_mode);
  int64_t written = 0;
  const int error = write_all(file.number(), text.data(), static_cast<int64_t>(text.size()), written);
  if (error == 0) return;
  // Half of it would spoil what comes after.
  const bool undone = !is_regular || ftruncate(file.number(), before.st_size) == 0;
  fail_environment("cannot write to {}: {}{}", path.text, std::strerror(error),
                   undone ? "" : "; its end is damaged");
}

int64_t modified_at(const Path& path) {
  struct stat state {};
  const Descriptor file(path.opener().open(path.text, OpenMode::read, path.purpose));
  return file && fstat(file.number(), &state) == 0 ? state.st_mtim.tv_sec : 0;
}

void make_folder(const Path& path) {
  const int error = -path.opener().make_folders(path.text);
  if (error == ENOTDIR)
    for (std::string part = path.text; part != folder_of(part); part = folder_of(part))
      if (kind_of(path.with(part)) == FileKind::file)
        fail_usage("cannot make the folder {}: {} is no folder", path.text, part);
  if (error != 0) fail_usage("cannot make the folder {}: {}", path.text, std::strerror(error));
}

}  // namespace het
