#include "snapshot/rate_meter.h"

#include "core/base/elapsed.h"

namespace het {
namespace {

constexpr int64_t kEnough = 1 << 20;  // bytes; what fewer take says little of a rate

}  // namespace

void RateMeter::begin() {
  const std::lock_guard lock(mutex_);
  if (under_way_++ == 0) since_ = std::chrono::steady_clock::now();
}

void RateMeter::end(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  if (--under_way_ == 0) busy_seconds_ += seconds_since(since_);
}

double RateMeter::bytes_per_second() {
  const std::lock_guard lock(mutex_);
  if (bytes_ >= kEnough && under_way_ == 0 && busy_seconds_ > 0) {
    rate_ = static_cast<double>(bytes_) / busy_seconds_;
    bytes_ = 0;
    busy_seconds_ = 0;
  }
  return rate_;
}

}  // namespace het
