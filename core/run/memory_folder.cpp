#include "core/run/memory_folder.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/net/proof.h"

namespace het {
namespace {

constexpr const char* kParent = "/dev/shm";
constexpr long kTmpfs = 0x01021994;  // TMPFS_MAGIC of linux/magic.h

bool has_memory_files() {
  struct statfs about {};
  return statfs(kParent, &about) == 0 && about.f_type == kTmpfs && access(kParent, W_OK) == 0;
}

std::string prefix() { return fmt::format("hetrun-{}-", geteuid()); }

std::string named(const EnvironmentLookup& lookup, std::string_view secret, std::string_view store = {}) {
  const std::string what = fmt::format("snapshots in the memory of {}{}{}", host_of_process(lookup),
                                       store.empty() ? "" : " by ", store);
  return fmt::format("{}/{}{}", kParent, prefix(), hex_of(hmac_sha256(secret, what)).substr(0, 24));
}

std::string lock_of(const std::string& folder) { return folder + "/lock"; }

void remove_all(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

bool is_file_at(int descriptor, const std::string& path) {
  struct stat open {
  }, found{};
  return descriptor >= 0 && fstat(descriptor, &open) == 0 && lstat(path.c_str(), &found) == 0 &&
         open.st_dev == found.st_dev && open.st_ino == found.st_ino;
}

// Folders whose launcher lives hold its lock.
void remove_orphans() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kParent, ignored)) {
    const std::string path = entry.path().string();
    struct stat found {};
    if (!entry.path().filename().string().starts_with(prefix()) || lstat(path.c_str(), &found) != 0 ||
        !S_ISDIR(found.st_mode) || found.st_uid != geteuid())
      continue;
    const Descriptor lock(open(lock_of(path).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (lock && flock(lock.number(), LOCK_EX | LOCK_NB) == 0) remove_all(path);
  }
}

}  // namespace

std::string memory_folder(const EnvironmentLookup& lookup, std::string_view secret) {
  if (const auto given = lookup("HETRUN_MEMORY")) return *given;
  return has_memory_files() ? named(lookup, secret) : "";
}

MemoryFolder::MemoryFolder(const EnvironmentLookup& lookup, std::string_view secret, std::string_view store) {
  if (!has_memory_files()) return;
  remove_orphans();
  path_ = named(lookup, secret, store);
  // Who finds the folder's lock free removes it: between being made and being locked it may go again.
  do {
    if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
      fail_environment("cannot make the folder '{}': {}", path_, std::strerror(errno));
    lock_ = Descriptor(open(lock_of(path_).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock_ && errno == ENOENT) continue;
    if (!lock_) fail_environment("cannot write in '{}': {}", path_, std::strerror(errno));
    // Shared: another launcher of the run may have it, too. Who has it alone is removing the folder.
    while (flock(lock_.number(), LOCK_SH) != 0)
      if (errno != EINTR) fail_environment("cannot lock the folder '{}': {}", path_, std::strerror(errno));
  } while (!is_file_at(lock_.number(), lock_of(path_)));
}

MemoryFolder::~MemoryFolder() {
  if (path_.empty()) return;
  // The last of several launchers of one host removes it.
  if (flock(lock_.number(), LOCK_EX | LOCK_NB) == 0) remove_all(path_);
}

}  // namespace het
