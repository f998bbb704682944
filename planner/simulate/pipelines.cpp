// Forwards, backwards and transfers of all pipelines: by events where transfers wait for each other, in the
// order of the operations where they do not.
#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "planner/simulate/state.h"

namespace het::planner {
namespace {

// Megatron's interleaved order (Narayanan et al. 2021, section 2.2): micro-batches in rounds of as many as
// there are device groups; in each round all of a chunk, then the next chunk; backward with chunks reversed.
std::vector<Op> interleaved_order(int worker, int workers, int chunks, int microbatches) {
  const int total = microbatches * chunks;
  const auto chunk = [&](int k) { return k % (workers * chunks) / workers; };
  const int warm =
      std::min(total, microbatches == workers ? total : (workers - worker - 1) * 2 + (chunks - 1) * workers);
  std::vector<Op> order;
  int forward = 0, backward = 0;
  const auto add_forward = [&] { order.push_back({OpKind::forward, chunk(forward++) * workers + worker}); };
  const auto add_backward = [&] {
    order.push_back({OpKind::backward, (chunks - 1 - chunk(backward++)) * workers + worker});
  };
  while (forward < warm) add_forward();
  while (forward < total) {
    add_forward();
    add_backward();
  }
  while (backward < total) add_backward();
  return order;
}

}  // namespace

void order_interleaved(PipelineState& pipeline, int chunks) {
  const auto workers = static_cast<int>(pipeline.workers.size());
  for (int e = 0; e < workers; ++e)
    pipeline.workers[static_cast<size_t>(e)].order =
        interleaved_order(e, workers, chunks, pipeline.microbatches);
}

// The operation that the schedule has next; false when all are done.
bool SimulatorState::next_op(const PipelineState& pipeline, size_t worker, Op& op) const {
  const SimWorker& e = pipeline.workers[worker];
  if (layout->schedule == Schedule::interleaved) {
    if (e.next == e.order.size()) return false;
    op = e.order[e.next];
    return true;
  }
  const StageState& stage = pipeline.stages[worker];
  const int m = pipeline.microbatches, after = static_cast<int>(pipeline.stages.size() - 1 - worker);
  op.stage = static_cast<int>(worker);
  const int in_flight = layout->schedule == Schedule::gpipe ? m : 1 + after * (1 + layout->warmup);
  const bool split = layout->schedule == Schedule::split_backward;
  const int owed = split ? stage.backwards - stage.weights : 0;
  // Weight gradients come when as many wait as this stage holds fewer activations than the first, and in the
  // gaps between the last backwards.
  const bool draining = stage.forwards == m && (stage.backwards == m || e.last == OpKind::backward);
  if (owed > static_cast<int>(worker))
    op.kind = OpKind::weight;
  else if (stage.forwards < m && stage.forwards - stage.backwards < in_flight)
    op.kind = OpKind::forward;
  else if (owed > 0 && draining)
    op.kind = OpKind::weight;
  else
    op.kind = OpKind::backward;
  return op.kind != OpKind::backward || stage.backwards < m;
}

void SimulatorState::try_start(size_t c, size_t worker, double now) {
  PipelineState& pipeline = classes[c];
  SimWorker& e = pipeline.workers[worker];
  Op op;
  if (e.busy || !next_op(pipeline, worker, op)) return;
  StageState& stage = pipeline.stages[static_cast<size_t>(op.stage)];
  double seconds = 0;
  int item = 0;
  switch (op.kind) {
    case OpKind::forward:
      if (stage.forwards_arrived <= stage.forwards) return;
      item = stage.forwards++;
      seconds = stage.forward;
      keep(e, stage);
      break;
    case OpKind::backward:
      if (stage.backwards_arrived <= stage.backwards) return;
      item = stage.backwards++;
      seconds = stage.backward;
      break;
    case OpKind::weight:
      item = stage.weights++;
      seconds = stage.weight;
      break;
  }
  if (op.kind != OpKind::forward) stage.last_start = now;
  if (stage.first_start < 0) stage.first_start = now;
  e.busy = true;
  e.running = op;
  e.last = op.kind;
  e.busy_seconds += seconds;
  ++e.next;
  if (options.events)
    events.push_back({op.kind == OpKind::forward    ? SimEvent::Kind::forward
                      : op.kind == OpKind::backward ? SimEvent::Kind::backward
                                                    : SimEvent::Kind::weight,
                      pipeline.source, op.stage, item, now, now + seconds});
  push(now + seconds, Pending::What::done, static_cast<int>(c), static_cast<int>(worker));
}

std::vector<Ports::Use> SimulatorState::uses_of(const Interfaces& out, const Interfaces& in,
                                                double bytes_per_second) {
  constexpr double kSame = 1 - 1e-9;
  std::vector<Ports::Use> uses;
  for (const bool receives : {false, true}) {
    const Interfaces& own = receives ? in : out;
    for (int i = own.first; i < own.first + own.count; ++i) {
      const int port = 2 * i + receives;
      const double most = costs.mesh ? bytes_per_second : capacity[static_cast<size_t>(i)];
      uses.push_back({port, 1 / (own.count * most)});
      if (bytes_per_second > most * kSame) continue;
      const int fresh = 2 * interfaces + static_cast<int>(link_resources.size());
      const int link = link_resources.emplace(std::pair(port, bytes_per_second), fresh).first->second;
      uses.push_back({link, 1 / (own.count * bytes_per_second)});
      ports.grow(static_cast<size_t>(link) + 1);
    }
  }
  return uses;
}

void SimulatorState::push_changes() {
  for (const Ports::Change& change : ports.changes())
    push(change.end, Pending::What::sent, change.lane, change.version);
  ports.forget_changes();
}

void SimulatorState::carry(size_t c, size_t from, size_t to, int item, double now) {
  const PipelineState& pipeline = classes[c];
  const size_t edge = std::min(from, to);
  int& number = lane_of[2 * (static_cast<size_t>(lane_base[c]) + edge) + (to < from)];
  if (number < 0) {
    const auto& stages = layout->pipelines[static_cast<size_t>(pipeline.source)].stages;
    const Hop* hop = pipeline.hops.empty() ? nullptr : &pipeline.hops[2 * edge + (to < from)];
    const Interfaces& out = hop != nullptr ? hop->out : pipeline.interfaces[from];
    const Interfaces& in = hop != nullptr ? hop->in : pipeline.interfaces[to];
    const Link& link = hop != nullptr ? hop->link : costs.link(stages[from].node, stages[to].node);
    const double bytes = hop != nullptr ? hop->bytes : costs.boundary_before(stages[edge + 1].first);
    number = ports.add_lane(
        uses_of(out, in, link.bytes_per_second),
        {pipeline.microbatches, out.first, in.first, static_cast<int>(edge), static_cast<int>(lanes.size())});
    lanes.push_back({c, from, to, bytes * pipeline.crowd[edge], link.latency_seconds, {}, 0});
  }
  TransferLane& lane = lanes[static_cast<size_t>(number)];
  lane.messages.push_back({item, now});
  if (ports.is_busy(number)) return;
  ports.begin(number, now, lane.bytes, now);
  push_changes();
}

std::optional<Delivered> SimulatorState::deliver(const Pending& pending) {
  const int number = pending.pipeline;
  if (pending.stage != ports.version(number)) return std::nullopt;
  TransferLane& lane = lanes[static_cast<size_t>(number)];
  const TransferLane::Message message = lane.messages[lane.next++];
  const Delivered delivered{lane.pipeline,
                            lane.from,
                            lane.to,
                            message.item,
                            message.came,
                            ports.started(number),
                            pending.time + lane.latency};
  if (lane.next < lane.messages.size())
    ports.follow(number, lane.messages[lane.next].came, lane.bytes, pending.time);
  else
    ports.end(number, pending.time);
  push_changes();
  return delivered;
}

void SimulatorState::send(size_t c, size_t from, size_t to, double now) {
  PipelineState& pipeline = classes[c];
  const bool forward = to > from;
  const size_t edge = std::min(from, to);
  const int item = (forward ? pipeline.stages[from].forwards : pipeline.stages[from].backwards) - 1;
  const Hop* hop = pipeline.hops.empty() ? nullptr : &pipeline.hops[2 * edge + (forward ? 0 : 1)];
  const bool crosses = hop != nullptr ? hop->crosses : pipeline.hosts[from] != pipeline.hosts[to];
  if (options.transfers && crosses)
    carry(c, from, to, item, now);
  else
    arrive({c, from, to, item, now, now, options.transfers ? now + hop_seconds(pipeline, from, to) : now});
}

void SimulatorState::arrive(const Delivered& delivered) {
  const auto& [c, from, to, item, came, start, end] = delivered;
  if (options.events)
    events.push_back({SimEvent::Kind::send, classes[c].source, static_cast<int>(from), item, start, end});
  push(end, to > from ? Pending::What::forward_arrives : Pending::What::backward_arrives, static_cast<int>(c),
       static_cast<int>(to));
}

// With what stays inside hosts, beside it and after it.
Delivered SimulatorState::gathered(Delivered delivered) const {
  const PipelineState& pipeline = classes[delivered.pipeline];
  const size_t edge = std::min(delivered.from, delivered.to);
  if (!pipeline.hops.empty()) {
    const Hop& hop = pipeline.hops[2 * edge + (delivered.to < delivered.from)];
    delivered.end = std::max(delivered.end, delivered.came + hop.inside_seconds) + hop.gather_seconds;
    return delivered;
  }
  const auto& stages = layout->pipelines[static_cast<size_t>(pipeline.source)].stages;
  const double bytes = costs.boundary_before(stages[edge + 1].first);
  delivered.end += gather_seconds(stages[delivered.to].node, bytes, costs.tensor);
  return delivered;
}

void SimulatorState::finish(size_t c, const Pending& pending) {
  PipelineState& pipeline = classes[c];
  const auto worker = static_cast<size_t>(pending.stage);
  SimWorker& e = pipeline.workers[worker];
  e.busy = false;
  e.end = pending.time;
  const auto s = static_cast<size_t>(e.running.stage);
  StageState& stage = pipeline.stages[s];
  const bool split = layout->schedule == Schedule::split_backward;
  if (e.running.kind == OpKind::forward) {
    if (s + 1 < pipeline.stages.size())
      send(c, s, s + 1, pending.time);
    else
      ++stage.backwards_arrived;
  } else if (e.running.kind == OpKind::backward && s > 0) {
    send(c, s, s - 1, pending.time);
  }
  if (e.running.kind == (split ? OpKind::weight : OpKind::backward)) {
    let_go(e, stage);
  }
  try_start(c, worker, pending.time);
}

void SimulatorState::run_pipelines() {
  for (size_t c = 0; c < classes.size(); ++c)
    for (size_t e = 0; e < classes[c].workers.size(); ++e) try_start(c, e, 0);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Later{});
    const Pending pending = heap.back();
    heap.pop_back();
    const auto c = static_cast<size_t>(pending.pipeline);
    if (pending.what == Pending::What::done) {
      finish(c, pending);
      continue;
    }
    if (pending.what == Pending::What::sent) {
      if (const auto delivered = deliver(pending)) arrive(gathered(*delivered));
      continue;
    }
    StageState& stage = classes[c].stages[static_cast<size_t>(pending.stage)];
    ++(pending.what == Pending::What::forward_arrives ? stage.forwards_arrived : stage.backwards_arrived);
    try_start(c, static_cast<size_t>(pending.stage) % classes[c].workers.size(), pending.time);
  }
}

// Of one boundary between neighbouring stages when nothing else is under way.
double SimulatorState::hop_seconds(const PipelineState& pipeline, size_t from, size_t to) const {
  if (!pipeline.hops.empty()) return pipeline.hops[2 * std::min(from, to) + (from < to ? 0 : 1)].seconds();
  const auto& stages = layout->pipelines[static_cast<size_t>(pipeline.source)].stages;
  const StageLayout& before = stages[std::min(from, to)];
  const double bytes = costs.boundary_before(stages[std::max(from, to)].first);
  if (pipeline.hosts[from] == pipeline.hosts[to])
    return costs.nodes[static_cast<size_t>(before.node)].inside.seconds(bytes);
  const int lanes = std::min(pipeline.interfaces[from].count, pipeline.interfaces[to].count);
  return costs.link(stages[from].node, stages[to].node).seconds(bytes / lanes) +
         gather_seconds(stages[to].node, bytes, costs.tensor);
}

// All operations of a group whose input is known to arrive; whether there was one.
bool SimulatorState::run_ahead(PipelineState& pipeline, size_t worker) {
  SimWorker& e = pipeline.workers[worker];
  const auto arrival = [&](size_t s, bool backward, int item) -> double& {
    return arrivals[(2 * s + backward) * static_cast<size_t>(pipeline.microbatches) +
                    static_cast<size_t>(item)];
  };
  bool moved = false;
  for (Op op; next_op(pipeline, worker, op); moved = true) {
    const auto s = static_cast<size_t>(op.stage);
    StageState& stage = pipeline.stages[s];
    const bool last = s + 1 == pipeline.stages.size();
    double start = e.end, seconds = stage.weight;
    if (op.kind == OpKind::forward) {
      if (stage.forwards_arrived <= stage.forwards) break;
      const int item = stage.forwards++;
      seconds = stage.forward;
      if (s > 0) start = std::max(start, arrival(s, false, item));
      keep(e, stage);
      if (last) {
        ++stage.backwards_arrived;
        arrival(s, true, item) = start + seconds;
      } else {
        arrival(s + 1, false, pipeline.stages[s + 1].forwards_arrived++) = start + seconds + stage.hop;
      }
    } else if (op.kind == OpKind::backward) {
      if (stage.backwards_arrived <= stage.backwards) break;
      start = std::max(start, arrival(s, true, stage.backwards++));
      seconds = stage.backward;
      if (s > 0) {
        StageState& to = pipeline.stages[s - 1];
        arrival(s - 1, true, to.backwards_arrived++) = start + seconds + stage.hop_back;
      }
    } else {
      ++stage.weights;
    }
    if (op.kind == (layout->schedule == Schedule::split_backward ? OpKind::weight : OpKind::backward))
      let_go(e, stage);
    if (op.kind != OpKind::forward) stage.last_start = start;
    if (stage.first_start < 0) stage.first_start = start;
    e.last = op.kind;
    e.busy_seconds += seconds;
    e.end = start + seconds;
    ++e.next;
  }
  return moved;
}

// One pipeline without contention: groups in turn, forth and back as micro-batches go.
const PipelineState& SimulatorState::run_apart(const std::vector<int>& key, size_t source) {
  constexpr size_t kMost = 4096;
  if (known_apart.size() >= kMost) known_apart.clear();
  const auto [entry, fresh] = known_apart.try_emplace(key);
  PipelineState& pipeline = entry->second;
  if (!fresh) return pipeline;
  fill(pipeline, source);
  const size_t stages = pipeline.stages.size(), workers = pipeline.workers.size();
  arrivals.resize(std::max(arrivals.size(), 2 * stages * static_cast<size_t>(pipeline.microbatches)));
  for (size_t s = 0; s < stages; ++s) {
    if (s + 1 < stages) pipeline.stages[s].hop = hop_seconds(pipeline, s, s + 1);
    if (s > 0) pipeline.stages[s].hop_back = hop_seconds(pipeline, s, s - 1);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t e = 0; e < workers; ++e) moved = run_ahead(pipeline, e) || moved;
    for (size_t e = workers; e-- > 0;) moved = run_ahead(pipeline, e) || moved;
  }
  for (SimWorker& worker : pipeline.workers) worker.order = {};
  return pipeline;
}

void SimulatorState::check_done() const {
  for (const PipelineState& pipeline : classes)
    for (const StageState& stage : pipeline.stages)
      HET_REQUIRE(stage.backwards == pipeline.microbatches, pipeline.source, stage.forwards, stage.backwards);
}

}  // namespace het::planner
