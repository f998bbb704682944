#include "core/cluster/store.h"

#include "core/base/error.h"

namespace het {

void check_store_key(std::string_view key) {
  if (key.empty()) fail_usage("a key of the store must not be empty");
  check_store_prefix(key);
}

void check_store_prefix(std::string_view prefix) {
  if (prefix.size() > kStoreKeyBytes)
    fail_usage("a key of the store has at most {} bytes; '{}...' has {}", kStoreKeyBytes,
               prefix.substr(0, 40), prefix.size());
}

void check_store_value(std::string_view key, std::string_view value) {
  if (value.size() > kStoreValueBytes)
    fail_usage("a value of the store has at most {} bytes; that of '{}' has {}", kStoreValueBytes, key,
               value.size());
}

}  // namespace het
