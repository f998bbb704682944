#include "core/cluster/store_key_value.h"

#include <algorithm>

namespace het {
namespace {

class StoreKeyValue final : public KeyValue {
 public:
  StoreKeyValue(std::shared_ptr<Store> store, std::string prefix, int64_t lease)
      : store_(std::move(store)), prefix_(std::move(prefix)), lease_(lease) {}

  void set(const std::string& key, const std::string& value) override {
    store_->put(prefix_ + key, value, lease_);
  }
  std::optional<std::string> get(const std::string& key) override {
    auto entry = store_->get(prefix_ + key);
    return entry ? std::optional(std::move(entry->value)) : std::nullopt;
  }
  std::optional<std::string> wait(const std::string& key, std::chrono::milliseconds timeout) override {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + timeout;
    if (auto value = get(key)) return value;
    const auto watch = store_->watch(prefix_ + key);
    if (auto value = get(key)) return value;  // it may have come before the watch began
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      for (StoreEvent& event : watch->next(std::max(left, std::chrono::milliseconds(0))))
        if (event.kind == StoreEvent::Kind::put && event.entry.key == prefix_ + key)
          return std::move(event.entry.value);
      if (Clock::now() >= deadline) return std::nullopt;
    }
  }

 private:
  std::shared_ptr<Store> store_;
  std::string prefix_;
  int64_t lease_;
};

}  // namespace

std::shared_ptr<KeyValue> make_store_key_value(std::shared_ptr<Store> store, std::string prefix,
                                               int64_t lease) {
  return std::make_shared<StoreKeyValue>(std::move(store), std::move(prefix), lease);
}

}  // namespace het
