#include "planner/simulate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>

#include "core/base/error.h"

namespace het::planner {
namespace {

enum class OpKind : uint8_t { forward, backward, weight };
struct Op {
  OpKind kind = OpKind::forward;
  int stage = 0;
};

struct Pending {
  double time = 0;
  uint32_t sequence = 0;
  enum class What : uint8_t { done, forward_arrives, backward_arrives } what = What::done;
  int pipeline = 0, stage = 0;
};
bool later(const Pending& a, const Pending& b) {
  return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
}

// One stage of a pipeline while it runs.
struct StageState {
  double forward = 0, input = 0, weight = 0,
         backward = 0;                           // seconds; backward with recompute, without split weights
  int forwards = 0, backwards = 0, weights = 0;  // done or begun
  int forwards_arrived = 0, backwards_arrived = 0;
  int held = 0, peak = 0;
  double held_bytes = 0;  // of one micro-batch in flight
  double last_start = 0;  // of the last operation that completes gradients
  double first_start = -1;
  double hop = 0, hop_back = 0;  // seconds to the next stage and to the one before; without contention
};

struct HashOfKey {
  size_t operator()(const std::vector<int>& key) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a, a word at a time
    for (const int word : key) hash = (hash ^ static_cast<uint32_t>(word)) * 1099511628211u;
    return static_cast<size_t>(hash ^ hash >> 32);
  }
};

// One device group; with interleaving it runs several stages.
struct Executor {
  bool busy = false;
  Op running;
  double busy_seconds = 0, end = 0;
  double held_bytes = 0, peak_bytes = 0;  // of micro-batches in flight, all its stages' together
  OpKind last = OpKind::forward;
  std::vector<Op> order;  // interleaved only
  size_t next = 0;
};

// A micro-batch begins, or ends, to keep activations.
void keep(Executor& executor, StageState& stage) {
  stage.peak = std::max(stage.peak, ++stage.held);
  executor.held_bytes += stage.held_bytes;
  executor.peak_bytes = std::max(executor.peak_bytes, executor.held_bytes);
}
void let_go(Executor& executor, StageState& stage) {
  --stage.held;
  executor.held_bytes -= stage.held_bytes;
}

struct PipelineState {
  int source = 0;  // index of the layout's pipeline that stands for the class
  int microbatches = 0;
  std::vector<StageState> stages;
  std::vector<Executor> executors;
  std::vector<int> hosts;     // port of each stage
  std::vector<double> crowd;  // pipelines of the class that share the port of the transfer stage -> stage + 1
};

// Megatron's interleaved order (Narayanan et al. 2021, section 2.2): micro-batches in rounds of as many as
// there are device groups; in each round all of a chunk, then the next chunk; backward with chunks reversed.
std::vector<Op> interleaved_order(int executor, int executors, int chunks, int microbatches) {
  const int total = microbatches * chunks;
  const auto chunk = [&](int k) { return k % (executors * chunks) / executors; };
  const int warm = std::min(
      total, microbatches == executors ? total : (executors - executor - 1) * 2 + (chunks - 1) * executors);
  std::vector<Op> order;
  int forward = 0, backward = 0;
  const auto add_forward = [&] {
    order.push_back({OpKind::forward, chunk(forward++) * executors + executor});
  };
  const auto add_backward = [&] {
    order.push_back({OpKind::backward, (chunks - 1 - chunk(backward++)) * executors + executor});
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

std::string_view name_of(SimEvent::Kind kind) {
  switch (kind) {
    case SimEvent::Kind::forward: return "forward";
    case SimEvent::Kind::backward: return "backward";
    case SimEvent::Kind::weight: return "weight gradient";
    case SimEvent::Kind::send: return "send";
    case SimEvent::Kind::reduce: return "reduce";
    case SimEvent::Kind::update: return "update";
    case SimEvent::Kind::gather: return "gather";
  }
  return "unknown";
}

struct Simulator::State {
  const CostTable& costs;
  std::vector<int> host_base;  // first port of each node
  int ports = 0;

  const Layout* layout = nullptr;
  SimulateOptions options;
  std::vector<PipelineState> classes;
  std::vector<int> class_of;  // of each pipeline of the layout
  std::vector<Pending> heap;
  uint32_t sequence = 0;
  std::vector<double> out_free, in_free;  // by port
  std::vector<int> out_users;
  // Without contention: [stage, forward or backward, micro-batch]; and pipelines that were run before, by
  // schedule, micro-batches, stages. Searches come back to the same ones again and again.
  std::vector<double> arrivals;
  std::unordered_map<std::vector<int>, PipelineState, HashOfKey> known_apart;
  std::map<std::pair<size_t, int>, int>
      crossings;  // (2 * stage + end, port) -> pipelines; blocking transfers
  std::vector<SimEvent> events;

  // Of the synchronisation, by pipeline and stage: [stage_base[p] + s]
  std::vector<int> stage_base;
  std::vector<double> stream_free, synced, optimizer_bytes, update_seconds;
  std::vector<int> port_stamp, port_count;
  int stamp = 0;

  State(const CostTable& costs_, const Cluster& cluster) : costs(costs_) {
    for (const Node& node : cluster.nodes) {
      host_base.push_back(ports);
      ports += static_cast<int>(node.hosts.size());
    }
    port_stamp.assign(static_cast<size_t>(ports), 0);
    port_count.assign(static_cast<size_t>(ports), 0);
  }

  int port(const StageLayout& stage) const { return host_base[static_cast<size_t>(stage.node)] + stage.host; }
  size_t at(size_t pipeline, size_t stage) const { return static_cast<size_t>(stage_base[pipeline]) + stage; }
  const PipelineState& class_at(size_t pipeline) const {
    return classes[static_cast<size_t>(class_of[pipeline])];
  }

  void push(double time, Pending::What what, int pipeline, int stage) {
    heap.push_back({time, sequence++, what, pipeline, stage});
    std::push_heap(heap.begin(), heap.end(), later);
  }

  void prepare(const Layout& given, const SimulateOptions& with);
  void classify();
  double blocking_seconds(size_t pipeline, size_t stage) const;
  void fill(PipelineState& state, size_t source);
  bool next_op(const PipelineState& pipeline, size_t executor, Op& op) const;
  void try_start(size_t c, size_t executor, double now);
  void finish(size_t c, const Pending& pending);
  void send(size_t c, size_t from, size_t to, double now);
  void run_pipelines();
  double hop_seconds(const PipelineState& pipeline, size_t from, size_t to) const;
  bool run_ahead(PipelineState& pipeline, size_t executor);
  const PipelineState& run_apart(const std::vector<int>& key, size_t source);
  void check_done() const;
  double synchronise(double compute_end, Simulation& result);
  double gradient_ready(const PipelineState& pipeline, const StageLayout& stage, size_t s, int layer) const;
};

void Simulator::State::prepare(const Layout& given, const SimulateOptions& with) {
  layout = &given;
  options = with;
  HET_REQUIRE(costs.tensor == given.tensor && costs.microbatch == given.microbatch, costs.tensor,
              costs.microbatch, given.tensor, given.microbatch);
  heap.clear();
  events.clear();
  sequence = 0;
  out_free.assign(static_cast<size_t>(ports), 0);
  in_free.assign(static_cast<size_t>(ports), 0);
  stage_base.clear();
  int stages = 0;
  for (const PipelineLayout& pipeline : given.pipelines) {
    stage_base.push_back(stages);
    stages += static_cast<int>(pipeline.stages.size());
  }
  for (auto* values : {&stream_free, &synced, &optimizer_bytes, &update_seconds})
    values->assign(static_cast<size_t>(stages), 0);
  classify();
}

// Which pipelines are alike, and whether one may stand for all of them.
void Simulator::State::classify() {
  int64_t tasks = 0;
  bool shared = false;
  out_users.assign(static_cast<size_t>(ports), -1);
  const auto& pipelines = layout->pipelines;
  for (size_t p = 0; p < pipelines.size(); ++p) {
    const auto& stages = pipelines[p].stages;
    tasks += static_cast<int64_t>(pipelines[p].microbatches) * static_cast<int64_t>(stages.size());
    for (size_t s = 0; s < stages.size(); ++s) {
      const bool leaves = (s + 1 < stages.size() && port(stages[s]) != port(stages[s + 1])) ||
                          (s > 0 && port(stages[s]) != port(stages[s - 1]));
      if (!leaves) continue;
      int& user = out_users[static_cast<size_t>(port(stages[s]))];
      if (user >= 0 && user != static_cast<int>(p)) shared = true;
      user = static_cast<int>(p);
    }
  }
  crossings.clear();
  if (options.blocking_transfers)
    for (const PipelineLayout& pipeline : pipelines)
      for (size_t s = 0; s + 1 < pipeline.stages.size(); ++s) {
        if (port(pipeline.stages[s]) == port(pipeline.stages[s + 1])) continue;
        for (const size_t end : {s, s + 1}) ++crossings[{s + end, port(pipeline.stages[end])}];
      }
  shared = shared && options.contention;
  const bool merge = !options.events && (!shared || tasks > options.merge_above);
  class_of.clear();
  size_t used = 0;
  std::map<std::vector<int>, int> known;
  std::map<std::pair<int, int>, int> crowds;  // (class * stages + stage, port) -> pipelines
  std::vector<int> key;
  for (size_t p = 0; p < pipelines.size(); ++p) {
    int index = static_cast<int>(used);
    if (merge) {
      key.assign(
          {pipelines[p].microbatches, static_cast<int>(layout->schedule), layout->warmup, layout->chunks});
      const auto& stages = pipelines[p].stages;
      for (size_t s = 0; s < stages.size(); ++s)
        key.insert(key.end(), {stages[s].node, stages[s].first, stages[s].layers, stages[s].recompute,
                               s > 0 && port(stages[s]) == port(stages[s - 1])});
      index = known.emplace(key, index).first->second;
    }
    if (index == static_cast<int>(used)) {
      if (classes.size() <= used) classes.emplace_back();
      if (options.contention)
        fill(classes[used], p);
      else
        classes[used] = run_apart(key, p);
      ++used;
    }
    class_of.push_back(index);
    if (merge && shared)
      for (size_t s = 0; s + 1 < pipelines[p].stages.size(); ++s) {
        if (port(pipelines[p].stages[s]) == port(pipelines[p].stages[s + 1])) continue;
        for (const size_t end : {s, s + 1}) {
          const int crowd =
              ++crowds[{index * 4096 + static_cast<int>(2 * s + (end - s)), port(pipelines[p].stages[end])}];
          double& most = classes[static_cast<size_t>(index)].crowd[s];
          most = std::max(most, static_cast<double>(crowd));
        }
      }
  }
  classes.resize(used);
}

// Of one micro-batch's boundary from a stage to the next, when all pipelines that share a port send at once.
double Simulator::State::blocking_seconds(size_t pipeline, size_t stage) const {
  const StageLayout &a = layout->pipelines[pipeline].stages[stage],
                    &b = layout->pipelines[pipeline].stages[stage + 1];
  const double bytes = costs.boundary[static_cast<size_t>(a.first + a.layers - 1)];
  if (port(a) == port(b))
    return costs.nodes[static_cast<size_t>(a.node)].inside.seconds(bytes / costs.tensor);
  const int crowd = std::max(crossings.at({2 * stage, port(a)}), crossings.at({2 * stage + 1, port(b)}));
  return costs.link(a.node, b.node).seconds(bytes * crowd);
}

void Simulator::State::fill(PipelineState& state, size_t source) {
  const PipelineLayout& from = layout->pipelines[source];
  const size_t stages = from.stages.size(), executors = stages / static_cast<size_t>(layout->chunks);
  state.source = static_cast<int>(source);
  state.microbatches = from.microbatches;
  state.stages.assign(stages, {});
  state.executors.assign(executors, {});
  state.crowd.assign(stages, 1);
  state.hosts.clear();
  for (size_t s = 0; s < stages; ++s) {
    const StageLayout& stage = from.stages[s];
    const NodeCosts& node = costs.nodes[static_cast<size_t>(stage.node)];
    const auto first = static_cast<size_t>(stage.first), last = first + static_cast<size_t>(stage.layers);
    StageState& to = state.stages[s];
    to.forward = node.forward[last] - node.forward[first];
    to.input = node.input[last] - node.input[first];
    to.weight = node.weight[last] - node.weight[first];
    to.backward = to.input + (stage.recompute ? node.recompute[last] - node.recompute[first] : 0) +
                  (layout->schedule == Schedule::split_backward ? 0 : to.weight);
    to.held_bytes = costs.held_bytes(stage.first, stage.first + stage.layers, stage.recompute);
    state.hosts.push_back(port(stage));
  }
  if (options.blocking_transfers)
    for (size_t s = 0; s + 1 < stages; ++s) {
      const double seconds = blocking_seconds(source, s);
      for (const size_t end : {s, s + 1}) {
        state.stages[end].forward += seconds;
        state.stages[end].backward += seconds;
      }
    }
  state.stages[0].forwards_arrived = from.microbatches;
  if (layout->schedule == Schedule::interleaved)
    for (size_t e = 0; e < executors; ++e)
      state.executors[e].order = interleaved_order(static_cast<int>(e), static_cast<int>(executors),
                                                   layout->chunks, from.microbatches);
}

// The operation that the schedule has next; false when all are done.
bool Simulator::State::next_op(const PipelineState& pipeline, size_t executor, Op& op) const {
  const Executor& e = pipeline.executors[executor];
  if (layout->schedule == Schedule::interleaved) {
    if (e.next == e.order.size()) return false;
    op = e.order[e.next];
    return true;
  }
  const StageState& stage = pipeline.stages[executor];
  const int m = pipeline.microbatches, after = static_cast<int>(pipeline.stages.size() - 1 - executor);
  op.stage = static_cast<int>(executor);
  const int in_flight = layout->schedule == Schedule::gpipe ? m : 1 + after * (1 + layout->warmup);
  const bool split = layout->schedule == Schedule::split_backward;
  const int owed = split ? stage.backwards - stage.weights : 0;
  // Weight gradients come when as many wait as this stage holds fewer activations than the first, and in the
  // gaps between the last backwards.
  const bool draining = stage.forwards == m && (stage.backwards == m || e.last == OpKind::backward);
  if (owed > static_cast<int>(executor))
    op.kind = OpKind::weight;
  else if (stage.forwards < m && stage.forwards - stage.backwards < in_flight)
    op.kind = OpKind::forward;
  else if (owed > 0 && draining)
    op.kind = OpKind::weight;
  else
    op.kind = OpKind::backward;
  return op.kind != OpKind::backward || stage.backwards < m;
}

void Simulator::State::try_start(size_t c, size_t executor, double now) {
  PipelineState& pipeline = classes[c];
  Executor& e = pipeline.executors[executor];
  Op op;
  if (e.busy || !next_op(pipeline, executor, op)) return;
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
  push(now + seconds, Pending::What::done, static_cast<int>(c), static_cast<int>(executor));
}

void Simulator::State::send(size_t c, size_t from, size_t to, double now) {
  PipelineState& pipeline = classes[c];
  const auto& stages = layout->pipelines[static_cast<size_t>(pipeline.source)].stages;
  const bool forward = to > from;
  const size_t edge = std::min(from, to);
  const int border = stages[edge].first + stages[edge].layers - 1;
  const double bytes = costs.boundary[static_cast<size_t>(border)];
  const auto what = forward ? Pending::What::forward_arrives : Pending::What::backward_arrives;
  const int a = pipeline.hosts[from], b = pipeline.hosts[to];
  double start = now, end = now;
  if (options.blocking_transfers) {
    // Counted in the operations at both ends.
  } else if (a == b) {
    end = now + costs.nodes[static_cast<size_t>(stages[from].node)].inside.seconds(bytes / costs.tensor);
  } else {
    const Link& link = costs.link(stages[from].node, stages[to].node);
    double& out = out_free[static_cast<size_t>(a)];
    double& in = in_free[static_cast<size_t>(b)];
    start = std::max({now, out, in});
    out = in = start + bytes * pipeline.crowd[edge] / link.bytes_per_second;
    end = out + link.latency_seconds;
  }
  if (options.events)
    events.push_back({SimEvent::Kind::send, pipeline.source, static_cast<int>(from),
                      (forward ? pipeline.stages[from].forwards : pipeline.stages[from].backwards) - 1, start,
                      end});
  push(end, what, static_cast<int>(c), static_cast<int>(to));
}

void Simulator::State::finish(size_t c, const Pending& pending) {
  PipelineState& pipeline = classes[c];
  const auto executor = static_cast<size_t>(pending.stage);
  Executor& e = pipeline.executors[executor];
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
  try_start(c, executor, pending.time);
}

void Simulator::State::run_pipelines() {
  for (size_t c = 0; c < classes.size(); ++c)
    for (size_t e = 0; e < classes[c].executors.size(); ++e) try_start(c, e, 0);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Pending pending = heap.back();
    heap.pop_back();
    const auto c = static_cast<size_t>(pending.pipeline);
    if (pending.what == Pending::What::done) {
      finish(c, pending);
      continue;
    }
    StageState& stage = classes[c].stages[static_cast<size_t>(pending.stage)];
    ++(pending.what == Pending::What::forward_arrives ? stage.forwards_arrived : stage.backwards_arrived);
    try_start(c, static_cast<size_t>(pending.stage) % classes[c].executors.size(), pending.time);
  }
}

// Of one boundary between neighbouring stages when nothing else is under way.
double Simulator::State::hop_seconds(const PipelineState& pipeline, size_t from, size_t to) const {
  const auto& stages = layout->pipelines[static_cast<size_t>(pipeline.source)].stages;
  const StageLayout& before = stages[std::min(from, to)];
  const double bytes = costs.boundary[static_cast<size_t>(before.first + before.layers - 1)];
  return pipeline.hosts[from] == pipeline.hosts[to]
             ? costs.nodes[static_cast<size_t>(before.node)].inside.seconds(bytes / costs.tensor)
             : costs.link(stages[from].node, stages[to].node).seconds(bytes);
}

// All operations of a group whose input is known to arrive; whether there was one.
bool Simulator::State::run_ahead(PipelineState& pipeline, size_t executor) {
  Executor& e = pipeline.executors[executor];
  const auto arrival = [&](size_t s, bool backward, int item) -> double& {
    return arrivals[(2 * s + backward) * static_cast<size_t>(pipeline.microbatches) +
                    static_cast<size_t>(item)];
  };
  bool moved = false;
  for (Op op; next_op(pipeline, executor, op); moved = true) {
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
const PipelineState& Simulator::State::run_apart(const std::vector<int>& key, size_t source) {
  constexpr size_t kMost = 4096;
  if (known_apart.size() >= kMost) known_apart.clear();
  const auto [entry, fresh] = known_apart.try_emplace(key);
  PipelineState& pipeline = entry->second;
  if (!fresh) return pipeline;
  fill(pipeline, source);
  const size_t stages = pipeline.stages.size(), executors = pipeline.executors.size();
  arrivals.resize(std::max(arrivals.size(), 2 * stages * static_cast<size_t>(pipeline.microbatches)));
  for (size_t s = 0; s < stages; ++s) {
    if (s + 1 < stages) pipeline.stages[s].hop = hop_seconds(pipeline, s, s + 1);
    if (s > 0) pipeline.stages[s].hop_back = hop_seconds(pipeline, s, s - 1);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t e = 0; e < executors; ++e) moved = run_ahead(pipeline, e) || moved;
    for (size_t e = executors; e-- > 0;) moved = run_ahead(pipeline, e) || moved;
  }
  for (Executor& executor : pipeline.executors) executor.order = {};
  return pipeline;
}

void Simulator::State::check_done() const {
  for (const PipelineState& pipeline : classes)
    for (const StageState& stage : pipeline.stages)
      HET_REQUIRE(stage.backwards == pipeline.microbatches, pipeline.source, stage.forwards, stage.backwards);
}

// When the last micro-batch has run backward through `layer`, which is in stage s.
double Simulator::State::gradient_ready(const PipelineState& pipeline, const StageLayout& stage, size_t s,
                                        int layer) const {
  const NodeCosts& node = costs.nodes[static_cast<size_t>(stage.node)];
  const int end = stage.first + stage.layers;
  const auto l = static_cast<size_t>(layer), last = static_cast<size_t>(end);
  double seconds = node.weight[last] - node.weight[l];
  if (layout->schedule != Schedule::split_backward)
    seconds +=
        node.input[last] - node.input[l] + (stage.recompute ? node.recompute[last] - node.recompute[l] : 0);
  return pipeline.stages[s].last_start + seconds;
}

// Gradient synchronisation, update, and gathering of sharded weights; returns the end of the step.
double Simulator::State::synchronise(double compute_end, Simulation& result) {
  const auto& pipelines = layout->pipelines;
  const int layers = costs.layers;
  const size_t replicas = pipelines.size();
  std::vector<int> holder(replicas *
                          static_cast<size_t>(layers));  // stage of each pipeline that holds a layer
  std::vector<double> ready(static_cast<size_t>(layers), 0);
  std::vector<int> order;
  for (size_t p = 0; p < replicas; ++p)
    for (size_t s = 0; s < pipelines[p].stages.size(); ++s) {
      const StageLayout& stage = pipelines[p].stages[s];
      for (int layer = stage.first; layer < stage.first + stage.layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        holder[l * replicas + p] = static_cast<int>(s);
        ready[l] = std::max(ready[l], gradient_ready(class_at(p), stage, s, layer));
      }
    }
  for (int layer = layers - 1; layer >= 0; --layer) order.push_back(layer);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return ready[static_cast<size_t>(a)] < ready[static_cast<size_t>(b)];
  });

  struct Group {  // who exchanges a layer, or a number of each
    int hosts = 0, most_in_host = 0;
    Link slowest, inside;
    // Of a mesh: the longest latency, and the mean pace at which the slowest member reaches the others.
    Link mesh;
  };
  std::vector<const StageLayout*> members;
  std::vector<int> at_node;
  const auto mesh_of_members = [&] {
    at_node.assign(costs.nodes.size(), 0);
    for (const StageLayout* member : members) ++at_node[static_cast<size_t>(member->node)];
    double latency = 0, longest = 0;  // of a member: seconds for a byte to each other
    for (const StageLayout* member : members) {
      const auto node = static_cast<size_t>(member->node);
      const int here = port_count[static_cast<size_t>(port(*member))];
      double seconds = 0;
      const auto add = [&](int others, const Link& link) {
        if (others == 0) return;
        seconds += others / link.bytes_per_second;
        latency = std::max(latency, link.latency_seconds);
      };
      add(here - 1, costs.nodes[node].inside);
      for (size_t other = 0; other < at_node.size(); ++other)
        add(at_node[other] - (other == node ? here : 0), costs.link(member->node, static_cast<int>(other)));
      longest = std::max(longest, seconds);
    }
    return Link{latency, longest > 0 ? static_cast<double>(members.size() - 1) / longest : 0};
  };
  const auto group_of_members = [&] {
    Group group;
    ++stamp;
    uint64_t nodes = 0, twice = 0;  // nodes that take part, with two hosts or more
    for (const StageLayout* member : members) {
      const StageLayout& stage = *member;
      const auto at_port = static_cast<size_t>(port(stage));
      if (port_stamp[at_port] != stamp) {
        port_stamp[at_port] = stamp;
        port_count[at_port] = 0;
        ++group.hosts;
        const uint64_t bit = uint64_t{1} << (stage.node % 64);
        twice |= nodes & bit;
        nodes |= bit;
      }
      group.most_in_host = std::max(group.most_in_host, ++port_count[at_port]);
      const Link& inside = costs.nodes[static_cast<size_t>(stage.node)].inside;
      if (group.inside.bytes_per_second == 0 || inside.bytes_per_second < group.inside.bytes_per_second)
        group.inside = inside;
    }
    const int count = static_cast<int>(costs.nodes.size());
    for (int a = 0; a < count; ++a)
      for (int b = a; b < count; ++b) {
        if (!(nodes >> (a % 64) & 1) || !(nodes >> (b % 64) & 1) || (a == b && !(twice >> (a % 64) & 1)))
          continue;
        const Link& link = costs.link(a, b);
        if (link.bytes_per_second == 0) continue;
        if (group.slowest.bytes_per_second == 0 || link.bytes_per_second < group.slowest.bytes_per_second)
          group.slowest.bytes_per_second = link.bytes_per_second;
        group.slowest.latency_seconds = std::max(group.slowest.latency_seconds, link.latency_seconds);
      }
    if (costs.mesh) group.mesh = mesh_of_members();
    return group;
  };
  const auto group_of = [&](size_t l) {
    members.clear();
    for (size_t p = 0; p < replicas; ++p)
      members.push_back(&pipelines[p].stages[static_cast<size_t>(holder[l * replicas + p])]);
    return group_of_members();
  };
  // One exchange of a layer among its holders from `earliest`.
  const auto exchange = [&](size_t l, const Group& group, CollectiveKind collective, double bytes,
                            double earliest, SimEvent::Kind kind) {
    double local = 0, remote = 0;
    const auto seconds = [&](const Link& link, int members, double of) {
      return collective_seconds(collective, costs.mesh, link, members, of);
    };
    if (costs.mesh) {
      // Every device of a tensor-parallel group is in a mesh of its own, and has its own way out.
      (group.hosts > 1 ? remote : local) = seconds(group.mesh, static_cast<int>(replicas), bytes);
    } else {
      if (group.most_in_host > 1) local = seconds(group.inside, group.most_in_host, bytes);
      if (group.hosts > 1) remote = seconds(group.slowest, group.hosts, bytes * costs.tensor);
    }
    double start = earliest;
    for (size_t p = 0; p < replicas; ++p) {
      const auto s = static_cast<size_t>(holder[l * replicas + p]);
      start = std::max(start, stream_free[at(p, s)]);
      if (group.hosts > 1)
        start = std::max(start, out_free[static_cast<size_t>(port(pipelines[p].stages[s]))] - local / 2);
    }
    for (size_t p = 0; p < replicas; ++p) {
      const auto s = static_cast<size_t>(holder[l * replicas + p]);
      stream_free[at(p, s)] = start + local + remote;
      if (group.hosts > 1)
        out_free[static_cast<size_t>(port(pipelines[p].stages[s]))] = start + local / 2 + remote;
      synced[at(p, s)] = std::max(synced[at(p, s)], start + local + remote);
      if (options.events)
        events.push_back({kind, static_cast<int>(p), static_cast<int>(s), static_cast<int>(l), start,
                          start + local + remote});
    }
  };

  const auto same_holders = [&](size_t a, size_t b) {
    const auto at_a = holder.begin() + static_cast<std::ptrdiff_t>(a * replicas);
    return std::equal(at_a, at_a + static_cast<std::ptrdiff_t>(replicas),
                      holder.begin() + static_cast<std::ptrdiff_t>(b * replicas));
  };
  const auto layer_parameters = [&](size_t l) { return costs.parameters[l + 1] - costs.parameters[l]; };
  std::fill(out_free.begin(), out_free.end(), 0);
  std::vector<Group> groups(static_cast<size_t>(layers));
  for (int layer = 0; layer < layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    groups[l] = layer == 0 || !same_holders(l - 1, l) ? group_of(l) : groups[l - 1];
    double shares = 0;
    for (size_t p = 0; p < replicas; ++p)
      shares += pipelines[p].stages[static_cast<size_t>(holder[l * replicas + p])].share;
    for (size_t p = 0; p < replicas; ++p) {
      const auto s = static_cast<size_t>(holder[l * replicas + p]);
      const StageLayout& stage = pipelines[p].stages[s];
      const double part = layout->sharded_optimizer ? stage.share / std::max(shares, 1.0) : 1;
      const NodeCosts& node = costs.nodes[static_cast<size_t>(stage.node)];
      optimizer_bytes[at(p, s)] += part * layer_parameters(l) * costs.optimizer_bytes;
      update_seconds[at(p, s)] += part * (node.update[l + 1] - node.update[l]);
    }
  }
  const CollectiveKind sum =
      layout->sharded_optimizer ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
  if (replicas > 1 && options.late_reductions) {
    const auto count = static_cast<size_t>(layers);
    for (size_t first = 0, end = 0; first < count; first = end) {
      for (end = first + 1; end < count && same_holders(first, end);) ++end;
      exchange(first, groups[first], sum,
               (costs.parameters[end] - costs.parameters[first]) * costs.gradient_bytes, compute_end,
               SimEvent::Kind::reduce);
    }
  } else if (replicas > 1) {
    for (const int layer : order) {
      const auto l = static_cast<size_t>(layer);
      exchange(l, groups[l], sum, layer_parameters(l) * costs.gradient_bytes, ready[l],
               SimEvent::Kind::reduce);
    }
  }
  // When each device group has its sums. In a mesh latencies are worth counting: nobody updates before
  // everybody has the norms of all ranks' gradients.
  std::vector<double> summed;
  double end = compute_end, reduced = compute_end, known = 0;
  for (size_t p = 0; p < replicas; ++p) {
    const PipelineState& state = class_at(p);
    const size_t executors = state.executors.size();
    for (size_t e = 0; e < executors; ++e) {
      summed.push_back(state.executors[e].end);
      for (size_t s = e; s < state.stages.size(); s += executors)
        summed.back() = std::max(summed.back(), synced[at(p, s)]);
      reduced = std::max(reduced, summed.back());
    }
  }
  if (costs.mesh) {
    members.clear();
    for (const PipelineLayout& pipeline : pipelines)
      for (size_t e = 0; e < pipeline.stages.size() / static_cast<size_t>(layout->chunks); ++e)
        members.insert(members.end(), static_cast<size_t>(costs.tensor), &pipeline.stages[e]);
    known = reduced + collective_seconds(CollectiveKind::all_gather, true, group_of_members().mesh,
                                         static_cast<int>(members.size()), 0);
  }
  auto begins = summed.begin();
  for (size_t p = 0; p < replicas; ++p) {
    const PipelineState& state = class_at(p);
    const size_t executors = state.executors.size();
    for (size_t e = 0; e < executors; ++e) {
      const double start = std::max(*begins++, known);
      double seconds = 0;
      for (size_t s = e; s < state.stages.size(); s += executors) seconds += update_seconds[at(p, s)];
      for (size_t s = e; s < state.stages.size(); s += executors) {
        synced[at(p, s)] = start + seconds;
        stream_free[at(p, s)] = start + seconds;
      }
      if (options.events)
        events.push_back(
            {SimEvent::Kind::update, static_cast<int>(p), static_cast<int>(e), 0, start, start + seconds});
      result.update_seconds = std::max(result.update_seconds, seconds);
      end = std::max(end, start + seconds);
    }
  }
  const double updated = end;
  if (layout->sharded_optimizer && replicas > 1) {
    std::fill(out_free.begin(), out_free.end(), 0);
    for (int layer = 0; layer < layers; ++layer) {
      const auto l = static_cast<size_t>(layer);
      exchange(l, groups[l], CollectiveKind::all_gather, layer_parameters(l) * costs.weight_bytes, 0,
               SimEvent::Kind::gather);
    }
    for (const double time : synced) end = std::max(end, time);
  }
  result.exposed_seconds = std::max(reduced, known) - compute_end + end - updated;
  return end;
}

Simulator::Simulator(const CostTable& costs, const Cluster& cluster)
    : state_(std::make_unique<State>(costs, cluster)) {}
Simulator::~Simulator() = default;

Simulation Simulator::run(const Layout& layout, const SimulateOptions& options) {
  State& state = *state_;
  HET_REQUIRE(options.contention || (!options.events && !options.blocking_transfers));
  state.prepare(layout, options);
  if (options.contention) state.run_pipelines();
  state.check_done();
  Simulation result;
  for (const PipelineState& pipeline : state.classes)
    for (const Executor& executor : pipeline.executors)
      result.pipeline_seconds = std::max(result.pipeline_seconds, executor.end);
  result.seconds = state.synchronise(result.pipeline_seconds, result);

  const CostTable& costs = state.costs;
  double busy = 0;
  int64_t executors = 0;
  for (size_t p = 0; p < layout.pipelines.size(); ++p) {
    const auto& stages = layout.pipelines[p].stages;
    const PipelineState& pipeline = state.class_at(p);
    const size_t groups = pipeline.executors.size();
    for (size_t e = 0; e < groups; ++e) {
      StageUse use;
      use.pipeline = static_cast<int>(p);
      use.stage = static_cast<int>(e);
      use.busy_seconds = pipeline.executors[e].busy_seconds;
      use.limit_bytes = costs.nodes[static_cast<size_t>(stages[e].node)].memory_bytes;
      use.idle_start = pipeline.stages[e].first_start;
      use.idle_end = result.pipeline_seconds - pipeline.executors[e].end;
      double running = 0;
      // With a split backward, those whose weight gradients wait, and the one that runs.
      const int waiting = layout.schedule == Schedule::split_backward ? static_cast<int>(e) + 1 : 0;
      for (size_t s = e; s < stages.size(); s += groups) {
        const StageState& stage = pipeline.stages[s];
        const int end = stages[s].first + stages[s].layers;
        const bool recompute = stages[s].recompute;
        const double own = costs.running_bytes(stages[s].first, end, recompute);
        use.memory_bytes += costs.stage_bytes(stages[s].first, end, stage.peak, recompute, 0, waiting) -
                            stage.peak * costs.held_bytes(stages[s].first, end, recompute) - own +
                            state.optimizer_bytes[state.at(p, s)];
        running = std::max(running, own);
        use.update_seconds += state.update_seconds[state.at(p, s)];
        use.in_flight += stage.peak;
      }
      use.memory_bytes += running + pipeline.executors[e].peak_bytes;
      busy += use.busy_seconds;
      ++executors;
      result.over_bytes = std::max(result.over_bytes, use.memory_bytes - use.limit_bytes);
      if (options.details) result.stages.push_back(use);
    }
  }
  result.fits = result.over_bytes <= 0;
  result.bubble = 1 - busy / (static_cast<double>(executors) * result.pipeline_seconds);
  if (options.events) result.events = std::move(state.events);
  return result;
}

Simulation simulate(const Plan& plan, const Cluster& cluster, const Model& model, const Profile& profile,
                    const SimulateOptions& options) {
  const CostTable costs = make_costs(cluster, model, profile, plan.tensor, plan.microbatch);
  Simulator simulator(costs, cluster);
  return simulator.run(to_layout(plan, cluster), options);
}

}  // namespace het::planner
