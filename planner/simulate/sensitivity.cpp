#include "planner/simulate/sensitivity.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/units.h"

namespace het::planner {

Cluster with_links(const Cluster& cluster, double bandwidth, double latency) {
  Cluster other = cluster;
  const auto change = [&](Link& link) {
    link.bytes_per_second *= bandwidth;
    link.latency_seconds *= latency;
  };
  change(other.between);
  for (ZoneLink& zone : other.zone_links) change(zone.link);
  for (Machine& machine : other.nodes) change(machine.inside);
  for (DeviceType& type : other.types) change(type.inside);
  return other;
}

LinkSpread link_spread(const Cluster& cluster, double seconds,
                       const std::function<double(const Cluster&)>& seconds_of) {
  LinkSpread spread;
  spread.seconds = spread.least = spread.most = seconds;
  for (const auto& [bandwidth, latency] :
       {std::pair{kSlowLinks, 1.0}, {kFastLinks, 1.0}, {1.0, kLongLatency}, {1.0, kShortLatency}}) {
    const double other = seconds_of(with_links(cluster, bandwidth, latency));
    spread.cases.push_back({bandwidth, latency, other});
    spread.least = std::min(spread.least, other);
    spread.most = std::max(spread.most, other);
  }
  return spread;
}

std::string to_text(const LinkSpread& spread) {
  const auto of = [&](size_t i) {
    return fmt::format("{:+.1f} %", 100 * (spread.cases[i].seconds / spread.seconds - 1));
  };
  return fmt::format(
      "links: {} to {} a step over plausible values: bandwidth x {} {}, x {} {}; latency x {} {}, x {} {}\n",
      show_seconds(spread.least), show_seconds(spread.most), kSlowLinks, of(0), kFastLinks, of(1),
      kLongLatency, of(2), kShortLatency, of(3));
}

}  // namespace het::planner
