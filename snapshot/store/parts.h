// The parts of a transfer, over a few threads. Unlike the pool of core/base/parallel.h these wait for disks
// and networks, and the body may throw.
#pragma once

#include <cstdint>
#include <functional>

namespace het {

// Calls body(part) for each part in [0, parts), from at most `threads` threads, this one included. After
// the first exception no further part begins; it is thrown when all threads have ended.
void each_part(int64_t parts, int threads, const std::function<void(int64_t part)>& body);

}  // namespace het
