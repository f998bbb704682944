#include "snapshot/store_claim.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/descriptor.h"
#include "core/base/error.h"
#include "core/io/file.h"
#include "core/net/network.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFolder = "claims/";
constexpr int64_t kMost = 1024;  // bytes of an object

// Where process numbers have a meaning: this start of this machine, and what the process sees of it.
std::string place_of_process() {
  try {
    std::string boot = read_file(Path("/proc/sys/kernel/random/boot_id"));
    while (!boot.empty() && boot.back() == '\n') boot.pop_back();
    char name[128];
    const ssize_t bytes = readlink("/proc/self/ns/pid", name, sizeof name);
    if (bytes > 0) return boot + "/" + std::string(name, static_cast<size_t>(bytes));
  } catch (const Error&) {
  }
  return "?";
}

}  // namespace

struct StoreClaim::Owner {
  int64_t run = 0;
  long pid = 0;
  std::string host, place;
  bool held = false;
  std::string text;  // all of it: another one after each write

  std::string who() const { return "process " + std::to_string(pid) + " on " + host; }
  bool is_gone() const {
    if (place == "?" || place != place_of_process()) return false;
    return pid <= 0 || (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
  }
};

struct StoreClaim::Seen {
  std::string text;
  Clock::time_point since;
  bool lives = false;
};

StoreClaim::StoreClaim(std::shared_ptr<ObjectStore> store, int64_t run, bool takes_over,
                       StoreClaimTimes times)
    : store_(std::move(store)),
      run_(run),
      times_(times),
      key_(kFolder + std::to_string(run)),
      state_(takes_over ? State::held : State::looking),
      thread_([this] { work(); }) {}

StoreClaim::~StoreClaim() { stop(); }

void StoreClaim::stop() {
  {
    const std::scoped_lock guard(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StoreClaim::leave() {
  {
    const std::scoped_lock guard(mutex_);
    leaves_ = true;
  }
  stop();
}

StoreClaim::State StoreClaim::wait(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return state_ != State::looking; });
  return state_;
}

std::string StoreClaim::sentence() const {
  const std::scoped_lock guard(mutex_);
  return sentence_;
}

std::string StoreClaim::foreign() const {
  const std::scoped_lock guard(mutex_);
  return foreign_;
}

void StoreClaim::finish(State state, std::string sentence) {
  {
    const std::scoped_lock guard(mutex_);
    state_ = state;
    sentence_ = std::move(sentence);
  }
  changed_.notify_all();
}

void StoreClaim::write(bool held) {
  const std::string text = fmt::format("{} {} {} {} {} {}\n", run_, getpid(), host_name(), place_of_process(),
                                       held ? 1 : 0, ++writes_);
  const Descriptor memory(memfd_create("claim", MFD_CLOEXEC));
  if (!memory || ::write(memory.number(), text.data(), text.size()) != std::ssize(text))
    fail_environment("no memory for a claim");
  store_->put(key_, Path(fmt::format("/proc/self/fd/{}", memory.number())));
}

// Those of other runs by key. What no run wrote is none.
std::map<std::string, StoreClaim::Owner> StoreClaim::others() {
  std::map<std::string, Owner> found;
  for (const StoredObject& object : store_->list(kFolder)) {
    if (object.key == key_ || object.bytes > kMost) continue;
    Owner owner;
    owner.text.resize(static_cast<size_t>(object.bytes));
    try {
      store_->get_range(object.key, 0, std::as_writable_bytes(std::span(owner.text)));
    } catch (const Error& error) {  // removed, or written again, meanwhile
      if (error.kind() != ErrorKind::usage) throw;
      continue;
    }
    std::istringstream words(owner.text);
    if (words >> owner.run >> owner.pid >> owner.host >> owner.place >> owner.held)
      found.emplace(object.key, std::move(owner));
  }
  return found;
}

// Another rank of that run may have taken over meanwhile.
void StoreClaim::remove_unchanged(const std::string& key, const std::string& text) {
  const std::map<std::string, Owner> now = others();
  const auto found = now.find(key);
  if (found != now.end() && found->second.text == text) store_->remove(key);
}

void StoreClaim::look() {
  const Clock::time_point now = Clock::now();
  const bool looking = wait(std::chrono::milliseconds(0)) == State::looking;
  const Owner* blocking = nullptr;
  const std::map<std::string, Owner> all = others();
  for (const auto& [key, owner] : all) {
    Seen& seen = seen_.try_emplace(key, Seen{owner.text, now}).first->second;
    if (seen.text != owner.text) seen = {owner.text, now, true};
    if (owner.is_gone() || now - seen.since >= times_.expire) {
      remove_unchanged(key, owner.text);
      seen_.erase(key);
    } else if (!looking) {
      const std::scoped_lock guard(mutex_);
      if (seen.lives && owner.held)
        foreign_ = fmt::format("{} trains another run that writes in '{}'", owner.who(), store_->url());
    } else if (seen.lives && (owner.held || owner.run < run_)) {
      store_->remove(key_);
      return finish(
          State::refused,
          fmt::format("'{}' is in use: {} trains a run that writes there. Wait for it to end, stop it, "
                      "or choose another `snapshot.store`",
                      store_->url(), owner.who()));
    } else {
      blocking = &owner;
    }
  }
  if (!looking) return;
  if (blocking == nullptr) {
    write(true);
    return finish(State::held, "");
  }
  const std::scoped_lock guard(mutex_);
  sentence_ = fmt::format(
      "{} has trained a run that writes in '{}'; whether it still does is seen within {} s", blocking->who(),
      store_->url(), std::chrono::duration_cast<std::chrono::seconds>(times_.expire).count());
}

void StoreClaim::work() {
  std::optional<Clock::time_point> written;
  while (true) {
    const State before = wait(std::chrono::milliseconds(0));
    try {
      if (!written || Clock::now() - *written >= times_.renew) {
        write(before != State::looking);
        written = Clock::now();
      }
      look();
      if (before == State::failed) finish(State::held, "");
    } catch (const Error& error) {  // a claim that is held stays so: the next look may be answered
      if (before != State::held) finish(State::failed, error.sentence());
    }
    std::unique_lock lock(mutex_);
    if (state_ == State::refused) break;
    const auto pause = state_ == State::looking ? std::min(times_.look, times_.renew) : times_.renew;
    if (changed_.wait_for(lock, pause, [this] { return stopping_; })) break;
  }
  bool leaves = false;
  {
    const std::scoped_lock guard(mutex_);
    leaves = leaves_;
  }
  try {
    if (leaves) store_->remove(key_);
  } catch (const Error&) {  // others find out that it has ended
  }
}

}  // namespace het
