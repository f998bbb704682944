#include "core/cluster/store_key_value.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace het {

void StoreKeyValue::set(const std::string& key, const std::string& value) {
  {
    std::lock_guard lock(mutex_);
    own_.insert(key);
  }
  store_->put(prefix_ + key, value, lease_ ? lease_() : 0);
}

std::optional<std::string> StoreKeyValue::get(const std::string& key) {
  auto entry = store_->get(prefix_ + key);
  return entry ? std::optional(std::move(entry->value)) : std::nullopt;
}

std::optional<std::string> StoreKeyValue::wait(const std::string& key, std::chrono::milliseconds timeout) {
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

void StoreKeyValue::remove_own() {
  std::set<std::string> keys;
  {
    std::lock_guard lock(mutex_);
    keys.swap(own_);
  }
  try {
    for (const std::string& key : keys) store_->remove(prefix_ + key);
  } catch (const Error&) {
  }
}

std::shared_ptr<StoreKeyValue> make_store_key_value(std::shared_ptr<Store> store, std::string prefix,
                                                    std::function<int64_t()> lease) {
  return std::make_shared<StoreKeyValue>(std::move(store), std::move(prefix), std::move(lease));
}

}  // namespace het
