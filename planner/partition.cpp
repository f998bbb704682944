#include "planner/partition.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "planner/relation.h"

namespace het {
namespace {

// The parameter that a value is, or is a copy of in another precision; kAbsent when it is neither.
ValueId parameter_behind(const Graph& graph, ValueId id) {
  while (id != kAbsent && graph.values[id].producer >= 0) {
    const Node& node = graph.nodes[graph.values[id].producer];
    if (!is_cast(node) && node.op->name != "copy") return kAbsent;
    id = node.inputs[0];
  }
  return id != kAbsent && graph.values[id].role == Role::parameter ? id : kAbsent;
}

using Divisions = std::map<ValueId, Relation>;  // of parameters

// Finds which parameters are divided, and how.
class Decision {
 public:
  Decision(const Graph& graph, int parts) : graph_(graph), parts_(parts), consumers_(graph.values.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const ValueId id : graph.nodes[n].inputs)
        if (id != kAbsent && graph.nodes[n].phase == Phase::forward)
          consumers_[id].push_back(static_cast<NodeId>(n));
  }

  Divisions run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const std::string_view name = node.op->name;
      if (name == "embedding" || name.starts_with("linear_cross_entropy")) divide_vocabulary(node);
      if (name == "linear" && node.phase == Phase::forward && !known_.count(node.inputs[0])) look_ahead(node);
    }
    if (!problems_.empty())
      fail_usage("tensor = {} cannot share out the model evenly:\n  {}", parts_,
                 fmt::join(problems_, "\n  "));
    return divisions_;
  }

 private:
  // Small tables are not worth it: then everybody has all rows.
  void divide_vocabulary(const Node& node) {
    const ValueId table = parameter_behind(graph_, node.inputs[1]);
    if (table == kAbsent) return;
    constexpr int64_t kLeastRows = 4;  // on each rank
    const int64_t rows = graph_.type(table).shape[0];
    if (rows < kLeastRows * parts_) return;
    divisions_.emplace(table, Relation::shard(0, {rows}));
    if (node.op->name == "embedding" || node.inputs[2] == kAbsent) return;
    const ValueId bias = parameter_behind(graph_, node.inputs[2]);
    if (bias != kAbsent) divisions_.emplace(bias, Relation::shard(0, {rows}));
  }

  // --- looking ahead from a projection: what would be divided if its columns were

  struct Attempt {
    std::map<ValueId, Relation> values;
    Divisions parameters;
    std::deque<ValueId> next;       // values whose users are still to be looked at
    std::vector<int64_t> segments;  // asked for by a split of the projection's result
    ValueId first = kAbsent;        // the projection's result
  };

  void look_ahead(const Node& linear) {
    const ValueId weight = parameter_behind(graph_, linear.inputs[1]);
    if (weight == kAbsent || divisions_.count(weight)) return;
    std::vector<int64_t> segments{graph_.type(linear.outputs[0]).shape.back()};
    for (int attempts = 0; attempts < 2; ++attempts) {
      Attempt attempt;
      attempt.first = linear.outputs[0];
      const bool works = divide_columns(attempt, linear, segments) && follow(attempt);
      if (works) return accept(attempt, linear);
      if (attempt.segments.empty()) return;
      segments = attempt.segments;
    }
  }

  void accept(const Attempt& attempt, const Node& linear) {
    for (const auto& [id, relation] : attempt.values)
      if (!divides_evenly(relation.segments, parts_)) return refuse(attempt, linear);
    known_.insert(attempt.values.begin(), attempt.values.end());
    divisions_.insert(attempt.parameters.begin(), attempt.parameters.end());
  }

  // The structure allows it, the sizes do not: heads are what people choose degrees by, so they are named
  // first.
  void refuse(const Attempt& attempt, const Node& linear) {
    std::set<std::string> reasons;
    for (const auto& [id, relation] : attempt.values)
      for (const NodeId n : consumers_[id]) {
        const Node& node = graph_.nodes[n];
        if (node.op->name != "attention" || divides_evenly(relation.segments, parts_)) continue;
        reasons.insert(fmt::format("{}: {} {} heads among {} devices; {} would do", graph_.scopes[node.scope],
                                   relation.segments[0], id == node.inputs[0] ? "query" : "key", parts_,
                                   divisors(relation.segments[0])));
      }
    if (reasons.empty())
      reasons.insert(fmt::format("{}: {} features among {} devices; {} would do", graph_.scopes[linear.scope],
                                 graph_.type(linear.outputs[0]).shape.back(), parts_,
                                 divisors(graph_.type(linear.outputs[0]).shape.back())));
    for (const std::string& reason : reasons)
      if (std::find(problems_.begin(), problems_.end(), reason) == problems_.end())
        problems_.push_back(reason);
  }

  // The divisors of n that are nearest to the degree, one below and, where there is one, one above: "2 or 8".
  std::string divisors(int64_t n) const {
    int64_t below = 1, above = 0;
    for (int64_t d = 1; d <= n; ++d) {
      if (n % d != 0) continue;
      if (d < parts_) below = d;
      if (d > parts_ && above == 0) above = d;
    }
    return above == 0 ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
  }

  bool assume(Attempt& attempt, ValueId id, const Relation& relation) {
    const auto [entry, fresh] = attempt.values.emplace(id, relation);
    if (!fresh) return entry->second == relation;
    attempt.next.push_back(id);
    return true;
  }

  bool divide_parameter(Attempt& attempt, ValueId id, const Relation& relation) {
    const ValueId parameter = parameter_behind(graph_, id);
    if (parameter == kAbsent) return false;
    const auto decided = divisions_.find(parameter);
    if (decided != divisions_.end()) return decided->second == relation;
    const auto [entry, fresh] = attempt.parameters.emplace(parameter, relation);
    return fresh || entry->second == relation;
  }

  bool divide_columns(Attempt& attempt, const Node& linear, const std::vector<int64_t>& segments) {
    const Relation rows = Relation::shard(0, segments);
    if (!divide_parameter(attempt, linear.inputs[1], rows)) return false;
    if (linear.inputs.size() > 2 && linear.inputs[2] != kAbsent &&
        !divide_parameter(attempt, linear.inputs[2], rows))
      return false;
    const int64_t last = static_cast<int64_t>(graph_.type(linear.outputs[0]).shape.size()) - 1;
    return assume(attempt, linear.outputs[0], Relation::shard(last, segments));
  }

  // Every use of what is divided has to work on a part; until a projection sums up.
  bool follow(Attempt& attempt) {
    while (!attempt.next.empty()) {
      const ValueId id = attempt.next.front();
      attempt.next.pop_front();
      if (consumers_[id].empty() && is_output(id)) return false;
      for (const NodeId n : consumers_[id])
        if (!pass(attempt, graph_.nodes[n], id)) return false;
    }
    return true;
  }

  bool is_output(ValueId id) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [&](const Output& output) { return output.value == id; });
  }

  bool pass(Attempt& attempt, const Node& node, ValueId id) {
    const Relation own = attempt.values.at(id);
    if (node.op->name == "linear" && node.inputs[0] == id && !is_activated(node) &&
        own.dim + 1 == static_cast<int64_t>(graph_.type(id).shape.size()))
      return divide_parameter(attempt, node.inputs[1], Relation::shard(1, own.segments));
    if (node.op->name == "split" && id == attempt.first && own.segments.size() == 1 &&
        node.attributes.get<std::vector<int64_t>>("sizes").size() > 1)
      attempt.segments = node.attributes.get<std::vector<int64_t>>("sizes");
    std::vector<Relation> given(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto known = attempt.values.find(node.inputs[i]);
      if (known != attempt.values.end()) given[i] = known->second;
    }
    // Sizes are looked at afterwards: here everything divides.
    for (const Way& way : ways_of(graph_, node, given, Relation::whole(), {})) {
      if (way.outputs.empty() || !way.outputs[0].is_shard()) continue;
      bool fits = true;
      for (size_t i = 0; i < node.inputs.size() && fits; ++i)
        if (node.inputs[i] == id) fits = way.inputs[i] == own;
      if (!fits) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i] != kAbsent && way.inputs[i].is_shard() &&
            !divide_back(attempt, node.inputs[i], way.inputs[i]))
          return false;
      for (size_t o = 0; o < node.outputs.size(); ++o)
        if (node.outputs[o] != kAbsent && !assume(attempt, node.outputs[o], way.outputs[o])) return false;
      return true;
    }
    return false;
  }

  // A value that has to be divided too, and so must be what it is made from: another projection's result,
  // say, that is multiplied with this one's.
  bool divide_back(Attempt& attempt, ValueId id, const Relation& relation) {
    const auto known = attempt.values.find(id);
    if (known != attempt.values.end()) return known->second == relation;
    if (graph_.values[id].role == Role::input) return false;
    if (divide_parameter(attempt, id, relation)) return true;
    const NodeId producer = graph_.values[id].producer;
    if (producer < 0 || graph_.nodes[producer].phase != Phase::forward) return false;
    const Node& node = graph_.nodes[producer];
    const Shape& shape = graph_.type(id).shape;
    if (node.op->name == "linear" && relation.dim + 1 == static_cast<int64_t>(shape.size()))
      return divide_columns(attempt, node, relation.segments);
    if (node.op->name == "reshape" || node.op->name == "transpose" || node.op->name == "rotary") {
      const auto before = inverted(node, relation);
      return before && divide_back(attempt, node.inputs[0], *before) && assume(attempt, id, relation);
    }
    if (!node.op->elementwise || !assume(attempt, id, relation)) return false;
    for (const ValueId input : node.inputs) {
      if (input == kAbsent) continue;
      if (graph_.type(input).shape != shape || !divide_back(attempt, input, relation)) return false;
    }
    return true;
  }

  // How the first operand of a node has to lie for its result to lie so.
  std::optional<Relation> inverted(const Node& node, const Relation& result) const {
    std::vector<Relation> given(node.inputs.size());
    int64_t total = 0;
    for (const int64_t size : result.segments) total += size;
    const Shape& shape = graph_.type(node.inputs[0]).shape;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      std::vector<int64_t> segments;
      for (const int64_t size : result.segments) segments.push_back(size * shape[dim] / total);
      given[0] = Relation::shard(static_cast<int64_t>(dim), segments);
      for (const Way& way : ways_of(graph_, node, given, Relation::whole(), {}))
        if (way.inputs[0] == given[0] && way.outputs[0] == result) return given[0];
    }
    return std::nullopt;
  }

  const Graph& graph_;
  int parts_;
  std::vector<std::vector<NodeId>> consumers_;  // forward ones, of values
  Divisions divisions_;
  std::map<ValueId, Relation> known_;  // activations that are divided
  std::vector<std::string> problems_;
};

// Builds the graph of one rank: in a first pass over the nodes it finds what each needs, in a second it emits
// them, every collective right after what it works on, so that it runs while later nodes are computed.
class Partition {
 public:
  Partition(const Graph& graph, Divisions divisions, int parts, int part, bool sequence)
      : graph_(with_bias_apart(graph, divisions)),
        divisions_(std::move(divisions)),
        parts_(parts),
        part_(part),
        sequence_(sequence),
        builder_(result_) {
    result_.layers = graph.layers;
    result_.scopes = graph.scopes;
  }

  Graph run() {
    relate_state();
    find_wanted();
    for (const Node& node : graph_.nodes) choose(node);
    for (const Output& output : graph_.outputs) note_need(output.value, Relation::whole(), Phase::update);
    declare();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) emit(graph_.nodes[n], ways_[n]);
    for (const Output& output : graph_.outputs) {
      const NodeId producer = graph_.values[output.value].producer;
      Node place;
      if (producer >= 0) place = graph_.nodes[producer];
      place.phase = Phase::update;
      place_at(place);
      result_.outputs.push_back({output.name, local(output.value, Relation::whole())});
    }
    return std::move(result_);
  }

 private:
  // A projection whose result is a sum over the ranks adds its bias once, after the sum.
  static Graph with_bias_apart(const Graph& graph, const Divisions& divisions) {
    Graph result = graph;
    result.nodes.clear();
    for (const Node& node : graph.nodes) {
      const auto found = node.op->name == "linear" && !is_activated(node)
                             ? divisions.find(parameter_behind(graph, node.inputs[1]))
                             : divisions.end();
      if (found == divisions.end() || found->second.dim != 1 || node.inputs.size() < 3 ||
          node.inputs[2] == kAbsent) {
        result.nodes.push_back(node);
        continue;
      }
      const TensorType& type = graph.type(node.outputs[0]);
      const auto fresh = [&](TensorType of) {
        result.values.emplace_back().type = std::move(of);
        return static_cast<ValueId>(result.values.size()) - 1;
      };
      Node add = node;
      add.op = &op_named("add");
      add.inputs = {fresh(type), node.inputs[2]};
      // A bias has the accumulator's precision, activations their own.
      if (graph.type(node.inputs[2]).dtype != type.dtype) {
        Node cast = node;
        cast.op = &op_named("cast");
        cast.attributes = {{"dtype", std::string(name_of(type.dtype))}};
        cast.inputs = {node.inputs[2]};
        cast.outputs = {fresh({type.dtype, graph.type(node.inputs[2]).shape})};
        add.inputs[1] = cast.outputs[0];
        result.nodes.push_back(std::move(cast));
      }
      Node linear = node;
      linear.inputs.pop_back();
      linear.outputs = {add.inputs[0]};
      result.nodes.push_back(std::move(linear));
      result.nodes.push_back(std::move(add));
    }
    for (size_t n = 0; n < result.nodes.size(); ++n)
      for (size_t o = 0; o < result.nodes[n].outputs.size(); ++o)
        if (const ValueId id = result.nodes[n].outputs[o]; id != kAbsent) {
          result.values[id].producer = static_cast<NodeId>(n);
          result.values[id].output = static_cast<int>(o);
        }
    return result;
  }

  // --- what every value is

  static std::vector<ValueId> state_of(const Graph& graph, const Node& node) {
    std::vector<ValueId> found;
    for (const auto& [output, input] : node.op->in_place)
      if (input < static_cast<int>(node.inputs.size()) && node.inputs[input] != kAbsent)
        found.push_back(node.inputs[input]);
    return found;
  }

  // Optimizer state lies as its parameter does.
  void relate_state() {
    relations_.assign(graph_.values.size(), Relation::whole());
    for (const auto& [id, relation] : divisions_) relations_[id] = relation;
    for (const Node& node : graph_.nodes) {
      if (node.phase != Phase::update) continue;
      const auto state = state_of(graph_, node);
      for (const ValueId parameter : state)
        if (divisions_.count(parameter))
          for (const ValueId id : state)
            if (graph_.type(id).shape == graph_.type(parameter).shape)
              relations_[id] = divisions_.at(parameter);
    }
  }

  // How a gradient shall lie in the end: as the parameter that it updates, through operators that keep its
  // shape.
  void find_wanted() {
    wanted_.assign(graph_.values.size(), Relation::whole());
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const auto state = node.phase == Phase::update ? state_of(graph_, node) : std::vector<ValueId>{};
      for (const ValueId id : node.inputs) {
        if (id == kAbsent || graph_.values[id].role != Role::intermediate) continue;
        if (!state.empty() && graph_.type(state[0]).shape == graph_.type(id).shape)
          wanted_[id] = relations_[state[0]];
        else if ((node.op->elementwise || node.op->name == "add_n") && node.outputs[0] != kAbsent &&
                 graph_.type(node.outputs[0]).shape == graph_.type(id).shape && wanted_[id].is_whole())
          wanted_[id] = wanted_[node.outputs[0]];
      }
    }
  }

  // Bytes that a rank moves to have a value as `to` when it has it as `from`; negative: it cannot.
  double bytes_between(ValueId id, const Relation& from, const Relation& to) const {
    const double share = static_cast<double>(graph_.type(id).bytes()) * (parts_ - 1) / parts_;
    if (from == to) return 0;
    if (to.is_partial()) return -1;
    if (from.is_partial()) return to.is_whole() ? 2 * share : share;
    if (from.is_whole()) return 0;
    // Gathered, then perhaps cut again. Weights stay where they are, as long as there is another way.
    constexpr double kWeight = 1e6;
    return parameter_behind(graph_, id) == kAbsent ? share : kWeight * share;
  }

  // The way that moves the fewest bytes; of equals the first, which divides the work.
  void choose(const Node& node) {
    std::vector<Relation> given;
    for (const ValueId id : node.inputs) given.push_back(id == kAbsent ? Relation() : relations_[id]);
    const Relation wanted =
        node.outputs.empty() || node.outputs[0] == kAbsent ? Relation() : wanted_[node.outputs[0]];
    Way best;
    double least = -1;
    for (Way& way : ways_of(graph_, node, given, wanted, {parts_, sequence_})) {
      double bytes = 0;
      for (size_t i = 0; i < node.inputs.size() && bytes >= 0; ++i) {
        if (node.inputs[i] == kAbsent) continue;
        const double each = bytes_between(node.inputs[i], given[i], way.inputs[i]);
        const bool changed_in_place = is_changed(node, i) && !(given[i] == way.inputs[i]);
        bytes = each < 0 || changed_in_place ? -1 : bytes + each;
      }
      if (bytes < 0) continue;
      if (!wanted.is_whole() && !(way.outputs[0] == wanted))
        bytes += std::max(0.0, bytes_between(node.outputs[0], way.outputs[0], wanted));
      if (least >= 0 && bytes >= least) continue;
      least = bytes;
      best = std::move(way);
    }
    HET_REQUIRE(least >= 0, node.op->name);
    // The norm is of gradients that lie as their parameters do, so that each is counted once.
    if (node.op->name == "global_norm")
      for (size_t i = 0; i < node.inputs.size(); ++i) best.inputs[i] = wanted_[node.inputs[i]];
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] != kAbsent) note_need(node.inputs[i], best.inputs[i], node.phase);
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent) relations_[node.outputs[o]] = best.outputs[o];
    ways_.push_back(std::move(best));
  }

  static bool is_changed(const Node& node, size_t input) {
    return std::any_of(node.op->in_place.begin(), node.op->in_place.end(),
                       [&](const auto& pair) { return pair.second == static_cast<int>(input); });
  }

  // What is gathered is so in each phase anew: kept from forward to backward it would take the memory that
  // dividing it saves.
  bool is_kept(ValueId id) const { return !relations_[id].is_shard(); }

  // When a value is converted for use in a phase. Gradients are gathered before they are summed over
  // micro-batches: what is summed and exchanged between replicas is then of its parameter's size.
  Phase phase_of_conversion(ValueId id, Phase use) const {
    const NodeId producer = graph_.values[id].producer;
    return use == Phase::update && producer >= 0 && relations_[id].is_shard() ? graph_.nodes[producer].phase
                                                                              : use;
  }

  void note_need(ValueId id, const Relation& relation, Phase use) {
    if (relations_[id] == relation) return;
    const Phase phase = phase_of_conversion(id, use);
    auto& needs = needs_[id];
    for (auto& [known, first] : needs)
      if (known == relation && (is_kept(id) || first == phase)) {
        first = std::min(first, phase);
        return;
      }
    needs.emplace_back(relation, phase);
  }

  // --- the rank's graph

  TensorType local_type(ValueId id, const Relation& relation) const {
    return {graph_.type(id).dtype, local_shape(graph_.type(id).shape, relation, parts_, part_)};
  }

  void declare() {
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      const ValueId id = static_cast<ValueId>(i);
      if (value.role == Role::intermediate) continue;
      const Relation& relation = relations_[i];
      ValueId made = kAbsent;
      if (value.role == Role::input)
        made = builder_.input(value.name, value.type, value.per_step);
      else if (value.role == Role::parameter)
        made = builder_.parameter(value.name, local_type(id, relation), value.initial);
      else
        made = builder_.buffer(value.name, local_type(id, relation), value.initial);
      if (relation.is_shard())
        result_.values[made].slice = slice_of(value.type.shape, relation, parts_, part_);
      local_[{id, 0}] = made;
    }
  }

  void place_at(const Node& node) {
    builder_.set_phase(node.phase);
    builder_.set_layer(node.layer);
    builder_.set_scope(node.scope);
  }

  // The value on this rank as `relation` says, converted now if it is not there yet.
  ValueId local(ValueId id, const Relation& relation) {
    const Relation own = relations_[id];
    if (own == relation) return local_.at({id, 0});
    const auto& needs = needs_.at(id);
    const auto need = std::find_if(needs.begin(), needs.end(), [&](const auto& each) {
      return each.first == relation &&
             (is_kept(id) || each.second == phase_of_conversion(id, builder_.phase()));
    });
    HET_REQUIRE(need != needs.end(), id, to_string(relation));
    const int slot = static_cast<int>(need - needs.begin());
    const auto found = local_.find({id, slot + 1});
    if (found != local_.end()) return found->second;
    const ValueId made = convert(id, own, relation);
    local_[{id, slot + 1}] = made;
    return made;
  }

  ValueId convert(ValueId id, const Relation& from, const Relation& to) {
    const ValueId value = local_.at({id, 0});
    if (from.is_whole()) return cut(value, graph_.type(id).shape, to, part_);
    if (from.is_partial() && to.is_whole()) return builder_.call("all_reduce", {value});
    if (from.is_partial()) return scatter(value, id, to);
    const auto [whole, fresh] = gathered_.emplace(std::pair{id, builder_.phase()}, kAbsent);
    if (fresh) whole->second = gather(value, id, from);
    return to.is_whole() ? whole->second : cut(whole->second, graph_.type(id).shape, to, part_);
  }

  // The entries of a whole value that part `part` has under `to`.
  ValueId cut(ValueId whole, const Shape& shape, const Relation& to, int part) {
    std::vector<ValueId> pieces;
    for (const Range& range : ranges_of(to.segments, parts_, part))
      if (range.end > range.begin)
        pieces.push_back(
            builder_.call("slice", {whole},
                          {{"dim", to.dim}, {"start", range.begin}, {"length", range.end - range.begin}}));
    HET_REQUIRE(!pieces.empty(), to_string(shape), part);
    return join(pieces, to.dim);
  }

  ValueId join(const std::vector<ValueId>& pieces, int64_t dim) {
    return pieces.size() == 1 ? pieces[0] : builder_.call("concat", pieces, {{"dim", dim}});
  }

  ValueId flat(ValueId value) {
    return builder_.call("reshape", {value},
                         {{"shape", std::vector<int64_t>{builder_.type(value).elements()}}});
  }

  std::vector<int64_t> counts_of(ValueId id, const Relation& relation) const {
    std::vector<int64_t> counts;
    for (int part = 0; part < parts_; ++part)
      counts.push_back(elements_of(local_shape(graph_.type(id).shape, relation, parts_, part)));
    return counts;
  }

  // All parts one after the other, then every piece to its place.
  ValueId gather(ValueId value, ValueId id, const Relation& from) {
    const auto counts = counts_of(id, from);
    const ValueId all = builder_.call("all_gather", {flat(value)},
                                      {{"counts", counts}, {"part", static_cast<int64_t>(part_)}});
    std::vector<std::vector<ValueId>> pieces(from.segments.size());  // by segment, then part
    int64_t start = 0;
    for (int part = 0; part < parts_; ++part) {
      const int64_t count = counts[static_cast<size_t>(part)];
      if (count == 0) continue;
      const ValueId own = builder_.call(
          "reshape",
          {builder_.call("slice", {all}, {{"dim", int64_t{0}}, {"start", start}, {"length", count}})},
          {{"shape", local_shape(graph_.type(id).shape, from, parts_, part)}});
      start += count;
      int64_t at = 0;
      const auto ranges = ranges_of(from.segments, parts_, part);
      for (size_t s = 0; s < ranges.size(); ++s) {
        const int64_t length = ranges[s].end - ranges[s].begin;
        if (length > 0)
          pieces[s].push_back(
              ranges.size() == 1
                  ? own
                  : builder_.call("slice", {own}, {{"dim", from.dim}, {"start", at}, {"length", length}}));
        at += length;
      }
    }
    std::vector<ValueId> ordered;
    for (const auto& of_segment : pieces) ordered.insert(ordered.end(), of_segment.begin(), of_segment.end());
    return join(ordered, from.dim);
  }

  // Blocks in the order of the parts, summed and scattered.
  ValueId scatter(ValueId value, ValueId id, const Relation& to) {
    std::vector<ValueId> blocks;
    for (int part = 0; part < parts_; ++part)
      blocks.push_back(flat(cut(value, graph_.type(id).shape, to, part)));
    const ValueId own = builder_.call("reduce_scatter", {join(blocks, 0)},
                                      {{"counts", counts_of(id, to)}, {"part", static_cast<int64_t>(part_)}});
    return builder_.call("reshape", {own},
                         {{"shape", local_shape(graph_.type(id).shape, to, parts_, part_)}});
  }

  void emit(const Node& node, const Way& way) {
    place_at(node);
    std::vector<ValueId> inputs;  // converted here where that was not done early
    for (size_t i = 0; i < node.inputs.size(); ++i)
      inputs.push_back(node.inputs[i] == kAbsent ? kAbsent : local(node.inputs[i], way.inputs[i]));
    std::vector<ValueId> outputs;
    if (node.op->name.starts_with("linear_cross_entropy") && way.inputs[1].is_shard()) {
      outputs = emit_classifier(node, way, inputs);
    } else {
      outputs = builder_.call_all(*node.op, inputs, attributes_of(graph_, node, way, parts_, part_));
      if (!node.step_scopes.empty()) result_.nodes.back().step_scopes = node.step_scopes;
    }
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (node.outputs[o] != kAbsent) local_[{node.outputs[o], 0}] = outputs[o];
    for (const ValueId id : node.outputs) start_early(id, node);
  }

  // What has to be converted for a later node of the same phase is so at once, in the layer that made it.
  void start_early(ValueId id, const Node& producer) {
    if (id == kAbsent || needs_.count(id) == 0) return;
    for (const auto& [relation, phase] : needs_.at(id))
      if (phase == producer.phase && !relations_[id].is_whole()) local(id, relation);
  }

  // Each rank's classes give their part of every row's statistics; from all of them follow the loss and,
  // again of each rank's classes, the gradients.
  std::vector<ValueId> emit_classifier(const Node& node, const Way& way, const std::vector<ValueId>& inputs) {
    const int64_t classes = graph_.type(node.inputs[1]).shape[0];
    Attributes attributes = node.attributes;
    attributes.set("first", ranges_of(way.inputs[1].segments, parts_, part_)[0].begin);
    attributes.set("of", classes);
    const ValueId own =
        builder_.call("linear_log_sum_exp", {inputs[0], inputs[1], inputs[2], inputs[3]}, attributes);
    const int64_t rows = builder_.type(own).shape[1];
    const std::vector<int64_t> counts(static_cast<size_t>(parts_), 2 * rows);
    const ValueId all =
        builder_.call("all_gather", {flat(own)}, {{"counts", counts}, {"part", static_cast<int64_t>(part_)}});
    const ValueId parts = builder_.call("reshape", {all}, {{"shape", std::vector<int64_t>{parts_, 2, rows}}});
    const auto loss =
        builder_.call_all(op_named("cross_entropy_of_parts"), {parts, inputs[3], inputs[4]}, node.attributes);
    if (node.op->name != "linear_cross_entropy_training") return {loss[0]};
    const auto made =
        builder_.call_all(op_named("linear_cross_entropy_gradient"),
                          {inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], loss[1]}, attributes);
    return {loss[0], made[0], made[1], made[2]};
  }

  const Graph graph_;
  Divisions divisions_;
  int parts_, part_;
  bool sequence_;
  Graph result_;
  GraphBuilder builder_;
  std::vector<Relation> relations_, wanted_;  // of values
  std::vector<Way> ways_;                     // of nodes
  std::map<ValueId, std::vector<std::pair<Relation, Phase>>>
      needs_;                                              // conversions, and the phase that needs them first
  std::map<std::pair<ValueId, int>, ValueId> local_;       // {value, 0: itself, 1...: converted as needs_}
  std::map<std::pair<ValueId, Phase>, ValueId> gathered_;  // shards that were gathered
};

}  // namespace

Graph partition(const Graph& graph, int parts, int part, bool sequence) {
  HET_REQUIRE(parts >= 1 && part >= 0 && part < parts, parts, part);
  if (parts == 1) return graph;
  return Partition(graph, Decision(graph, parts).run(), parts, part, sequence).run();
}

}  // namespace het
