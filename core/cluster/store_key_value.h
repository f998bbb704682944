// The cluster's store as the place where the ranks of a generation find each other (core/comm/key_value.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "core/cluster/store.h"
#include "core/comm/key_value.h"

namespace het {

class StoreKeyValue final : public KeyValue {
 public:
  // Keys begin with `prefix`. They vanish with the lease that `lease` returns when they are set, for a lease
  // that has lapsed is replaced; without one they stay.
  StoreKeyValue(std::shared_ptr<Store> store, std::string prefix, std::function<int64_t()> lease)
      : store_(std::move(store)), prefix_(std::move(prefix)), lease_(std::move(lease)) {}

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::optional<std::string> wait(const std::string& key, std::chrono::milliseconds timeout) override;

  // Removes the keys that were set by this object. Those of a store that does not answer go with the lease.
  void remove_own();

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
  const std::function<int64_t()> lease_;
  std::mutex mutex_;
  std::set<std::string> own_;  // keys that were set
};

std::shared_ptr<StoreKeyValue> make_store_key_value(std::shared_ptr<Store> store, std::string prefix,
                                                    std::function<int64_t()> lease = {});

}  // namespace het
