// Which replicas are fetched by threads of idle priority, here and where they come from: then training loses
// nothing to them, but on a busy machine they take longer. So as long as they do not take much longer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace het {

// Used by one thread.
class FetchPriority {
 public:
  // The first replica tells how fast it goes otherwise.
  bool is_idle() const { return bytes_per_second_ > 0 && normal_left_ == 0; }
  // What a fetch at idle priority may take, before it is made otherwise.
  std::chrono::milliseconds limit(int64_t bytes) const {
    const double seconds = kMostTimes * static_cast<double>(bytes) / bytes_per_second_;
    return kLeast + std::chrono::milliseconds(static_cast<int64_t>(1e3 * seconds));
  }
  // One at idle priority was fetched within its limit.
  void count_idle() { pause_ = std::max(kLeastPause, pause_ / 2); }
  // It was not: it is tried again after some at normal priority, each time after more.
  void give_up_idle() {
    normal_left_ = pause_;
    pause_ = std::min(2 * pause_, kMostPause);
  }
  void count_normal(int64_t bytes, double seconds) {
    bytes_per_second_ = static_cast<double>(bytes) / std::max(seconds, 1e-6);
    if (normal_left_ > 0) --normal_left_;
  }

 private:
  static constexpr double kMostTimes = 3;
  static constexpr std::chrono::milliseconds kLeast{100};
  static constexpr int kLeastPause = 4, kMostPause = 256;  // replicas

  double bytes_per_second_ = 0;  // of the last at normal priority
  int normal_left_ = 0;          // replicas
  int pause_ = kLeastPause;
};

}  // namespace het
