// How much of a step a device's kernels run.
#pragma once

#include <optional>

#include "core/program/executor.h"

namespace het {

// Seconds of a step in which a kernel of it runs, and how many launches make it.
struct Busy {
  double seconds = 0;
  int launches = 0;
};

// Each kernel is launched many times in a row, recorded as a step is, and timed by the device's own clock;
// from its share is taken what lies between two launches of a recording (Device::launch_gap), measured
// likewise, for every launch it makes. So what a step takes beyond `seconds` is time without a kernel: the
// gaps within recordings, between them, and while the host prepares the next. What it cannot tell: short
// kernels find their operands in the cache when they are repeated, as they may not in the step, and so count
// for less; the beginning of each recording counts for its kernel, a few microseconds in the milliseconds
// that are measured. Runs the program some times over, after a first run(). nullopt where the device records
// nothing, and where ranks would wait for each other.
std::optional<Busy> measure_busy(Executor& executor);

}  // namespace het
