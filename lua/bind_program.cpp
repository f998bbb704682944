// Devices, state, programs and executors.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <future>
#include <map>

#include "core/base/elapsed.h"
#include "core/base/parallel.h"
#include "core/device/paced.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/program/busy.h"
#include "core/run/control.h"
#include "core/run/run_member.h"
#include "kernels/cpu/processor.h"
#include "lua/interrupt.h"
#include "lua/objects.h"
#include "lua/planning.h"
#include "planner/lower/lower.h"
#include "planner/megatron/sharding.h"
#include "snapshot/run_snapshots.h"
#include "snapshot/snapshot.h"

namespace het::lua {
namespace {

DeviceHandle device(lua_State* L, const std::string& name) {
  if (name == "cpu") return host_of(L).cpu;
  if (name == "reference") return host_of(L).reference;
  if (names_gpu(name)) {
    Host& host = host_of(L);
    const int ordinal = gpu_of(name, host.gpus);
    DeviceHandle& gpu = host.opened_gpus[ordinal];
    if (gpu == nullptr) gpu = host.gpus.open(ordinal);
    return gpu;
  }
  fail_usage("'{}' is not a device; there are cpu, cuda (cuda:1 for the second GPU) and reference", name);
}

int gpu_count(lua_State* L) { return Convert<int>::push(L, host_of(L).gpus.count()); }
int gpu_report(lua_State* L) {
  push_json(L, host_of(L).gpus.report());
  return 1;
}

// name or nil, and {flops, bandwidth, memory} for one that is slowed to these rates.
int get_device(lua_State* L) {
  DeviceHandle found = device(L, Convert<std::optional<std::string>>::get(L, 1).value_or("cpu"));
  if (lua_istable(L, 2)) {
    const auto rate = [L](const char* name) {  // 0: not limited
      constexpr double kLeast = 1e3;
      const double value = field<double>(L, 2, name).value_or(0);
      if (value != 0 && !(value >= kLeast)) fail_usage("{} = {}; {} is the least", name, value, kLeast);
      return value;
    };
    Pace pace;
    pace.flops_per_second = rate("flops");
    pace.bytes_per_second = rate("bandwidth");
    pace.memory_bytes = static_cast<int64_t>(std::min(rate("memory"), 0x1p53));
    found = make_paced(found, pace);
  }
  return Convert<DeviceHandle>::push(L, found);
}

int device_index(lua_State* L) {
  auto& handle = check_object<DeviceHandle>(L, 1);
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view field = lua_tostring(L, 2);
  if (field == "name") return Convert<std::string>::push(L, handle->name());
  if (field == "model") return Convert<std::string>::push(L, handle->model());
  return 0;
}
std::string device_to_string(DeviceHandle& handle) { return handle->name(); }
double device_pace_lost(DeviceHandle& handle) { return pace_lost(*handle); }
double device_available(DeviceHandle& handle) { return static_cast<double>(handle->available_bytes()); }

// The best of several runs: of fewer where they take long, since people wait.
double best_seconds(Executor& executor, int runs) {
  constexpr double kPatience = 1;
  double best = 1e300, spent = 0;
  for (int run = 0; run < runs && spent < kPatience; ++run) {
    const auto start = std::chrono::steady_clock::now();
    executor.run();
    const double seconds = seconds_since(start);
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

bool is_gpu(const Device& device) { return device.name() == "cuda"; }

// The device's matrix product in FLOP/s: the best of several products of [n, n] by [n, n]. A GPU gets larger
// ones, and several in a step: waiting for the end of a step takes it longer than a small product.
double device_product(const DeviceHandle& handle, DType dtype) {
  const OpDef& linear = op_named("linear");
  const int64_t size = is_gpu(*handle) ? 8192 : 2048;
  const int products = is_gpu(*handle) ? 8 : 1;
  constexpr int kRuns = 7;
  Graph graph;
  GraphBuilder builder(graph);
  const TensorType type{dtype, {size, size}};
  const Initial initial{Initial::Kind::normal, 1 / std::sqrt(static_cast<float>(size))};
  const ValueId x = builder.input("x", type), w = builder.input("w", type);
  ValueId y = x;
  for (int i = 0; i < products; ++i) y = builder.call_all(linear, {y, w, kAbsent}).front();
  builder.output("y", y);
  Executor executor(lower_single(graph), std::make_shared<StateStore>(handle, 0));
  executor.write("x", initial_tensor("x", type, {Initial::Kind::normal, 1}, 0));
  executor.write("w", initial_tensor("w", type, initial, 0));
  const auto n = static_cast<double>(size);
  return 2.0 * products * n * n * n / best_seconds(executor, kRuns);
}

// device:peak_flops(dtype) -> FLOP/s that utilisation is measured against, and how they were found: of a
// processor the fastest instruction on registers alone, of other devices a large matrix product.
int device_peak(lua_State* L) {
  auto& handle = check_object<DeviceHandle>(L, 1);
  const DType dtype = Convert<DType>::get(L, 2);
  if (handle != host_of(L).cpu) {
    Convert<double>::push(L, device_product(handle, dtype));
    return 1 + Convert<std::string>::push(L, "matrix product");
  }
  const CpuPeak peak = measure_cpu_peak(dtype);
  Convert<double>::push(L, peak.flops);
  return 1 + Convert<std::string>::push(L, "registers, " + peak.instruction);
}

// Bytes a second that the device reads and writes together: the best of several copies.
double device_bandwidth(const DeviceHandle& handle) {
  const int64_t elements = int64_t{1} << (is_gpu(*handle) ? 28 : 25);
  constexpr int kRuns = 5;
  Graph graph;
  GraphBuilder builder(graph);
  builder.output("y",
                 builder.call("scale", {builder.input("x", {DType::f32, {elements}})}, {{"factor", 2.0}}));
  Executor executor(lower_single(graph), std::make_shared<StateStore>(handle, 0));
  executor.write("x", Tensor::zeros({DType::f32, {elements}}));
  return 2.0 * 4 * static_cast<double>(elements) / best_seconds(executor, kRuns);
}

// device:measuring("product_flops", dtype) or ("bandwidth"): the same on a separate thread, as a planning.
int device_measuring(lua_State* L) {
  const DeviceHandle handle = check_object<DeviceHandle>(L, 1);
  const auto what = Convert<std::string>::get(L, 2);
  const auto dtype = Convert<std::optional<DType>>::get(L, 3).value_or(DType::f32);
  if (what != "product_flops" && what != "bandwidth")
    fail_usage("'{}' is not measured beside other work; product_flops and bandwidth are", what);
  auto measuring = std::make_shared<Planning>();
  measuring->answer = std::async(std::launch::async, [handle, dtype, product = what == "product_flops"] {
    return Json(product ? device_product(handle, dtype) : device_bandwidth(handle));
  });
  return Convert<PlanningHandle>::push(L, std::move(measuring));
}

int threads(lua_State* L) {  // native.threads([count])
  constexpr int kMost = 4096;
  if (const auto count = Convert<std::optional<int>>::get(L, 1)) {
    if (*count < 1 || *count > kMost) fail_usage("threads = {}; 1 to {} are possible", *count, kMost);
    set_thread_count(*count);
  }
  return Convert<int>::push(L, thread_count());
}
int cores(lua_State* L) { return Convert<int>::push(L, core_count()); }

StateHandle new_state(DeviceHandle& handle, std::optional<int64_t> seed) {
  return std::make_shared<StateStore>(handle, static_cast<uint64_t>(seed.value_or(0)));
}

template <typename Handle>
int state_names(lua_State* L) {
  auto& state = check_object<Handle>(L, 1);
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
double state_bytes(StateHandle& state) { return static_cast<double>(state->bytes()); }
StateCopyHandle state_copy(StateHandle& state) { return state->copy(); }
bool copy_done(StateCopyHandle& copy) { return copy->done(); }
Tensor copy_read(StateCopyHandle& copy, std::string name) { return copy->read(name); }
void state_write(StateHandle& state, std::string name, Tensor& tensor) { state->write(name, tensor); }
bool state_has(StateHandle& state, std::string name) { return state->has(name); }
void state_set_initial(StateHandle& state, std::string name, StoredTensor& tensor) {
  state->set_initial(name, tensor);
}
void state_set_initial_from(StateHandle& state, SnapshotHandle& snapshot) {
  for (const SnapshotTensor& tensor : snapshot->manifest().tensors)
    state->set_initial(tensor.name, {tensor.type, [snapshot, name = tensor.name](const TensorSlice& slice) {
                                       return snapshot->read(name, slice);
                                     }});
}
void state_clear_initial(StateHandle& state) { state->clear_initial(); }
double state_bytes_restored(StateHandle& state) { return static_cast<double>(state->bytes_restored()); }
void state_clear(StateHandle& state) { state->clear(); }
void state_drop(StateHandle& state, std::string name) { state->drop(name); }
// It is the state after this step.
void state_set_step(StateHandle& state, int64_t step) {
  state->set_version({step, state->version().generation});
}
// It was replaced by one of elsewhere, after this step: a version that no snapshot and no other member has.
// All ranks call it at the same place.
void state_restart(StateHandle& state, int64_t step) {
  const Version version{step, std::max(state->generation(), state->version().generation) + 1};
  state->begin_generation(version.generation);
  state->set_version(version);
  state->set_history({{version.generation, step, state->nonce()}});
}
// Of the generation that begins: what random_number() gave one of its ranks.
void state_set_nonce(StateHandle& state, int64_t nonce) { state->set_nonce(nonce); }
double state_step(StateHandle& state) { return static_cast<double>(state->version().step); }

Schedule schedule_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Schedule each :
       {Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved, Schedule::split_backward}) {
    if (name_of(each) == name) return each;
    names.emplace_back(name_of(each));
  }
  fail_usage("'{}' is no schedule; there are {}", name, fmt::join(names, ", "));
}

}  // namespace

namespace {
constexpr int kMostInPlan = 1 << 20;  // of anything that is counted: sums and products of two stay small

// The field `tensor` of a plan or a stage where it is a list of shares; empty: it is a number, or absent.
void check_shares(const Shares& shares, std::string_view of) {
  if (shares.empty() || shares.size() > kMostInPlan)
    fail_usage("{} has {} shares; 1 to {} work", of, shares.size(), kMostInPlan);
  for (const int64_t share : shares)
    if (share > kMostInPlan) fail_usage("{} has the share {}; at most {} works", of, share, kMostInPlan);
}

Shares shares_at(lua_State* L, int index) {
  lua_getfield(L, index, "tensor");
  const bool is_list = lua_istable(L, -1);
  lua_pop(L, 1);
  if (!is_list) return {};
  Shares shares = field<Shares>(L, index, "tensor").value_or(Shares{});
  check_shares(shares, "tensor of a plan");
  return shares;
}

// Calls visit(pattern) for each entry of the table `name` of the one at `index`; its value is at the top.
template <class Visit>
void each_pattern(lua_State* L, int index, const char* name, Visit visit) {
  lua_getfield(L, index, name);
  const int entries = lua_gettop(L);
  if (!lua_isnil(L, entries) && !lua_istable(L, entries))
    fail_usage("sharding: `{}` is a {}; names with how they lie are needed", name, luaL_typename(L, entries));
  if (lua_istable(L, entries)) {
    lua_pushnil(L);
    while (lua_next(L, entries) != 0) {
      if (lua_type(L, -2) != LUA_TSTRING)
        fail_usage("sharding: `{}` has an entry without a name; it is as in {{ [\"blocks.*.weight\"] = 0 }}",
                   name);
      visit(std::string(lua_tostring(L, -2)));
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
}

std::vector<std::string> names_of(const std::vector<StageAxis>& axes) {
  std::vector<std::string> names;
  for (const StageAxis& axis : axes) names.push_back(axis.name);
  return names;
}

// How state or inputs lie, from the top of the stack: 0, "replicated", or { dim = 0, segments = { 16, 16 } }.
AxisSharding::Cut cut_at(lua_State* L, const char* name, const std::string& pattern) {
  AxisSharding::Cut cut{pattern, -1, {}};
  const int value = lua_gettop(L);
  const bool replicated =
      lua_type(L, value) == LUA_TSTRING && std::string_view(lua_tostring(L, value)) == "replicated";
  std::optional<int64_t> dim;
  if (lua_type(L, value) == LUA_TNUMBER) dim = Convert<int64_t>::get(L, value);
  if (lua_istable(L, value)) {
    dim = field<int64_t>(L, value, "dim");
    cut.segments = field<std::vector<int64_t>>(L, value, "segments").value_or(cut.segments);
  }
  if (!replicated && (!dim || *dim < 0))
    fail_usage(
        "sharding: {} of `{}` lies by a dimension from 0 on, \"replicated\", or {{ dim =, segments = }}",
        pattern, name);
  if (dim) cut.dim = *dim;
  return cut;
}

AxisSharding::Rule rule_at(lua_State* L, const char* name, const std::string& pattern) {
  if (lua_type(L, -1) != LUA_TSTRING)
    fail_usage("sharding: {} of `{}` runs by a rule, as errors list them", pattern, name);
  return {pattern, lua_tostring(L, -1)};
}

// The entries of `name` of the table at `index`. Of a mesh each has a table, with an entry for each axis.
template <class Entry>
void read_entries(lua_State* L, int index, const char* name, std::vector<StageAxis>& axes, bool is_mesh,
                  std::vector<Entry> AxisSharding::*entries,
                  Entry (*read)(lua_State*, const char*, const std::string&)) {
  const auto add = [&](StageAxis& axis, Entry entry) {
    if (!axis.sharding) axis.sharding.emplace();
    ((*axis.sharding).*entries).push_back(std::move(entry));
  };
  each_pattern(L, index, name, [&](const std::string& pattern) {
    if (!is_mesh) return add(axes[0], read(L, name, pattern));
    if (!lua_istable(L, -1))
      fail_usage("sharding: {} of `{}` has an entry for each axis of the mesh, as in {{ {} = 0 }}", pattern,
                 name, axes[0].name);
    const int of_axes = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, of_axes) != 0) {
      const std::string axis = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
      const auto found =
          std::find_if(axes.begin(), axes.end(), [&](const StageAxis& each) { return each.name == axis; });
      if (found == axes.end())
        fail_usage("sharding: {} of `{}` names an axis that the mesh does not have; it has {}", pattern, name,
                   fmt::join(names_of(axes), " and "));
      add(*found, read(L, name, pattern));
      lua_pop(L, 1);
    }
  });
  for (StageAxis& axis : axes)
    if (axis.sharding) std::sort(((*axis.sharding).*entries).begin(), ((*axis.sharding).*entries).end());
}

// The number of parts of a mesh axis, or their shares, at the top of the stack.
Shares parts_at(lua_State* L) {
  if (lua_type(L, -1) == LUA_TNUMBER) {
    const auto count = Convert<int64_t>::get(L, lua_gettop(L));
    if (count < 1 || count > kMostInPlan)
      fail_usage("an axis of a mesh has {} parts; 1 to {} work", count, kMostInPlan);
    return Shares(static_cast<size_t>(count), 1);
  }
  Shares shares = Convert<Shares>::get(L, lua_gettop(L));
  check_shares(shares, "an axis of a mesh");
  return shares;
}

std::vector<StageAxis> bounded(std::vector<StageAxis> axes) {
  if (axes.empty()) fail_usage("sharding: the mesh has no axis; one or two work");
  size_t devices = 1;
  for (const StageAxis& axis : axes) {
    devices *= axis.shares.size();
    if (devices > kMostInPlan) fail_usage("a mesh of a plan has more than {} devices", kMostInPlan);
  }
  return axes;
}

// { data = 2, model = { 3, 1 } }, axes in the order of their names, or { { "model", 2 }, { "data", 2 } }; at
// the top of the stack.
std::vector<StageAxis> axes_at(lua_State* L) {
  if (!lua_istable(L, -1))
    fail_usage("sharding: a mesh is axes and their sizes, as in {{ data = 2, model = 2 }}");
  const int at = lua_gettop(L), count = static_cast<int>(lua_objlen(L, at));
  std::vector<StageAxis> axes;
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, at, i);
    const int pair = lua_gettop(L);
    if (lua_istable(L, pair)) {
      lua_rawgeti(L, pair, 1);
      lua_rawgeti(L, pair, 2);
    }
    if (lua_gettop(L) == pair || lua_type(L, -2) != LUA_TSTRING)
      fail_usage("sharding: an axis of a mesh is a name and a size, as in {{ \"data\", 2 }}");
    axes.push_back({lua_tostring(L, -2), parts_at(L), {}});
    lua_settop(L, at);
  }
  if (!axes.empty()) return bounded(std::move(axes));
  lua_pushnil(L);
  while (lua_next(L, at) != 0) {
    if (lua_type(L, -2) != LUA_TSTRING)
      fail_usage("sharding: an axis of a mesh is a name and a size, as in {{ data = 2 }}");
    axes.push_back({lua_tostring(L, -2), parts_at(L), {}});
    lua_pop(L, 1);
  }
  std::sort(axes.begin(), axes.end(), [](const StageAxis& a, const StageAxis& b) { return a.name < b.name; });
  return bounded(std::move(axes));
}

// The field `sharding` of a plan or a stage.
std::optional<StageSharding> sharding_at(lua_State* L, int index) {
  lua_getfield(L, index, "sharding");
  std::optional<StageSharding> sharding;
  if (lua_istable(L, -1)) {
    const int at = lua_gettop(L);
    lua_getfield(L, at, "mesh");
    const bool is_mesh = !lua_isnil(L, -1);
    sharding = is_mesh ? StageSharding{axes_at(L)} : along_one_axis({});
    lua_pop(L, 1);
    read_entries(L, at, "state", sharding->axes, is_mesh, &AxisSharding::state, cut_at);
    read_entries(L, at, "inputs", sharding->axes, is_mesh, &AxisSharding::inputs, cut_at);
    read_entries(L, at, "nodes", sharding->axes, is_mesh, &AxisSharding::nodes, rule_at);
  }
  lua_pop(L, 1);
  return sharding;
}
}  // namespace

Plan plan_at(lua_State* L, int index, int layers) {
  Plan plan;
  const auto count = [L](int at, const char* name, int otherwise) {
    const int value = field<int>(L, at, name).value_or(otherwise);
    if (value > kMostInPlan) fail_usage("{} = {} of a plan is more than {}", name, value, kMostInPlan);
    return value;
  };
  plan.shares = shares_at(L, index);
  plan.tensor = plan.shares.empty() ? count(index, "tensor", 1) : static_cast<int>(plan.shares.size());
  plan.sharding = sharding_at(L, index);
  plan.sequence = field<bool>(L, index, "sequence").value_or(false);
  plan.microbatch = count(index, "microbatch", 1);
  plan.schedule = schedule_named(field<std::string>(L, index, "schedule").value_or("1f1b"));
  plan.chunks = count(index, "chunks", 1);
  plan.warmup = count(index, "warmup", 0);
  plan.sharded_optimizer = field<bool>(L, index, "sharded_optimizer").value_or(false);
  each_in(L, index, "pipelines", [&](int, int at) {
    Pipeline& pipeline = plan.pipelines.emplace_back();
    pipeline.microbatches = count(at, "microbatches", 1);
    each_in(L, at, "stages", [&](int, int stage_at) {
      Stage& stage = pipeline.stages.emplace_back();
      stage.layers = count(stage_at, "layers", -1);
      stage.shares = shares_at(L, stage_at);
      if (const int degree = stage.shares.empty() ? count(stage_at, "tensor", 0) : 0; degree > 0)
        stage.shares.assign(static_cast<size_t>(degree), 1);
      stage.sharding = sharding_at(L, stage_at);
      stage.recompute = field<bool>(L, stage_at, "recompute").value_or(false);
      stage.optimizer_share = count(stage_at, "optimizer_share", 1);
      stage.devices = field<std::vector<std::string>>(L, stage_at, "devices").value_or(stage.devices);
    });
    int64_t left = layers;
    int open = 0;
    for (const Stage& stage : pipeline.stages) stage.layers < 0 ? ++open : left -= stage.layers;
    if (left < -kMostInPlan) fail_usage("the stages of a pipeline hold more than {} layers", kMostInPlan);
    int first = 0, share = 0;
    for (Stage& stage : pipeline.stages) {
      if (stage.layers < 0) {
        const Range range = share_of(std::max<int64_t>(left, 0), open, share++);
        stage.layers = static_cast<int>(range.end - range.begin);
      }
      stage.first_layer = first;
      first += stage.layers;
    }
  });
  return plan;
}

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
// phase, layer, microbatch}, of starts {label, bytes, arrived}. An await names what it waits for: `label`,
// and the operation, `awaited`.
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
  make_class<DeviceHandle>(L,
                           {bind<&device_peak>("peak_flops"), bind<&device_product>("product_flops"),
                            bind<&device_bandwidth>("bandwidth"), bind<&device_measuring>("measuring"),
                            bind<&device_pace_lost>("pace_lost"), bind<&device_available>("available_bytes"),
                            bind<&device_to_string>("__tostring")},
                           &device_index);
  make_class<StateHandle>(
      L, {bind<&state_names<StateHandle>>("names"), bind<&state_read>("read"), bind<&state_write>("write"),
          bind<&state_bytes>("bytes"), bind<&state_copy>("copy"), bind<&state_has>("has"),
          bind<&state_drop>("drop"), bind<&state_set_initial>("set_initial"),
          bind<&state_set_initial_from>("set_initial_from"), bind<&state_clear_initial>("clear_initial"),
          bind<&state_bytes_restored>("bytes_restored"), bind<&state_set_step>("set_step"),
          bind<&state_set_nonce>("set_nonce"), bind<&state_step>("step"), bind<&state_restart>("restart"),
          bind<&state_clear>("clear")});
  make_class<StateCopyHandle>(
      L, {bind<&state_names<StateCopyHandle>>("names"), bind<&copy_read>("read"), bind<&copy_done>("done")});
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
                {bind<&get_device>("device"), bind<&gpu_count>("gpus"), bind<&gpu_report>("gpu_report"),
                 bind<&threads>("threads"), bind<&cores>("cores"), bind<&new_state>("state"),
                 bind<&make_program>("program"), bind<&beyond_megatron>("bytes_beyond_megatron"),
                 bind<&new_executor>("executor")});
}

}  // namespace het::lua
