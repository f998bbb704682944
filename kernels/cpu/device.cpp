#include "kernels/cpu/device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/nearest.h"
#include "core/tensor/tensor.h"
#include "kernels/cpu/supported.h"
#include "kernels/cpu/table.h"

namespace het {
namespace {

// The blocks that a device has handed out and that live. Memory outlives the device when state does: it is
// shared.
struct Blocks {
  std::mutex mutex;
  std::map<const std::byte*, int64_t> bytes;
};

class HostMemory final : public Memory {
 public:
  HostMemory(int64_t bytes, std::shared_ptr<Blocks> blocks) : buffer_(bytes), blocks_(std::move(blocks)) {
    const std::lock_guard lock(blocks_->mutex);
    blocks_->bytes.emplace(buffer_.data(), bytes);
  }
  ~HostMemory() override {
    const std::lock_guard lock(blocks_->mutex);
    blocks_->bytes.erase(buffer_.data());
  }
  std::byte* address() const override { return buffer_.data(); }

 private:
  Buffer buffer_;
  std::shared_ptr<Blocks> blocks_;
};

// Copies in a thread beside the kernels.
class HostTransfer final : public Transfer {
 public:
  explicit HostTransfer(std::shared_future<void> copied) : copied_(std::move(copied)) {}
  ~HostTransfer() override { copied_.wait(); }
  HostTransfer(const HostTransfer&) = delete;
  HostTransfer& operator=(const HostTransfer&) = delete;
  bool done() const override {
    return copied_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void wait() override { copied_.wait(); }

 private:
  const std::shared_future<void> copied_;
};

constexpr int64_t kAtOnce = 1 << 20;  // bytes that take less than a thread does

class CpuDevice final : public Device {
 public:
  CpuDevice(const cpu::InstructionSet& set, int sharing)
      : set_(set.name),
        share_(sharing > 1 ? available_memory() / sharing : std::numeric_limits<int64_t>::max()) {
    for (const auto& family : set.families)
      for (const KernelEntry& entry : family()) kernels_.emplace(entry.op, entry.prepare);
  }

  std::string name() const override { return "cpu"; }
  std::string model() const override { return fmt::format("cpu {}", set_); }
  std::unique_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_unique<HostMemory>(bytes, blocks_);
  }
  int64_t available_bytes() const override { return available_memory(); }
  int64_t memory_budget_bytes() const override {
    int64_t promised = 0, untouched = 0;
    const std::lock_guard lock(blocks_->mutex);
    for (const auto& [begin, bytes] : blocks_->bytes) {
      promised += bytes;
      untouched += untouched_bytes(begin, bytes);
    }
    return std::max<int64_t>(0, std::min(available_bytes() - untouched, share_ - promised));
  }

  std::unique_ptr<Kernel> prepare(const KernelRequest& request) override {
    const auto found = kernels_.find(request.op.name);
    if (found == kernels_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, prepare] : kernels_) names.emplace_back(name);
      const std::string near = nearest_name(request.op.name, names);
      fail_usage("device cpu ({}) has no kernel for operator '{}'{}", set_, request.op.name,
                 near.empty() ? "" : "; it has one for '" + near + "'");
    }
    return found->second(request);
  }

  void copy_in(std::byte* to, const std::byte* host, int64_t bytes) override { std::memcpy(to, host, bytes); }
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override {
    std::memcpy(host, from, bytes);
  }
  std::unique_ptr<Transfer> begin_transfer(std::span<const CopyOut> copies) override {
    int64_t bytes = 0;
    for (const CopyOut& copy : copies) bytes += copy.bytes;
    if (bytes < kAtOnce) return Device::begin_transfer(copies);
    const auto copy_all = [all = std::vector<CopyOut>(copies.begin(), copies.end())] {
      for (const CopyOut& copy : all) std::memcpy(copy.host, copy.from, static_cast<size_t>(copy.bytes));
    };
    const std::shared_future<void> copied = std::async(std::launch::async, copy_all).share();
    const std::lock_guard lock(transfers_mutex_);
    transfers_.push_back(copied);
    return std::make_unique<HostTransfer>(copied);
  }
  // The host is the device: it does wait.
  void wait_for_transfers() override {
    std::vector<std::shared_future<void>> begun;
    {
      const std::lock_guard lock(transfers_mutex_);
      begun.swap(transfers_);
    }
    for (const auto& copied : begun) copied.wait();
  }

 private:
  std::mutex transfers_mutex_;
  std::vector<std::shared_future<void>> transfers_;  // that kernels may have to wait for
  std::string_view set_;
  int64_t share_;  // of what was available when all ranks of the machine began
  std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
  std::unordered_map<std::string_view, std::unique_ptr<Kernel> (*)(const KernelRequest&)> kernels_;
};

}  // namespace

std::vector<std::string> cpu_instruction_sets() {
  std::vector<std::string> names;
  for (const auto& set : cpu::instruction_sets())
    if (cpu::supported(set.name)) names.emplace_back(set.name);
  return names;
}

std::string cpu_instruction_set() {
  const char* wanted = std::getenv("HETRUN_INSTRUCTION_SET");
  if (wanted != nullptr && *wanted != '\0') return wanted;
  const std::vector<std::string> usable = cpu_instruction_sets();
  if (usable.empty())
    fail_environment(
        "this build has kernels for {} alone, which this processor does not run; `./dev build` makes one for "
        "all processors",
        cpu::instruction_sets().front().name);
  return usable.front();
}

std::shared_ptr<Device> make_cpu_device(std::string_view wanted, int sharing) {
  HET_REQUIRE(sharing >= 1, sharing);
  const std::string name = wanted.empty() ? cpu_instruction_set() : std::string(wanted);
  const char* const source = wanted.empty() ? "HETRUN_INSTRUCTION_SET: " : "";  // the best one never fails
  for (const auto& set : cpu::instruction_sets()) {
    if (set.name != name) continue;
    if (!cpu::supported(name))
      fail_environment("{}this processor cannot run instruction set '{}'; it can run: {}", source, name,
                       fmt::join(cpu_instruction_sets(), ", "));
    return std::make_shared<CpuDevice>(set, sharing);
  }
  fail_usage("{}there is no instruction set '{}'; this processor can run: {}", source, name,
             fmt::join(cpu_instruction_sets(), ", "));
}

}  // namespace het
