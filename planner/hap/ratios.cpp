#include "planner/hap/ratios.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "core/ops/op.h"
#include "planner/hap/forms.h"
#include "planner/milp.h"

namespace het::planner::hap {
namespace {

// `total` units, each device as near to its part as whole units can be, none without.
Shares rounded(const std::vector<double>& parts, int64_t total) {
  total = std::max<int64_t>(total, std::ssize(parts));
  Shares shares;
  std::vector<std::pair<double, size_t>> rest;
  int64_t given = 0;
  for (size_t d = 0; d < parts.size(); ++d) {
    const double exact = parts[d] * static_cast<double>(total);
    shares.push_back(std::max<int64_t>(1, static_cast<int64_t>(std::floor(exact + 1e-9))));
    rest.emplace_back(static_cast<double>(shares.back()) - exact, d);
    given += shares.back();
  }
  std::stable_sort(rest.begin(), rest.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; given < total; i = (i + 1) % rest.size(), ++given) ++shares[rest[i].second];
  while (given > total) {
    const auto most = std::max_element(shares.begin(), shares.end());
    --*most;
    --given;
  }
  return shares;
}

// Divided by what they have in common.
Shares simplified(Shares shares) {
  int64_t common = 0;
  for (const int64_t share : shares) common = std::gcd(common, share);
  for (int64_t& share : shares) share /= std::max<int64_t>(common, 1);
  return shares;
}

class RatioProgram {
 public:
  RatioProgram(ShardingCosts& costs, const ShardingProgram& program, const std::vector<double>& most)
      : costs_(costs), group_(costs.group()), program_(program) {
    for (int device = 0; device < group_.size(); ++device) {
      const auto kind = static_cast<size_t>(group_.kind_of(device));
      if (counts_.size() <= kind) counts_.resize(kind + 1, 0);
      ++counts_[kind];
    }
    Row all;
    for (size_t kind = 0; kind < counts_.size(); ++kind) {
      Variable part;
      part.upper = most.empty() ? 1 : most[kind];
      parts_.push_back(linear_.add(part));
      all.terms.emplace_back(parts_.back(), counts_[kind]);
    }
    all.lower = all.upper = 1;
    linear_.add(std::move(all));
  }

  // Of each device; empty: nothing is cut.
  std::vector<double> run() {
    add_nodes();
    add_conversions();
    if (!is_cut_) return {};
    const LinearSolution solution = solve(linear_);
    if (!solution.feasible) return {};
    std::vector<double> parts;
    for (int device = 0; device < group_.size(); ++device)
      parts.push_back(
          solution.values[static_cast<size_t>(parts_[static_cast<size_t>(group_.kind_of(device))])]);
    return parts;
  }

 private:
  // A variable that is at least each of whole + part * (a kind's part), counted so often.
  int add_slowest(double times) {
    Variable slowest;
    slowest.cost = times;
    return linear_.add(slowest);
  }
  void at_least(int slowest, double whole, const std::vector<std::pair<int, double>>& terms) {
    Row row;
    row.terms = {{slowest, 1}};
    for (const auto& [variable, coefficient] : terms)
      if (coefficient != 0) row.terms.emplace_back(variable, -coefficient);
    row.lower = whole;
    linear_.add(std::move(row));
  }

  void add_nodes() {
    const Graph& graph = costs_.table().graph();
    std::map<std::pair<int, int>, std::pair<NodeId, double>> classes;  // by class and way
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto node = static_cast<NodeId>(n);
      if (graph.nodes[n].op->any_placement || !costs_.counts(node)) continue;
      const int way = costs_.way_number(node, program_.nodes[n]);
      if (program_.nodes[n].axis < 0) continue;  // shares make no difference
      auto& entry =
          classes.emplace(std::pair{costs_.class_of(node), way}, std::pair{node, 0.0}).first->second;
      entry.second += costs_.runs(node);
    }
    for (const auto& [key, entry] : classes) {
      const Work work = costs_.work(entry.first, key.second);
      if (work.flops == 0 && work.cut_bytes == 0) continue;
      is_cut_ = true;
      const int slowest = add_slowest(entry.second * kScale);
      for (int kind = 0; kind < group_.kinds(); ++kind) {
        const Device& device = group_.of_kind(kind);
        const int part = parts_[static_cast<size_t>(kind)];
        at_least(slowest, 0, {{part, work.flops / device.flops(work.half) / kScale}});
        at_least(slowest, work.whole_bytes / device.memory_bytes_per_second / kScale,
                 {{part, work.cut_bytes / device.memory_bytes_per_second / kScale}});
      }
    }
  }

  // What is gathered or scattered, between all devices: the longest block, or the busiest way.
  void add_conversions() {
    const Graph& graph = costs_.table().graph();
    double bytes = 0;
    for (const Conversion& conversion : program_.conversions) {
      const auto& placements = costs_.table().placements(conversion.value);
      const PlacementId from = program_.values[static_cast<size_t>(conversion.value)];
      const bool scatters = from == kPartial && conversion.to > kPartial;
      const bool gathers = from > kPartial && (conversion.to == kReplicated ||
                                               placements[from].dim == placements[conversion.to].dim);
      if ((!scatters && !gathers) || !costs_.counts_value(conversion.value)) continue;
      const bool once = conversion.phase == Phase::update;
      bytes += static_cast<double>(graph.type(conversion.value).bytes()) * (once ? 1 : costs_.microbatches());
    }
    if (bytes == 0 || group_.size() < 2) return;
    // Seconds are linear in the bytes: those of blocks [b_0, b_1, ...] of one byte in all.
    const std::vector<std::vector<double>> rows = group_.gather_rows();
    const int slowest = add_slowest(bytes * kScale);
    for (const std::vector<double>& row : rows) {
      std::vector<double> of_kind(counts_.size(), 0);
      for (int device = 0; device < group_.size(); ++device)
        of_kind[static_cast<size_t>(group_.kind_of(device))] += row[static_cast<size_t>(device)];
      std::vector<std::pair<int, double>> terms;
      for (size_t kind = 0; kind < of_kind.size(); ++kind)
        terms.emplace_back(parts_[kind], of_kind[kind] / kScale);
      at_least(slowest, 0, terms);
    }
  }

  static constexpr double kScale = 1e-9;  // seconds in the program are nanoseconds
  ShardingCosts& costs_;
  const DeviceGroup& group_;
  const ShardingProgram& program_;
  LinearProgram linear_;
  std::vector<int> counts_, parts_;  // by kind: devices, variables
  bool is_cut_ = false;
};

}  // namespace

Shares best_shares(ShardingCosts& costs, const ShardingProgram& program, const std::vector<double>& most) {
  const std::vector<double> parts = RatioProgram(costs, program, most).run();
  if (parts.empty()) return program.shares;
  std::map<int64_t, double> flops;  // by units of the axis that is cut
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const NodeSharding& way = program.nodes[n];
    const auto node = static_cast<NodeId>(n);
    if (way.axis < 0 || !costs.counts(node)) continue;
    flops[costs.table().axes()[static_cast<size_t>(way.axis)].units] +=
        costs.work(node, costs.way_number(node, way)).flops * costs.runs(node);
  }
  const auto longest = std::max_element(flops.begin(), flops.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  constexpr int64_t kMostUnits = 4096;  // of an axis with more, parts of that
  return simplified(
      rounded(parts, longest == flops.end() ? kMostUnits : std::min(longest->first, kMostUnits)));
}

Shares even_shares(const DeviceGroup& group) { return Shares(static_cast<size_t>(group.size()), 1); }

namespace {

Shares nearest_shares(const std::vector<double>& parts) {
  constexpr int64_t kUnits = 360, kOfEach = 16;
  return simplified(rounded(parts, std::max(kUnits, kOfEach * std::ssize(parts))));
}

}  // namespace

Shares proportional_shares(const DeviceGroup& group) {
  std::vector<double> parts;
  for (int d = 0; d < group.size(); ++d) parts.push_back(group.rate(d) / group.total_rate());
  return nearest_shares(parts);
}

std::vector<Shares> moved_shares(const DeviceGroup& group, const Shares& shares) {
  constexpr double kLeastMoved = 1 / 64.0;
  const double all = static_cast<double>(std::accumulate(shares.begin(), shares.end(), int64_t{0}));
  std::vector<Shares> moved;
  for (int from = 0; from < group.kinds(); ++from)
    for (int to = 0; to < group.kinds(); ++to)
      for (double part = 0.5; part >= kLeastMoved; part /= 2) {
        if (from == to) continue;
        std::vector<double> parts;
        double free = 0;
        for (int d = 0; d < group.size(); ++d) {
          parts.push_back(static_cast<double>(shares[static_cast<size_t>(d)]) / all);
          if (group.kind_of(d) != from) continue;
          free += parts.back() * part;
          parts.back() *= 1 - part;
        }
        for (int d = 0; d < group.size(); ++d)
          if (group.kind_of(d) == to) parts[static_cast<size_t>(d)] += free / group.count_of(to);
        moved.push_back(nearest_shares(parts));
      }
  return moved;
}

Shares middle_shares(const DeviceGroup& group, const ShareRange& range) {
  std::vector<double> parts;
  double all = 0;
  for (int device = 0; device < group.size(); ++device) {
    const int kind = group.kind_of(device);
    const Interval& total = range.total[static_cast<size_t>(kind)];
    parts.push_back((total.least + total.most) / 2 / group.count_of(kind));
    all += parts.back();
  }
  for (double& part : parts) part /= all;
  return nearest_shares(parts);
}

}  // namespace het::planner::hap
