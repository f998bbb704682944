#include "planner/simulate/ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace het::planner {
namespace {

// -1, 0 or 1: which is faster.
int order_of(double a, double b) {
  if (std::abs(a - b) <= kTie * std::max(a, b)) return 0;
  return a < b ? -1 : 1;
}

}  // namespace

Ranking rank(const std::vector<RankedPlan>& plans, std::string model, int batch) {
  const auto fastest = [&](const auto& seconds) {
    return std::min_element(plans.begin(), plans.end(),
                            [&](const RankedPlan& a, const RankedPlan& b) { return seconds(a) < seconds(b); })
        ->name;
  };
  const auto nominal = [](const RankedPlan& plan) { return plan.links.seconds; };
  Ranking ranking;
  ranking.model = std::move(model);
  ranking.batch = batch;
  ranking.plans = static_cast<int>(plans.size());
  ranking.fastest = fastest(nominal);
  const std::vector<LinkCase>& cases = plans[0].links.cases;
  for (size_t c = 0; c < cases.size(); ++c) {
    const auto seconds = [c](const RankedPlan& plan) { return plan.links.cases[c].seconds; };
    RankingCase with{cases[c].bandwidth, cases[c].latency, 0, fastest(seconds)};
    for (size_t a = 0; a < plans.size(); ++a)
      for (size_t b = a + 1; b < plans.size(); ++b) {
        const int before = order_of(nominal(plans[a]), nominal(plans[b]));
        with.changed += before != 0 && order_of(seconds(plans[a]), seconds(plans[b])) == -before;
        if (c == 0) ranking.pairs += before != 0;
      }
    ranking.cases.push_back(with);
  }
  return ranking;
}

bool Ranking::depends_on_links() const {
  return std::any_of(cases.begin(), cases.end(), [](const RankingCase& with) { return with.changed > 0; });
}

std::string to_text(const Ranking& ranking) {
  std::string text =
      fmt::format("the ranking of the {} plans of {} with batch {} depends on link speeds:", ranking.plans,
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
