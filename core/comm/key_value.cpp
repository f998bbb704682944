#include "core/comm/key_value.h"

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include <unistd.h>

#include "core/base/error.h"

namespace het {
namespace {

class MemoryKeyValue final : public KeyValue {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::optional<std::string> get(const std::string& key) override {
    std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::string> wait(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) return std::nullopt;
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// One file for each key, written aside and renamed, so that a reader sees all of a value or none.
class FileKeyValue final : public KeyValue {
 public:
  explicit FileKeyValue(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error)
      fail_environment("cannot make the folder {} for the ranks to meet in: {}", folder_.string(),
                       error.message());
  }

  void set(const std::string& key, const std::string& value) override {
    static std::atomic<uint64_t> count{0};  // of this process, to keep writers of one key apart
    const std::filesystem::path aside = folder_ / fmt::format(".{}.{}", ::getpid(), count.fetch_add(1));
    std::ofstream file(aside, std::ios::binary);
    file << value;
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(aside, path_of(key), error);
    if (!file || error) fail_environment("cannot write {}", path_of(key).string());
  }
  std::optional<std::string> get(const std::string& key) override {
    std::ifstream file(path_of(key), std::ios::binary);
    if (!file) return std::nullopt;
    std::ostringstream value;
    value << file.rdbuf();
    return value.str();
  }
  std::optional<std::string> wait(const std::string& key, std::chrono::milliseconds timeout) override {
    constexpr std::chrono::milliseconds kLookEvery{2};
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (true) {
      if (auto value = get(key)) return value;
      if (std::chrono::steady_clock::now() >= until) return std::nullopt;
      std::this_thread::sleep_for(kLookEvery);
    }
  }

 private:
  // Letters, digits, '-' and '_' stand for themselves, all else as %XX: no key leaves the folder.
  std::filesystem::path path_of(const std::string& key) const {
    std::string name;
    for (const char c : key) {
      const bool plain =
          (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
      if (plain)
        name += c;
      else
        name += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

}  // namespace

std::shared_ptr<KeyValue> make_memory_key_value() { return std::make_shared<MemoryKeyValue>(); }

std::shared_ptr<KeyValue> make_file_key_value(std::filesystem::path folder) {
  return std::make_shared<FileKeyValue>(std::move(folder));
}

}  // namespace het
