#include "snapshot/folder_claim.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
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
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) return std::nullopt;
    if (errno != EINTR) fail_environment("flock of a claimed folder: {}", std::strerror(errno));
  }
  return true;
}

void unlock(const Descriptor& file) { flock(file.number(), LOCK_UN); }

void write_owner(const Descriptor& file, const Owner& owner) {
  const std::string text = to_text(owner);
  // What cannot be written, as on a full disk, names no run, and keeps none out.
  [[maybe_unused]] const bool written =
      ftruncate(file.number(), 0) == 0 && write(file.number(), text.data(), text.size()) > 0;
}

[[noreturn]] void refuse(const Path& folder, const char* field, const std::optional<Owner>& owner) {
  std::string who = "another process";
  if (owner) who = "process " + std::to_string(owner->pid) + " on " + owner->host;
  fail_usage(
      "'{}' is in use: {} trains a run that writes there. Wait for it to end, stop it, or choose another "
      "`{}`",
      folder.text, who, field);
}

using FileNumber = std::pair<dev_t, ino_t>;
std::optional<FileNumber> number_of(const Descriptor& file) {
  struct stat found {};
  if (!file || fstat(file.number(), &found) != 0) return std::nullopt;
  return FileNumber{found.st_dev, found.st_ino};
}
std::optional<FileNumber> number_of(const Path& file) {
  return number_of(Descriptor(file.opener().open(file.text, OpenMode::read, file.purpose)));
}

// Takes the lock, which is held by `reader`. False: there are none here. Network file systems want a
// descriptor that writes for a lock alone, and one that reads for a shared one.
bool lock(const Descriptor& writer, const Descriptor& reader, const Path& folder, const char* field,
          const Owner& own) {
  const auto until = std::chrono::steady_clock::now() + kLongest;
  std::optional<Owner> found;
  do {
    const std::optional<bool> alone = try_lock(writer, LOCK_EX);
    if (!alone) return false;
    if (*alone) write_owner(writer, own);
    // Between the two locks another may come, so that what the file says counts.
    if (*alone) unlock(writer);
    const std::optional<bool> shared = try_lock(reader, LOCK_SH);
    if (!shared) return false;
    if (*shared) {
      found = owner_of(folder.child(kName));
      if (!found || found->run == own.run) return true;
      refuse(folder, field, found);
    }
    std::this_thread::sleep_for(kPause);
  } while (std::chrono::steady_clock::now() < until);
  refuse(folder, field, found);
}

}  // namespace

// The last one that lets go removes the file, which others may have open: they look whether it is still
// there.
struct FolderClaim::Lock {
  explicit Lock(Path path) : name(std::move(path)) {
    writer = Descriptor(name.opener().open(name.text, OpenMode::append, name.purpose));
    if (writer) reader = Descriptor(name.opener().open(name.text, OpenMode::read, name.purpose));
  }
  ~Lock() {
    if (!holds) return;
    unlock(reader);
    try {
      if (try_lock(writer, LOCK_EX) == true && number_of(writer) == number_of(name))
        name.opener().remove(name.text);
    } catch (const Error&) {  // something else stands there
    }
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  const Path name;
  Descriptor writer, reader;
  bool holds = false;
};

FolderClaim::FolderClaim(const Path& folder, const char* field, int64_t run)
    : folder_(folder), field_(field), run_(run) {
  static std::mutex mutex;
  // By process, which may be a fork of another, and file.
  static std::map<std::pair<pid_t, FileNumber>, std::weak_ptr<Lock>> locks;
  make_folder(folder);
  const Owner own{run, static_cast<long>(getpid()), host_name()};
  const std::scoped_lock guard(mutex);
  while (true) {
    const auto made = std::make_shared<Lock>(folder.child(kName));
    const std::optional<FileNumber> number = number_of(made->writer);
    if (!number) return;
    if (number_of(made->reader) != number) continue;  // it was removed meanwhile
    std::weak_ptr<Lock>& held = locks[{getpid(), *number}];
    lock_ = held.lock();
    if (lock_ != nullptr || !lock(made->writer, made->reader, folder, field, own)) return;
    if (number_of(made->name) != number) continue;  // before the lock came
    made->holds = true;
    held = lock_ = made;
    return;
  }
}

void FolderClaim::renew() {
  if (lock_ == nullptr) return;
  try {
    if (number_of(lock_->name) == number_of(lock_->writer)) return;
    *this = FolderClaim(folder_, field_.c_str(), run_);
  } catch (const Error& error) {
    throw Error(ErrorKind::environment, error.sentence());
  }
}

}  // namespace het
