// How people look at a running job and steer it: the status that its first rank writes into the run's store,
// and the command that waits there for it. Both are sealed with the run's secret. Nothing here waits for the
// store on the thread that trains, and a store that is silent stops nothing.
//
// Keys, below "RUN.control/": status, of the first rank; command, made by whoever attaches and removed once
// it was done.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/cluster/store.h"

namespace het {

struct RunCommand {
  std::string id;  // random
  std::string text;
  bool operator==(const RunCommand&) const = default;
};

// Of the first rank. Thread-safe; a thread that it starts talks to the store.
class RunControl {
 public:
  RunControl(std::shared_ptr<Store> store, const std::string& run, std::string secret);
  ~RunControl();  // the status that was posted last is written, if the store answers
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  // Is written soon, unless another one comes before.
  void post(std::string status);
  // The status that another first rank had left, empty without one; nothing: it is not read yet. `timeout`:
  // that it is waited for.
  std::optional<std::string> earlier(std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) const;
  // The command that waits, until done(). `timeout`: that it is waited for.
  bool has_command() const { return has_command_.load(std::memory_order_acquire); }
  std::optional<RunCommand> command(std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) const;
  void done(const std::string& id);

 private:
  void work();
  void look();

  const std::shared_ptr<Store> store_;
  const std::string status_key_, command_key_, secret_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<std::string> posted_, earlier_;
  std::optional<RunCommand> command_;
  std::string last_done_;  // its id
  bool has_read_ = false;  // what another first rank had left
  bool looks_now_ = false, stopping_ = false;
  std::atomic<bool> has_command_ = false;
  std::thread thread_;
};

// Of who attaches. Used from one thread; calls throw what the store throws.
class ControlClient {
 public:
  ControlClient(std::shared_ptr<Store> store, const std::string& run, std::string secret);

  // Nothing: the run has written none. Throws Error(usage) for one that was sealed with another secret.
  std::optional<std::string> status();
  // False: another command waits.
  bool send(const RunCommand& command);
  void withdraw(const RunCommand& command);  // unless it was done

 private:
  const std::shared_ptr<Store> store_;
  const std::string run_, status_key_, command_key_, secret_;
};

// The runs that have a status in a store that holds nothing else: their names.
std::vector<std::string> runs_with_status(Store& store);

}  // namespace het
