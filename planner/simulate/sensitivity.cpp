#include "planner/simulate/sensitivity.h"

#include <algorithm>
#include <cmath>
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
  const auto add = [&](std::vector<LinkCase>& cases, double bandwidth, double latency) {
    const double other = seconds_of(with_links(cluster, bandwidth, latency));
    cases.push_back({bandwidth, latency, other});
    spread.least = std::min(spread.least, other);
    spread.most = std::max(spread.most, other);
  };
  add(spread.cases, kSlowLinks, 1);
  add(spread.cases, kFastLinks, 1);
  add(spread.cases, 1, kLongLatency);
  add(spread.cases, 1, kShortLatency);
  for (const double bandwidth : {1 - kNearby, 1 + kNearby}) add(spread.nearby, bandwidth, 1);
  return spread;
}

Json json_of(const LinkSpread& spread) {
  const auto list = [](const std::vector<LinkCase>& cases) {
    Json::array_t entries;
    for (const LinkCase& each : cases)
      entries.push_back(Json::object_t{
          {"bandwidth", each.bandwidth}, {"latency", each.latency}, {"step_seconds", each.seconds}});
    return entries;
  };
  return Json::object_t{{"least", spread.least},
                        {"most", spread.most},
                        {"cases", list(spread.cases)},
                        {"nearby", list(spread.nearby)}};
}

std::string to_text(const LinkSpread& spread) {
  const auto change = [&](const LinkCase& each) { return each.seconds / spread.seconds - 1; };
  const auto of = [&](size_t i) { return fmt::format("{:+.1f} %", 100 * change(spread.cases[i])); };
  std::string jumps;
  for (const LinkCase& each : spread.nearby)
    if (std::abs(change(each)) > kJump)
      jumps += fmt::format("; but bandwidth x {} {:+.1f} %, because transfers meet in another order",
                           each.bandwidth, 100 * change(each));
  return fmt::format(
      "links: {} to {} a step over plausible values: bandwidth x {} {}, x {} {}; latency x {} {}, x {} "
      "{}{}\n",
      show_seconds(spread.least), show_seconds(spread.most), kSlowLinks, of(0), kFastLinks, of(1),
      kLongLatency, of(2), kShortLatency, of(3), jumps);
}

}  // namespace het::planner
