#include "planner/simulate/ring.h"

#include <algorithm>
#include <cmath>

namespace het::planner {
namespace {

// One of the two, in seconds of latency, of the inside links and of the interfaces.
struct Way {
  double latency = 0, inside = 0, between = 0;
  double seconds() const { return latency + std::max(inside, between); }
};

}  // namespace

RingSeconds ring_seconds(CollectiveKind kind, const RingGroup& group, int communicators, double bytes) {
  if (group.members < 2) return {};
  const double n = group.members, passes = kind == CollectiveKind::all_reduce ? 2 : 1;
  const bool inside = group.most_in_host > 1;
  const double all = communicators * bytes;  // of an interface's bandwidth, whose lanes share it
  const auto of_inside = [&](double each) { return inside ? each / group.inside.bytes_per_second : 0; };
  const auto of_between = [&](double each) {
    return group.hosts > 1 ? each / (group.lanes * group.slowest.bytes_per_second) : 0;
  };
  // Of the n - 1 hops that a block makes, at most as many leave a host as there are hosts.
  const double leaves = group.hosts > 1 ? std::min(n - 1, static_cast<double>(group.hosts)) : 0;
  const Way ring{
      passes * (leaves * group.slowest.latency_seconds + (n - 1 - leaves) * group.inside.latency_seconds),
      of_inside(passes * (n - 1) / n * bytes), of_between(passes * (n - 1) / n * all)};
  Way best = ring;
  if (kind == CollectiveKind::all_reduce) {
    const Way tree{
        2 * ((group.most_in_host - 1) * group.inside.latency_seconds +
             (group.hosts > 1 ? std::ceil(std::log2(group.hosts)) : 0) * group.slowest.latency_seconds),
        of_inside(2 * bytes), of_between((group.hosts == 2 ? 1 : 2) * all)};
    if (tree.seconds() < ring.seconds()) best = tree;
  }
  if (group.hosts == 1) return {best.seconds(), 0, 1};
  const double wire = std::max(best.inside, best.between);
  return {best.latency, wire, wire > 0 ? best.between / wire : 1};
}

}  // namespace het::planner
