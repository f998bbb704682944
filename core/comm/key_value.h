// Where the ranks of one generation find each other before they are connected, and leave word when
// connections break: names and small values that outlive a rank. The cluster's store implements it; here are
// one for threads of a process and one over a folder. Guard it as the run is guarded: who can read it can
// join.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace het {

// Thread-safe. Values hold any bytes. Throws Error(environment or peer) when the store cannot be reached;
// should give up within a second or so: it is asked while a failure is handled.
class KeyValue {
 public:
  virtual ~KeyValue() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // The value as soon as there is one; nothing after `timeout`.
  virtual std::optional<std::string> wait(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

std::shared_ptr<KeyValue> make_memory_key_value();
// In a folder that all ranks see; it is made if it is not there. Values stay until the folder is removed.
std::shared_ptr<KeyValue> make_file_key_value(std::filesystem::path folder);

}  // namespace het
