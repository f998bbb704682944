// Layers (and recompute) of one pipeline whose stages and their order are given: planning.md section 1,
// step 4. Exact dynamic programs over layer boundaries under the memory of each stage.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "planner/plan_layout.h"
#include "planner/simulate/costs.h"

namespace het::planner {

enum class Recompute { never, always, where_needed };

struct StageRules {
  Recompute recompute = Recompute::where_needed;
  double optimizer_share = 1;  // of its layers' optimizer state on each stage
  Schedule schedule = Schedule::one_f_one_b;
  int warmup = 0;
  bool operator==(const StageRules&) const = default;
};

struct StageSolution {
  bool feasible = false;
  std::vector<int> layers;  // of each stage
  std::vector<char> recompute;
  double sum = 0, longest = 0;  // seconds of one micro-batch, forward and backward: all stages; the slowest
  // The bound of 1F1B: sum + (m - 1) longest.
  double seconds(int microbatches) const { return sum + (microbatches - 1) * longest; }
};

// Gives stages the layers of a feasible solution.
void adopt(const StageSolution& solution, std::vector<StageLayout>& stages);

// Most micro-batches that stage `stage` of `stages` holds.
int in_flight(const StageRules& rules, int stages, int stage, int microbatches);

// Caches what fits in memory from call to call; one thread. `costs` must outlive it.
class StageSolver {
 public:
  StageSolver(const CostTable& costs, StageRules rules) : costs_(costs), rules_(rules) {}

  // `nodes[s]` runs stage s. `thorough`: more compromises between the sum and the longest are tried.
  StageSolution solve(const std::vector<int>& nodes, int microbatches, bool thorough = true);
  // For each longest stage that can be, from the largest down, the smallest sum: the bound does not see
  // everything, and the best by the simulator is one of the best by the bound. For small problems.
  std::vector<StageSolution> compromises(const std::vector<int>& nodes, int microbatches);
  // Recompute and seconds of layers that are given; infeasible when they do not fit.
  StageSolution with_layers(const std::vector<int>& nodes, const std::vector<int>& layers, int microbatches);
  // Cuts the layers again over stages whose nodes are given; false, and nothing changes, where they do not
  // fit.
  bool cut(std::vector<StageLayout>& stages, int microbatches);
  const CostTable& costs() const { return costs_; }
  const StageRules& rules() const { return rules_; }

 private:
  // For each first layer: the furthest end that fits in memory, keeping activations and recomputing.
  struct Reach {
    std::vector<int> kept, recomputed;
  };
  const Reach& reach(int node, int held);
  void prepare(const std::vector<int>& nodes, int microbatches);
  // One dynamic program; leaves its choices in from_. Infinite when there is no way.
  double run(const std::vector<int>& nodes, double allowed, bool minimise_sum);
  StageSolution take(const std::vector<int>& nodes) const;
  double seconds(int node, int first, int last, bool recompute) const;

  const CostTable& costs_;
  StageRules rules_;
  std::map<std::pair<int, int>, Reach> reaches_;
  std::vector<double> table_, next_;
  std::vector<int> from_;
  std::vector<const Reach*> limits_;
};

}  // namespace het::planner
