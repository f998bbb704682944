#include "kernels/cpu/device.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/tensor/tensor.h"
#include "kernels/cpu/table.h"

namespace het {
namespace {

bool supported(std::string_view set) {
  if (set == "generic") return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
                  __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("movbe");
  if (set == "v3") return v3;
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (set == "v4") return v4;
  if (set == "v4_bf16") return v4 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512fp16");
#endif
  return false;
}

// Number after `key` in a file of "key: value kB" lines, in bytes; -1 when it is not there.
int64_t kilobytes_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word == key) {
      int64_t value = 0;
      if (file >> value) return value * 1024;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return -1;
}

// The number that is all a file holds; -1 when there is none ("max", or no such file).
int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

// What a control group still grants this process, on every level from its own group up; the largest int64 when
// none limits it.
int64_t available_to_group() {
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto consider = [&](const std::string& folder, const char* limit_file, const char* usage_file) {
    const int64_t limit = number_in(folder + limit_file), usage = number_in(folder + usage_file);
    if (limit >= 0 && usage >= 0) least = std::min(least, std::max<int64_t>(0, limit - usage));
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && controllers.find("memory") == std::string::npos) continue;
    for (;;) {
      if (path == "/") path.clear();
      if (unified)
        consider("/sys/fs/cgroup" + path, "/memory.max", "/memory.current");
      else
        consider("/sys/fs/cgroup/memory" + path, "/memory.limit_in_bytes", "/memory.usage_in_bytes");
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
  return least;
}

class HostMemory final : public Memory {
 public:
  explicit HostMemory(int64_t bytes) : buffer_(bytes) {}
  std::byte* address() const override { return buffer_.data(); }

 private:
  Buffer buffer_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const cpu::InstructionSet& set) : set_(set.name) {
    for (const auto& family : set.families)
      for (const KernelEntry& entry : family()) kernels_.emplace(entry.op, entry.prepare);
  }

  std::string name() const override { return "cpu"; }
  std::unique_ptr<Memory> allocate(int64_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  int64_t available_bytes() const override {
    const int64_t system = kilobytes_in("/proc/meminfo", "MemAvailable:");
    return std::min(system < 0 ? std::numeric_limits<int64_t>::max() : system, available_to_group());
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
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override { std::memcpy(host, from, bytes); }

 private:
  std::string_view set_;
  std::unordered_map<std::string_view, std::unique_ptr<Kernel> (*)(const KernelRequest&)> kernels_;
};

}  // namespace

std::vector<std::string> cpu_instruction_sets() {
  std::vector<std::string> names;
  for (const auto& set : cpu::instruction_sets())
    if (supported(set.name)) names.emplace_back(set.name);
  return names;
}

std::shared_ptr<Device> make_cpu_device(std::string_view wanted) {
  for (const auto& set : cpu::instruction_sets()) {
    if (wanted.empty() ? !supported(set.name) : set.name != wanted) continue;
    if (!supported(set.name))
      fail_environment("this processor cannot run instruction set '{}'; it can run: {}", wanted,
                       fmt::join(cpu_instruction_sets(), ", "));
    return std::make_shared<CpuDevice>(set);
  }
  fail_usage("there is no instruction set '{}'; this processor can run: {}", wanted,
             fmt::join(cpu_instruction_sets(), ", "));
}

}  // namespace het
