// The cluster's store as the place where the ranks of a generation find each other (core/comm/key_value.h).
#pragma once

#include <memory>
#include <string>

#include "core/cluster/store.h"
#include "core/comm/key_value.h"

namespace het {

// Keys begin with `prefix`; they vanish with `lease`, where one is given.
std::shared_ptr<KeyValue> make_store_key_value(std::shared_ptr<Store> store, std::string prefix,
                                               int64_t lease = 0);

}  // namespace het
