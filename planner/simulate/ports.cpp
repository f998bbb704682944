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
  if (resources > busy_.size()) busy_.resize(resources);
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
  lane.is_known = false;
  ++lane.version;
}

// Those that come after it on its resources, which may go faster without it.
void Ports::find_later(const Lane& lane) {
  for (const Use& use : lane.uses)
    for (const Taker& other : busy_[static_cast<size_t>(use.resource)])
      if (is_before(lane, lanes_[static_cast<size_t>(other.lane)])) find(other.lane);
}

void Ports::find(int number) {
  int& stamp = lanes_[static_cast<size_t>(number)].stamp;
  if (stamp == stamp_) return;
  stamp = stamp_;
  found_.push_back(number);
  std::push_heap(found_.begin(), found_.end(), [&](int a, int b) { return comes_later(a, b); });
}

void Ports::insert(int number) {
  for (const Use& use : lanes_[static_cast<size_t>(number)].uses) {
    auto& takers = busy_[static_cast<size_t>(use.resource)];
    const auto after = [&](const Taker& each) { return comes_later(each.lane, number); };
    takers.insert(std::find_if(takers.begin(), takers.end(), after), {number, use.weight});
  }
}

void Ports::erase(int number) {
  for (const Use& use : lanes_[static_cast<size_t>(number)].uses)
    std::erase_if(busy_[static_cast<size_t>(use.resource)],
                  [&](const Taker& each) { return each.lane == number; });
}

void Ports::begin(int number, double came, double bytes, double now) {
  put(number, came, bytes, now);
  lanes_[static_cast<size_t>(number)].busy = true;
  insert(number);
  ++stamp_;
  find(number);
  share(now);
}

void Ports::follow(int number, double came, double bytes, double now) {
  erase(number);
  ++stamp_;
  find_later(lanes_[static_cast<size_t>(number)]);
  put(number, came, bytes, now);
  insert(number);
  find(number);
  share(now);
}

void Ports::end(int number, double now) {
  Lane& lane = lanes_[static_cast<size_t>(number)];
  lane.busy = false;
  ++lane.version;
  erase(number);
  ++stamp_;
  find_later(lane);
  share(now);
}

// Whether it takes more or less than before.
bool Ports::set_rate(Lane& lane, int number, double rate, double now) {
  constexpr double kSame = 1e-12;
  const bool is_same = std::abs(rate - lane.rate) <= kSame * rate;
  if (lane.is_known && is_same) return false;
  lane.is_known = true;
  lane.left = std::max(0.0, lane.left - lane.rate * (now - lane.since));
  lane.since = now;
  lane.rate = rate;
  ++lane.version;
  if (rate > 0 || lane.left <= 0) {
    if (lane.started < 0) lane.started = now;
    changes_.push_back({number, lane.version, lane.left > 0 ? now + lane.left / rate : now});
  }
  return !is_same;
}

// What those before it leave of each of its resources.
double Ports::rate_of(int number) const {
  constexpr double kNothing = 1e-9;  // of an interface: what rounding leaves
  double rate = std::numeric_limits<double>::infinity();
  for (const Use& use : lanes_[static_cast<size_t>(number)].uses) {
    double room = 1;
    for (const Taker& other : busy_[static_cast<size_t>(use.resource)]) {
      if (other.lane == number || room <= kNothing) break;
      room -= lanes_[static_cast<size_t>(other.lane)].rate * other.weight;
    }
    if (room <= kNothing) return 0;
    rate = std::min(rate, room / use.weight);
  }
  return rate;
}

// Of the found transfers, and of those that come after one whose rate changes, in their order.
void Ports::share(double now) {
  while (!found_.empty()) {
    std::pop_heap(found_.begin(), found_.end(), [&](int a, int b) { return comes_later(a, b); });
    const int number = found_.back();
    found_.pop_back();
    Lane& lane = lanes_[static_cast<size_t>(number)];
    if (set_rate(lane, number, rate_of(number), now)) find_later(lane);
  }
}

}  // namespace het::planner
