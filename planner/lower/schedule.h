// In what order the stages of one rank run the micro-batches of its pipeline. Plain data, walked by lowering.
#pragma once

#include <vector>

#include "core/plan/plan.h"

namespace het {

// One stage's work on one micro-batch.
struct WorkUnit {
  enum class Kind : uint8_t {
    forward,
    backward,         // all of it, or with split_backward what earlier stages wait for
    weight_gradient,  // with split_backward: the rest
  } kind = Kind::forward;
  int stage = 0;
  int microbatch = 0;
  bool operator==(const WorkUnit&) const = default;
};

// The units of the device that runs stage `stage` of a pipeline, in order; of all its stages when the
// schedule is interleaved. Without backward: forwards alone, as an evaluation runs.
std::vector<WorkUnit> units_of(const Plan& plan, int pipeline, int stage, bool backward = true);

}  // namespace het
