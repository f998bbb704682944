// Which replicas of a rank are fetched by threads of idle priority, here and where they come from: then
// training loses nothing to them, but on a busy machine they take longer. So as long as they do not take much
// longer: three times as long, and a tenth of a second.
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
  // One at idle priority was fetched within its limit: where it was faster than the one at normal priority,
  // that one was delayed.
  void count_idle(int64_t bytes, double seconds) {
    pause_ = std::max(kLeastPause, pause_ / 2);
    bytes_per_second_ = std::max(bytes_per_second_, rate_of(bytes, seconds));
  }
  // It was not: it is tried again after some at normal priority, each time after more.
  void give_up_idle() {
    normal_left_ = pause_;
    pause_ = std::min(2 * pause_, kMostPause);
  }
  void count_normal(int64_t bytes, double seconds) {
    bytes_per_second_ = rate_of(bytes, seconds);
    if (normal_left_ > 0) --normal_left_;
  }

 private:
  static double rate_of(int64_t bytes, double seconds) {
    return static_cast<double>(bytes) / std::max(seconds, 1e-6);
  }

  static constexpr double kMostTimes = 3;
  static constexpr std::chrono::milliseconds kLeast{100};
  static constexpr int kLeastPause = 4, kMostPause = 256;  // replicas

  double bytes_per_second_ = 0;  // of the last at normal priority, or a faster one since
  int normal_left_ = 0;          // replicas
  int pause_ = kLeastPause;
};

}  // namespace het
