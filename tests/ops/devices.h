// The devices under test.
#pragma once

#include <memory>
#include <vector>

#include "core/device/device.h"

namespace het::ops_test {

const std::vector<std::shared_ptr<Device>>& devices();

}  // namespace het::ops_test
