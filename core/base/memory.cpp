#include "core/base/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

namespace het {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The number after `key` in a file of lines that begin with a key; -1 when it is not there.
int64_t number_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word == key) {
      int64_t value = 0;
      if (file >> value) return value;
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

// The two versions of control groups and how they name things.
struct Files {
  const char *limit, *usage, *inactive;
};
constexpr Files kUnified{"/memory.max", "/memory.current", "inactive_file"};
constexpr Files kFirst{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};

int64_t granted_by(const std::string& folder, const Files& files) {
  const int64_t limit = number_in(folder + files.limit), usage = number_in(folder + files.usage);
  if (limit < 0 || usage < 0) return kUnlimited;
  const int64_t reclaimable = std::max<int64_t>(0, number_after(folder + "/memory.stat", files.inactive));
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, usage - reclaimable));
}

int64_t available_to_group(const std::string& root) {
  int64_t least = kUnlimited;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && controllers.find("memory") == std::string::npos) continue;
    for (;;) {
      if (path == "/") path.clear();
      least = std::min(least, unified ? granted_by(root + "/sys/fs/cgroup" + path, kUnified)
                                      : granted_by(root + "/sys/fs/cgroup/memory" + path, kFirst));
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
  return least;
}

}  // namespace

int64_t available_memory(const std::string& root) {
  const int64_t kib = number_after(root + "/proc/meminfo", "MemAvailable:");
  return std::min(kib < 0 ? kUnlimited : kib * 1024, available_to_group(root));
}

int64_t untouched_bytes(const std::byte* begin, int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  // Pages at the ends may be shared with neighbours.
  const uintptr_t first = (address + page - 1) / page * page, last = (address + bytes) / page * page;
  int64_t untouched = 0;
  constexpr int64_t kAtOnce = 1024;  // pages
  unsigned char resident[kAtOnce];
  for (uintptr_t at = first; at < last; at += kAtOnce * page) {
    const int64_t pages = std::min<int64_t>(kAtOnce, static_cast<int64_t>(last - at) / page);
    if (mincore(reinterpret_cast<void*>(at), pages * page, resident) != 0) return 0;
    untouched +=
        page * std::count_if(resident, resident + pages, [](unsigned char r) { return (r & 1) == 0; });
  }
  return untouched;
}

}  // namespace het
