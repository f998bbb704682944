// Programs and executors.
#include <algorithm>
#include <csignal>

#include "core/graph/fuse.h"
#include "core/program/busy.h"
#include "core/run/control.h"
#include "core/run/run_member.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "planner/lower/lower.h"
#include "planner/megatron/sharding.h"
#include "snapshot/run_snapshots.h"

namespace het::lua {
namespace {

// graph, {microbatches, fuse} for one device; graph, {plan, rank, fuse, runtime} for a rank of a plan, from
// 0.
int make_program(lua_State* L) {
  auto& graph = check_object<GraphHandle>(L, 1);
  graph->finished = true;
  std::optional<int> microbatches;
  bool fused = true;
  std::optional<Plan> plan;
  int rank = 0;
  Runtime runtime;
  if (lua_istable(L, 2)) {
    microbatches = field<int>(L, 2, "microbatches");
    fused = field<bool>(L, 2, "fuse").value_or(true);
    rank = field<int>(L, 2, "rank").value_or(0);
    runtime = runtime_of(field<std::string>(L, 2, "runtime").value_or(""));
    lua_getfield(L, 2, "plan");
    if (lua_istable(L, -1)) plan = plan_at(L, lua_gettop(L), static_cast<int>(graph->graph.layers.size()));
    lua_pop(L, 1);
  }
  if (microbatches && *microbatches < 1) fail_usage("microbatches = {}; at least 1 is needed", *microbatches);
  const auto alone = [&] {
    return lower_single(fused ? fuse(graph->graph) : prune(graph->graph), microbatches.value_or(1));
  };
  return Convert<ProgramHandle>::push(
      L, std::make_shared<const Program>(plan ? lower(prune(graph->graph), *plan, rank, fused, runtime)
                                              : alone()));
}
// {microbatches, first_microbatch (from 0)}: what of a step this program runs.
int program_share(lua_State* L) {
  const auto& program = check_object<ProgramHandle>(L, 1);
  lua_newtable(L);
  set_field(L, "microbatches", static_cast<double>(program->microbatches));
  set_field(L, "first_microbatch", static_cast<double>(program->first_microbatch));
  return 1;
}
std::string program_to_string(ProgramHandle& program) { return to_string(*program); }
std::vector<std::string> program_verify(ProgramHandle& program) { return verify(*program); }

int push_memory(lua_State* L, const MemoryUse& use) {
  lua_newtable(L);
  set_field(L, "state", static_cast<double>(use.state));
  set_field(L, "arena", static_cast<double>(use.arena));
  set_field(L, "persistent", static_cast<double>(use.persistent));
  set_field(L, "inputs", static_cast<double>(use.inputs));
  set_field(L, "outputs", static_cast<double>(use.outputs));
  set_field(L, "workspace", static_cast<double>(use.workspace));
  set_field(L, "total", static_cast<double>(use.total()));
  return 1;
}
int program_memory(lua_State* L) { return push_memory(L, memory_of(*check_object<ProgramHandle>(L, 1))); }

int new_executor(lua_State* L) {  // program, state, cluster or nil
  auto& program = check_object<ProgramHandle>(L, 1);
  auto& state = check_object<StateHandle>(L, 2);
  const auto* cluster = lua_isnoneornil(L, 3) ? nullptr : &check_object<ClusterHandle>(L, 3);
  return Convert<ExecutorHandle>::push(
      L, std::make_shared<Executor>(*program, state,
                                    cluster == nullptr ? nullptr : (*cluster)->groups_of_plan()));
}
int executor_write(lua_State* L) {  // executor, name, tensor or number, micro-batch from 1
  auto& executor = check_object<ExecutorHandle>(L, 1);
  const std::string name = Convert<std::string>::get(L, 2);
  const int microbatch = std::max(Convert<std::optional<int>>::get(L, 4).value_or(0), 0) - 1;
  if (microbatch >= executor->program().microbatches)
    fail_usage("micro-batch {} of '{}': the program has {}", microbatch + 1, name,
               executor->program().microbatches);
  if (lua_type(L, 3) == LUA_TNUMBER)
    executor->write(name, Tensor::of<double>({lua_tonumber(L, 3)}, {}), microbatch);
  else
    executor->write(name, check_object<Tensor>(L, 3), microbatch);
  return 0;
}
// Ranks that decide a step together share whether one of them was interrupted.
bool executor_run(ExecutorHandle& executor) {
  const InterruptScope scope(*executor);
  return executor->run();
}
// What ranks say to each other in a step. After it: end; some wait to join; this rank's machine goes; someone
// has a command for the run. A snapshot is being written, in memory or on disk, or could not be.
constexpr uint32_t kStop = 1, kChange = 2, kWrites = 4, kFailed = 8, kLeaves = 16, kDiskFailed = 32,
                   kCommand = 64, kDiskWrites = 128;
// {stop, member, notices, memory, disk, not_begun, disk_not_begun, control}: what this rank says in each step
// that follows. To stop if `stop`, else when it has been interrupted. A member of an elastic run asks for a
// change when others wait to join, and to leave when it has a notice. Whether it still writes a snapshot in
// memory or on disk, and whether that has failed, or could not be begun.
int executor_say(lua_State* L) {
  const auto& executor = check_object<ExecutorHandle>(L, 1);
  const auto stop = field<bool>(L, 2, "stop").value_or(false);
  const auto not_begun = field<bool>(L, 2, "not_begun").value_or(false);
  const auto disk_not_begun = field<bool>(L, 2, "disk_not_begun").value_or(false);
  const auto member = object_field<MemberHandle>(L, 2, "member");
  const auto notices = object_field<NoticesHandle>(L, 2, "notices");
  const auto control = object_field<ControlHandle>(L, 2, "control");
  const auto memory = object_field<SnapshotTaskHandle>(L, 2, "memory"),
             disk = object_field<SnapshotTaskHandle>(L, 2, "disk");
  executor->on_word([=] {
    const bool writes = memory && !memory->done(), disk_writes = disk && !disk->done();
    const bool failed = not_begun || (memory && memory->failed());
    const bool leaves = member && has_notice(notices);
    return (stop || interrupt_pending() ? kStop : 0) |
           (member && member->member().waiting() > 0 ? kChange : 0) | (writes ? kWrites : 0) |
           (disk_writes ? kDiskWrites : 0) | (disk_not_begun || (disk && disk->failed()) ? kDiskFailed : 0) |
           (failed ? kFailed : 0) | (leaves ? kLeaves : 0) |
           (control && control->has_command() ? kCommand : 0);
  });
  return 0;
}
bool said_by_any(const Executor& executor, uint32_t what) {
  const std::vector<uint32_t> words = executor.words();
  return std::any_of(words.begin(), words.end(), [&](uint32_t word) { return (word & what) != 0; });
}
// Whether any rank asked for it in the last step.
bool executor_asked_to_stop(ExecutorHandle& executor) { return said_by_any(*executor, kStop); }
bool executor_asked_to_change(ExecutorHandle& executor) { return said_by_any(*executor, kChange); }
// Whether any rank was writing a snapshot in memory, or on disk, in the last step; whether the last one
// failed on any.
bool executor_any_disk_writes(ExecutorHandle& executor) { return said_by_any(*executor, kDiskWrites); }
bool executor_any_writes(ExecutorHandle& executor) { return said_by_any(*executor, kWrites); }
bool executor_any_failed(ExecutorHandle& executor) { return said_by_any(*executor, kFailed); }
bool executor_any_disk_failed(ExecutorHandle& executor) { return said_by_any(*executor, kDiskFailed); }
// Whether any rank has a command for the run.
bool executor_any_command(ExecutorHandle& executor) { return said_by_any(*executor, kCommand); }
// By rank, whether its machine goes.
int executor_leaving(lua_State* L) {
  const auto& executor = check_object<ExecutorHandle>(L, 1);
  lua_newtable(L);
  int rank = 0;
  for (const uint32_t word : executor->words()) {
    lua_pushboolean(L, (word & kLeaves) != 0);
    lua_rawseti(L, -2, ++rank);
  }
  return 1;
}
void executor_close(ExecutorHandle& executor, std::string why) { executor->close(std::move(why)); }
void executor_freeze(ExecutorHandle& executor) { executor->freeze(); }
// A fault for tests: the process dies before the instruction at this share of the next run.
void executor_kill_at(ExecutorHandle& executor, double share) {
  const auto count = static_cast<double>(executor->program().instructions.size());
  executor->before_each([at = share * count](int instruction) {
    if (instruction >= at) std::raise(SIGKILL);
  });
}
Tensor executor_read(ExecutorHandle& executor, std::string name) { return executor->read(name); }
double executor_number(ExecutorHandle& executor, std::string name) {
  const Tensor value = executor->read(name);
  if (value.elements() != 1) fail_usage("output '{}' is {}, not a number", name, to_string(value.type()));
  return value.at(0);
}
std::string executor_find_non_finite(ExecutorHandle& executor) { return executor->find_non_finite(); }
int executor_memory(lua_State* L) { return push_memory(L, check_object<ExecutorHandle>(L, 1)->memory()); }

int executor_usage(lua_State* L) {
  const Executor::Usage& usage = check_object<ExecutorHandle>(L, 1)->usage();
  lua_newtable(L);
  set_field(L, "runs", static_cast<double>(usage.runs));
  set_field(L, "seconds", usage.seconds);
  set_field(L, "waited", usage.waited);
  set_field(L, "bubble", usage.bubble);
  set_field(L, "sent_bytes", static_cast<double>(usage.sent_bytes));
  return 1;
}

// {seconds, launches} of a step in which a kernel of it runs (core/program/busy.h); nil where that is not
// known.
int executor_busy(lua_State* L) {
  const auto busy = measure_busy(*check_object<ExecutorHandle>(L, 1));
  if (!busy) {
    lua_pushnil(L);
    return 1;
  }
  lua_newtable(L);
  set_field(L, "seconds", busy->seconds);
  set_field(L, "launches", static_cast<double>(busy->launches));
  return 1;
}

// A run with a clock around each instruction: list of {op, begin, seconds} and, of computations, {scope,
// phase, layer, microbatch}, of starts {label, bytes (of the operand), sent_bytes, arrived}. An await names
// what it waits for: `label`, and the operation, `awaited`.
int executor_timings(lua_State* L) {
  auto& executor = check_object<ExecutorHandle>(L, 1);
  const auto spans = executor->run_timed();
  const Program& program = executor->program();
  lua_newtable(L);
  for (size_t i = 0; i < spans.size(); ++i) {
    lua_newtable(L);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
    lua_rawgeti(L, -1, static_cast<int>(i) + 1);
    set_field(L, "op", title_of(program.instructions[i]));
    set_field(L, "begin", spans[i].begin);
    set_field(L, "seconds", spans[i].end - spans[i].begin);
    if (const auto* await = std::get_if<Await>(&program.instructions[i])) {
      const CollectiveRequest& request = std::get<Start>(program.instructions[await->start]).request;
      set_field(L, "label", request.label);
      set_field(L, "awaited", std::string(name_of(request.kind)));
    } else if (const auto* start = std::get_if<Start>(&program.instructions[i])) {
      const Operand& operand = start->in.buffer != kAbsent ? start->in : start->out;
      set_field(L, "label", start->request.label);
      set_field(L, "bytes", static_cast<double>(operand.layout.type.bytes()));
      set_field(L, "sent_bytes", static_cast<double>(spans[i].sent_bytes));
      set_field(L, "microbatch", static_cast<double>(start->microbatch + 1));
      set_field(L, "arrived", spans[i].arrived);
    }
    const auto* found = std::get_if<Compute>(&program.instructions[i]);
    if (found == nullptr) {
      lua_pop(L, 1);
      continue;
    }
    const Compute& compute = *found;
    set_field(L, "scope", program.scopes[compute.scope]);
    set_field(L, "phase", std::string(name_of(compute.phase)));
    set_field(L, "layer", static_cast<double>(compute.layer + 1));
    set_field(L, "microbatch", static_cast<double>(compute.microbatch + 1));
    lua_pop(L, 1);
  }
  return 1;
}

// native.bytes_beyond_megatron(graph, plan), in a step; nil: its stages are cut as Megatron does.
int beyond_megatron(lua_State* L) {
  const Graph graph = prune(check_object<GraphHandle>(L, 1)->graph);  // as it is lowered
  const Plan plan = plan_at(L, 2, static_cast<int>(graph.layers.size()));
  const auto bytes = bytes_beyond_megatron(graph, plan);
  return bytes ? Convert<double>::push(L, static_cast<double>(*bytes)) : 0;
}

}  // namespace

void add_program(lua_State* L) {
  make_class<ProgramHandle>(L, {bind<&program_memory>("memory"), bind<&program_verify>("verify"),
                                bind<&program_share>("share"), bind<&program_to_string>("__tostring")});
  make_class<ExecutorHandle>(L, {bind<&executor_write>("write"),
                                 bind<&executor_run>("run"),
                                 bind<&executor_read>("read"),
                                 bind<&executor_number>("number"),
                                 bind<&executor_find_non_finite>("find_non_finite"),
                                 bind<&executor_memory>("memory"),
                                 bind<&executor_usage>("usage"),
                                 bind<&executor_timings>("timings"),
                                 bind<&executor_busy>("busy"),
                                 bind<&executor_close>("close"),
                                 bind<&executor_freeze>("freeze"),
                                 bind<&executor_kill_at>("kill_at"),
                                 bind<&executor_say>("say"),
                                 bind<&executor_leaving>("leaving"),
                                 bind<&executor_asked_to_stop>("asked_to_stop"),
                                 bind<&executor_asked_to_change>("asked_to_change"),
                                 bind<&executor_any_writes>("any_writes"),
                                 bind<&executor_any_disk_writes>("any_disk_writes"),
                                 bind<&executor_any_failed>("any_failed"),
                                 bind<&executor_any_disk_failed>("any_disk_failed"),
                                 bind<&executor_any_command>("any_command")});
  set_functions(L, "native.",
                {bind<&make_program>("program"), bind<&beyond_megatron>("bytes_beyond_megatron"),
                 bind<&new_executor>("executor")});
}

}  // namespace het::lua
