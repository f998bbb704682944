#include "planner/autohet/refine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/autohet/edits.h"
#include "planner/autohet/limits.h"
#include "planner/infinity.h"

namespace het::planner {
namespace {

using namespace limits::refine;

// The first edit that gains, those with the best estimates first; false: none does.
bool step(Evaluator& evaluator, std::string_view policy) {
  const double target = evaluator.best_score() * (1 - kGain);
  std::vector<std::pair<double, Edit>> promising;
  for (Edit& edit : edits_of(evaluator.best().layout, evaluator))
    if (const double score = evaluator.estimate(edit.layout, {}).score; score < target)
      promising.emplace_back(score, std::move(edit));
  std::stable_sort(promising.begin(), promising.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [score, edit] : promising) {
    Candidate candidate = evaluator.simulate(std::move(edit.layout), policy);
    if (candidate.feasible() && candidate.score < target) {
      evaluator.submit(std::move(candidate));
      return true;
    }
  }
  return false;
}

}  // namespace

void refine_best(Evaluator& evaluator, std::string_view policy) {
  if (!evaluator.request().extensions.local_search || !evaluator.best().feasible()) return;
  while (step(evaluator, policy)) {
  }
}

}  // namespace het::planner
