#include "planner/lower/schedule.h"

#include <algorithm>

namespace het {
namespace {

using Kind = WorkUnit::Kind;

// 1F1B (Narayanan et al., "Memory-efficient pipeline-parallel DNN training", 2021): as many forwards as there
// are later stages, then backward and forward in turn. Each forward in flight keeps its activations.
std::vector<WorkUnit> one_f_one_b(int stage, int stages, int microbatches, int ahead) {
  std::vector<WorkUnit> units;
  units.reserve(2 * static_cast<size_t>(microbatches));
  const int warmup = std::min(microbatches, (stages - 1 - stage) * (1 + ahead));
  for (int m = 0; m < warmup; ++m) units.push_back({Kind::forward, stage, m});
  for (int m = warmup; m < microbatches; ++m) {
    units.push_back({Kind::forward, stage, m});
    units.push_back({Kind::backward, stage, m - warmup});
  }
  for (int m = microbatches - warmup; m < microbatches; ++m) units.push_back({Kind::backward, stage, m});
  return units;
}

// Weight gradients wait until the stage would otherwise idle: stage s puts off s of them, as ZB-H1 does (Qi
// et al., "Zero bubble pipeline parallelism", 2023); once no forward is left, one follows each backward, and
// the rest come after the last. The simulator's next_op keeps the same order.
std::vector<WorkUnit> with_split_backward(const std::vector<WorkUnit>& units, int stage) {
  std::vector<WorkUnit> result;
  int next = 0, done = 0, forwards = 0;
  for (const WorkUnit& unit : units) forwards += unit.kind == Kind::forward;
  for (const WorkUnit& unit : units) {
    result.push_back(unit);
    forwards -= unit.kind == Kind::forward;
    if (unit.kind != Kind::backward) continue;
    ++done;
    if (done - next > stage || forwards == 0) result.push_back({Kind::weight_gradient, stage, next++});
  }
  while (next < done) result.push_back({Kind::weight_gradient, stage, next++});
  return result;
}

// Interleaved 1F1B (Narayanan et al., "Efficient large-scale language model training on GPU clusters using
// Megatron-LM", 2021): device g of `groups` runs stages g, g + groups, ...; micro-batches go in rounds of
// `groups` through the chunks.
std::vector<WorkUnit> interleaved(int group, int groups, int chunks, int microbatches) {
  const int total = microbatches * chunks;
  const auto unit = [&](Kind kind, int k) {
    const int round = k / (groups * chunks), within = k % (groups * chunks);
    const int chunk = kind == Kind::forward ? within / groups : chunks - 1 - within / groups;
    return WorkUnit{kind, chunk * groups + group, round * groups + within % groups};
  };
  const int warmup = std::min(total, (groups - group - 1) * 2 + (chunks - 1) * groups);
  std::vector<WorkUnit> units;
  units.reserve(2 * static_cast<size_t>(total));
  for (int k = 0; k < warmup; ++k) units.push_back(unit(Kind::forward, k));
  for (int k = warmup; k < total; ++k) {
    units.push_back(unit(Kind::forward, k));
    units.push_back(unit(Kind::backward, k - warmup));
  }
  for (int k = total - warmup; k < total; ++k) units.push_back(unit(Kind::backward, k));
  return units;
}

}  // namespace

ScheduleShape shape_of(const Plan& plan, int pipeline) {
  const Pipeline& line = plan.pipelines[pipeline];
  return {plan.schedule, static_cast<int>(line.stages.size()), line.microbatches,
          plan.schedule == Schedule::interleaved ? plan.chunks : 1, plan.warmup};
}

std::vector<WorkUnit> units_of(const Plan& plan, int pipeline, int stage, bool backward) {
  return units_of(shape_of(plan, pipeline), stage, backward);
}

bool receives_first(const ScheduleShape& shape, int stage, const WorkUnit& before, const WorkUnit& after) {
  if (before.kind != Kind::forward || after.kind != Kind::backward || stage + 1 == shape.stages) return false;
  if (shape.schedule != Schedule::one_f_one_b) return false;
  const int ahead_of_next = std::min(shape.microbatches, shape.stages - 2 - stage);  // as in one_f_one_b
  return after.microbatch < before.microbatch - ahead_of_next;
}

std::vector<WorkUnit> units_of(const ScheduleShape& shape, int stage, bool backward) {
  const auto [schedule, stages, microbatches, chunks, warmup] = shape;
  const int groups = stages / chunks;
  std::vector<WorkUnit> units;
  if (!backward) {
    for (int m = 0; m < microbatches; ++m)
      for (int s = stage % groups; s < stages; s += groups) units.push_back({Kind::forward, s, m});
    return units;
  }
  switch (schedule) {
    case Schedule::gpipe:
      for (int m = 0; m < microbatches; ++m) units.push_back({Kind::forward, stage, m});
      for (int m = 0; m < microbatches; ++m) units.push_back({Kind::backward, stage, m});
      return units;
    case Schedule::interleaved: return interleaved(stage % groups, groups, chunks, microbatches);
    case Schedule::split_backward:
      return with_split_backward(one_f_one_b(stage, stages, microbatches, warmup), stage);
    case Schedule::one_f_one_b: return one_f_one_b(stage, stages, microbatches, warmup);
  }
  return units;
}

}  // namespace het
