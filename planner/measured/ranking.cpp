#include "planner/measured/ranking.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "planner/measured/measured.h"

namespace het::planner {
namespace {

// -1, 0 or 1: which is faster.
int order_of(double a, double b) {
  if (std::abs(a - b) <= kTie * std::max(a, b)) return 0;
  return a < b ? -1 : 1;
}

Ranking rank_alike(const std::vector<const MeasuredPlan*>& plans) {
  const auto fastest = [&](const auto& seconds) {
    return (*std::min_element(
                plans.begin(), plans.end(),
                [&](const MeasuredPlan* a, const MeasuredPlan* b) { return seconds(*a) < seconds(*b); }))
        ->name;
  };
  const auto nominal = [](const MeasuredPlan& plan) { return plan.seconds; };
  Ranking ranking;
  ranking.model = plans[0]->model;
  ranking.batch = plans[0]->batch;
  ranking.plans = static_cast<int>(plans.size());
  ranking.fastest = fastest(nominal);
  const std::vector<LinkCase>& cases = plans[0]->links.cases;
  for (size_t c = 0; c < cases.size(); ++c) {
    const auto seconds = [c](const MeasuredPlan& plan) { return plan.links.cases[c].seconds; };
    RankingCase with{cases[c].bandwidth, cases[c].latency, 0, fastest(seconds)};
    for (size_t a = 0; a < plans.size(); ++a)
      for (size_t b = a + 1; b < plans.size(); ++b) {
        const int before = order_of(plans[a]->seconds, plans[b]->seconds);
        with.changed += before != 0 && order_of(seconds(*plans[a]), seconds(*plans[b])) == -before;
        if (c == 0) ranking.pairs += before != 0;
      }
    ranking.cases.push_back(with);
  }
  return ranking;
}

}  // namespace

bool Ranking::hangs_on_links() const {
  return std::any_of(cases.begin(), cases.end(), [](const RankingCase& with) { return with.changed > 0; });
}

std::vector<Ranking> rank(const std::vector<MeasuredPlan>& plans) {
  std::map<std::pair<std::string, int>, std::vector<const MeasuredPlan*>> alike;
  for (const MeasuredPlan& plan : plans)
    if (plan.problems.empty()) alike[{plan.model, plan.batch}].push_back(&plan);
  std::vector<Ranking> rankings;
  for (const auto& [key, group] : alike)
    if (group.size() > 1) rankings.push_back(rank_alike(group));
  return rankings;
}

std::string to_text(const Ranking& ranking) {
  std::string text =
      fmt::format("the ranking of the {} plans of {} with batch {} hangs on the links:", ranking.plans,
                  ranking.model, ranking.batch);
  const char* separator = " ";
  for (const RankingCase& with : ranking.cases) {
    if (with.changed == 0) continue;
    text += fmt::format("{}with {} {} of {} pairs change their order{}", std::exchange(separator, "; "),
                        with.bandwidth != 1 ? fmt::format("bandwidth x {}", with.bandwidth)
                                            : fmt::format("latency x {}", with.latency),
                        with.changed, ranking.pairs,
                        with.fastest != ranking.fastest ? fmt::format(", and {} is the fastest instead of {}",
                                                                      with.fastest, ranking.fastest)
                                                        : "");
  }
  return text;
}

}  // namespace het::planner
