// When the solver has to stop: after a time, after so much work, or when it is asked to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "core/base/elapsed.h"

namespace het::planner::assignment {

class Clock {
 public:
  // Ends `seconds` from now.
  Clock(double seconds, std::function<bool()> interrupted)
      : end_(steady_seconds() + seconds), interrupted_(std::move(interrupted)) {}

  // Ends after `steps` calls of passed(): at the same place however fast the machine is. A call counts as
  // 0.1 ms. Copies share the count.
  static Clock of_steps(int64_t steps, std::function<bool()> interrupted) {
    Clock clock(0, std::move(interrupted));
    clock.steps_ = std::make_shared<int64_t>(0);
    clock.end_ = static_cast<double>(steps) * kStepSeconds;
    return clock;
  }

  // `whole`, and when `also` says so.
  Clock(const Clock& whole, std::function<bool()> also) : Clock(whole) {
    interrupted_ = [earlier = whole.interrupted_, also = std::move(also)] {
      return (earlier && earlier()) || also();
    };
  }

  bool passed() const {
    if (steps_) ++*steps_;
    return now() >= end_ || (interrupted_ && interrupted_());
  }
  double now() const { return steps_ ? static_cast<double>(*steps_) * kStepSeconds : steady_seconds(); }
  double seconds_left() const { return end_ - now(); }
  // One that ends earlier: after `seconds` from now.
  Clock within(double seconds) const {
    Clock clock(*this);
    clock.end_ = std::min(end_, now() + seconds);
    return clock;
  }

 private:
  static constexpr double kStepSeconds = 1e-4;

  double end_;
  std::function<bool()> interrupted_;
  std::shared_ptr<int64_t> steps_;  // null: it goes by time
};

}  // namespace het::planner::assignment
