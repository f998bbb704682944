// When the solver has to stop: at a point in time, or when it is asked to.
#pragma once

#include <chrono>
#include <functional>

namespace het::planner::assignment {

class Clock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  Clock(Time end, std::function<bool()> interrupted) : end_(end), interrupted_(std::move(interrupted)) {}

  // `whole`, and when `also` says so.
  Clock(const Clock& whole, std::function<bool()> also)
      : end_(whole.end_), interrupted_([earlier = whole.interrupted_, also = std::move(also)] {
          return (earlier && earlier()) || also();
        }) {}

  bool passed() const { return std::chrono::steady_clock::now() >= end_ || (interrupted_ && interrupted_()); }
  double seconds_left() const {
    return std::chrono::duration<double>(end_ - std::chrono::steady_clock::now()).count();
  }
  // One that ends earlier: after `seconds` from now.
  Clock within(double seconds) const {
    const auto span = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(seconds));
    return {std::min(end_, std::chrono::steady_clock::now() + span), interrupted_};
  }

 private:
  Time end_;
  std::function<bool()> interrupted_;
};

}  // namespace het::planner::assignment
