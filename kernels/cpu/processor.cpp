#include "kernels/cpu/processor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/program/eager.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/table.h"

namespace het {
namespace {

constexpr double kGain = 1.1;  // by which a set must be faster than a plainer one

// ---- the peak ----

double seconds_on_all_threads(const cpu::RegisterLoop& loop, int64_t iterations) {
  const auto start = std::chrono::steady_clock::now();
  parallel_parts(thread_count(), [&](int64_t) { loop.run(iterations); });
  return seconds_since(start);
}

// FLOP/s, the best of several short runs: others may use the machine meanwhile.
double peak_of(const cpu::RegisterLoop& loop) {
  constexpr double kRun = 2e-3, kPatience = 50e-3;
  int64_t iterations = 256;
  double seconds = 0;
  while ((seconds = seconds_on_all_threads(loop, iterations)) < kRun) iterations *= 2;
  double best = seconds;
  for (double spent = 0; spent < kPatience; spent += seconds) {
    seconds = seconds_on_all_threads(loop, iterations);
    best = std::min(best, seconds);
  }
  return loop.flops * static_cast<double>(iterations) * thread_count() / best;
}

// ---- products ----

// The three products of a linear layer, [m, k] by [k, n].
struct ProductClass {
  const char* op;
  int64_t m, n, k;
};
constexpr std::array<std::string_view, 3> kClassNames{"forward", "input gradient", "weight gradient"};
constexpr std::array<ProductClass, 3> kClasses{{{"linear", 256, 512, 512},
                                                {"linear_input_gradient", 256, 512, 512},
                                                {"linear_weight_gradient", 512, 512, 256}}};

std::vector<Tensor> operands_of(const ProductClass& c) {
  const auto filled = [](const Shape& shape) {
    Tensor tensor({DType::bf16, shape});
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.data<bf16>()[i] = bf16(0.001F * (i % 1000 + 1));
    return tensor;
  };
  const std::string_view op = c.op;
  if (op == "linear") return {filled({c.m, c.k}), filled({c.n, c.k}), {}};
  if (op == "linear_input_gradient") return {filled({c.m, c.k}), filled({c.k, c.n})};
  return {filled({c.k, c.m}), filled({c.k, c.n})};
}

// One thread for as long as this lives.
class OneThread {
 public:
  OneThread() { set_thread_count(1); }
  ~OneThread() { set_thread_count(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = thread_count();
};

}  // namespace

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string name, family, model;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(std::min(line.find_first_not_of(" \t", colon + 1), line.size()));
    if (line.starts_with("model name"))
      name = value;
    else if (line.starts_with("model"))
      model = value;
    else if (line.starts_with("cpu family"))
      family = value;
  }
  if (name.empty()) return "unknown processor";
  return family.empty() || model.empty() ? name
                                         : fmt::format("{} (family {}, model {})", name, family, model);
}

CpuPeak measure_cpu_peak(DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    fail_usage("the processor's peak is measured in f32, bf16 and f16, not in {}", dtype);
  CpuPeak peak{0, ""};
  const auto usable = cpu_instruction_sets();
  std::vector<std::string_view> measured;  // in the set with the widest registers, which comes first
  for (const auto& set : cpu::instruction_sets()) {
    if (std::ranges::find(usable, set.name) == usable.end()) continue;
    for (const cpu::RegisterLoop& loop : set.register_loops()) {
      if (loop.dtype != DType::f32 && loop.dtype != dtype) continue;
      if (std::ranges::find(measured, loop.instruction) != measured.end()) continue;
      measured.push_back(loop.instruction);
      const double flops = peak_of(loop);
      if (flops > peak.flops) peak = {flops, std::string(loop.instruction)};
    }
  }
  return peak;
}

std::span<const std::string_view> product_classes() { return kClassNames; }

std::vector<std::string> product_sets() {
  std::vector<std::string> sets;
  for (const std::string& set : cpu_instruction_sets())
    if (set == "v4_amx" || set == "v4_dot" || set == "v4_bf16") sets.push_back(set);
  return sets.size() > 1 ? sets : std::vector<std::string>{};
}

std::vector<ProductSpeed> measure_product_speeds() {
  constexpr int kRuns = 4;
  std::vector<ProductSpeed> speeds;
  std::vector<Eager> devices;
  const OneThread alone;
  for (const std::string& set : product_sets()) {
    speeds.push_back({set, std::vector<double>(kClasses.size(), 0)});
    devices.emplace_back(make_cpu_device(set));
  }
  for (size_t c = 0; c < kClasses.size(); ++c) {
    const ProductClass& sizes = kClasses[c];
    const std::vector<Tensor> operands = operands_of(sizes);
    const double flops = 2.0 * static_cast<double>(sizes.m * sizes.n * sizes.k);
    // By turns, so that what else the machine does meets all of them; the best run of each counts.
    for (int run = 0; run < kRuns; ++run)
      for (size_t d = 0; d < devices.size(); ++d) {
        const auto start = std::chrono::steady_clock::now();
        devices[d].call(op_named(sizes.op), operands, {});
        speeds[d].flops[c] = std::max(speeds[d].flops[c], flops / seconds_since(start));
      }
  }
  return speeds;
}

std::string fastest_set(std::span<const ProductSpeed> speeds) {
  // The time of one step that does as much in each class.
  const auto seconds = [](const ProductSpeed& speed) {
    double sum = 0;
    for (const double flops : speed.flops) sum += 1 / flops;
    return sum;
  };
  std::string best;
  double least = 0;
  for (size_t i = speeds.size(); i-- > 0;) {
    const double time = seconds(speeds[i]);
    if (!best.empty() && time * kGain > least) continue;
    best = speeds[i].set;
    least = time;
  }
  return best;
}

}  // namespace het
