#include "planner/hap/costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "planner/hap/forms.h"

namespace het::planner::hap {
namespace {

// A key of whatever decides costs and ways, made of numbers.
using Key = std::vector<int64_t>;

class Keys {
 public:
  int number(const Key& key) {
    return numbers_.emplace(key, static_cast<int>(numbers_.size())).first->second;
  }
  int64_t text(const std::string& text) {
    return texts_.emplace(text, static_cast<int64_t>(texts_.size())).first->second;
  }

 private:
  std::map<Key, int> numbers_;
  std::map<std::string, int64_t> texts_;
};

// Of a bound that may equal what it bounds, but for rounding.
Ticks least_ticks(double seconds) { return ticks_of(seconds * (1 - 1e-9)); }

// Seconds of a device that has so much of what is cut.
double device_seconds(const Device& device, const Work& work, double part) {
  return device.seconds({work.flops * part, work.whole_bytes + work.cut_bytes * part}, work.half);
}

// Seconds until every device has done its part, when so many units are shared out as well as can be: the
// least t such that the units which the devices can do in t are enough.
double balanced_seconds(const DeviceGroup& group, const Work& work, int64_t units) {
  constexpr double kRounding = 1e-7;  // a unit is not lost to it
  const auto done_in = [&](double t) {
    int64_t done = 0;
    for (int kind = 0; kind < group.kinds(); ++kind) {
      const Device& device = group.of_kind(kind);
      const double by_flops = work.flops > 0 ? t * device.flops(work.half) / work.flops : 1;
      const double by_bytes = work.cut_bytes > 0
                                  ? (t * device.memory_bytes_per_second - work.whole_bytes) / work.cut_bytes
                              : t * device.memory_bytes_per_second >= work.whole_bytes ? 1
                                                                                       : 0;
      const double part = std::max(0.0, std::min({by_flops, by_bytes, 1.0}));
      done += group.count_of(kind) *
              static_cast<int64_t>(std::floor(static_cast<double>(units) * part + kRounding));
    }
    return done >= units;
  };
  double high = 1e-12, low = 0;
  while (!done_in(high)) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (done_in(middle) ? high : low) = middle;
  }
  return low;
}

}  // namespace

Ticks ticks_of(double seconds) { return static_cast<Ticks>(std::llround(seconds * 1e12)); }
double seconds_of(Ticks ticks) { return static_cast<double>(ticks) * 1e-12; }

ShardingCosts::ShardingCosts(const PlacementTable& table, const DeviceGroup& group, int microbatches,
                             bool prices_memory, const std::optional<StageLayers>& layers)
    : table_(table),
      graph_(table.graph()),
      group_(group),
      microbatches_(microbatches),
      range_(group.all_shares()) {
  std::vector<int> uses(graph_.values.size(), 0);
  for (const Node& node : graph_.nodes)
    for (const ValueId id : node.inputs)
      if (id != kAbsent) ++uses[static_cast<size_t>(id)];
  for (const Output& output : graph_.outputs) ++uses[static_cast<size_t>(output.value)];
  of_state_.assign(graph_.values.size(), false);
  joined_.assign(graph_.values.size(), false);
  for (size_t i = 0; i < graph_.values.size(); ++i) of_state_[i] = is_of_step(graph_.values[i]);
  for (const Node& node : graph_.nodes) {
    const bool of_state =
        node.phase != Phase::update && std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
          return id == kAbsent || of_state_[static_cast<size_t>(id)];
        });
    for (const ValueId id : node.outputs)
      if (id != kAbsent) of_state_[static_cast<size_t>(id)] = of_state;
    for (const ValueId id : node.inputs) {
      if (id == kAbsent || !node.op->elementwise || uses[static_cast<size_t>(id)] != 1) continue;
      const NodeId producer = graph_.values[static_cast<size_t>(id)].producer;
      joined_[static_cast<size_t>(id)] = producer >= 0 &&
                                         graph_.nodes[static_cast<size_t>(producer)].op->elementwise &&
                                         graph_.nodes[static_cast<size_t>(producer)].phase == node.phase;
    }
  }
  if (prices_memory) find_held();
  if (layers) find_counted(*layers);
  is_copied_.assign(graph_.values.size(), false);
  if (group_.has_unlike_types()) find_copied();
  Keys keys;
  for (size_t i = 0; i < graph_.values.size(); ++i) {
    const Value& value = graph_.values[i];
    Key key{0,
            static_cast<int64_t>(value.type.dtype),
            static_cast<int64_t>(value.role),
            of_state_[i],
            joined_[i],
            is_copied_[i],
            counts_value(static_cast<ValueId>(i)),
            value.producer < 0
                ? -1
                : static_cast<int64_t>(graph_.nodes[static_cast<size_t>(value.producer)].phase)};
    const auto add = [&](const std::vector<int64_t>& list) {
      key.push_back(std::ssize(list));
      key.insert(key.end(), list.begin(), list.end());
    };
    if (prices_memory) key.push_back(std::bit_cast<int64_t>(held_bytes_[i]));
    add(value.type.shape);
    for (const Placement& placement : table.placements(static_cast<ValueId>(i))) {
      key.push_back(static_cast<int64_t>(placement.kind));
      key.push_back(placement.axis < 0 ? 0 : table.axes()[static_cast<size_t>(placement.axis)].units);
      key.push_back(placement.dim);
      add(placement.segments);
    }
    value_classes_.push_back(keys.number(key));
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    // Attributes matter by what they make of the call's work; seeds and names of streams differ by layer.
    const Cost cost = cost_of(graph_, node);
    const bool decomposes = std::any_of(node.op->sharding.begin(), node.op->sharding.end(),
                                        [](const ShardingRule& rule) { return rule.decompose != nullptr; });
    Key key{1,
            keys.text(std::string(node.op->name)),
            decomposes ? keys.text(to_string(node.attributes)) : -1,
            static_cast<int64_t>(node.phase),
            counts(static_cast<NodeId>(n)),
            received_bytes_.empty() ? 0 : std::bit_cast<int64_t>(received_bytes_[n]),
            std::bit_cast<int64_t>(cost.flops),
            std::bit_cast<int64_t>(cost.bytes),
            copied_.empty() || copied_[n] == kAbsent ? -1 : class_of_value(copied_[n])};
    for (const auto* ids : {&node.inputs, &node.outputs})
      for (const ValueId id : *ids) key.push_back(id == kAbsent ? -1 : class_of_value(id));
    for (const NodeSharding& way : table.shardings(static_cast<NodeId>(n))) {
      key.push_back(way.rule);
      key.push_back(way.axis < 0 ? 0 : table.axes()[static_cast<size_t>(way.axis)].units);
      for (const PlacementId lies : way.inputs) key.push_back(lies);
      for (const PlacementId lies : way.outputs) key.push_back(lies);
    }
    node_classes_.push_back(keys.number(key));
  }
}

namespace {

bool any_of(const std::vector<bool>& flags, const std::vector<ValueId>& ids) {
  return std::any_of(ids.begin(), ids.end(),
                     [&](ValueId id) { return id != kAbsent && flags[static_cast<size_t>(id)]; });
}

void mark(std::vector<bool>& flags, const std::vector<ValueId>& ids) {
  for (const ValueId id : ids)
    if (id != kAbsent) flags[static_cast<size_t>(id)] = true;
}

}  // namespace

// Nodes of the layers and what is made from state for them; what else reads of these, as losses do; updates
// of their parameters; and the values that all these make or read.
void ShardingCosts::find_counted(const StageLayers& layers) {
  std::vector<bool> made(graph_.values.size(), false), read(graph_.values.size(), false);
  std::vector<bool> taken(graph_.values.size(), false);  // of other stages, for each micro-batch
  counted_nodes_.assign(graph_.nodes.size(), false);
  counted_values_.assign(graph_.values.size(), false);
  received_bytes_.assign(graph_.nodes.size(), 0);
  receives_ = layers.receives;
  const auto is_of_state = [&](const Node& node) {
    return node.phase != Phase::update && any_of(of_state_, node.outputs);
  };
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (node.phase == Phase::update || is_of_state(node)) continue;
    counted_nodes_[n] = node.layer >= 0 ? layers.has(node.layer) : any_of(made, node.inputs);
    if (!counted_nodes_[n]) continue;
    mark(made, node.outputs);
    mark(read, node.inputs);
    // Stages sum their parts of a gradient once a step.
    if (!node.op->adds_operands) mark(taken, node.inputs);
  }
  for (size_t n = graph_.nodes.size(); n-- > 0;) {  // what is made from state, wherever it is read
    const Node& node = graph_.nodes[n];
    if (!is_of_state(node) || (!layers.has(node.layer) && !any_of(read, node.outputs))) continue;
    counted_nodes_[n] = true;
    mark(read, node.inputs);
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (node.phase != Phase::update) continue;
    counted_nodes_[n] = node.op->any_placement || counts_update(node, made, read);
    if (counted_nodes_[n] && !node.op->any_placement) mark(made, node.outputs);
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (counted_nodes_[n]) {
      if (!node.op->any_placement) mark(counted_values_, node.inputs);
      mark(counted_values_, node.outputs);
      continue;
    }
    for (const ValueId id : node.outputs)
      if (id != kAbsent && taken[static_cast<size_t>(id)] && !of_state_[static_cast<size_t>(id)])
        received_bytes_[n] += static_cast<double>(graph_.type(id).bytes());
  }
}

// Of a parameter that counted nodes read, or from what they make; or of nothing that other stages have.
bool ShardingCosts::counts_update(const Node& node, const std::vector<bool>& made,
                                  const std::vector<bool>& read) const {
  if (any_of(made, node.inputs)) return true;
  bool is_of_others = false;
  for (const ValueId id : node.inputs) {
    if (id == kAbsent) continue;
    const Value& value = graph_.values[static_cast<size_t>(id)];
    if (value.role == Role::parameter) {
      if (read[static_cast<size_t>(id)]) return true;
      is_of_others = true;
    } else if (value.producer >= 0) {
      const auto producer = static_cast<size_t>(value.producer);
      is_of_others = is_of_others || !counted_nodes_[producer];
    }
  }
  return !is_of_others;
}

// Of the updates of parameters: the first value behind them that the backward pass makes in the parameter's
// shape, and only updates read.
void ShardingCosts::find_copied() {
  std::vector<bool> read_before(graph_.values.size(), false);
  for (const Node& node : graph_.nodes)
    for (const ValueId id : node.inputs)
      if (id != kAbsent && node.phase != Phase::update) read_before[static_cast<size_t>(id)] = true;
  std::vector<ValueId> behind(graph_.values.size(), kAbsent);  // what the update has it from
  copied_.assign(graph_.nodes.size(), kAbsent);
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (node.phase != Phase::update || node.op->any_placement) continue;
    ValueId parameter = kAbsent;
    for (size_t i = 0; i < node.inputs.size() && parameter == kAbsent; ++i)
      if (updates(node, i) && graph_.values[static_cast<size_t>(node.inputs[i])].role == Role::parameter)
        parameter = node.inputs[i];
    ValueId found = kAbsent;
    for (const ValueId id : node.inputs) {
      if (id == kAbsent || found != kAbsent || graph_.values[static_cast<size_t>(id)].producer < 0) continue;
      const auto at = static_cast<size_t>(id);
      const bool is_made_before =
          graph_.nodes[static_cast<size_t>(graph_.values[at].producer)].phase != Phase::update;
      found = !is_made_before ? behind[at] : read_before[at] ? kAbsent : id;
      if (parameter != kAbsent && found != kAbsent &&
          graph_.type(found).shape != graph_.type(parameter).shape)
        found = kAbsent;
    }
    for (const ValueId id : node.outputs)
      if (id != kAbsent) behind[static_cast<size_t>(id)] = found;
    if (parameter == kAbsent || found == kAbsent || is_copied_[static_cast<size_t>(found)]) continue;
    if (!counts(static_cast<NodeId>(n))) continue;
    copied_[n] = found;
    is_copied_[static_cast<size_t>(found)] = true;
  }
}

ValueId ShardingCosts::copied_gradient(NodeId update, int way) const {
  if (copied_.empty() || copied_[static_cast<size_t>(update)] == kAbsent) return kAbsent;
  const Node& node = graph_.nodes[static_cast<size_t>(update)];
  for (size_t i = 0; way > 0 && i < node.inputs.size(); ++i)
    if (updates(node, i) && graph_.values[static_cast<size_t>(node.inputs[i])].role == Role::parameter &&
        table_.shardings(update)[static_cast<size_t>(way - 1)].inputs[i] != kReplicated)
      return kAbsent;
  return copied_[static_cast<size_t>(update)];
}

Ticks ShardingCosts::copying(ValueId gradient) {
  const auto [entry, fresh] = copying_.emplace(class_of_value(gradient), 0);
  if (!fresh) return entry->second;
  const auto parts = static_cast<size_t>(group_.size());
  const double bytes = static_cast<double>(graph_.type(gradient).bytes());
  entry->second = ticks_of(group_.seconds(CollectiveKind::all_gather,
                                          std::vector<double>(parts, bytes / static_cast<double>(parts))));
  return entry->second;
}

// State, and what is made in one phase and read in a later one. Of an optimizer's state only with its
// parameter.
void ShardingCosts::find_held() {
  held_bytes_.assign(graph_.values.size(), 0);
  const auto bytes = [&](ValueId id) { return static_cast<double>(graph_.type(id).bytes()); };
  for (size_t i = 0; i < graph_.values.size(); ++i)
    if (graph_.values[i].role == Role::parameter) held_bytes_[i] = bytes(static_cast<ValueId>(i));
  for (const Node& node : graph_.nodes) {
    ValueId parameter = kAbsent;
    for (const ValueId id : node.inputs) {
      if (id == kAbsent) continue;
      const Value& value = graph_.values[static_cast<size_t>(id)];
      if (node.phase == Phase::update && value.role == Role::parameter) parameter = id;
      if (value.producer >= 0 && graph_.nodes[static_cast<size_t>(value.producer)].phase < node.phase)
        held_bytes_[static_cast<size_t>(id)] = bytes(id);
    }
    for (const ValueId id : node.inputs)
      if (parameter != kAbsent && id != kAbsent &&
          graph_.values[static_cast<size_t>(id)].role == Role::buffer)
        held_bytes_[static_cast<size_t>(parameter)] += bytes(id);
  }
}

void ShardingCosts::set_memory_prices(std::vector<double> prices) {
  HET_REQUIRE(prices.empty() || (!held_bytes_.empty() && std::ssize(prices) == group_.kinds()),
              prices.size());
  memory_prices_ = std::move(prices);
}

Ticks ShardingCosts::held(ValueId id, PlacementId lies, const MaybeShares& shares) {
  if (memory_prices_.empty() || !shares) return 0;
  return held_ticks(held_bytes_[static_cast<size_t>(id)], table_.placements(id)[lies], *shares);
}

Ticks ShardingCosts::held_copy(ValueId id, PlacementId lies, const MaybeShares& shares) {
  if (memory_prices_.empty() || !shares || !runs_once(id)) return 0;
  return held_ticks(static_cast<double>(graph_.type(id).bytes()), table_.placements(id)[lies], *shares);
}

Ticks ShardingCosts::held_ticks(double bytes, const Placement& placement, const Shares& shares) {
  double price = 0;
  if (!placement.is_sharded()) {
    for (const double each : memory_prices_) price += each;
  } else {
    const std::vector<double>& parts = fractions(placement.axis, shares);
    std::vector<double> most(memory_prices_.size(), 0);
    for (int d = 0; d < group_.size(); ++d) {
      double& part = most[static_cast<size_t>(group_.kind_of(d))];
      part = std::max(part, parts[static_cast<size_t>(d)]);
    }
    for (size_t kind = 0; kind < most.size(); ++kind) price += memory_prices_[kind] * most[kind];
  }
  return std::llround(price * bytes);
}

double ShardingCosts::cut_bytes(const ShardingProgram& program) const {
  double bytes = 0;
  for (size_t i = 0; i < held_bytes_.size(); ++i)
    if (table_.placements(static_cast<ValueId>(i))[program.values[i]].is_sharded()) bytes += held_bytes_[i];
  return bytes;
}

NodeSharding ShardingCosts::way(NodeId node, int number) const {
  return number == 0 ? table_.replicated(node) : table_.shardings(node)[static_cast<size_t>(number - 1)];
}

int ShardingCosts::way_number(NodeId node, const NodeSharding& sharding) const {
  if (sharding.rule < 0) return 0;
  const auto& ways = table_.shardings(node);
  const auto found = std::find(ways.begin(), ways.end(), sharding);
  HET_REQUIRE(found != ways.end(), node);
  return static_cast<int>(found - ways.begin()) + 1;
}

int ShardingCosts::runs(NodeId n) const {
  const Node& node = graph_.nodes[static_cast<size_t>(n)];
  if (node.phase == Phase::update) return 1;
  for (const ValueId id : node.outputs)
    if (id != kAbsent) return runs_once(id) ? 1 : microbatches_;
  return microbatches_;
}

Work ShardingCosts::work(NodeId n, int number) const {
  const Node& node = graph_.nodes[static_cast<size_t>(n)];
  Work work;
  if (node.op->view || node.op->collective) return work;
  const NodeSharding way = this->way(n, number);
  const auto inputs = types_of(graph_, node.inputs), outputs = types_of(graph_, node.outputs);
  const Cost cost = cost_of(OpCall{*node.op, inputs, node.attributes}, outputs);
  work.flops = cost.flops;
  work.is_cut = way.axis >= 0;
  work.half = is_half(inputs);
  if (node.op->bytes) {  // as the flops
    (work.is_cut ? work.cut_bytes : work.whole_bytes) = cost.bytes;
    return work;
  }
  const auto add = [&](const std::vector<ValueId>& ids, const std::vector<PlacementId>& lies) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kAbsent || joined_[static_cast<size_t>(ids[i])]) continue;
      (lies[i] > kPartial ? work.cut_bytes : work.whole_bytes) +=
          static_cast<double>(graph_.type(ids[i]).bytes());
    }
  };
  add(node.inputs, way.inputs);
  add(node.outputs, way.outputs);
  return work;
}

const std::vector<double>& ShardingCosts::fractions(int axis, const Shares& shares) {
  forget(shares);
  const int64_t units = table_.axes()[static_cast<size_t>(axis)].units;
  const auto [entry, fresh] = fractions_.emplace(units, std::vector<double>());
  if (!fresh) return entry->second;
  const std::vector<int64_t> points = cut_points(units, shares);
  for (size_t p = 0; p + 1 < points.size(); ++p)
    entry->second.push_back(static_cast<double>(points[p + 1] - points[p]) / static_cast<double>(units));
  return entry->second;
}

bool ShardingCosts::fills(ValueId id, PlacementId lies, const MaybeShares& shares) {
  const Placement& placement = table_.placements(id)[lies];
  if (!placement.is_sharded()) return true;
  return can_cut(placement.axis, shares);
}

bool ShardingCosts::can_cut(int axis, const MaybeShares& shares) {
  const int64_t units = table_.axes()[static_cast<size_t>(axis)].units;
  if (!shares) return group_.can_cut(range_, units);
  if (units < group_.size()) return false;
  const std::vector<double>& parts = fractions(axis, *shares);
  return std::find(parts.begin(), parts.end(), 0) == parts.end();
}

void ShardingCosts::forget(const MaybeShares& shares) {
  if (known_ && known_shares_ == shares) return;
  node_table_.clear();
  conversion_table_.clear();
  fractions_.clear();
  known_shares_ = shares;
  known_ = true;
}

void ShardingCosts::set_range(ShareRange range) {
  range_ = std::move(range);
  known_ = false;
}

// Rounded down; `all` may be longer than 2^63 / kWhole.
Ticks ShardingCosts::weighted(Ticks all, int64_t weight) {
  return all / kWhole * weight + all % kWhole * weight / kWhole;
}

Ticks ShardingCosts::node(NodeId n, int way, const MaybeShares& shares) {
  forget(shares);
  const auto [entry, fresh] = node_table_.emplace(std::pair{class_of(n), way}, 0);
  if (fresh) entry->second = node_ticks(n, way, shares);
  if (entry->second >= kNever) return kNever;
  Ticks all = entry->second * runs(n);
  if (const ValueId copied = copied_gradient(n, way); copied != kAbsent)
    all += weighted(copying(copied), sums_weight_);
  const Node& of = graph_.nodes[static_cast<size_t>(n)];
  if (of.op->collective) return of.phase == Phase::update ? weighted(all, sums_weight_) : all;
  return of.phase == Phase::backward ? weighted(all, backward_weight_) : all;
}

Ticks ShardingCosts::node_ticks(NodeId n, int number, const MaybeShares& shares) {
  const Node& node = graph_.nodes[static_cast<size_t>(n)];
  const NodeSharding way = this->way(n, number);
  if (way.axis >= 0 && !can_cut(way.axis, shares)) return kNever;
  if (!counts(n)) return ticks_of(receiving_seconds(n, way));
  if (node.op->collective) return ticks_of(outer_seconds(node, way.axis >= 0));
  const Work work = this->work(n, number);
  const bool decomposed =
      way.rule >= 0 && node.op->sharding[static_cast<size_t>(way.rule)].decompose != nullptr;
  if (decomposed && shares) return ticks_of(decomposed_seconds(n, way, *shares));
  if (work.is_cut && !shares) return least_ticks(least_seconds(n, way, work));
  double slowest = 0;
  const std::vector<double> parts =
      work.is_cut ? fractions(way.axis, *shares) : std::vector<double>(static_cast<size_t>(group_.size()), 1);
  for (int d = 0; d < group_.size(); ++d)
    slowest = std::max(slowest, device_seconds(group_.devices()[static_cast<size_t>(d)], work,
                                               parts[static_cast<size_t>(d)]));
  return ticks_of(slowest);
}

namespace {

// Bytes of a collective, as DeviceGroup::seconds() takes them.
std::vector<double> counts_of(const Graph& graph, const Node& node) {
  const TensorType& type = graph.type(node.inputs[0]);
  if (*node.op->collective == CollectiveKind::all_reduce || *node.op->collective == CollectiveKind::broadcast)
    return {static_cast<double>(type.bytes())};
  std::vector<double> counts;
  for (const int64_t count : node.attributes.get<std::vector<int64_t>>("counts"))
    counts.push_back(static_cast<double>(count) * static_cast<double>(bytes_of(type.dtype)));
  return counts;
}

}  // namespace

// Each device receives its parts of results of other stages, or all of them.
double ShardingCosts::receiving_seconds(NodeId n, const NodeSharding& way) const {
  const double bytes = received_bytes_[static_cast<size_t>(n)];
  if (bytes == 0) return 0;
  return receives_.seconds(way.axis < 0 ? bytes * group_.size() : bytes);
}

// Of a collective along the axis before.
double ShardingCosts::outer_seconds(const Node& node, bool is_cut) const {
  HET_REQUIRE(outer_ != nullptr, node.op->name);
  std::vector<double> counts = counts_of(graph_, node);
  for (double& count : counts) count *= is_cut ? 1 : group_.size();
  return outer_->seconds(*node.op->collective, counts);
}

// Of a node that is cut, with any shares in the range: for each kind the device that has most of it is known
// to have some units at least. Parts of all devices together are whole.
double ShardingCosts::least_seconds(NodeId n, const NodeSharding& way, const Work& work) const {
  const Node& node = graph_.nodes[static_cast<size_t>(n)];
  const int64_t units = table_.axes()[static_cast<size_t>(way.axis)].units;
  const bool decomposed = node.op->sharding[static_cast<size_t>(way.rule)].decompose != nullptr;
  // What a device with so many units takes, where others have as few as can be but one. The nodes that a rule
  // emits for a part do more the more it has.
  const auto with = [&](int kind, int64_t own) {
    const Device& device = group_.of_kind(kind);
    if (!decomposed)
      return device_seconds(device, work, static_cast<double>(own) / static_cast<double>(units));
    Shares shares(static_cast<size_t>(group_.size()), 1);
    if (shares.size() > 1) shares[1] = units - own - (std::ssize(shares) - 2);
    shares[0] = shares.size() > 1 ? own : units;
    return decomposed_seconds(n, way, shares, 0, device);
  };
  const int64_t even = (units + group_.size() - 1) / group_.size(), most = units - group_.size() + 1;
  double least = decomposed ? std::numeric_limits<double>::infinity() : balanced_seconds(group_, work, units);
  if (decomposed)
    for (int kind = 0; kind < group_.kinds(); ++kind) least = std::min(least, with(kind, even));
  for (int kind = 0; kind < group_.kinds(); ++kind)
    least = std::max(least, with(kind, std::min(most, group_.least_units(range_, kind, units))));
  return least;
}

// Of a rule that emits several nodes: what they take, collectives included, on the slowest device.
double ShardingCosts::decomposed_seconds(NodeId n, const NodeSharding& way, const Shares& shares) {
  double slowest = 0;
  std::map<std::pair<int, double>, bool> seen;  // kind and part
  const std::vector<double> parts =
      way.axis >= 0 ? fractions(way.axis, shares) : std::vector<double>(shares.size(), 1);
  for (int part = 0; part < group_.size(); ++part)
    if (seen.emplace(std::pair{group_.kind_of(part), parts[static_cast<size_t>(part)]}, true).second)
      slowest = std::max(
          slowest, decomposed_seconds(n, way, shares, part, group_.devices()[static_cast<size_t>(part)]));
  return slowest;
}

double ShardingCosts::decomposed_seconds(NodeId n, const NodeSharding& way, const Shares& shares, int part,
                                         const Device& device) const {
  const Node& node = graph_.nodes[static_cast<size_t>(n)];
  const auto types = types_of(graph_, node.inputs);
  const OpCall whole{*node.op, types, node.attributes};
  Graph scratch;
  GraphBuilder builder(scratch);
  std::vector<ValueId> inputs;
  std::vector<TensorSlice> in, out;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const bool absent = node.inputs[i] == kAbsent;
    in.push_back(absent ? TensorSlice() : table_.slice(node.inputs[i], way.inputs[i], shares, part));
    inputs.push_back(absent ? kAbsent
                            : builder.input(std::to_string(i), {types[i].dtype, in.back().shape()}));
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    out.push_back(node.outputs[o] == kAbsent ? TensorSlice()
                                             : table_.slice(node.outputs[o], way.outputs[o], shares, part));
  const ShardedCall call{builder, whole, inputs, in, out, static_cast<int>(shares.size()), part, 0};
  const std::vector<ValueId> results = node.op->sharding[static_cast<size_t>(way.rule)].decompose(call);
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.outputs[o] != kAbsent) builder.output(std::to_string(o), results[o]);
  const Graph needed = prune(scratch);
  double seconds = 0;
  for (const Node& each : needed.nodes) {
    if (each.op->collective) {
      seconds += group_.seconds(*each.op->collective, counts_of(needed, each));
      continue;
    }
    seconds += device.seconds(cost_of(needed, each), is_half(types_of(needed, each.inputs)));
  }
  return seconds;
}

Ticks ShardingCosts::conversion(ValueId id, PlacementId from, PlacementId to, Phase phase,
                                const MaybeShares& shares) {
  if (from == to || from == kReplicated) return 0;
  if (to == kPartial) return kNever;
  if (!counts_value(id)) return 0;
  forget(shares);
  const auto [entry, fresh] = conversion_table_.emplace(std::tuple{class_of_value(id), from, to}, 0);
  if (fresh) {
    entry->second = conversion_ticks(id, from, to, shares);
    if (to == kReplicated && is_copied_[static_cast<size_t>(id)])
      entry->second = std::max<Ticks>(0, entry->second - copying(id));
  }
  const Value& value = graph_.values[static_cast<size_t>(id)];
  const bool once = phase == Phase::update || (value.producer >= 0 ? runs_once(id) : is_state(value));
  const Ticks all = entry->second * (once ? 1 : microbatches_);
  return phase == Phase::update && from == kPartial && to == kReplicated ? weighted(all, sums_weight_) : all;
}

void ShardingCosts::set_overlap(std::optional<double> weight) {
  sums_weight_ = weight ? std::llround(*weight * kWhole) : kWhole;
  backward_weight_ = weight ? kWhole - sums_weight_ : kWhole;
}

Ticks ShardingCosts::conversion_ticks(ValueId id, PlacementId from, PlacementId to,
                                      const MaybeShares& shares) {
  const double bytes = static_cast<double>(graph_.type(id).bytes());
  const auto& placements = table_.placements(id);
  const auto blocks = [&](PlacementId lies) {
    std::vector<double> counts = fractions(placements[lies].axis, *shares);
    for (double& count : counts) count *= bytes;
    return counts;
  };
  if (from == kPartial && to == kReplicated)
    return ticks_of(group_.seconds(CollectiveKind::all_reduce, {bytes}));
  const auto units = [&](PlacementId lies) {
    return table_.axes()[static_cast<size_t>(placements[lies].axis)].units;
  };
  if (from == kPartial)
    return shares
               ? ticks_of(group_.seconds(CollectiveKind::reduce_scatter, blocks(to)))
               : least_ticks(group_.least_seconds(CollectiveKind::reduce_scatter, bytes, range_, units(to)));
  if (to == kReplicated || placements[from].dim == placements[to].dim)
    return shares ? ticks_of(group_.seconds(CollectiveKind::all_gather, blocks(from)))
                  : least_ticks(group_.least_seconds(CollectiveKind::all_gather, bytes, range_, units(from)));
  if (!shares)
    return least_ticks(
        group_.least_seconds(CollectiveKind::all_to_all, bytes, range_, units(from), units(to)));
  const std::vector<double>&have = fractions(placements[from].axis, *shares),
        &need = fractions(placements[to].axis, *shares);
  std::vector<double> counts;
  for (const double sender : have)
    for (const double receiver : need) counts.push_back(sender * receiver * bytes);
  return ticks_of(group_.seconds(CollectiveKind::all_to_all, counts));
}

Ticks ShardingCosts::program(const ShardingProgram& program) {
  const Parts all = parts(program);
  return all.compute + all.communication + all.receiving;
}

ShardingCosts::Parts ShardingCosts::parts(const ShardingProgram& program) {
  Parts result;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const auto node = static_cast<NodeId>(n);
    if (graph_.nodes[n].op->any_placement) continue;
    const int way = way_number(node, program.nodes[n]);
    Ticks cost = this->node(node, way, program.shares);
    if (cost >= kNever) return {kNever};
    if (const ValueId copied = copied_gradient(node, way); copied != kAbsent) {
      const Ticks copies = weighted(copying(copied), sums_weight_);
      result.communication += copies;
      cost -= copies;
    }
    (!counts(node)                    ? result.receiving
     : graph_.nodes[n].op->collective ? result.communication
                                      : result.compute) += cost;
  }
  // The search does not know placements beyond these.
  const auto is_known = [](PlacementId lies) { return lies < kMostPlacements; };
  if (!std::all_of(program.values.begin(), program.values.end(), is_known) ||
      !std::all_of(program.conversions.begin(), program.conversions.end(),
                   [&](const Conversion& conversion) { return is_known(conversion.to); }))
    return {kNever};
  std::map<ValueId, Needs> needs;
  for (const Conversion& conversion : program.conversions)
    if (graph_.values[static_cast<size_t>(conversion.value)].role != Role::input)
      needs[conversion.value][static_cast<size_t>(conversion.phase)] |= form(conversion.to);
  for (const auto& [id, needed] : needs) {
    const Ticks cost =
        ValueCosts(*this, program.shares, id).cost(program.values[static_cast<size_t>(id)], needed);
    if (cost >= kNever) return {kNever};
    result.communication += cost;
  }
  return result;
}

}  // namespace het::planner::hap
