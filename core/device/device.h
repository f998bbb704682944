// What a device is to the executor: memory, copies, and kernels prepared for fixed layouts. kernels/cpu,
// kernels/reference (and kernels/cuda) implement it; the executor knows nothing else of them.
//
// A Device is used from one thread at a time; kernels of one device run in the order they are launched.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/ops/op.h"

namespace het {

class Communicator;

// Device memory; freed with the object.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* address() const = 0;  // of the device; on the CPU a host address, 64-byte aligned
};

// One operator call with everything static known. Layout offsets are zero: addresses come with each run.
struct KernelRequest {
  const OpDef& op;
  const Attributes& attributes;
  std::span<const Layout> inputs;  // absent operands have dtype none
  std::span<const Layout> outputs;
  uint32_t accumulate = 0;  // bit i: add into output i (only bits that op.accumulates allows)
};

// Equal for requests that are equal in every respect: they can share a kernel.
std::string key_of(const KernelRequest& request);

// Addresses of first elements, in the order of the request; null for absent operands.
struct KernelArguments {
  std::byte* const* inputs;
  std::byte* const* outputs;
  std::byte* workspace;
  int64_t workspace_bytes;

  template <typename T>
  const T* in(size_t i) const {
    return reinterpret_cast<const T*>(inputs[i]);
  }
  template <typename T>
  T* out(size_t i) const {
    return reinterpret_cast<T*>(outputs[i]);
  }
};

// Work ready to run: primitives created, sizes split, nothing left to allocate.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Scratch memory that run() needs; its content is lost between runs.
  virtual int64_t workspace_bytes() const { return 0; }
  virtual void run(const KernelArguments& arguments) = 0;
};

// Launches that were recorded once and are queued again as one.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
  virtual int launches() const { return 0; }  // that it queues; 0: not known
};

// Copies from the device to the host that go on beside what is computed.
class Transfer {
 public:
  virtual ~Transfer() = default;  // waits
  virtual bool done() const = 0;
  virtual void wait() = 0;
};

// `host` lies in memory of allocate_staging().
struct CopyOut {
  std::byte* host;
  const std::byte* from;
  int64_t bytes;
};

// Notes moments between launches, when the device comes to them.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual void mark(size_t moment) = 0;
  // Between two moments; after Device::synchronize().
  virtual double seconds(size_t from, size_t to) = 0;
};

// How a device reaches those of other ranks, past the host.
struct DeviceTransport {
  std::string library;  // "NCCL 2.28.9": all members of a group need the same; empty: there is no way
  std::string device;   // the device's own name in the world; two ranks on one cannot go this way
  std::string problem;  // why there is none
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu", "reference", "cuda"
  // More detail: the maker's name, "NVIDIA H200"; of a processor the set of its kernels, "cpu v4".
  virtual std::string model() const { return name(); }
  virtual std::unique_ptr<Memory> allocate(int64_t bytes) = 0;
  // Memory of the host that copies to and from the device are quick with.
  virtual std::unique_ptr<Memory> allocate_staging(int64_t bytes);
  // Its addresses mean nothing to the host: communication passes through allocate_staging().
  virtual bool has_own_memory() const { return false; }
  virtual DeviceTransport device_transport() { return {}; }
  // The group of `host` for operands in this device's memory, whose operations are ordered with the kernels:
  // start() comes after those launched before it, and those launched after wait() see the result. Asked for
  // only where all members of the group can (core/comm/groups.h). The device outlives it.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those that connect keep it
  virtual std::shared_ptr<Communicator> connect(std::shared_ptr<Communicator> /*host*/) { return nullptr; }
  virtual int64_t available_bytes() const = 0;  // that the machine could give now
  // Of these what allocate() may still hand out: less what it has handed out and not yet written to,
  // and this process's share alone where several share the machine.
  virtual int64_t memory_budget_bytes() const { return available_bytes(); }
  // Throws Error(usage) when this device has no kernel for the operator or for these types.
  virtual std::unique_ptr<Kernel> prepare(const KernelRequest& request) = 0;
  virtual void copy_in(std::byte* to, const std::byte* host, int64_t bytes) = 0;
  virtual void copy_out(std::byte* host, const std::byte* from, int64_t bytes) = 0;
  // Copy what lies there when all that was launched is done, beside what is launched from now on. Null where
  // the copies are made when the call returns. What changes `from` is launched after wait_for_transfers().
  virtual std::unique_ptr<Transfer> begin_transfer(std::span<const CopyOut> copies);
  // What is launched from here on comes after the transfers that were begun; the host does not wait where
  // the device has separate memory.
  virtual void wait_for_transfers() {}
  // Kernels, collectives and recordings that this thread runs from here on are this device's; asked before
  // the first of them, and again when the thread may have used another.
  virtual void enter() {}
  // Wait until everything launched is done. Throws Error(peer) when an operation of a communicator of the
  // device was lost and what was launched may have needed its result.
  virtual void synchronize() {}
  // Call `launches`, which only runs kernels of this device, and keep what they queue instead of running it.
  // Null where that gains nothing: `launches` has not been called then.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& launches) { return nullptr; }
  // For so many moments. Null where kernels are done when their launch returns: the host's clock will do.
  virtual std::unique_ptr<Stopwatch> stopwatch(size_t moments) { return nullptr; }
  // Seconds from the end of one launch of a recording to the beginning of the next, in which nothing runs:
  // measured when it is asked for. 0 where nothing is recorded.
  virtual double launch_gap() { return 0; }
};

// One line of a device's kernel table: the operator's name and how to prepare it. Each family file under
// kernels/<device>/ returns its lines; the device looks a request up by name.
struct KernelEntry {
  std::string_view op;
  std::unique_ptr<Kernel> (*prepare)(const KernelRequest&);
};

// A Kernel around a function object `run(const KernelArguments&)`: most kernels are a lambda over their
// sizes.
template <typename Function>
std::unique_ptr<Kernel> make_kernel(Function function, int64_t workspace_bytes = 0) {
  class Lambda final : public Kernel {
   public:
    Lambda(Function f, int64_t bytes) : function_(std::move(f)), bytes_(bytes) {}
    int64_t workspace_bytes() const override { return bytes_; }
    void run(const KernelArguments& arguments) override { function_(arguments); }

   private:
    Function function_;
    int64_t bytes_;
  };
  return std::make_unique<Lambda>(std::move(function), workspace_bytes);
}

}  // namespace het
