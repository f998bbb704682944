#include "core/device/paced.h"

#include <algorithm>
#include <chrono>

#include <time.h>

#include "core/base/elapsed.h"
#include "core/base/error.h"

namespace het {
namespace {

// Sleeping wakes up late by tens of microseconds: the last stretch is spun.
void sleep_until(double time) {
  constexpr double kSpin = 80e-6;
  const double until = time - kSpin;
  if (steady_seconds() < until) {
    timespec wake{};
    wake.tv_sec = static_cast<time_t>(until);
    wake.tv_nsec = static_cast<long>((until - static_cast<double>(wake.tv_sec)) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr) != 0) {
    }
  }
  while (steady_seconds() < time) {
  }
}

class PacedKernel final : public Kernel {
 public:
  PacedKernel(std::unique_ptr<Kernel> kernel, std::shared_ptr<PaceClock> clock, double seconds)
      : kernel_(std::move(kernel)), clock_(std::move(clock)), seconds_(seconds) {}

  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
  void run(const KernelArguments& arguments) override {
    clock_->begin(steady_seconds());
    kernel_->run(arguments);
    const double now = steady_seconds(), due = clock_->end(now, seconds_);
    // Small pieces are waited for together.
    constexpr double kAhead = 200e-6;
    if (due < now + kAhead) return;
    sleep_until(due);
    clock_->waited(steady_seconds());
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::shared_ptr<PaceClock> clock_;
  double seconds_;
};

class PacedDevice final : public Device {
 public:
  PacedDevice(std::shared_ptr<Device> device, const Pace& pace)
      : device_(std::move(device)), pace_(pace), used_(std::make_shared<int64_t>(0)) {}

  std::string name() const override { return device_->name(); }
  std::unique_ptr<Memory> allocate(int64_t bytes) override {
    *used_ += bytes;
    return std::make_unique<Counted>(device_->allocate(bytes), used_, bytes);
  }
  std::unique_ptr<Memory> allocate_staging(int64_t bytes) override {
    return device_->allocate_staging(bytes);
  }
  bool has_own_memory() const override { return device_->has_own_memory(); }
  int64_t available_bytes() const override { return limited(device_->available_bytes()); }
  int64_t memory_budget_bytes() const override { return limited(device_->memory_budget_bytes()); }
  std::unique_ptr<Kernel> prepare(const KernelRequest& request) override {
    std::vector<TensorType> inputs, outputs;
    for (const Layout& layout : request.inputs) inputs.push_back(layout.type);
    for (const Layout& layout : request.outputs) outputs.push_back(layout.type);
    const Cost cost = cost_of({request.op, inputs, request.attributes}, outputs);
    return std::make_unique<PacedKernel>(device_->prepare(request), clock_, seconds_at(pace_, cost));
  }
  void copy_in(std::byte* to, const std::byte* host, int64_t bytes) override {
    device_->copy_in(to, host, bytes);
  }
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override {
    device_->copy_out(host, from, bytes);
  }
  std::unique_ptr<Transfer> begin_transfer(std::span<const CopyOut> copies) override {
    return device_->begin_transfer(copies);
  }
  void enter() override { device_->enter(); }
  void wait_for_transfers() override { device_->wait_for_transfers(); }
  // Others shall not see results before the device is done with them.
  void synchronize() override {
    device_->synchronize();
    if (clock_->due() <= steady_seconds()) return;
    sleep_until(clock_->due());
    clock_->waited(steady_seconds());
  }

  double lost() const { return clock_->lost(); }

 private:
  int64_t limited(int64_t bytes) const {
    return pace_.memory_bytes == 0 ? bytes
                                   : std::min(bytes, std::max<int64_t>(0, pace_.memory_bytes - *used_));
  }

  // Memory outlives the device when state does: the count is shared.
  class Counted final : public Memory {
   public:
    Counted(std::unique_ptr<Memory> memory, std::shared_ptr<int64_t> used, int64_t bytes)
        : memory_(std::move(memory)), used_(std::move(used)), bytes_(bytes) {}
    ~Counted() override { *used_ -= bytes_; }
    std::byte* address() const override { return memory_->address(); }

   private:
    std::unique_ptr<Memory> memory_;
    std::shared_ptr<int64_t> used_;
    int64_t bytes_;
  };

  std::shared_ptr<Device> device_;
  Pace pace_;
  std::shared_ptr<PaceClock> clock_ = std::make_shared<PaceClock>();
  std::shared_ptr<int64_t> used_;
};

}  // namespace

double seconds_at(const Pace& pace, const Cost& cost) {
  return std::max(pace.flops_per_second > 0 ? cost.flops / pace.flops_per_second : 0,
                  pace.bytes_per_second > 0 ? cost.bytes / pace.bytes_per_second : 0);
}

void PaceClock::begin(double now) {
  if (!started_) due_ = last_ = now;
  started_ = true;
  const double idle = now - std::max(last_, due_);  // ahead of the machine, it is busy until due_
  if (idle > kGap) due_ += idle;
  lost_ += std::max(0.0, now - kBehind - due_);
  due_ = std::max(due_, now - kBehind);
}

double PaceClock::end(double now, double seconds) {
  due_ += seconds;
  last_ = now;
  return due_;
}

double pace_lost(const Device& device) {
  const auto* paced = dynamic_cast<const PacedDevice*>(&device);
  return paced ? paced->lost() : 0;
}

std::shared_ptr<Device> make_paced(std::shared_ptr<Device> device, const Pace& pace) {
  HET_REQUIRE(pace.flops_per_second >= 0 && pace.bytes_per_second >= 0 && pace.memory_bytes >= 0,
              pace.flops_per_second, pace.bytes_per_second, pace.memory_bytes);
  return std::make_shared<PacedDevice>(std::move(device), pace);
}

}  // namespace het
