#include "planner/simulate/ports.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace het::planner {

void Ports::reset(size_t resources) {
  lanes_.clear();
  changes_.clear();
  for (auto& lanes : busy_) lanes.clear();
  grow(resources);
}

void Ports::grow(size_t resources) {
  if (resources <= busy_.size()) return;
  busy_.resize(resources);
  room_.resize(resources);
}

int Ports::add_lane(std::vector<Use> uses, const LaneOrder& order) {
  Lane& lane = lanes_.emplace_back();
  lane.uses = std::move(uses);
  lane.order = order;
  return static_cast<int>(lanes_.size()) - 1;
}

void Ports::put(int number, double came, double bytes, double now) {
  constexpr double kPicoseconds = 1e12;
  Lane& lane = lanes_[static_cast<size_t>(number)];
  lane.came = std::llround(came * kPicoseconds);
  lane.left = bytes;
  lane.rate = 0;
  lane.since = now;
  lane.started = -1;
  ++lane.version;
}

void Ports::begin(int number, double came, double bytes, double now) {
  put(number, came, bytes, now);
  Lane& lane = lanes_[static_cast<size_t>(number)];
  lane.busy = true;
  for (const Use& use : lane.uses) busy_[static_cast<size_t>(use.resource)].push_back(number);
  share(number, now);
}

void Ports::follow(int number, double came, double bytes, double now) {
  put(number, came, bytes, now);
  share(number, now);
}

void Ports::end(int number, double now) {
  Lane& lane = lanes_[static_cast<size_t>(number)];
  lane.busy = false;
  ++lane.version;
  for (const Use& use : lane.uses) {
    auto& lanes = busy_[static_cast<size_t>(use.resource)];
    lanes.erase(std::find(lanes.begin(), lanes.end(), number));
  }
  share(number, now);
}

void Ports::set_rate(Lane& lane, int number, double rate, double now) {
  constexpr double kSame = 1e-12;
  const bool is_known = lane.started >= 0 || lane.rate > 0;
  if (is_known && std::abs(rate - lane.rate) <= kSame * rate) return;
  lane.left = std::max(0.0, lane.left - lane.rate * (now - lane.since));
  lane.since = now;
  lane.rate = rate;
  ++lane.version;
  if (rate <= 0 && lane.left > 0) return;
  if (lane.started < 0) lane.started = now;
  changes_.push_back({number, lane.version, lane.left > 0 ? now + lane.left / rate : now});
}

// All transfers that share an interface with the lane's, directly or through others: each takes what those
// before it leave.
void Ports::share(int number, double now) {
  ++stamp_;
  found_.assign({number});
  lanes_[static_cast<size_t>(number)].stamp = stamp_;
  for (size_t i = 0; i < found_.size(); ++i)
    for (const Use& use : lanes_[static_cast<size_t>(found_[i])].uses) {
      room_[static_cast<size_t>(use.resource)] = 1;
      for (const int other : busy_[static_cast<size_t>(use.resource)]) {
        int& stamp = lanes_[static_cast<size_t>(other)].stamp;
        if (stamp != stamp_) found_.push_back(other);
        stamp = stamp_;
      }
    }
  if (!lanes_[static_cast<size_t>(number)].busy) found_.erase(found_.begin());
  std::sort(found_.begin(), found_.end(), [&](int a, int b) {
    return is_before(lanes_[static_cast<size_t>(a)], lanes_[static_cast<size_t>(b)]);
  });
  constexpr double kNothing = 1e-9;  // of an interface: what rounding leaves
  for (const int each : found_) {
    Lane& lane = lanes_[static_cast<size_t>(each)];
    double rate = std::numeric_limits<double>::infinity();
    for (const Use& use : lane.uses) {
      const double room = room_[static_cast<size_t>(use.resource)];
      rate = std::min(rate, room > kNothing ? room / use.weight : 0);
    }
    for (const Use& use : lane.uses) room_[static_cast<size_t>(use.resource)] -= rate * use.weight;
    set_rate(lane, each, rate, now);
  }
}

}  // namespace het::planner
