#include "planner/simulate/exchange.h"

#include <algorithm>
#include <map>

namespace het::planner {

// Each member sends to all others; those elsewhere through its interfaces, which others may share.
Link Exchanges::mesh_of(const std::vector<ExchangeMember>& members) {
  at_node_.assign(costs_.nodes.size(), 0);
  for (const ExchangeMember& member : members) {
    ++at_node_[static_cast<size_t>(member.place.node)];
    for (int i = 0; i < member.interfaces.count; ++i)
      state_.interface_load[static_cast<size_t>(member.interfaces.first + i)] = 0;
  }
  double latency = 0, longest = 0;  // of a member or an interface: seconds for a byte to each other
  for (const ExchangeMember& member : members) {
    const auto node = static_cast<size_t>(member.place.node);
    const int here = state_.host_count[static_cast<size_t>(state_.host(member.place))];
    double inside = 0, outside = 0;
    const auto add = [&](double& seconds, int others, const Link& link) {
      if (others == 0) return;
      seconds += others / link.bytes_per_second;
      latency = std::max(latency, link.latency_seconds);
    };
    add(inside, here - 1, costs_.nodes[node].inside);
    for (size_t other = 0; other < at_node_.size(); ++other)
      add(outside, at_node_[other] - (other == node ? here : 0),
          costs_.link(member.place.node, static_cast<int>(other)));
    outside *= static_cast<double>(member.devices) / member.interfaces.count;
    longest = std::max(longest, inside + outside);
    for (int i = 0; i < member.interfaces.count; ++i)
      longest = std::max(longest,
                         state_.interface_load[static_cast<size_t>(member.interfaces.first + i)] += outside);
  }
  return Link{latency, longest > 0 ? static_cast<double>(members.size() - 1) / longest : 0};
}

RingGroup Exchanges::group_of(const std::vector<ExchangeMember>& members) {
  RingGroup group;
  group.members = static_cast<int>(members.size());
  ++state_.stamp;
  at_node_.assign(costs_.nodes.size(), 0);  // hosts that take part
  for (const ExchangeMember& member : members) {
    const auto host = static_cast<size_t>(state_.host(member.place));
    if (state_.host_stamp[host] != state_.stamp) {
      state_.host_stamp[host] = state_.stamp;
      state_.host_count[host] = state_.host_lanes[host] = 0;
      ++group.hosts;
      ++at_node_[static_cast<size_t>(member.place.node)];
    }
    group.most_in_host = std::max(group.most_in_host, ++state_.host_count[host]);
    for (int i = 0; i < member.interfaces.count; ++i) {
      int& stamp = state_.interface_stamp[static_cast<size_t>(member.interfaces.first + i)];
      if (stamp != state_.stamp) ++state_.host_lanes[host];
      stamp = state_.stamp;
    }
    const Link& inside = costs_.nodes[static_cast<size_t>(member.place.node)].inside;
    if (group.inside.bytes_per_second == 0 || inside.bytes_per_second < group.inside.bytes_per_second)
      group.inside = inside;
  }
  group.lanes = state_.host_lanes[static_cast<size_t>(state_.host(members[0].place))];
  for (const ExchangeMember& member : members)
    group.lanes = std::min(group.lanes, state_.host_lanes[static_cast<size_t>(state_.host(member.place))]);
  const int count = static_cast<int>(costs_.nodes.size());
  for (int a = 0; a < count; ++a)
    for (int b = a; at_node_[static_cast<size_t>(a)] > 0 && b < count; ++b) {
      if (at_node_[static_cast<size_t>(b)] < (a == b ? 2 : 1)) continue;
      const Link& link = costs_.link(a, b);
      if (link.bytes_per_second == 0) continue;
      if (group.slowest.bytes_per_second == 0 || link.bytes_per_second < group.slowest.bytes_per_second)
        group.slowest.bytes_per_second = link.bytes_per_second;
      group.slowest.latency_seconds = std::max(group.slowest.latency_seconds, link.latency_seconds);
    }
  if (costs_.mesh) group.mesh = mesh_of(members);
  return group;
}

ExchangeParts Exchanges::parts_of(const std::vector<LayerHolder>& holders) {
  ExchangeParts parts;
  std::vector<std::vector<double>> cuts;  // of each holder's ranks: 0, ..., 1
  std::vector<Shares> shares;
  for (const LayerHolder& holder : holders) {
    const StageLayout& stage = state_.layout->pipelines[holder.pipeline].stages[holder.stage];
    const std::vector<DevicePlace> places = places_of(*state_.layout, stage);
    parts.places.insert(parts.places.end(), places.begin(), places.end());
    const size_t at = state_.at(holder.pipeline, holder.stage);
    const auto own = state_.place_interfaces.find(at);
    for (size_t r = 0; r < places.size(); ++r)
      parts.interfaces.push_back(own == state_.place_interfaces.end() ? state_.stage_interfaces[at]
                                                                      : own->second[r]);
    shares.push_back(shares_of(*state_.layout, stage));
    double all = 0, before = 0;
    for (const int64_t share : shares.back()) all += static_cast<double>(share);
    cuts.push_back({0});
    for (const int64_t share : shares.back()) {
      cuts.back().push_back((before += static_cast<double>(share)) / all);
      parts.divided.push_back(cuts.back().back() - cuts.back()[cuts.back().size() - 2]);
      parts.whole.push_back(1);
    }
  }
  parts.alike = std::all_of(shares.begin(), shares.end(), [&](const Shares& s) { return s == shares[0]; });
  if (!parts.alike) {
    cut_unlike(parts, cuts);
  } else {
    const size_t degree = shares[0].size();
    for (size_t t = 0; t < degree; ++t) {
      ExchangeParts::Part part{parts.divided[t], 1, {}, {}};
      for (size_t h = 0; h < holders.size(); ++h) part.ranks.push_back(h * degree + t);
      parts.parts.push_back(std::move(part));
    }
  }
  for (ExchangeParts::Part& part : parts.parts) {
    members_.clear();
    for (const size_t rank : part.ranks) members_.push_back({parts.places[rank], parts.interfaces[rank], 1});
    part.group = group_of(members_);
  }
  return parts;
}

// The ranges between all holders' cuts; and what is not divided, which all ranks sum.
void Exchanges::cut_unlike(ExchangeParts& parts, const std::vector<std::vector<double>>& cuts) {
  constexpr double kSame = 1e-9;  // of two cuts
  std::vector<double> all;
  for (const auto& of : cuts) all.insert(all.end(), of.begin(), of.end());
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i + 1] - all[i] < kSame) continue;
    ExchangeParts::Part part{all[i + 1] - all[i], 0, {}, {}};
    const double middle = (all[i] + all[i + 1]) / 2;
    size_t base = 0;
    for (const auto& of : cuts) {
      const auto after = std::upper_bound(of.begin(), of.end(), middle);
      part.ranks.push_back(base + static_cast<size_t>(after - of.begin()) - 1);
      base += of.size() - 1;
    }
    parts.parts.push_back(std::move(part));
  }
  ExchangeParts::Part whole{0, 1, {}, {}};
  for (size_t rank = 0; rank < parts.places.size(); ++rank) whole.ranks.push_back(rank);
  parts.parts.push_back(std::move(whole));
}

ExchangeSeconds Exchanges::group_seconds(const RingGroup& group, CollectiveKind collective, int communicators,
                                         double bytes) const {
  ExchangeSeconds result;
  result.crosses = group.hosts > 1;
  if (!costs_.mesh) {
    const RingSeconds seconds = ring_seconds(collective, group, communicators, bytes);
    result.fixed = seconds.fixed;
    result.wire = seconds.wire;
    if (result.crosses) {
      result.link = group.slowest.bytes_per_second;
      result.rate = seconds.used * result.link;
    }
    return result;
  }
  const auto seconds = [&](double of) {
    return collective_seconds(collective, true, group.mesh, group.members, of);
  };
  const double all = seconds(bytes);
  result.fixed = result.crosses ? std::min(seconds(0), all) : all;
  result.wire = all - result.fixed;
  return result;
}

ExchangeSeconds Exchanges::seconds_of(const ExchangeParts& parts, CollectiveKind collective,
                                      const ExchangeElements& elements, double parameter_bytes) const {
  const double divided = (elements.all - elements.whole) * costs_.tensor;
  std::vector<double> fixed(parts.places.size(), 0);
  std::map<int, double> at_interface;  // seconds of bytes
  ExchangeSeconds result;
  for (const ExchangeParts::Part& part : parts.parts) {
    const double bytes = (part.divided * divided + part.whole * elements.whole) * parameter_bytes;
    if (bytes <= 0) continue;
    const ExchangeSeconds own = group_seconds(part.group, collective, 1, bytes);
    std::map<int, double> of_part;  // the same of one host's interfaces, which share it
    for (const size_t rank : part.ranks) {
      result.fixed = std::max(result.fixed, fixed[rank] += own.fixed);
      if (!own.crosses) continue;
      result.link = result.crosses ? std::min(result.link, own.link) : own.link;
      result.rate = result.crosses ? std::min(result.rate, own.rate) : own.rate;
      result.crosses = true;
      for (int i = 0; i < parts.interfaces[rank].count; ++i)
        of_part[parts.interfaces[rank].first + i] = own.wire;
    }
    for (const auto& [interface, wire] : of_part) at_interface[interface] += wire;
  }
  for (const auto& [interface, wire] : at_interface) result.wire = std::max(result.wire, wire);
  return result;
}

}  // namespace het::planner
