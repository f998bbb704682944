#include "planner/simulate/group_costs.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace het::planner {
namespace {

// The value at `share` of a layer, from all of it and an n-th of it: on the line through both. Below an n-th
// the part that is not divided counts as at least nothing and at most what the n-th takes.
double at_share(double whole, double even, double share, double n) {
  if (share * n == 1 || n == 1) return even;
  const double each = (whole - even) / (1 - 1 / n), fixed = whole - each;
  if (share * n > 1) return even + each * (share - 1 / n);
  const double kept = std::clamp(fixed, 0.0, even);
  return kept + (even - kept) * share * n;
}

double own(const std::vector<double>& prefix, size_t layer) { return prefix[layer + 1] - prefix[layer]; }

void append(std::vector<double>& prefix, double value) { prefix.push_back(prefix.back() + value); }

// Of each layer of two tables of prefix sums.
std::vector<double> prefix_at(const std::vector<double>& whole, const std::vector<double>& even, double share,
                              double n) {
  std::vector<double> prefix{0};
  for (size_t layer = 0; layer + 1 < whole.size(); ++layer)
    append(prefix, at_share(own(whole, layer), own(even, layer), share, n));
  return prefix;
}

// One all-reduce of the output of each layer, seconds.
std::vector<double> reduction_seconds(const CostTable& costs, const std::vector<DevicePlace>& places) {
  const Link link = link_of(costs, places);
  std::vector<double> seconds;
  for (const double bytes : costs.boundary)
    seconds.push_back(collective_seconds(CollectiveKind::all_reduce, costs.mesh, link,
                                         static_cast<int>(places.size()), bytes));
  return seconds;
}

void add_reductions(NodeCosts& costs, const CostTable& table, const std::vector<double>& each) {
  double once = 0, again = 0;
  for (size_t layer = 0; layer < each.size(); ++layer) {
    once += table.reductions[layer] * each[layer];
    again += table.reductions_again[layer] * each[layer];
    costs.forward[layer + 1] += once;
    costs.input[layer + 1] += once;
    costs.recompute[layer + 1] += again;
  }
}

// What a device of node `node` computes with its share, without the group's all-reduces.
NodeCosts compute_at(const CostTable& whole, const CostTable& even, int node, double share) {
  const NodeCosts &all = whole.nodes[static_cast<size_t>(node)],
                  &part = even.nodes[static_cast<size_t>(node)];
  NodeCosts costs = part;
  for (const auto lines : {&NodeCosts::forward, &NodeCosts::input, &NodeCosts::weight, &NodeCosts::update,
                           &NodeCosts::recompute})
    costs.*lines = prefix_at(all.*lines, part.*lines, share, even.tensor);
  return costs;
}

// Bytes and parameters of a device with its share; no seconds.
CostTable bytes_at(const CostTable& whole, const CostTable& even, double share) {
  CostTable table = even;
  table.nodes.clear();
  for (const auto lines : {&CostTable::parameters, &CostTable::activation, &CostTable::checkpoint})
    table.*lines = prefix_at(whole.*lines, even.*lines, share, even.tensor);
  for (size_t i = 0; i < table.shared.size(); ++i)
    table.shared[i].parameters =
        at_share(whole.shared[i].parameters, even.shared[i].parameters, share, even.tensor);
  for (size_t layer = 0; layer < table.workspace.size(); ++layer)
    table.workspace[layer] = at_share(whole.workspace[layer], even.workspace[layer], share, even.tensor);
  return table;
}

// In each layer, and each part of the step, the slowest of the devices.
NodeCosts slowest(const std::vector<NodeCosts>& devices) {
  NodeCosts pace = devices[0];
  for (const auto lines : {&NodeCosts::forward, &NodeCosts::input, &NodeCosts::weight, &NodeCosts::update,
                           &NodeCosts::recompute}) {
    std::vector<double> prefix{0};
    for (size_t layer = 0; layer + 1 < (pace.*lines).size(); ++layer) {
      double longest = 0;
      for (const NodeCosts& device : devices) longest = std::max(longest, own(device.*lines, layer));
      append(prefix, longest);
    }
    pace.*lines = std::move(prefix);
  }
  return pace;
}

}  // namespace

Link link_of(const CostTable& costs, const std::vector<DevicePlace>& places) {
  Link slowest{0, std::numeric_limits<double>::infinity()}, mesh = slowest;
  for (size_t a = 0; a < places.size(); ++a) {
    double to_others = 0;  // seconds for a byte to each
    for (size_t b = 0; b < places.size(); ++b) {
      if (a == b) continue;
      const Link& link = places[a] == places[b] ? costs.nodes[static_cast<size_t>(places[a].node)].inside
                                                : costs.link(places[a].node, places[b].node);
      slowest.latency_seconds = std::max(slowest.latency_seconds, link.latency_seconds);
      slowest.bytes_per_second = std::min(slowest.bytes_per_second, link.bytes_per_second);
      to_others += 1 / link.bytes_per_second;
    }
    if (to_others > 0)
      mesh.bytes_per_second =
          std::min(mesh.bytes_per_second, static_cast<double>(places.size() - 1) / to_others);
  }
  mesh.latency_seconds = slowest.latency_seconds;
  return costs.mesh ? mesh : slowest;
}

GroupCosts make_group_costs(const TensorGroup& group, const CostProvider& tables) {
  const auto degree = static_cast<int>(group.places.size());
  HET_REQUIRE(tables.compute && tables.with_links, degree);
  const CostTable &links = tables.with_links(degree), &whole = tables.compute(1),
                  &even = tables.compute(degree);
  double all = 0;
  for (const int64_t share : group.shares) all += static_cast<double>(share);
  const bool one_host = std::all_of(group.places.begin(), group.places.end(),
                                    [&](const DevicePlace& place) { return place == group.places[0]; });
  GroupCosts costs;
  std::map<std::pair<int, int64_t>, int> kinds;  // by node and share
  std::vector<NodeCosts> devices;
  for (size_t r = 0; r < group.places.size(); ++r) {
    const int node = group.places[r].node;
    const auto [kind, fresh] =
        kinds.emplace(std::pair(node, group.shares[r]), static_cast<int>(devices.size()));
    costs.kind_of.push_back(kind->second);
    if (!fresh) continue;
    const double share = static_cast<double>(group.shares[r]) / all;
    costs.kinds.push_back(bytes_at(whole, even, share));
    devices.push_back(compute_at(whole, even, node, share));
  }
  if (one_host && devices.size() == 1) {  // another degree than the layout's, no more
    devices[0] = links.nodes[static_cast<size_t>(group.places[0].node)];
    costs.pace = devices[0];
  } else {
    const std::vector<double> each = reduction_seconds(links, group.places);
    costs.pace = slowest(devices);
    add_reductions(costs.pace, links, each);
    for (NodeCosts& device : devices) add_reductions(device, links, each);
  }
  costs.pace.inside = links.nodes[static_cast<size_t>(group.places[0].node)].inside;
  for (size_t k = 0; k < devices.size(); ++k) costs.kinds[k].nodes = {std::move(devices[k])};
  return costs;
}

CostTables::CostTables(const Cluster& cluster, const Model& model, const Profile& profile, int microbatch)
    : cluster_(cluster), model_(model), profile_(profile), microbatch_(microbatch) {}

const CostTable& CostTables::with_links(int tensor) {
  const auto known = with_links_.find(tensor);
  if (known != with_links_.end()) return known->second;
  return with_links_.emplace(tensor, make_costs(cluster_, model_, profile_, tensor, microbatch_))
      .first->second;
}

const CostTable& CostTables::compute(int tensor) {
  const auto known = compute_.find(tensor);
  if (known != compute_.end()) return known->second;
  return compute_.emplace(tensor, make_compute_costs(cluster_, model_, profile_, tensor, microbatch_))
      .first->second;
}

CostProvider CostTables::provider() {
  return {[this](int tensor) -> const CostTable& { return with_links(tensor); },
          [this](int tensor) -> const CostTable& { return compute(tensor); }};
}

}  // namespace het::planner
