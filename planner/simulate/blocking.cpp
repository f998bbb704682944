// Pipelines whose sends and receives block (core/plan/runtime.h), by events. A rank walks its units and the
// messages between them in the order of planner/lower/schedule.h. A transfer begins when both its ends have
// come to it; then it takes what earlier ones leave of the ports (ports.h), which carry both directions at
// once.
#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "planner/lower/schedule.h"
#include "planner/simulate/state.h"

namespace het::planner {
namespace {

struct BlockingStep {
  enum class Kind : uint8_t { compute, send, receive } kind = Kind::compute;
  WorkUnit unit;  // that is computed, that made what is sent, or that needs what is received
};

// All that a stage does, in order.
std::vector<BlockingStep> blocking_steps(const ScheduleShape& shape, int stage) {
  using Kind = BlockingStep::Kind;
  const std::vector<WorkUnit> units = units_of(shape, stage);
  std::vector<BlockingStep> steps;
  const int last = shape.stages - 1;
  const auto send = [&](const WorkUnit& unit) {
    if (stage != (unit.kind == WorkUnit::Kind::forward ? last : 0)) steps.push_back({Kind::send, unit});
  };
  const auto receive = [&](const WorkUnit& unit) {
    if (stage != (unit.kind == WorkUnit::Kind::forward ? 0 : last)) steps.push_back({Kind::receive, unit});
  };
  for (size_t u = 0; u < units.size(); ++u) {
    const bool receive_first = u > 0 && receives_first(shape, stage, units[u - 1], units[u]);
    if (receive_first) receive(units[u]);
    if (u > 0) send(units[u - 1]);
    if (!receive_first) receive(units[u]);
    steps.push_back({Kind::compute, units[u]});
  }
  send(units.back());
  return steps;
}

class BlockingRun {
 public:
  explicit BlockingRun(SimulatorState& state) : state_(state) {
    for (PipelineState& pipeline : state_.classes) {
      const int stages = static_cast<int>(pipeline.stages.size());
      auto& ranks = ranks_.emplace_back();
      for (int s = 0; s < stages; ++s)
        ranks.push_back({blocking_steps({state_.layout->schedule, stages, pipeline.microbatches}, s)});
    }
  }

  void run() {
    for (size_t c = 0; c < ranks_.size(); ++c)
      for (size_t s = 0; s < ranks_[c].size(); ++s) come(c, s, 0);
    while (!state_.heap.empty()) {
      std::pop_heap(state_.heap.begin(), state_.heap.end(), Later{});
      const Pending pending = state_.heap.back();
      state_.heap.pop_back();
      if (pending.what == Pending::What::sent) {
        if (const auto delivered = state_.deliver(pending)) arrive(*delivered);
        continue;
      }
      const auto c = static_cast<size_t>(pending.pipeline), s = static_cast<size_t>(pending.stage);
      ++ranks_[c][s].next;
      come(c, s, pending.time);
    }
  }

 private:
  struct Rank {
    std::vector<BlockingStep> steps;
    size_t next = 0;
    double waits_since = -1;  // at a message whose other end has not come to it; < 0: at none
  };

  void go_on(size_t c, size_t s, double time) {
    state_.push(time, Pending::What::done, static_cast<int>(c), static_cast<int>(s));
  }

  // A rank comes to its next step.
  void come(size_t c, size_t s, double now) {
    Rank& rank = ranks_[c][s];
    if (rank.next == rank.steps.size()) {
      state_.classes[c].workers[s].end = now;
      return;
    }
    const BlockingStep& step = rank.steps[rank.next];
    if (step.kind == BlockingStep::Kind::compute) return compute(c, s, step.unit, now);
    const bool forward = step.unit.kind == WorkUnit::Kind::forward;
    const bool sends = step.kind == BlockingStep::Kind::send;
    const size_t other = forward == sends ? s + 1 : s - 1;
    Rank& peer = ranks_[c][other];
    if (peer.waits_since < 0 || !is_other_end(step, peer.steps[peer.next])) {
      rank.waits_since = now;
      return;
    }
    peer.waits_since = -1;
    const size_t from = sends ? s : other, to = sends ? other : s;
    transfer(c, from, to, step.unit.microbatch, now);
  }

  static bool is_other_end(const BlockingStep& a, const BlockingStep& b) {
    return a.kind != b.kind && b.kind != BlockingStep::Kind::compute && a.unit.kind == b.unit.kind &&
           a.unit.microbatch == b.unit.microbatch;
  }

  void compute(size_t c, size_t s, const WorkUnit& unit, double now) {
    PipelineState& pipeline = state_.classes[c];
    StageState& stage = pipeline.stages[s];
    SimWorker& worker = pipeline.workers[s];
    const bool forward = unit.kind == WorkUnit::Kind::forward;
    const double seconds = forward ? stage.forward : stage.backward;
    if (forward) {
      ++stage.forwards;
      keep(worker, stage);
    } else {
      ++stage.backwards;
      let_go(worker, stage);
      stage.last_start = now;
    }
    if (stage.first_start < 0) stage.first_start = now;
    worker.busy_seconds += seconds;
    note(forward ? SimEvent::Kind::forward : SimEvent::Kind::backward, c, s, unit.microbatch, now,
         now + seconds);
    go_on(c, s, now + seconds);
  }

  // Both ends are there.
  void transfer(size_t c, size_t from, size_t to, int microbatch, double now) {
    const PipelineState& pipeline = state_.classes[c];
    const auto& stages = state_.layout->pipelines[static_cast<size_t>(pipeline.source)].stages;
    HET_REQUIRE(stages[from].group < 0 && stages[to].group < 0, pipeline.source, from, to);
    const bool transfers = state_.options.transfers;
    if (transfers && pipeline.hosts[from] != pipeline.hosts[to])
      state_.carry(c, from, to, microbatch, now);
    else
      arrive({c, from, to, microbatch, now, now,
              transfers ? now + state_.hop_seconds(pipeline, from, to) : now});
  }

  void arrive(const Delivered& message) {
    note(SimEvent::Kind::send, message.pipeline, message.from, message.item, message.start, message.end);
    go_on(message.pipeline, message.from, message.end);
    go_on(message.pipeline, message.to,
          message.end + receiver_gather_seconds(message.pipeline, message.from, message.to));
  }

  // Of the receiver, which goes on when it has the whole.
  double receiver_gather_seconds(size_t c, size_t from, size_t to) const {
    const PipelineState& pipeline = state_.classes[c];
    const auto& stages = state_.layout->pipelines[static_cast<size_t>(pipeline.source)].stages;
    if (!state_.options.transfers) return 0;
    const double bytes = state_.costs.boundary_before(stages[std::max(from, to)].first);
    const Link& gather = state_.costs.nodes[static_cast<size_t>(stages[to].node)].gather;
    if (gather.bytes_per_second > 0) return gather.seconds(bytes);
    if (pipeline.hosts[from] == pipeline.hosts[to]) return 0;
    return state_.gather_seconds(stages[to].node, bytes, state_.costs.tensor);
  }

  void note(SimEvent::Kind kind, size_t c, size_t stage, int item, double start, double end) {
    if (state_.options.events)
      state_.events.push_back({kind, state_.classes[c].source, static_cast<int>(stage), item, start, end});
  }

  SimulatorState& state_;
  std::vector<std::vector<Rank>> ranks_;  // by class and stage
};

}  // namespace

void SimulatorState::run_blocking() { BlockingRun(*this).run(); }

}  // namespace het::planner
