// How long to wait before a request is tried again: exponentially longer, up to a limit; a random
// half, so that clients that failed together do not come back together.
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace het {

class Backoff {
 public:
  using milliseconds = std::chrono::milliseconds;
  Backoff(milliseconds first, milliseconds longest, uint64_t seed)
      : wait_(first), longest_(longest), random_(seed) {}

  // The next wait; not shorter than what the server asked for, as far as the limit goes.
  milliseconds next(milliseconds asked = milliseconds(0)) {
    const milliseconds most = std::min(wait_, longest_);
    wait_ = 2 * most;
    const milliseconds drawn(std::uniform_int_distribution<int64_t>(most.count() / 2, most.count())(random_));
    return std::max(drawn, std::min(asked, longest_));
  }

 private:
  milliseconds wait_;
  const milliseconds longest_;
  std::mt19937_64 random_;
};

}  // namespace het
