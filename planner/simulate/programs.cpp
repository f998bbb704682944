#include "planner/simulate/programs.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/comm/shaped.h"
#include "core/ops/op.h"
#include "planner/lower/lower.h"
#include "planner/lower/rank_assignment.h"
#include "planner/profile/profile.h"

namespace het::planner {
namespace {

double seconds_of(const Compute& compute, const hap::Device& device) {
  const auto types = [](const std::vector<Operand>& operands) {
    std::vector<TensorType> types;
    for (const Operand& operand : operands)
      types.push_back(operand.buffer == kAbsent ? TensorType{} : operand.layout.type);
    return types;
  };
  const auto inputs = types(compute.inputs), outputs = types(compute.outputs);
  return device.seconds(cost_of(OpCall{*compute.op, inputs, compute.attributes}, outputs),
                        hap::is_half(inputs));
}

// How many passes of layers begin with each instruction: each takes a launch (profile.h), as simulations of
// layers count it. Of a layer and micro-batch they are the forward pass, the same once more where its stage
// recomputes, and the two halves of the backward pass, which begin together.
std::vector<int> launches_of(const Program& program) {
  enum class Pass : uint8_t { forward, again, backward };
  std::vector<int> launches(program.instructions.size(), 0);
  std::set<std::tuple<Pass, int32_t, int>> begun;  // by layer and micro-batch
  std::set<int> backwards;                         // micro-batches whose backward pass has begun
  for (size_t i = 0; i < launches.size(); ++i) {
    const auto* compute = std::get_if<Compute>(&program.instructions[i]);
    if (compute == nullptr || compute->layer < 0 || compute->microbatch < 0 ||
        compute->phase == Phase::update)
      continue;
    const bool is_backward = compute->phase == Phase::backward;
    if (is_backward) backwards.insert(compute->microbatch);
    const Pass pass = is_backward                                ? Pass::backward
                      : backwards.count(compute->microbatch) > 0 ? Pass::again
                                                                 : Pass::forward;
    if (begun.emplace(pass, compute->layer, compute->microbatch).second) launches[i] = is_backward ? 2 : 1;
  }
  return launches;
}

// One collective, or one message: both its ends.
struct Operation {
  std::vector<int> ranks;
  std::vector<double> started, finished;  // by member; < 0: not yet
  std::vector<CollectiveRequest> requests;
  std::vector<const Instruction*> starts;
  int queue = 0;
  double came = 0;  // when its last member had started it
  bool is_ready() const {
    return finished[0] < 0 && std::all_of(started.begin(), started.end(), [](double t) { return t >= 0; });
  }
};

class ProgramsSimulation {
 public:
  ProgramsSimulation(const std::vector<const Program*>& programs,
                     const std::vector<std::vector<Group>>& groups, const std::vector<hap::Device>& devices,
                     const WireTimeOf& wire_time, bool with_events, bool shared_ports)
      : programs_(programs),
        groups_(groups),
        devices_(devices),
        wire_time_(wire_time),
        with_events_(with_events),
        shared_ports_(shared_ports),
        ranks_(programs.size()) {
    std::map<std::tuple<const Program*, double, double, double, double>, std::vector<double>*> known;
    for (size_t r = 0; r < programs.size(); ++r) {
      const hap::Device& device = devices[r];
      const auto [entry, fresh] =
          known.emplace(std::tuple(programs[r], device.f32_flops, device.half_flops,
                                   device.memory_bytes_per_second, device.launch_seconds),
                        nullptr);
      const std::vector<Instruction>& instructions = programs[r]->instructions;
      if (fresh) {
        entry->second = &seconds_.emplace_back(instructions.size(), 0);
        const std::vector<int> launches = launches_of(*programs[r]);
        for (size_t i = 0; i < instructions.size(); ++i)
          if (const auto* compute = std::get_if<Compute>(&instructions[i]))
            (*entry->second)[i] = seconds_of(*compute, device) + launches[i] * device.launch_seconds;
      }
      ranks_[r].seconds = entry->second;
      ranks_[r].operation_of.resize(instructions.size(), {-1, 0});
    }
  }

  ProgramsTime run() {
    while (true) {
      for (size_t r = 0; r < ranks_.size(); ++r) advance(static_cast<int>(r));
      // Whoever waits can only start more after something ready has finished: what arrives first is next.
      Operation* next = nullptr;
      double arrives = 0;
      for (const int id : open_) {
        Operation& each = operations_[static_cast<size_t>(id)];
        if (!each.is_ready() || (next != nullptr && arrival(each) >= arrives)) continue;
        next = &each;
        arrives = arrival(each);
      }
      if (next == nullptr) break;
      finish(*next, arrives);
      open_.erase(std::find(open_.begin(), open_.end(), static_cast<int>(next - operations_.data())));
    }
    ProgramsTime time;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      HET_REQUIRE(rank.step == kSteps, r, rank.step, rank.next);
      time.seconds = std::max(time.seconds, rank.clock);
      time.ranks.push_back({rank.compute, rank.exposed, rank.parts, 0, 0});
    }
    time.seconds -= first_ends_;
    for (ProgramUse& use : time.ranks) fill(use.parts, time.seconds);
    for (ProgramEvent& event : events_) {
      event.start = std::max(0.0, event.start - first_ends_);
      event.end -= first_ends_;
      if (event.end > event.start) time.events.push_back(std::move(event));
    }
    return time;
  }

 private:
  // A rank begins a step while others end the one before: what counts is the second.
  static constexpr int kSteps = 2;

  struct Rank {
    int step = 0;
    size_t next = 0;  // instruction
    double clock = 0, compute = 0, exposed = 0;
    StepParts parts;
    RankWays<double> ways;
    const std::vector<double>* seconds = nullptr;      // that instructions compute
    std::vector<std::pair<int, size_t>> operation_of;  // of a Start: the operation, and which member
    std::map<int, int> counts;                         // of what was started in a queue
  };

  // When the last member has come to it: each after what its queue had before.
  double arrival(const Operation& operation) const {
    double time = 0;
    for (size_t m = 0; m < operation.ranks.size(); ++m) {
      const auto before = queue_free_.find({operation.queue, operation.ranks[m]});
      time = std::max({time, operation.started[m], before == queue_free_.end() ? 0 : before->second});
    }
    return time;
  }

  void advance(int r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const Program& program = *programs_[static_cast<size_t>(r)];
    while (rank.step < kSteps) {
      if (rank.next == program.instructions.size()) {
        end_step(rank);
        continue;
      }
      if (!run(r, program.instructions[rank.next])) return;
      ++rank.next;
    }
  }

  // Of the first step only its end counts.
  void end_step(Rank& rank) {
    rank.next = 0;
    if (++rank.step > 1) return;
    first_ends_ = std::max(first_ends_, rank.clock);
    rank.compute = rank.exposed = 0;
    rank.parts = {};
  }

  // A rank that ends a step before others waits; one that has begun the next by then has waited less.
  static void fill(StepParts& parts, double step) {
    double rest = step - parts.total();
    for (double StepParts::*part : {&StepParts::waiting, &StepParts::bubble}) {
      const double change = std::max(rest, -(parts.*part));
      parts.*part += change;
      rest -= change;
    }
    if (rest < 0)
      for (const StepPart& part : step_parts()) parts.*part.seconds *= step / (step - rest);
  }

  // What waiting for instruction `index`, a collective, is: for activations, gradients, weights or numbers.
  static double StepParts::*part_of(const Program& program, size_t index) {
    using Kind = CollectiveKind;
    const auto& start = std::get<Start>(program.instructions[index]);
    const Kind kind = start.request.kind;
    if (kind == Kind::send || kind == Kind::receive) return &StepParts::transfers;
    if (start.microbatch >= 0 && start.phase != Phase::update) return &StepParts::tensor;
    if (decides(program, index) || is_number(start)) return &StepParts::norms;
    // Before the step is decided, only gradients and what updates compute of them pass, beside state.
    const bool is_of_gradients = start.phase != Phase::forward && std::cmp_less(index, program.decided) &&
                                 !is_of_state(program, index);
    const bool gathers =
        kind == Kind::all_gather || kind == Kind::grouped_broadcast || kind == Kind::broadcast;
    return gathers && !is_of_gradients ? &StepParts::gather : &StepParts::gradients;
  }
  static bool is_of_state(const Program& program, size_t index) {
    const BufferId from = std::get<Start>(program.instructions[index]).in.buffer;
    if (std::cmp_less(index, program.prologue) || from == kAbsent) return true;
    const Home home = program.buffers[static_cast<size_t>(from)].home;
    return home == Home::state || home == Home::persistent;
  }
  static bool decides(const Program& program, size_t index) {
    if (program.decided == 0) return false;
    const auto* await = std::get_if<Await>(&program.instructions[static_cast<size_t>(program.decided) - 1]);
    return await != nullptr && std::cmp_equal(await->start, index);
  }
  static bool is_number(const Start& start) {
    return start.phase == Phase::update && start.in.buffer != kAbsent &&
           start.in.layout.type.elements() == 1 && start.request.kind == CollectiveKind::all_reduce;
  }

  // False: what it awaits has not finished.
  bool run(int r, const Instruction& instruction) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    if (const auto* compute = std::get_if<Compute>(&instruction)) {
      const double seconds = (*rank.seconds)[rank.next];
      note(r, instruction, rank.clock, rank.clock + seconds);
      rank.clock += seconds;
      rank.compute += seconds;
      (compute->phase == Phase::update ? rank.parts.update : rank.parts.compute) += seconds;
    } else if (const auto* start = std::get_if<Start>(&instruction)) {
      begin(r, *start);
    } else {
      const auto awaited = static_cast<size_t>(std::get<Await>(instruction).start);
      const auto [id, member] = rank.operation_of[awaited];
      HET_REQUIRE(id >= 0, r, rank.next);
      const Operation& operation = operations_[static_cast<size_t>(id)];
      const double finished = operation.finished[member];
      if (finished < 0) return false;
      const double waits = std::max(0.0, finished - rank.clock),
                   late = std::clamp(operation.came - rank.clock, 0.0, waits);
      const auto part = part_of(*programs_[static_cast<size_t>(r)], awaited);
      rank.parts.*part += waits - late;
      (part == &StepParts::transfers ? rank.parts.bubble : rank.parts.waiting) += late;
      rank.exposed += waits;
      rank.clock = std::max(rank.clock, finished);
    }
    return true;
  }

  // Of the step that counts.
  void note(int r, const Instruction& instruction, double start, double end) {
    if (!with_events_ || ranks_[static_cast<size_t>(r)].step + 1 < kSteps) return;
    ProgramEvent event{r, title_of(instruction), Phase::forward, -1, -1, false, nullptr, start, end};
    const auto place = [&](const auto& of, bool is_exchange) {
      event.phase = of.phase;
      event.layer = of.layer;
      event.microbatch = of.microbatch;
      event.is_exchange = is_exchange;
    };
    if (const auto* compute = std::get_if<Compute>(&instruction)) place(*compute, false);
    if (const auto* begun = std::get_if<Start>(&instruction)) {
      place(*begun, true);
      const Program& program = *programs_[static_cast<size_t>(r)];
      event.part = part_of(program, static_cast<size_t>(&instruction - program.instructions.data()));
    }
    events_.push_back(std::move(event));
  }

  void begin(int r, const Start& start) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const std::vector<int>& group = groups_[static_cast<size_t>(r)][static_cast<size_t>(start.group)].ranks;
    std::vector<int> members = group;
    const CollectiveRequest& request = start.request;
    const bool sends = request.kind == CollectiveKind::send,
               receives = request.kind == CollectiveKind::receive;
    if (sends) members = {r, group[static_cast<size_t>(request.peer)]};
    if (receives) members = {group[static_cast<size_t>(request.peer)], r};
    const int tag = sends || receives ? request.tag : -1;
    const int queue = queues_
                          .emplace(std::tuple(group, sends || receives ? members : std::vector<int>{}, tag),
                                   static_cast<int>(queues_.size()))
                          .first->second;
    const int number = rank.counts[queue]++;
    const auto [entry, fresh] =
        known_.emplace(std::pair{queue, number}, static_cast<int>(operations_.size()));
    if (fresh) {
      operations_.push_back({members, std::vector<double>(members.size(), -1),
                             std::vector<double>(members.size(), -1),
                             std::vector<CollectiveRequest>(members.size()),
                             std::vector<const Instruction*>(members.size()), queue});
      open_.push_back(entry->second);
    }
    Operation& operation = operations_[static_cast<size_t>(entry->second)];
    const auto place = std::find(members.begin(), members.end(), r);
    HET_REQUIRE(place != members.end(), r);
    const auto member = static_cast<size_t>(place - members.begin());
    operation.started[member] = rank.clock;
    operation.requests[member] = request;
    operation.starts[member] = &programs_[static_cast<size_t>(r)]->instructions[rank.next];
    rank.operation_of[rank.next] = {entry->second, member};
  }

  void finish(Operation& operation, double arrived) {
    const WireTime time = wire_time_(operation.requests[0], operation.ranks);
    operation.came = *std::max_element(operation.started.begin(), operation.started.end());
    std::map<Interface, double> through;  // that it passes: until when
    const auto machine_of = [&](int r) {
      const hap::Device& device = devices_[static_cast<size_t>(r)];
      return std::pair(device.node, device.host);
    };
    const auto crosses = [&](int r) { return machine_of(r) != machine_of(operation.ranks[0]); };
    if (shared_ports_ && std::any_of(operation.ranks.begin(), operation.ranks.end(), crosses))
      for (size_t m = 0; m < operation.ranks.size(); ++m)
        if (const Interface own = interface_of(operation.ranks[m]); through.count(own) == 0)
          through[own] = interfaces_[own].use(operation.requests[m].kind, arrived, time.busy);
    for (size_t m = 0; m < operation.ranks.size(); ++m) {
      const int r = operation.ranks[m];
      Rank& rank = ranks_[static_cast<size_t>(r)];
      const auto interface = through.find(interface_of(r));
      const double begin = interface == through.end() ? arrived : interface->second - time.busy;
      operation.finished[m] = rank.ways.use(operation.requests[m].kind, begin, time.busy) + time.latency;
      queue_free_[{operation.queue, r}] = operation.finished[m];
      note(r, *operation.starts[m], operation.finished[m] - time.busy - time.latency, operation.finished[m]);
    }
  }

  using Interface = std::tuple<int, int, int>;  // node, host, and which of it
  Interface interface_of(int r) const { return devices_[static_cast<size_t>(r)].port(); }

  const std::vector<const Program*>& programs_;
  const std::vector<std::vector<Group>>& groups_;  // of each rank
  const std::vector<hap::Device>& devices_;
  const WireTimeOf& wire_time_;
  const bool with_events_, shared_ports_;
  std::map<Interface, RankWays<double>> interfaces_;
  std::deque<std::vector<double>> seconds_;  // that instructions compute, by program and rates
  std::vector<Rank> ranks_;
  std::vector<ProgramEvent> events_;
  std::vector<Operation> operations_;
  double first_ends_ = 0;
  std::vector<int> open_;                                                      // not finished
  std::map<std::tuple<std::vector<int>, std::vector<int>, int>, int> queues_;  // a group, or a channel
  std::map<std::pair<int, int>, int> known_;          // operations, by queue and number
  std::map<std::pair<int, int>, double> queue_free_;  // by queue and rank
};

// Programs of ranks, of which some are alike but for the groups that they are in.
struct RankPrograms {
  std::vector<Program> made;
  std::vector<const Program*> programs;    // by rank
  std::vector<std::vector<Group>> groups;  // by rank
};

// Groups of one rank of a mesh as those of another.
std::vector<Group> moved(std::vector<Group> groups, const StageCut& cut, int from, int to) {
  const auto place = [&](int rank) {
    int moved = 0;
    for (size_t axis = 0; axis < cut.axes.size(); ++axis) {
      const int a = cut.coordinate(from, axis), b = cut.coordinate(to, axis),
                own = cut.coordinate(rank, axis);
      moved = moved * static_cast<int>(cut.axes[axis].shares.size()) + (own == a ? b : own == b ? a : own);
    }
    return moved;
  };
  for (Group& group : groups) {
    for (int& rank : group.ranks) rank = place(rank);
    std::sort(group.ranks.begin(), group.ranks.end());
  }
  return groups;
}

// Of one stage: devices with equal shares along each axis have programs that are alike; where units remain,
// the first of them has most.
RankPrograms programs_of_stage(const Graph& graph, const Plan& plan, const PlacementTable* table) {
  const StageCut cut = cut_of(plan, plan.pipelines[0].stages[0]);
  std::map<Shares, size_t> known;  // which program runs with such shares
  std::vector<int> first;          // rank, by program
  std::vector<size_t> program_of;  // by rank
  for (int rank = 0; rank < cut.parts(); ++rank) {
    Shares own;
    for (size_t axis = 0; axis < cut.axes.size(); ++axis)
      own.push_back(cut.axes[axis].shares[static_cast<size_t>(cut.coordinate(rank, axis))]);
    const auto [program, fresh] = known.emplace(own, first.size());
    if (fresh) first.push_back(rank);
    program_of.push_back(program->second);
  }
  RankPrograms all;
  all.made = lower_ranks(graph, plan, first, true, {}, table);
  for (int rank = 0; rank < cut.parts(); ++rank) {
    const size_t own = program_of[static_cast<size_t>(rank)];
    all.programs.push_back(&all.made[own]);
    all.groups.push_back(moved(all.made[own].groups, cut, first[own], rank));
  }
  return all;
}

RankPrograms programs_of(const Graph& graph, const Plan& plan, const PlacementTable* table) {
  if (plan.pipelines.size() == 1 && plan.pipelines[0].stages.size() == 1)
    return programs_of_stage(graph, plan, table);
  std::vector<int> ranks(devices_of(plan).size());
  std::iota(ranks.begin(), ranks.end(), 0);
  RankPrograms all;
  all.made = lower_ranks(graph, plan, ranks, true, {}, table);
  for (const Program& program : all.made) {
    all.programs.push_back(&program);
    all.groups.push_back(program.groups);
  }
  return all;
}

}  // namespace

bool ProgramsTime::fits() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const ProgramUse& rank) { return rank.memory_bytes <= rank.limit_bytes; });
}

size_t ProgramsTime::longest() const {
  const auto longest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const ProgramUse& a, const ProgramUse& b) { return a.compute_seconds < b.compute_seconds; });
  return static_cast<size_t>(longest - ranks.begin());
}

double ProgramsTime::exposed_seconds() const { return ranks[longest()].exposed_seconds; }

bool is_better(const ProgramsTime& time, const ProgramsTime& other) {
  return time.fits() != other.fits() ? time.fits() : time.seconds < other.seconds;
}

ProgramsTime simulate_programs(const std::vector<const Program*>& programs,
                               const std::vector<hap::Device>& devices, const WireTimeOf& wire_time,
                               bool with_events, bool shared_ports) {
  HET_REQUIRE(programs.size() == devices.size(), programs.size(), devices.size());
  std::vector<std::vector<Group>> groups;
  for (const Program* program : programs) groups.push_back(program->groups);
  return ProgramsSimulation(programs, groups, devices, wire_time, with_events, shared_ports).run();
}

namespace {

ProgramsTime simulate(const Graph& graph, const PlacementTable* table, const Plan& plan,
                      const hap::DeviceGroup& group, bool with_events, bool only_fitting) {
  std::map<std::string, int> numbers;
  for (int d = 0; d < group.size(); ++d) numbers[group.devices()[static_cast<size_t>(d)].name] = d;
  std::vector<int> places;  // in the group, by rank
  std::vector<hap::Device> devices;
  for (const std::string& name : devices_of(plan)) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) fail_usage("the plan names '{}'; the cluster has no such device", name);
    places.push_back(found->second);
    devices.push_back(group.devices()[static_cast<size_t>(found->second)]);
  }
  const RankPrograms all = programs_of(graph, plan, table);
  ProgramsTime unfit;
  unfit.seconds = std::numeric_limits<double>::infinity();
  unfit.ranks.resize(devices.size());
  for (size_t r = 0; r < devices.size(); ++r) {
    unfit.ranks[r].memory_bytes = static_cast<double>(memory_of(*all.programs[r]).total());
    unfit.ranks[r].limit_bytes = devices[r].memory_bytes;
  }
  if (only_fitting && !unfit.fits()) return unfit;
  const WireTimeOf wire_time = [&](const CollectiveRequest& request, const std::vector<int>& ranks) {
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(places[static_cast<size_t>(rank)]);
    return group.wire_time(request, members);
  };
  ProgramsTime time =
      ProgramsSimulation(all.programs, all.groups, devices, wire_time, with_events, !group.is_mesh()).run();
  for (size_t r = 0; r < devices.size(); ++r) {
    time.ranks[r].memory_bytes = unfit.ranks[r].memory_bytes;
    time.ranks[r].limit_bytes = unfit.ranks[r].limit_bytes;
  }
  return time;
}

}  // namespace

ProgramsTime simulate_plan(const Graph& graph, const Plan& plan, const hap::DeviceGroup& group,
                           bool with_events) {
  return simulate(graph, nullptr, plan, group, with_events, false);
}

ProgramsTime simulate_plan(const PlacementTable& table, const Plan& plan, const hap::DeviceGroup& group,
                           bool only_fitting) {
  return simulate(table.graph(), &table, plan, group, false, only_fitting);
}

}  // namespace het::planner
