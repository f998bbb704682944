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

// What decides the order of a pipeline's units.
struct ScheduleShape {
  Schedule schedule = Schedule::one_f_one_b;
  int stages = 1, microbatches = 1;
  int chunks = 1;  // interleaved
  int warmup = 0;
};

// The units of the device that runs stage `stage` of a pipeline, in order; of all its stages when the
// schedule is interleaved. Without backward: forwards alone, as an evaluation runs.
std::vector<WorkUnit> units_of(const ScheduleShape& shape, int stage, bool backward = true);
std::vector<WorkUnit> units_of(const Plan& plan, int pipeline, int stage, bool backward = true);
ScheduleShape shape_of(const Plan& plan, int pipeline);

// Of a stage whose sends and receives block (core/plan/runtime.h): whether, between two of its units that
// follow each other, it receives what `after` needs before it sends what `before` made; else it sends first.
// It does where the next stage sends it the gradient before it needs the activations: in the steady state of
// 1F1B, as in DeepSpeed's pipeline engine (deepspeed/runtime/pipe/schedule.py, TrainSchedule).
bool receives_first(const ScheduleShape& shape, int stage, const WorkUnit& before, const WorkUnit& after);

}  // namespace het
