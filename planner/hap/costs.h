// What the nodes and conversions of a sharding program cost on a group of devices, in whole picoseconds, so
// that sums of them can be compared exactly. Costs add up: a node takes what its slowest device takes, and
// nothing overlaps. Calls that are alike (one operator, types, ways to be cut) are one class and costed once.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/sharding_program.h"
#include "planner/hap/devices.h"

namespace het::planner::hap {

using Ticks = int64_t;  // picoseconds
inline constexpr Ticks kNever = std::numeric_limits<Ticks>::max() / 4;
Ticks ticks_of(double seconds);
double seconds_of(Ticks ticks);

// Which parts every device gets; none: the least that each node and each conversion costs with any shares in
// ShardingCosts::range(). Programs then cost no more than they do with such shares.
using MaybeShares = std::optional<Shares>;

// The layers of a stage of a pipeline, and the link over which it receives what others make.
struct StageLayers {
  int first = 0, count = 0;
  Link receives;
  bool has(int layer) const { return layer >= first && layer < first + count; }
};

// What devices do of one node in one way, all of it and the part that shares cut, for linear programs.
struct Work {
  double flops = 0, whole_bytes = 0, cut_bytes = 0;
  bool is_cut = false;  // flops are shared out
  bool half = false;    // in bf16 or f16
};

// Costs of one table's graph on one group with one mesh axis. Keeps all its arguments by reference.
class ShardingCosts {
 public:
  // `microbatches`: how often a step runs what is not of the update phase. `prices_memory`: values that are
  // held from one phase to another are apart from others, for set_memory_prices(). `layers`: those that the
  // group runs, as a stage of a pipeline; others cost what it takes to receive of them.
  ShardingCosts(const PlacementTable& table, const DeviceGroup& group, int microbatches,
                bool prices_memory = false, const std::optional<StageLayers>& layers = {});

  const PlacementTable& table() const { return table_; }
  const DeviceGroup& group() const { return group_; }
  int microbatches() const { return microbatches_; }

  // Sums of gradients that run beside the backward pass: of these two a step takes the longer, which is at
  // least any weighted mean. With a weight in [0, 1] sums of partial gradients to whole ones count so much of
  // their time, and the backward pass the rest of its; 1 and 1 without, one after the other.
  void set_overlap(std::optional<double> weight);

  // Devices that differ in type differ in the last bits of what they compute. Where each computes all of a
  // gradient, and updates all of its parameter, they gather one copy of it from parts of theirs
  // (Plan::unlike_devices): as an update costs that much more, and sums or gathers of its gradient, after
  // which all have the same, so much less. The gradient of an update that runs so; kAbsent: nothing is
  // gathered.
  ValueId copied_gradient(NodeId update, int way) const;
  // What that takes.
  Ticks copying(ValueId gradient);

  // For a graph that is one part of the axis before (core/plan/partition.h): the parts along that axis, each
  // of as many devices as this axis has, among which its collectives go. All devices of a part exchange what
  // they have of an operand, at once.
  void set_outer(const DeviceGroup* parts) { outer_ = parts; }

  // What it counts, in picoseconds, that a device of a kind holds a byte: of state, or of what one phase
  // leaves to a later one. Programs that hold less may then count less; their costs are still their seconds.
  // By kind; empty: nothing. Not for bounds.
  void set_memory_prices(std::vector<double> prices);
  bool has_memory_prices() const { return !memory_prices_.empty(); }
  // Of one value that lies so; of a parameter with the optimizer's state that lies as it does.
  Ticks held(ValueId id, PlacementId lies, const MaybeShares& shares);
  // Of what a value is converted to: of state, and of what follows from state alone, that is once for a step.
  Ticks held_copy(ValueId id, PlacementId lies, const MaybeShares& shares);
  // Bytes of what devices hold by parts: each has its part of these.
  double cut_bytes(const ShardingProgram& program) const;

  // Whether it costs anything: without `layers` all does. A value that two stages use counts in both.
  bool counts(NodeId node) const {
    return counted_nodes_.empty() || counted_nodes_[static_cast<size_t>(node)];
  }
  bool counts_value(ValueId id) const {
    return counted_values_.empty() || counted_values_[static_cast<size_t>(id)];
  }

  const ShareRange& range() const { return range_; }
  void set_range(ShareRange range);

  // Nodes of one class have equal costs, and equal ways in equal order. Way 0 is the replicated one, way w
  // table.shardings(node)[w - 1].
  int class_of(NodeId node) const { return node_classes_[static_cast<size_t>(node)]; }
  // Values of one class have equal types, placements and numbers of runs.
  int class_of_value(ValueId id) const { return value_classes_[static_cast<size_t>(id)]; }
  NodeSharding way(NodeId node, int number) const;

  // Whether a search of this graph had more states than it may look at, so that those that follow keep few of
  // them at once (search.h).
  bool is_wide() const { return is_wide_; }
  void set_wide() { is_wide_ = true; }

  // Of one step. kNever: some device would have nothing to do. Memory is in `memory_bytes`.
  Ticks node(NodeId node, int way, const MaybeShares& shares);
  // To bring a value from how it is made to another placement, once or in each micro-batch.
  Ticks conversion(ValueId id, PlacementId from, PlacementId to, Phase phase, const MaybeShares& shares);
  // Whether every part has some of a value that lies so.
  bool fills(ValueId id, PlacementId lies, const MaybeShares& shares);

  // Runs in a step of what this node does.
  int runs(NodeId node) const;
  Work work(NodeId node, int way) const;
  // All of a program. Equals the sum of the above over its nodes and conversions.
  Ticks program(const ShardingProgram& program);
  struct Parts {
    Ticks compute = 0, communication = 0;
    Ticks receiving = 0;  // of other stages
  };
  Parts parts(const ShardingProgram& program);
  int way_number(NodeId node, const NodeSharding& sharding) const;

 private:
  bool can_cut(int axis, const MaybeShares& shares);
  // Each device's part of an axis, until other shares are asked about.
  const std::vector<double>& fractions(int axis, const Shares& shares);
  Ticks node_ticks(NodeId node, int way, const MaybeShares& shares);
  double receiving_seconds(NodeId node, const NodeSharding& way) const;
  double outer_seconds(const Node& node, bool is_cut) const;
  double least_seconds(NodeId node, const NodeSharding& way, const Work& work) const;
  void find_counted(const StageLayers& layers);
  bool counts_update(const Node& node, const std::vector<bool>& made, const std::vector<bool>& read) const;
  void find_copied();
  double decomposed_seconds(NodeId node, const NodeSharding& way, const Shares& shares);
  double decomposed_seconds(NodeId node, const NodeSharding& way, const Shares& shares, int part,
                            const Device& device) const;
  Ticks conversion_ticks(ValueId id, PlacementId from, PlacementId to, const MaybeShares& shares);
  static Ticks weighted(Ticks all, int64_t weight);
  bool runs_once(ValueId id) const { return of_state_[static_cast<size_t>(id)]; }

  const PlacementTable& table_;
  const Graph& graph_;
  const DeviceGroup& group_;
  int microbatches_;
  ShareRange range_;
  const DeviceGroup* outer_ = nullptr;
  int64_t backward_weight_ = kWhole, sums_weight_ = kWhole;  // of kWhole
  static constexpr int64_t kWhole = 1000;
  std::vector<int> node_classes_, value_classes_;
  std::vector<bool> counted_nodes_, counted_values_;  // empty: all
  std::vector<double> received_bytes_;  // nodes that are not counted: of results that counted ones read
  Link receives_;
  std::vector<bool> of_state_;         // values: from state alone, made once a step
  std::vector<ValueId> copied_;        // nodes: the gradient of an update; empty: nothing is copied
  std::vector<bool> is_copied_;        // values
  std::map<int, Ticks> copying_;       // by class of values
  std::vector<bool> joined_;           // values: between two elementwise nodes that run as one
  std::vector<double> held_bytes_;     // of values, when they lie whole; empty: memory has no price
  std::vector<double> memory_prices_;  // by kind
  void find_held();
  Ticks held_ticks(double bytes, const Placement& placement, const Shares& shares);
  MaybeShares known_shares_;  // of the tables below
  bool known_ = false;
  bool is_wide_ = false;
  std::map<std::pair<int, int>, Ticks> node_table_;
  std::map<std::tuple<int, PlacementId, PlacementId>, Ticks> conversion_table_;
  std::map<int64_t, std::vector<double>> fractions_;  // by units
  void forget(const MaybeShares& shares);
};

}  // namespace het::planner::hap
