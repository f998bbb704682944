// Devices and the state that they hold.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>

#include "core/base/elapsed.h"
#include "core/base/parallel.h"
#include "core/device/paced.h"
#include "core/ops/op.h"
#include "kernels/cpu/processor.h"
#include "lua/objects.h"
#include "lua/planning.h"
#include "planner/lower/lower.h"
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
double state_seconds_waited(StateHandle& state) { return state->seconds_waited(); }
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

}  // namespace

void add_device(lua_State* L) {
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
          bind<&state_bytes_restored>("bytes_restored"), bind<&state_seconds_waited>("seconds_waited"),
          bind<&state_set_step>("set_step"), bind<&state_set_nonce>("set_nonce"), bind<&state_step>("step"),
          bind<&state_restart>("restart"), bind<&state_clear>("clear")});
  make_class<StateCopyHandle>(
      L, {bind<&state_names<StateCopyHandle>>("names"), bind<&copy_read>("read"), bind<&copy_done>("done")});
  set_functions(L, "native.",
                {bind<&get_device>("device"), bind<&gpu_count>("gpus"), bind<&gpu_report>("gpu_report"),
                 bind<&threads>("threads"), bind<&cores>("cores"), bind<&new_state>("state")});
}

}  // namespace het::lua
