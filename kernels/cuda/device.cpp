#include "kernels/cuda/device.h"

#include <cstdlib>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/cluster/environment.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/spin.h"
#include "kernels/cuda/table.h"

namespace het::HET_CUDA {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  fail_environment("the GPU could not {}: {} ({})", what, cudaGetErrorString(result),
                   cudaGetErrorName(result));
}

namespace {

// What CUDA and NCCL read when they start, for processes whose kernels wait for those of other ranks: a
// kernel must neither be loaded while one waits, nor stand behind it in a queue that streams share. What the
// user has set stays.
void prepare_for_ranks() {
  try {
    if (read_launched_rank(process_environment()).world_size.value_or(1) <= 1) return;
  } catch (const Error&) {  // whoever joins the run says what is wrong
    return;
  }
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);  // connect when a group is made, not in the midst of a step
}

}  // namespace

Found find_gpus() {
  prepare_for_ranks();
  Found found;
  if (cudaRuntimeGetVersion(&found.runtime) != cudaSuccess) found.runtime = 0;
  if (cudaDriverGetVersion(&found.driver) != cudaSuccess) found.driver = 0;
  int count = 0;
  const cudaError_t result = found.driver == 0 ? cudaErrorNoDevice : cudaGetDeviceCount(&count);
  if (found.driver == 0) {
    found.why_none = "no NVIDIA driver was found (libcuda.so.1)";
  } else if (result == cudaErrorInsufficientDriver) {
    found.why_none = fmt::format("the NVIDIA driver is made for CUDA {}; this build needs {} or newer",
                                 version_text(found.driver), version_text(found.runtime));
  } else if (result == cudaErrorNoDevice || (result == cudaSuccess && count == 0)) {
    found.why_none = "the NVIDIA driver shows no GPU";
  } else if (result != cudaSuccess) {
    found.why_none = fmt::format("the NVIDIA driver says: {}", cudaGetErrorString(result));
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    Gpu gpu;
    gpu.name = properties.name;
    gpu.major = properties.major;
    gpu.minor = properties.minor;
    gpu.multiprocessors = properties.multiProcessorCount;
    gpu.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    gpu.bus_bits = properties.memoryBusWidth;
    int kilohertz = 0;
    if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, i) == cudaSuccess)
      gpu.clock_hz = kilohertz * 1e3;
    if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, i) == cudaSuccess)
      gpu.memory_clock_hz = kilohertz * 1e3;
    char bus_id[32] = {};
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, i) == cudaSuccess) gpu.bus_id = bus_id;
    found.gpus.push_back(std::move(gpu));
  }
  return found;
}

namespace {

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(int64_t bytes) {
    if (bytes > 0) check(cudaMalloc(&address_, static_cast<size_t>(bytes)), "allocate memory");
  }
  ~DeviceMemory() override { cudaFree(address_); }
  std::byte* address() const override { return static_cast<std::byte*>(address_); }

 private:
  void* address_ = nullptr;
};

class PinnedMemory final : public Memory {
 public:
  explicit PinnedMemory(int64_t bytes) {
    if (bytes > 0)
      check(cudaHostAlloc(&address_, static_cast<size_t>(bytes), cudaHostAllocDefault),
            "allocate pinned memory");
  }
  ~PinnedMemory() override { cudaFreeHost(address_); }
  std::byte* address() const override { return static_cast<std::byte*>(address_); }

 private:
  void* address_ = nullptr;
};

constexpr const char* kCapture = "capture a step (HETRUN_CUDA_GRAPHS=0 launches its kernels one by one)";

bool wants_graphs() {
  const char* wanted = std::getenv("HETRUN_CUDA_GRAPHS");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

// A captured list of launches. Kept by whoever recorded it, no longer than the device.
class GraphRecording final : public Recording {
 public:
  GraphRecording(cudaGraph_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {
    if (const cudaError_t result = cudaGraphInstantiate(&ready_, graph, 0); result != cudaSuccess) {
      cudaGraphDestroy(graph);
      check(result, kCapture);
    }
    cudaGraphUpload(ready_, stream);  // now, rather than when it is first launched
    check(cudaGraphGetNodes(graph, nullptr, &launches_), kCapture);
  }
  ~GraphRecording() override {
    cudaGraphExecDestroy(ready_);
    cudaGraphDestroy(graph_);
  }
  void replay() override { check(cudaGraphLaunch(ready_, stream_), "launch a captured step"); }
  int launches() const override { return static_cast<int>(launches_); }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t ready_ = nullptr;
  size_t launches_ = 0;
  cudaStream_t stream_;
};

// An event for each moment.
class EventStopwatch final : public Stopwatch {
 public:
  EventStopwatch(size_t moments, cudaStream_t stream) : events_(moments), stream_(stream) {
    for (cudaEvent_t& event : events_)
      check(cudaEventCreateWithFlags(&event, cudaEventDefault), "make an event");
  }
  ~EventStopwatch() override {
    for (const cudaEvent_t event : events_)
      if (event != nullptr) cudaEventDestroy(event);
  }
  void mark(size_t moment) override { check(cudaEventRecord(events_[moment], stream_), "record an event"); }
  double seconds(size_t from, size_t to) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[from], events_[to]), "tell the time");
    return milliseconds * 1e-3;
  }

 private:
  std::vector<cudaEvent_t> events_;
  cudaStream_t stream_;
};

// Done when its event has happened; the host waits for it only when asked to.
class EventTransfer final : public Transfer {
 public:
  explicit EventTransfer(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event");
    check(cudaEventRecord(event_, stream), "record an event");
  }
  ~EventTransfer() override {  // whichever device is current
    cudaEventSynchronize(event_);
    cudaEventDestroy(event_);
  }
  bool done() const override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) check(state, "copy to the host");
    return state == cudaSuccess;
  }
  void wait() override { check(cudaEventSynchronize(event_), "copy to the host"); }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::string model) : model_(std::move(model)), interconnect_(context_) {
    context_.ordinal = ordinal;
    check(cudaSetDevice(ordinal), "be used");
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      check(cudaDeviceGetAttribute(&value, which, ordinal), "say what it can do");
      return value;
    };
    context_.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    context_.generation = attribute(cudaDevAttrComputeCapabilityMajor);
    context_.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kOwnShared;
    for (cudaStream_t* stream : {&context_.stream, &copies_})
      check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "make a stream");
    for (cudaEvent_t* event : {&launched_, &copied_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "make an event");
    check(cudaHostAlloc(reinterpret_cast<void**>(&failure_), sizeof *failure_, cudaHostAllocMapped),
          "allocate pinned memory");
    *failure_ = {};
    check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&context_.failure), failure_, 0),
          "see pinned memory");
    for (const Entry& entry : all_kernels()) kernels_.emplace(entry.op, entry.prepare);
  }
  ~CudaDevice() override {
    interconnect_.close();
    for (const cudaStream_t stream : {copies_, context_.stream}) cudaStreamSynchronize(stream);
    cudaFreeHost(failure_);
    for (const cudaEvent_t event : {launched_, copied_}) cudaEventDestroy(event);
    for (const cudaStream_t stream : {copies_, context_.stream}) cudaStreamDestroy(stream);
  }

  std::string name() const override { return "cuda"; }
  std::string model() const override { return model_; }
  std::unique_ptr<Memory> allocate(int64_t bytes) override {
    use();
    return std::make_unique<DeviceMemory>(bytes);
  }
  std::unique_ptr<Memory> allocate_staging(int64_t bytes) override {
    use();
    return std::make_unique<PinnedMemory>(bytes);
  }
  bool has_own_memory() const override { return true; }
  int64_t available_bytes() const override {
    use();
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "say how much memory it has");
    return static_cast<int64_t>(free);
  }

  std::unique_ptr<Kernel> prepare(const KernelRequest& request) override {
    const auto found = kernels_.find(request.op.name);
    if (found == kernels_.end()) fail_usage("device cuda has no kernel for operator '{}'", request.op.name);
    use();
    return found->second(request, context_);
  }

  // From memory that is not pinned the call returns when the bytes are on their way from a copy that CUDA
  // made.
  void copy_in(std::byte* to, const std::byte* host, int64_t bytes) override {
    use();
    check(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, context_.stream),
          "copy");
  }
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override {
    use();
    check(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, context_.stream),
          "copy");
    synchronize();
  }

  std::unique_ptr<Transfer> begin_transfer(std::span<const CopyOut> copies) override {
    use();
    check(cudaEventRecord(launched_, context_.stream), "record an event");
    check(cudaStreamWaitEvent(copies_, launched_, 0), "wait for an event");
    for (const CopyOut& copy : copies)
      check(cudaMemcpyAsync(copy.host, copy.from, static_cast<size_t>(copy.bytes), cudaMemcpyDeviceToHost,
                            copies_),
            "copy");
    check(cudaEventRecord(copied_, copies_), "record an event");
    return std::make_unique<EventTransfer>(copies_);
  }
  void wait_for_transfers() override {
    use();
    check(cudaStreamWaitEvent(context_.stream, copied_, 0), "wait for an event");
  }

  void enter() override { use(); }
  DeviceTransport device_transport() override { return interconnect_.way(); }
  std::shared_ptr<Communicator> connect(std::shared_ptr<Communicator> host) override {
    use();
    return interconnect_.connect(std::move(host));
  }

  void synchronize() override {
    use();
    interconnect_.synchronize();
    if (failure_->kind == Failure::none) return;
    const Failure failure = *failure_;
    *failure_ = {};
    const char* op = failure.op != nullptr ? failure.op : "a kernel on the GPU";
    if (failure.kind == Failure::bad_index)
      kernels::refuse_index(op, failure.position, failure.value, failure.limit);
    if (failure.kind == Failure::bad_start) kernels::refuse_start(op, failure.position, failure.value);
    kernels::refuse_position(op, failure.value, failure.position, failure.limit);
  }

  std::unique_ptr<Recording> record(const std::function<void()>& launches) override {
    if (!wants_graphs()) return nullptr;
    use();
    check(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal), kCapture);
    cudaGraph_t graph = nullptr;
    try {
      launches();
    } catch (...) {
      cudaStreamEndCapture(context_.stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(context_.stream, &graph), kCapture);
    return std::make_unique<GraphRecording>(graph, context_.stream);
  }
  std::unique_ptr<Stopwatch> stopwatch(size_t moments) override {
    use();
    return std::make_unique<EventStopwatch>(moments, context_.stream);
  }
  double launch_gap() override {
    if (!wants_graphs()) return 0;
    use();
    const Spins few = spin_after_spin(kShortSpin), many = spin_after_spin(kLongSpin);
    // Cycles of unknown length, and the gap, from both: seconds = cycles * length + gap.
    const double length = (many.seconds - few.seconds) / (many.cycles - few.cycles);
    return std::max(0.0, few.seconds - few.cycles * length);
  }

 private:
  static constexpr int64_t kShortSpin = 10'000, kLongSpin = 40'000;  // cycles

  // From the beginning of a kernel that runs for so many cycles, measured by itself, to that of the next.
  struct Spins {
    double seconds = 0, cycles = 0;
  };
  Spins spin_after_spin(int64_t cycles) {
    constexpr int kLaunches = 100, kRounds = 5;
    const DeviceMemory total(sizeof(int64_t));
    auto* const address = reinterpret_cast<int64_t*>(total.address());
    const int64_t none = 0;
    spin(context_, 0, address);  // what has not run yet cannot be captured
    const auto recording = record([&] {
      for (int i = 0; i < kLaunches; ++i) spin(context_, cycles, address);
    });
    EventStopwatch watch(2, context_.stream);
    Spins best;
    for (int round = 0; round < kRounds; ++round) {
      copy_in(total.address(), reinterpret_cast<const std::byte*>(&none), sizeof none);
      watch.mark(0);
      recording->replay();
      watch.mark(1);
      int64_t counted = 0;
      copy_out(reinterpret_cast<std::byte*>(&counted), total.address(), sizeof counted);
      const double seconds = watch.seconds(0, 1) / kLaunches;
      if (round == 0 || seconds < best.seconds) best = {seconds, static_cast<double>(counted) / kLaunches};
    }
    return best;
  }

  // Before every call: of a thread's devices, the one that was used last is current.
  void use() const { check(cudaSetDevice(context_.ordinal), "be used"); }

  std::string model_;
  Context context_;
  Interconnect interconnect_;
  cudaStream_t copies_ = nullptr;                      // what goes to the host beside what is computed
  cudaEvent_t launched_ = nullptr, copied_ = nullptr;  // before the last transfer, and all of it
  Failure* failure_ = nullptr;                         // as the host sees it
  std::unordered_map<std::string_view, std::unique_ptr<Kernel> (*)(const KernelRequest&, const Context&)>
      kernels_;
};

}  // namespace

std::shared_ptr<Device> make_device(int ordinal) {
  const Found found = find_gpus();
  const int count = static_cast<int>(found.gpus.size());
  if (count == 0) fail_environment("device cuda: {}; `hetrun doctor` says more", found.why_none);
  if (ordinal < 0 || ordinal >= count)
    fail_environment("device cuda: there is no GPU {}; this machine has {}, numbered from 0", ordinal, count);
  if (const Gpu& gpu = found.gpus[ordinal]; gpu.major < kLeastMajor)
    fail_environment("device cuda: {} has compute capability {}.{}; {}.0 (Ampere) or newer is needed",
                     gpu.name, gpu.major, gpu.minor, kLeastMajor);
  return std::make_shared<CudaDevice>(ordinal, found.gpus[ordinal].name);
}

}  // namespace het::HET_CUDA
