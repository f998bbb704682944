// Blocks run one after the other, each as a set of fibers: a thread runs until it waits or ends, and goes on
// when all that it waits for have come.
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <emulated_mma.h>

struct EmulatedGraph {
  std::vector<std::function<void()>> launches;
};
struct EmulatedStream {
  std::unique_ptr<EmulatedGraph> capturing;
};

namespace emulated {
namespace {

namespace context = boost::context;

constexpr unsigned kLanes = 32;
constexpr size_t kStackBytes = 128 << 10;

enum class State : uint8_t { ready, at_block_barrier, at_warp_barrier, ended };

struct Thread {
  uint3 index;
  State state = State::ready;
  unsigned mask = 0;  // of the warp barrier that it waits at
  unsigned turn = 0;  // exchanges so far
  Groups copies, products;
  context::fiber fiber, scheduler;
};

struct Warp {
  alignas(16) std::byte slots[2][kLanes][64];
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::byte> shared;
  unsigned current = 0;
  int votes[2] = {};  // of barriers that count, by their parity
  unsigned barriers = 0;
  std::exception_ptr error;  // of the thread that ran last
};

Block block;
unsigned launches = 0;
context::pooled_fixedsize_stack stacks{kStackBytes};

// Back to the scheduler, until the state is `ready` again.
void wait(State state) {
  Thread& self = block.threads[block.current];
  self.state = state;
  self.scheduler = std::move(self.scheduler).resume();
}

void start(Thread& thread, const std::function<void()>& body) {
  thread.fiber = context::fiber(std::allocator_arg, stacks, [&thread, &body](context::fiber&& scheduler) {
    thread.scheduler = std::move(scheduler);
    try {
      body();
    } catch (const context::detail::forced_unwind&) {  // a thread of a block that was given up
      throw;
    } catch (...) {
      block.error = std::current_exception();
    }
    thread.state = State::ended;
    return std::move(thread.scheduler);
  });
}

void resume(unsigned i) {
  Thread& thread = block.threads[i];
  block.current = i;
  threadIdx = thread.index;
  thread.fiber = std::move(thread.fiber).resume();
  if (block.error) std::rethrow_exception(std::exchange(block.error, nullptr));
}

// Lets go those of a warp whose whole mask has come. True: some.
bool release_warp(unsigned first, unsigned end) {
  bool released = false;
  for (unsigned i = first; i < end; ++i) {
    if (block.threads[i].state != State::at_warp_barrier) continue;
    const unsigned mask = block.threads[i].mask;
    bool all = true;
    for (unsigned lane = 0; lane < kLanes && all; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      const unsigned other = first + lane;
      all = other >= end || block.threads[other].state == State::ended ||
            (block.threads[other].state == State::at_warp_barrier && block.threads[other].mask == mask);
    }
    if (!all) continue;
    for (unsigned lane = 0; lane < kLanes; ++lane)
      if ((mask >> lane & 1) != 0 && first + lane < end &&
          block.threads[first + lane].state == State::at_warp_barrier)
        block.threads[first + lane].state = State::ready;
    released = true;
  }
  return released;
}

// Runs a warp until all its lanes have ended or wait for the block.
void run_warp(unsigned first, unsigned end, bool backwards) {
  for (;;) {
    for (unsigned k = 0; k < end - first; ++k) {
      const unsigned i = backwards ? end - 1 - k : first + k;
      if (block.threads[i].state == State::ready) resume(i);
    }
    if (!release_warp(first, end)) return;
  }
}

void run_block(const std::function<void()>& body) {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z;
  block.threads = std::vector<Thread>(count);
  block.warps.resize((count + kLanes - 1) / kLanes);
  block.barriers = 0;
  block.votes[0] = block.votes[1] = 0;
  for (Warp& warp : block.warps) std::memset(warp.slots, 0xFF, sizeof warp.slots);
  std::memset(block.shared.data(), 0xFF, block.shared.size());
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    thread.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    start(thread, body);
  }
  const bool backwards = launches % 2 != 0;
  for (;;) {
    const auto warps = static_cast<unsigned>(block.warps.size());
    for (unsigned k = 0; k < warps; ++k) {
      const unsigned warp = backwards ? warps - 1 - k : k, first = warp * kLanes;
      run_warp(first, std::min(count, first + kLanes), backwards);
    }
    bool ended = true, waits = false, stuck = false;
    for (const Thread& thread : block.threads) {
      ended &= thread.state == State::ended;
      waits |= thread.state == State::at_block_barrier;
      stuck |= thread.state == State::at_warp_barrier;
    }
    if (ended) return;
    if (stuck || !waits) broken("lanes of a warp wait for lanes that do not come");
    for (Thread& thread : block.threads)
      if (thread.state == State::at_block_barrier) thread.state = State::ready;
  }
}

}  // namespace

void broken(const char* what) {
  throw std::logic_error(std::string("emulated GPU: ") + what + " (block " + std::to_string(blockIdx.x) +
                         ", thread " + std::to_string(threadIdx.x) + ")");
}

void block_barrier() {
  ++block.barriers;
  wait(State::at_block_barrier);
}

void warp_barrier(unsigned mask) {
  block.threads[block.current].mask = mask;
  wait(State::at_warp_barrier);
}

int lane_id() { return static_cast<int>(block.current % kLanes); }
unsigned next_turn() { return block.threads[block.current].turn++; }
std::byte* exchange_slot(unsigned lane, unsigned turn) {
  return block.warps[block.current / kLanes].slots[turn % 2][lane];
}
std::byte* dynamic_shared() { return block.shared.data(); }
Groups& copies() { return block.threads[block.current].copies; }
Groups& asynchronous_products() { return block.threads[block.current].products; }
bool work_is_done_at_once() { return launches % 2 != 0; }

void run(dim3 grid, dim3 threads, size_t shared, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = threads;
  if (threads.x * threads.y * threads.z > 1024) broken("a block of more than 1024 threads");
  block.shared.resize(shared);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block(body);
      }
  ++launches;
}

cudaError_t queue(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  auto launch = [config, thread = std::move(thread)] {
    run(config.gridDim, config.blockDim, config.dynamicSmemBytes, thread);
  };
  if (config.stream->capturing != nullptr)
    config.stream->capturing->launches.push_back(std::move(launch));
  else
    launch();
  return cudaSuccess;
}

}  // namespace emulated

unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned turn = emulated::next_turn();
  std::memcpy(emulated::exchange_slot(emulated::lane_id(), turn), &predicate, sizeof predicate);
  emulated::warp_barrier(mask);
  unsigned result = 0;
  for (unsigned lane = 0; lane < emulated::kLanes; ++lane) {
    int other = 0;
    std::memcpy(&other, emulated::exchange_slot(lane, turn), sizeof other);
    if ((mask >> lane & 1) != 0 && other != 0) result |= 1u << lane;
  }
  return result;
}

// All threads of the block come three times: the count is cleared, taken, and read.
int __syncthreads_count(int predicate) {
  static int count;
  __syncthreads();
  count = 0;
  __syncthreads();
  count += predicate != 0;
  __syncthreads();
  return count;
}
int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
int __syncthreads_and(int predicate) { return __syncthreads_count(predicate == 0) == 0; }

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulation";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated GPU", 9, 0, 4, 64, size_t{4} << 30};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount            ? 4
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
           : attribute == cudaDevAttrComputeCapabilityMajor       ? emulated::generation
                                                                  : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int) {
  std::strncpy(text, "0000:00:00.0", static_cast<size_t>(bytes));
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*address, 0xFF, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) { return std::free(address), cudaSuccess; }
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) { return cudaFree(address); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return *device = host, cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = size_t{4} << 30, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new EmulatedStream, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

namespace {

cudaError_t run_or_capture(cudaStream_t stream, std::function<void()> work) {
  if (stream->capturing != nullptr)
    stream->capturing->launches.push_back(std::move(work));
  else
    work();
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new double(0), cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return run_or_capture(stream, [event] {
    *event = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return *milliseconds = static_cast<float>((*to - *from) * 1e3), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return run_or_capture(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return run_or_capture(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return stream->capturing = std::make_unique<EmulatedGraph>(), cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return *graph = stream->capturing.release(), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return *ready = new EmulatedGraph(*graph), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t) {
  for (const auto& launch : ready->launches) launch();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) { return delete ready, cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  return value > (227 << 10) ? cudaErrorInvalidValue : cudaSuccess;
}
