#include "snapshot/folder_claim.h"

#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/descriptor.h"
#include "core/base/error.h"
#include "core/io/file.h"
#include "core/net/network.h"

namespace het {

struct FolderClaim::Lock {
  Descriptor file;
};

namespace {

constexpr const char* kName = "run.lock";

// Whoever writes the file has it alone for a moment; a process that was stopped then keeps others out.
constexpr std::chrono::milliseconds kPause{10}, kLongest{5'000};

struct Owner {
  int64_t run = 0;
  long pid = 0;
  std::string host;
};

std::string to_text(const Owner& owner) {
  return std::to_string(owner.run) + " " + std::to_string(owner.pid) + " " + owner.host + "\n";
}

std::optional<Owner> owner_of(const Path& file) {
  try {
    std::istringstream words(read_file(file));
    Owner owner;
    if (words >> owner.run >> owner.pid >> owner.host) return owner;
  } catch (const Error&) {  // removed meanwhile
  }
  return std::nullopt;
}

// False: another process has a lock that keeps this one out. Nothing: there are no locks here.
std::optional<bool> try_lock(const Descriptor& file, int kind) {
  while (flock(file.number(), kind | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return std::nullopt;
  }
  return true;
}

void write_owner(const Descriptor& file, const Owner& owner) {
  const std::string text = to_text(owner);
  // What cannot be written, as on a full disk, names no run, and keeps none out.
  if (ftruncate(file.number(), 0) == 0 && write(file.number(), text.data(), text.size()) < 0) return;
}

[[noreturn]] void refuse(const Path& folder, const char* field, const std::optional<Owner>& owner) {
  std::string who = "another process";
  if (owner) who = "process " + std::to_string(owner->pid) + " on " + owner->host;
  fail_usage(
      "'{}' is in use: {} trains a run whose snapshots are there. Wait for it to end, stop it, or choose "
      "another "
      "`{}`",
      folder.text, who, field);
}

// Takes the lock. False: there are none here.
bool lock(const Descriptor& file, const Path& folder, const char* field, const Owner& own) {
  const Path path = folder.child(kName);
  const auto until = std::chrono::steady_clock::now() + kLongest;
  std::optional<Owner> found;
  do {
    const std::optional<bool> alone = try_lock(file, LOCK_EX);
    if (!alone) return false;
    if (*alone) write_owner(file, own);
    // Between the two locks another may have come, so that what the file says counts.
    const std::optional<bool> shared = try_lock(file, LOCK_SH);
    if (!shared) return false;
    if (*shared) {
      found = owner_of(path);
      if (!found || found->run == own.run) return true;
      refuse(folder, field, found);
    }
    std::this_thread::sleep_for(kPause);
  } while (std::chrono::steady_clock::now() < until);
  refuse(folder, field, found);
}

}  // namespace

FolderClaim::FolderClaim(const Path& folder, const char* field, int64_t run) {
  static std::mutex mutex;
  // By process, which may be a fork of another, and file.
  static std::map<std::tuple<pid_t, dev_t, ino_t>, std::weak_ptr<Lock>> locks;
  make_folder(folder);
  auto lock = std::make_shared<Lock>();
  lock->file = Descriptor(folder.opener().open(folder.child(kName).text, OpenMode::append, folder.purpose));
  struct stat found {};
  if (!lock->file || fstat(lock->file.number(), &found) != 0) return;
  const std::scoped_lock guard(mutex);
  std::weak_ptr<Lock>& held = locks[{getpid(), found.st_dev, found.st_ino}];
  lock_ = held.lock();
  if (lock_ != nullptr ||
      !het::lock(lock->file, folder, field, {run, static_cast<long>(getpid()), host_name()}))
    return;
  lock_ = std::move(lock);
  held = lock_;
}

}  // namespace het
