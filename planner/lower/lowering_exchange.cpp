// What a rank exchanges with others while it runs its units: collectives of the devices that share its
// layers, and messages between stages.
#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "planner/lower/lowering.h"

namespace het {
namespace {

Phase phase_of(const WorkUnit& unit) {
  return unit.kind == WorkUnit::Kind::forward ? Phase::forward : Phase::backward;
}

}  // namespace

void Lowering::emit_collective(const Node& node, int microbatch) {
  const auto axis = static_cast<size_t>(node.attributes.get<int64_t>("axis", 0));
  if (axis >= assignment_.axis_groups.size())
    fail_usage("'{}' along axis {} needs devices that share a layer; a plan has them by `tensor =`",
               node.op->name, axis);
  const ValueId source = node.inputs[0], result = node.outputs[0];
  Operand in = operand(source, microbatch);
  HET_REQUIRE(in.buffer != kAbsent, node.op->name, source, microbatch);
  if (!in.layout.is_contiguous()) in = packed(node, in, microbatch);
  const CollectiveKind kind = *node.op->collective;
  const bool reduces = kind == CollectiveKind::all_reduce;
  const bool sums = reduces || kind == CollectiveKind::reduce_scatter;
  if (sums && node.phase == Phase::update && assignment_.is_summed(gradient_behind(source), axis)) {
    // The sum over all ranks is here already: of a reduce-scatter this rank's block is.
    Operand sum = in;
    sum.layout = Layout::contiguous(type_of(result));
    sum.layout.offset = in.layout.offset;
    if (!reduces) {
      const auto counts = node.attributes.get<std::vector<int64_t>>("counts");
      const auto part = node.attributes.get<int64_t>("part");
      sum.layout.offset += std::accumulate(counts.begin(), counts.begin() + part, int64_t{0});
    }
    finish(node, result, {sum}, microbatch);
    return;
  }
  Target where;
  if (reduces && dies_in(source, node) && analysis_.write_target(result).into == kAbsent &&
      !analysis_.accumulated(result))
    where.operand = in;
  else
    where = target(result, microbatch, false);
  Operand out = where.operand;
  if (!out.layout.is_contiguous()) out = out_.add_whole({hint(result), graph_.type(result)});
  await_collectives(out.buffer);  // one that writes another part of what is joined
  CollectiveRequest wanted = request_for(kind, in, label_of(source));
  if (kind == CollectiveKind::broadcast)
    wanted.peer = static_cast<int>(node.attributes.get<int64_t>("root"));
  else if (!reduces)
    wanted.counts = node.attributes.get<std::vector<int64_t>>("counts");
  Start instruction{assignment_.axis_groups[axis], std::move(wanted), in, out, node.phase};
  instruction.layer = node.layer;
  instruction.microbatch = microbatch;
  const int started = out_.start(std::move(instruction));
  const bool moved = out.buffer != where.operand.buffer || out.layout != where.operand.layout;
  if (moved || analysis_.accumulated(result) || analysis_.invariant(result) || node.phase == Phase::update) {
    out_.await(started);
    if (moved) out_.copy(node, out, where.operand, microbatch);
  } else {
    running_.emplace(out.buffer, started);
  }
  finish(node, result, where, microbatch);
}

bool Lowering::dies_in(ValueId id, const Node& user) const {
  const NodeId producer = graph_.values[id].producer;
  return analysis_.same_run(id, user) && !graph_.nodes[producer].op->view &&
         graph_.nodes[producer].op->in_place.empty() && analysis_.write_target(id).into == kAbsent;
}

void Lowering::await_collectives(BufferId buffer) {
  const auto [begin, end] = running_.equal_range(buffer);
  for (auto it = begin; it != end; ++it) out_.await(it->second);
  running_.erase(begin, end);
}

void Lowering::await_collectives() {
  for (const auto& [buffer, started] : running_) out_.await(started);
  running_.clear();
}

std::string Lowering::label_of(ValueId id) const {
  const Value& value = graph_.values[id];
  if (value.producer < 0) return value.name;
  const Node& node = graph_.nodes[value.producer];
  const std::string& scope = graph_.scopes[node.scope];
  return fmt::format("{}{}{} of {}", name_of(node.phase), " ", node.op->name,
                     scope.empty() ? "the model" : scope);
}

void Lowering::emit_unit(size_t u) {
  const WorkUnit& unit = assignment_.units[u];
  const int m = unit.microbatch;
  if (assignment_.runtime.blocking) {
    exchange_blocking(u);
  } else {
    post_receives(u);
    post_receives(u + 1);
    await_receives(u);
  }
  // The gradients of this micro-batch can only have come from its activations: they arrived.
  if (unit.kind == WorkUnit::Kind::backward) await_sends(sent_forward_[{unit.stage, m}]);

  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (!assignment_.assigned[n] || assignment_.stage[n] != unit.stage || node.phase == Phase::update ||
        analysis_.invariant_node(node))
      continue;
    if (node.phase != phase_of(unit)) continue;
    if (assignment_.deferred[n] != (unit.kind == WorkUnit::Kind::weight_gradient)) continue;
    if (node.phase == Phase::backward && assignment_.recompute[unit.stage]) recompute_for(node, m);
    emit(node, m);
  }
  await_collectives();
  if (unit.kind != WorkUnit::Kind::weight_gradient && !assignment_.runtime.blocking)
    send(unit.stage, m, phase_of(unit));
}

void Lowering::await_receives(size_t u) {
  const WorkUnit& unit = assignment_.units[u];
  for (const Posted& posted : posted_[u]) {
    out_.await(posted.start);
    const Operand got = std::get<Start>(out_.program().instructions[posted.start]).out;
    if (!posted.gathered.empty()) {
      CollectiveRequest request = request_for(CollectiveKind::all_gather, got, label_of(posted.value));
      request.counts = posted.gathered;
      Start gather{assignment_.axis_groups.at(0), std::move(request), got, posted.place, phase_of(unit)};
      gather.microbatch = unit.microbatch;
      out_.await(out_.start(std::move(gather)));
    } else if (got.buffer != posted.place.buffer) {
      out_.copy(Node{}, got, posted.place, unit.microbatch);
    }
    operand(posted.value, unit.microbatch) = out_.whole(posted.place.buffer);
  }
  posted_.erase(u);
}

void Lowering::exchange_blocking(size_t u) {
  const auto& units = assignment_.units;
  const WorkUnit* before = u > 0 ? &units[u - 1] : nullptr;
  const WorkUnit* after = u < units.size() ? &units[u] : nullptr;
  const auto receive = [&] {
    if (after == nullptr) return;
    post_receives(u);
    await_receives(u);
  };
  const bool receive_first = before != nullptr && after != nullptr &&
                             receives_first(assignment_.shape, after->stage, *before, *after);
  if (receive_first) receive();
  if (before != nullptr) {
    send(before->stage, before->microbatch, phase_of(*before));
    await_all_sends();
  }
  if (!receive_first) receive();
}

void Lowering::post_receives(size_t u) {
  if (u >= assignment_.units.size() || posted_.count(u) != 0) return;
  auto& posted = posted_[u];
  const WorkUnit& unit = assignment_.units[u];
  const Phase phase = phase_of(unit);
  if (unit.kind == WorkUnit::Kind::weight_gradient) return;
  for (const RankAssignment::Message& message : assignment_.receives) {
    if (message.stage != unit.stage || message.phase != phase) continue;
    // A value of several messages is put together from them.
    const auto of_value = std::find_if(posted.begin(), posted.end(),
                                       [&](const Posted& each) { return each.value == message.value; });
    Operand place = of_value != posted.end()
                        ? Operand{of_value->place.buffer, {}}
                        : out_.add_whole({"received " + hint(message.value), graph_.type(message.value)});
    if (message.gathered.empty()) place.layout = message.part;
    // A buffer that one message fills is received in place.
    const Operand to = message.part.type.elements() == graph_.type(message.value).elements()
                           ? place
                           : out_.add_whole({"received part of " + hint(message.value), message.part.type});
    posted.push_back({message.value, receive(message, to, unit.microbatch, phase), place, message.gathered});
  }
}

int Lowering::receive(const RankAssignment::Message& message, const Operand& to, int microbatch,
                      Phase phase) {
  Start receive{0, request_for(CollectiveKind::receive, to, label_of(message.value)), {}, to, phase};
  receive.request.peer = message.peer;
  receive.request.tag = message.tag;
  receive.microbatch = microbatch;
  return out_.start(std::move(receive));
}

void Lowering::send(int stage, int microbatch, Phase phase) {
  std::vector<int> sent;
  for (const RankAssignment::Message& message : assignment_.sends) {
    if (message.stage != stage || message.phase != phase) continue;
    Operand from = operand(message.value, microbatch);
    HET_REQUIRE(from.buffer != kAbsent, hint(message.value), stage, microbatch);
    const Node& node = graph_.nodes[graph_.values[message.value].producer];
    if (!from.layout.is_contiguous()) from = packed(node, from, microbatch);
    const int64_t start = from.layout.offset;
    from.layout = message.part;
    from.layout.offset += start;
    if (!from.layout.is_contiguous()) from = packed(node, from, microbatch);
    Start instruction{0, request_for(CollectiveKind::send, from, label_of(message.value)), from, {}, phase};
    instruction.request.peer = message.peer;
    instruction.request.tag = message.tag;
    instruction.microbatch = microbatch;
    instruction.layer = node.layer;
    sent.push_back(out_.start(std::move(instruction)));
  }
  if (phase == Phase::forward && has_backward()) {
    sent_forward_[{stage, microbatch}] = std::move(sent);
  } else {
    await_sends(sent_backward_[stage]);
    sent_backward_[stage] = std::move(sent);
  }
}

bool Lowering::has_backward() const {
  return std::any_of(assignment_.units.begin(), assignment_.units.end(),
                     [](const WorkUnit& unit) { return unit.kind != WorkUnit::Kind::forward; });
}

void Lowering::await_sends(std::vector<int>& instructions) {
  for (const int instruction : instructions) out_.await(instruction);
  instructions.clear();
}

void Lowering::await_all_sends() {
  for (auto& [key, instructions] : sent_forward_) await_sends(instructions);
  for (auto& [key, instructions] : sent_backward_) await_sends(instructions);
}

}  // namespace het
