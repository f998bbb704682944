#include "snapshot/store/parts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace het {

void each_part(int64_t parts, int threads, const std::function<void(int64_t part)>& body) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (int64_t part = 0; (part = next.fetch_add(1)) < parts;) try {
        body(part);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        next = parts;
      }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < std::min<int64_t>(threads, parts); ++i) others.emplace_back(work);
    work();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace het
