// Blocks run one after the other, each as a set of fibers: a thread runs until it waits or ends, and goes on
// when all that it waits for have come. What is queued on a stream runs at once, on the thread that queues
// it; behind an event that has not happened yet it stays in the stream, and runs on a separate thread, as
// all of a GPU's work does. Several devices, each used by one thread, run beside each other.
#include <algorithm>
#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <emulated_mma.h>

#include "tests/emulated_cuda/device.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

struct EmulatedGraph {
  std::vector<std::function<void()>> launches;
};
struct EmulatedEvent {
  std::shared_ptr<std::atomic<bool>> happened;  // of the last record
  std::shared_ptr<double> when = std::make_shared<double>(0);
};

namespace emulated {

int late_copies = 0;

namespace {

namespace context = boost::context;

constexpr unsigned kLanes = 32;
constexpr size_t kStackBytes = 128 << 10;

enum class State : uint8_t { ready, at_block_barrier, at_warp_barrier, ended };

// Reports every change of stacks to the address sanitizer: the stack left and the stack entered.
#if defined(__SANITIZE_ADDRESS__)
struct Stack {
  void* hidden = nullptr;  // what the sanitizer keeps for a stack that is left
  const void* bottom = nullptr;
  size_t bytes = 0;
};
void leave_for(Stack* own, const Stack& next) {
  __sanitizer_start_switch_fiber(own == nullptr ? nullptr : &own->hidden, next.bottom, next.bytes);
}
void enter(Stack& own, Stack* from) {
  __sanitizer_finish_switch_fiber(own.hidden, from == nullptr ? nullptr : &from->bottom,
                                  from == nullptr ? nullptr : &from->bytes);
}
#else
struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
};
void leave_for(Stack*, const Stack&) {}
void enter(Stack&, Stack*) {}
#endif

// Allocates from the pool, and keeps which stack it was.
struct Stacks {
  context::pooled_fixedsize_stack& pool;
  Stack& given;
  context::stack_context allocate() {
    const context::stack_context made = pool.allocate();
    given.bottom = static_cast<const std::byte*>(made.sp) - made.size;
    given.bytes = made.size;
    return made;
  }
  void deallocate(context::stack_context& stack) { pool.deallocate(stack); }
};

struct Thread {
  uint3 index;
  State state = State::ready;
  unsigned mask = 0;  // of the warp barrier that it waits at
  unsigned turn = 0;  // exchanges so far
  Groups copies, products;
  Stack stack;
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

thread_local Block block;
thread_local unsigned launches = 0;
thread_local context::pooled_fixedsize_stack stacks{kStackBytes};
thread_local Stack scheduler_stack;

// Back to the scheduler, until the state is `ready` again.
void wait(State state) {
  Thread& self = block.threads[block.current];
  self.state = state;
  leave_for(&self.stack, scheduler_stack);
  self.scheduler = std::move(self.scheduler).resume();
  enter(self.stack, nullptr);
}

void start(Thread& thread, const std::function<void()>& body) {
  const auto run = [&thread, &body](context::fiber&& scheduler) {
    enter(thread.stack, &scheduler_stack);
    thread.scheduler = std::move(scheduler);
    try {
      body();
    } catch (const context::detail::forced_unwind&) {  // a thread of a block that was given up
      throw;
    } catch (...) {
      block.error = std::current_exception();
    }
    thread.state = State::ended;
    leave_for(nullptr, scheduler_stack);
    return std::move(thread.scheduler);
  };
  thread.fiber = context::fiber(std::allocator_arg, Stacks{stacks, thread.stack}, run);
}

void resume(unsigned i) {
  Thread& thread = block.threads[i];
  block.current = i;
  threadIdx = thread.index;
  leave_for(&scheduler_stack, thread.stack);
  thread.fiber = std::move(thread.fiber).resume();
  enter(scheduler_stack, nullptr);
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
  std::fill(block.shared.begin(), block.shared.end(), std::byte{0xFF});
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

// Streams that stand still, and the thread that goes on with them.
class Backlog;

class Stream final : public EmulatedStream {
 public:
  Stream(Backlog& backlog, int device) : backlog_(backlog), device_(device) {}
  ~Stream() override;

  void push(std::function<bool()> step) override;
  int device() const override { return device_; }
  cudaError_t state() {
    std::lock_guard lock(mutex_);
    return !steps_.empty() ? cudaErrorNotReady : broken_ ? cudaErrorLaunchFailure : cudaSuccess;
  }
  // Runs what can run; true: nothing is left.
  bool go_on() {
    std::lock_guard lock(mutex_);
    while (!steps_.empty()) {
      try {
        if (!steps_.front()()) return false;
      } catch (const std::exception&) {
        broken_ = true;
      }
      steps_.pop_front();
    }
    return true;
  }

  std::unique_ptr<EmulatedGraph> capturing;

 private:
  Backlog& backlog_;
  const int device_;
  std::mutex mutex_;
  std::deque<std::function<bool()>> steps_;
  bool broken_ = false;
};

class Backlog {
 public:
  ~Backlog() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  void add(Stream* stream) {
    std::lock_guard lock(mutex_);
    streams_.insert(stream);
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    changed_.notify_all();
  }
  void remove(Stream* stream) {
    std::lock_guard round(round_);
    std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      if (streams_.empty()) {
        changed_.wait(lock);
        continue;
      }
      lock.unlock();
      {
        std::lock_guard round(round_);
        lock.lock();
        const std::set<Stream*> streams = std::exchange(streams_, {});
        lock.unlock();
        for (Stream* stream : streams)
          if (!stream->go_on()) add(stream);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      lock.lock();
    }
  }

  std::mutex round_;  // held while streams are worked on
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Stream*> streams_;
  bool ended_ = false;
  std::thread thread_;
};

Stream::~Stream() {
  while (state() == cudaErrorNotReady) std::this_thread::sleep_for(std::chrono::microseconds(100));
  backlog_.remove(this);
}

void Stream::push(std::function<bool()> step) {
  {
    std::lock_guard lock(mutex_);
    if (steps_.empty() && step()) return;
    steps_.push_back(std::move(step));
  }
  backlog_.add(this);
}

Stream* of(cudaStream_t stream) { return static_cast<Stream*>(stream); }

thread_local int device = 0;  // as set by cudaSetDevice

// A stream takes work while its device is the current one.
cudaError_t run_or_capture(cudaStream_t stream, std::function<void()> work) {
  if (stream->device() != device) return cudaErrorInvalidResourceHandle;
  if (of(stream)->capturing != nullptr)
    of(stream)->capturing->launches.push_back(std::move(work));
  else
    stream->push([work = std::move(work)] {
      work();
      return true;
    });
  return cudaSuccess;
}

constexpr int kMostShared = 227 << 10, kMostThreads = 1024, kMostBlocksAcross = 65'535;
// What a kernel may have without asking, when its own variables take 1 KiB.
constexpr int kSharedUnasked = 47 << 10;

// Bytes of shared memory that launches of a kernel may ask for.
class AllowedShared {
 public:
  void set(const void* kernel, int bytes) {
    std::lock_guard lock(mutex_);
    bytes_[kernel] = bytes;
  }
  int of(const void* kernel) {
    std::lock_guard lock(mutex_);
    const auto found = bytes_.find(kernel);
    return found == bytes_.end() ? kSharedUnasked : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, int> bytes_;
};
AllowedShared& allowed_shared() {
  static AllowedShared all;
  return all;
}

bool fits(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3 &grid = config.gridDim, &block = config.blockDim;
  return grid.x < (1u << 31) && grid.y <= kMostBlocksAcross && grid.z <= kMostBlocksAcross &&
         uint64_t{block.x} * block.y * block.z <= kMostThreads &&
         config.dynamicSmemBytes <= static_cast<size_t>(allowed_shared().of(kernel));
}

cudaError_t queue(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  return run_or_capture(config.stream, [config, thread = std::move(thread)] {
    run(config.gridDim, config.blockDim, config.dynamicSmemBytes, thread);
  });
}

constexpr int kDevices = 64;

Backlog& backlog() {
  static Backlog all;
  return all;
}

class PinnedMemory {
 public:
  void add(const void* address, size_t bytes) {
    std::lock_guard lock(mutex_);
    ranges_[static_cast<const std::byte*>(address)] = bytes;
  }
  void remove(const void* address) {
    std::lock_guard lock(mutex_);
    ranges_.erase(static_cast<const std::byte*>(address));
  }
  bool has(const void* address) {
    const auto* at = static_cast<const std::byte*>(address);
    std::lock_guard lock(mutex_);
    const auto next = ranges_.upper_bound(at);
    return next != ranges_.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, size_t> ranges_;
};

PinnedMemory& pinned() {
  static PinnedMemory all;
  return all;
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
  static thread_local int count;
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
cudaError_t cudaGetDeviceCount(int* count) { return *count = emulated::kDevices, cudaSuccess; }
cudaError_t cudaSetDevice(int ordinal) { return emulated::device = ordinal, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  *properties = {"emulated GPU", 9, 0, 4, 64, size_t{4} << 30, {{'g', 'p', 'u', static_cast<char>(ordinal)}}};
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
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  emulated::pinned().add(*address, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* address) {
  emulated::pinned().remove(address);
  return cudaFree(address);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return *device = host, cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = size_t{4} << 30, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new emulated::Stream(emulated::backlog(), emulated::device), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cudaError_t state = cudaSuccess;
  while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  return state;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return *lowest = 0, *highest = -5, cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return emulated::of(stream)->state(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->happened != nullptr) stream->push([happened = event->happened] { return happened->load(); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new EmulatedEvent, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->happened = std::make_shared<std::atomic<bool>>(false);
  stream->push([happened = event->happened, when = event->when] {
    *when = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    happened->store(true);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return event->happened == nullptr || event->happened->load() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  while (cudaEventQuery(event) == cudaErrorNotReady)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return *milliseconds = static_cast<float>((*to->when - *from->when) * 1e3), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  // Of memory that is not pinned, CUDA takes a copy before it returns.
  if (kind == cudaMemcpyHostToDevice && !emulated::pinned().has(from)) {
    const auto* first = static_cast<const std::byte*>(from);
    return emulated::run_or_capture(stream, [to, copy = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(to, copy.data(), copy.size());
    });
  }
  if (kind == cudaMemcpyDeviceToHost && emulated::pinned().has(to) && emulated::late_copies > 0) {
    stream->push([=, looks = emulated::late_copies]() mutable {
      if (looks-- > 0) return false;
      std::memmove(to, from, bytes);
      return true;
    });
    return cudaSuccess;
  }
  return emulated::run_or_capture(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  return emulated::run_or_capture(stream, [=] { std::memset(to, value, bytes); });
}
long long clock64() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return emulated::of(stream)->capturing = std::make_unique<EmulatedGraph>(), cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return *graph = emulated::of(stream)->capturing.release(), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return *ready = new EmulatedGraph(*graph), cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void* nodes, size_t* count) {
  if (nodes != nullptr) return cudaErrorInvalidValue;
  return *count = graph->launches.size(), cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  for (const auto& launch : ready->launches)
    if (const cudaError_t result = emulated::run_or_capture(stream, launch); result != cudaSuccess)
      return result;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) { return delete ready, cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value > emulated::kMostShared) return cudaErrorInvalidValue;
  return emulated::allowed_shared().set(kernel, value), cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return *attributes = {emulated::allowed_shared().of(kernel)}, cudaSuccess;
}
