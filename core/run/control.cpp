#include "core/run/control.h"

#include <utility>

#include "core/base/error.h"
#include "core/cluster/seal.h"

namespace het {
namespace {

constexpr std::chrono::milliseconds kLook{200};  // between two looks for a command
constexpr std::string_view kStatus = ".control/status", kCommand = ".control/command";

std::string to_text(const RunCommand& command) { return command.id + "\n" + command.text; }

RunCommand parse_command(const std::string& text) {
  const size_t end = text.find('\n');
  return {text.substr(0, end), end == text.npos ? "" : text.substr(end + 1)};
}

}  // namespace

RunControl::RunControl(std::shared_ptr<Store> store, const std::string& run, std::string secret)
    : store_(std::move(store)),
      status_key_(run + std::string(kStatus)),
      command_key_(run + std::string(kCommand)),
      secret_(std::move(secret)),
      thread_([this] { work(); }) {}

RunControl::~RunControl() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RunControl::post(std::string status) {
  {
    const std::lock_guard lock(mutex_);
    posted_ = std::move(status);
  }
  changed_.notify_all();
}

std::optional<std::string> RunControl::earlier(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return has_read_ || stopping_; });
  return earlier_;
}

std::optional<RunCommand> RunControl::command(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return command_.has_value() || stopping_; });
  return command_;
}

void RunControl::done(const std::string& id) {
  {
    const std::lock_guard lock(mutex_);
    if (command_ && command_->id == id) command_.reset();
    has_command_.store(command_.has_value(), std::memory_order_release);
    last_done_ = id;
    looks_now_ = true;
  }
  changed_.notify_all();
}

void RunControl::work() {
  std::optional<std::string> unwritten;  // tried again at the next look
  for (bool last = false; !last;) {
    std::optional<std::string> status;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kLook, [this] { return posted_.has_value() || looks_now_ || stopping_; });
      status = posted_ ? std::exchange(posted_, {}) : std::exchange(unwritten, {});
      unwritten.reset();
      looks_now_ = false;
      last = stopping_;
    }
    try {
      if (!has_read_) {  // which this thread alone sets
        const auto entry = store_->get(status_key_);
        {
          const std::lock_guard lock(mutex_);
          if (entry) earlier_ = unsealed(secret_, status_key_, entry->value);
          if (!earlier_) earlier_ = "";
          has_read_ = true;
        }
        changed_.notify_all();
      }
      // The status first: who waits for an answer finds it there when the command has gone.
      if (status) store_->put(status_key_, sealed(secret_, status_key_, *status));
      look();
    } catch (const Error&) {  // the store is silent, or gone: the next status may get there
      const std::lock_guard lock(mutex_);
      if (!posted_) unwritten = std::move(status);
    }
  }
}

void RunControl::look() {
  const auto entry = store_->get(command_key_);
  const auto text = entry ? unsealed(secret_, command_key_, entry->value) : std::nullopt;
  std::optional<RunCommand> found;
  bool is_done = false;
  if (text) found = parse_command(*text);
  {
    const std::lock_guard lock(mutex_);
    is_done = found && found->id == last_done_;
    command_ = is_done ? std::nullopt : found;
    has_command_.store(command_.has_value(), std::memory_order_release);
  }
  changed_.notify_all();
  if (is_done) store_->remove(command_key_);
}

ControlClient::ControlClient(std::shared_ptr<Store> store, const std::string& run, std::string secret)
    : store_(std::move(store)),
      run_(run),
      status_key_(run + std::string(kStatus)),
      command_key_(run + std::string(kCommand)),
      secret_(std::move(secret)) {}

std::optional<std::string> ControlClient::status() {
  const auto entry = store_->get(status_key_);
  if (!entry) return std::nullopt;
  auto text = unsealed(secret_, status_key_, entry->value);
  if (!text) fail_usage("the status of run '{}' was written with another secret", run_);
  return text;
}

bool ControlClient::send(const RunCommand& command) {
  return store_->create(command_key_, sealed(secret_, command_key_, to_text(command))).has_value();
}

void ControlClient::withdraw(const RunCommand& command) {
  const auto entry = store_->get(command_key_);
  if (entry && entry->value == sealed(secret_, command_key_, to_text(command))) store_->remove(command_key_);
}

std::vector<std::string> runs_with_status(Store& store) {
  std::vector<std::string> names;
  for (const StoreEntry& entry : store.list("").entries)
    if (entry.key.ends_with(kStatus)) names.push_back(entry.key.substr(0, entry.key.size() - kStatus.size()));
  return names;
}

}  // namespace het
