// Devices, state, programs and executors.
#include <algorithm>
#include <chrono>
#include <map>

#include "core/base/parallel.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "planner/lower.h"

namespace het::lua {
namespace {

DeviceHandle device(lua_State* L, const std::string& name) {
  if (name == "cpu") return host_of(L).cpu;
  if (name == "reference") return host_of(L).reference;
  fail_usage("'{}' is not a device of this machine; there are cpu and reference", name);
}
int get_device(lua_State* L) {
  return Convert<DeviceHandle>::push(
      L, device(L, Convert<std::optional<std::string>>::get(L, 1).value_or("cpu")));
}

int device_index(lua_State* L) {
  auto& handle = check_object<DeviceHandle>(L, 1);
  if (lua_type(L, 2) == LUA_TSTRING && std::string_view(lua_tostring(L, 2)) == "name")
    return Convert<std::string>::push(L, handle->name());
  return 0;
}
std::string device_to_string(DeviceHandle& handle) { return handle->name(); }
double device_available(DeviceHandle& handle) { return static_cast<double>(handle->available_bytes()); }

// Peak of the device's matrix product in FLOP/s: the best of several products of [2048, 2048] by [2048,
// 2048].
double device_peak(DeviceHandle& handle, DType dtype) {
  const OpDef& linear = op_named("linear");
  constexpr int64_t kSize = 2048;
  constexpr int kRuns = 7;
  Graph graph;
  GraphBuilder builder(graph);
  const TensorType type{dtype, {kSize, kSize}};
  const ValueId x = builder.input("x", type), w = builder.input("w", type);
  builder.output("y", builder.call_all(linear, {x, w, kAbsent}).front());
  Executor executor(lower_single(graph), std::make_shared<StateStore>(handle, 0));
  executor.write("x", initial_tensor("x", type, {Initial::Kind::normal, 1}, 0));
  executor.write("w", initial_tensor("w", type, {Initial::Kind::normal, 1}, 0));
  double best = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    executor.run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * kSize * kSize * kSize / best;
}

int threads(lua_State* L) {  // native.threads([count])
  if (const auto count = Convert<std::optional<int>>::get(L, 1)) {
    if (*count < 1) fail_usage("threads = {}; at least 1 is needed", *count);
    set_thread_count(*count);
  }
  return Convert<int>::push(L, thread_count());
}

StateHandle new_state(DeviceHandle& handle, std::optional<double> seed) {
  return std::make_shared<StateStore>(handle, static_cast<uint64_t>(seed.value_or(0)));
}

int state_names(lua_State* L) {
  auto& state = check_object<StateHandle>(L, 1);
  lua_newtable(L);
  int count = 0;
  for (const auto& [name, entry] : state->entries()) {
    lua_newtable(L);
    set_field(L, "name", name);
    set_field(L, "dtype", std::string(name_of(entry.type.dtype)));
    set_list(L, "shape", entry.type.shape);
    set_field(L, "trained", entry.trained);
    lua_rawseti(L, -2, ++count);
  }
  return 1;
}
Tensor state_read(StateHandle& state, std::string name) { return state->read(name); }
void state_write(StateHandle& state, std::string name, Tensor& tensor) { state->write(name, tensor); }
bool state_has(StateHandle& state, std::string name) { return state->has(name); }
void state_drop(StateHandle& state, std::string name) { state->drop(name); }

ProgramHandle new_program(GraphHandle& graph, std::optional<int> microbatches, std::optional<bool> fused) {
  const Graph ready = fused.value_or(true) ? fuse(graph->graph) : prune(graph->graph);
  return std::make_shared<const Program>(lower_single(ready, microbatches.value_or(1)));
}
int make_program(lua_State* L) {  // graph, {microbatches, fuse}
  auto& graph = check_object<GraphHandle>(L, 1);
  std::optional<int> microbatches;
  std::optional<bool> fused;
  if (lua_istable(L, 2)) {
    microbatches = field<int>(L, 2, "microbatches");
    fused = field<bool>(L, 2, "fuse");
  }
  if (microbatches && *microbatches < 1) fail_usage("microbatches = {}; at least 1 is needed", *microbatches);
  return Convert<ProgramHandle>::push(L, new_program(graph, microbatches, fused));
}
std::string program_to_string(ProgramHandle& program) { return to_string(*program); }
std::vector<std::string> program_verify(ProgramHandle& program) { return verify(*program); }

int push_memory(lua_State* L, const MemoryUse& use) {
  lua_newtable(L);
  set_field(L, "state", static_cast<double>(use.state));
  set_field(L, "arena", static_cast<double>(use.arena));
  set_field(L, "pinned", static_cast<double>(use.pinned));
  set_field(L, "inputs", static_cast<double>(use.inputs));
  set_field(L, "outputs", static_cast<double>(use.outputs));
  set_field(L, "workspace", static_cast<double>(use.workspace));
  set_field(L, "total", static_cast<double>(use.total()));
  return 1;
}
int program_memory(lua_State* L) { return push_memory(L, memory_of(*check_object<ProgramHandle>(L, 1))); }

ExecutorHandle new_executor(ProgramHandle& program, StateHandle& state) {
  return std::make_shared<Executor>(*program, state);
}
int executor_write(lua_State* L) {  // executor, name, tensor or number, micro-batch from 1
  auto& executor = check_object<ExecutorHandle>(L, 1);
  const std::string name = Convert<std::string>::get(L, 2);
  const int microbatch = Convert<std::optional<int>>::get(L, 4).value_or(0) - 1;
  if (microbatch >= executor->program().microbatches)
    fail_usage("micro-batch {} of '{}': the program has {}", microbatch + 1, name,
               executor->program().microbatches);
  if (lua_type(L, 3) == LUA_TNUMBER)
    executor->write(name, Tensor::of<double>({lua_tonumber(L, 3)}, {}), microbatch);
  else
    executor->write(name, check_object<Tensor>(L, 3), microbatch);
  return 0;
}
bool executor_run(ExecutorHandle& executor) {
  const InterruptScope scope(*executor);
  return executor->run();
}
Tensor executor_read(ExecutorHandle& executor, std::string name) { return executor->read(name); }
double executor_number(ExecutorHandle& executor, std::string name) {
  const Tensor value = executor->read(name);
  if (value.elements() != 1) fail_usage("output '{}' is {}, not a number", name, to_string(value.type()));
  return value.at(0);
}
std::string executor_find_non_finite(ExecutorHandle& executor) { return executor->find_non_finite(); }
int executor_memory(lua_State* L) { return push_memory(L, check_object<ExecutorHandle>(L, 1)->memory()); }

// A run with a clock around each instruction: list of {op, scope, phase, layer, microbatch, seconds}.
int executor_timings(lua_State* L) {
  auto& executor = check_object<ExecutorHandle>(L, 1);
  const auto seconds = executor->run_timed();
  const Program& program = executor->program();
  lua_newtable(L);
  for (size_t i = 0; i < seconds.size(); ++i) {
    lua_newtable(L);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
    lua_rawgeti(L, -1, static_cast<int>(i) + 1);
    set_field(L, "op", title_of(program.instructions[i]));
    set_field(L, "seconds", seconds[i]);
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

}  // namespace

void add_program(lua_State* L) {
  make_class<DeviceHandle>(L,
                           {bind<&device_peak>("peak_flops"), bind<&device_available>("available_bytes"),
                            bind<&device_to_string>("__tostring")},
                           &device_index);
  make_class<StateHandle>(
      L, {bind<&state_names>("names"), bind<&state_read>("read"), bind<&state_write>("write"),
          bind<&state_has>("has"), bind<&state_drop>("drop")});
  make_class<ProgramHandle>(L, {bind<&program_memory>("memory"), bind<&program_verify>("verify"),
                                bind<&program_to_string>("__tostring")});
  make_class<ExecutorHandle>(
      L, {bind<&executor_write>("write"), bind<&executor_run>("run"), bind<&executor_read>("read"),
          bind<&executor_number>("number"), bind<&executor_find_non_finite>("find_non_finite"),
          bind<&executor_memory>("memory"), bind<&executor_timings>("timings")});
  set_functions(L, "native.",
                {bind<&get_device>("device"), bind<&threads>("threads"), bind<&new_state>("state"),
                 bind<&make_program>("program"), bind<&new_executor>("executor")});
}

}  // namespace het::lua
