// What plain methods find on an assignment problem: assignment_baselines FILE SECONDS [SEED]. `greedy`
// decides node by node, by the costs with the neighbours decided before, and takes only what fits where all
// later nodes use least. `anneal` starts there: single nodes change by chance, and usage above the limit
// costs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "core/base/error.h"
#include "planner/assignment/network.h"

using namespace het::planner::assignment;

namespace {

struct Neighbours {
  explicit Neighbours(const Network& network) : of(network.variables.size()) {
    for (const PairCost& pair : network.pairs) {
      of[static_cast<size_t>(pair.a)].push_back(&pair);
      of[static_cast<size_t>(pair.b)].push_back(&pair);
    }
  }
  std::vector<std::vector<const PairCost*>> of;
};

double pair_cost(const Network& network, const PairCost& pair, size_t v, int strategy,
                 const std::vector<int>& choice) {
  const bool first = static_cast<size_t>(pair.a) == v;
  const int a = first ? strategy : choice[static_cast<size_t>(pair.a)],
            b = first ? choice[static_cast<size_t>(pair.b)] : strategy;
  return pair.cost[static_cast<size_t>(a * network.size(pair.b) + b)];
}

void use(const NetworkVariable& variable, int strategy, int64_t sign, std::vector<int64_t>& room) {
  for (const UsageItem& item : variable.items)
    for (int row = item.first; row < item.last; ++row)
      room[static_cast<size_t>(row)] -= sign * item.use[static_cast<size_t>(strategy)];
}

std::vector<int> greedy(const Network& network, const Neighbours& neighbours) {
  std::vector<int64_t> room = network.capacity;
  std::vector<int> choice(network.variables.size(), -1), least(network.variables.size(), 0);
  for (size_t v = 0; v < choice.size(); ++v) {
    for (const UsageItem& item : network.variables[v].items)
      least[v] = static_cast<int>(std::min_element(item.use.begin(), item.use.end()) - item.use.begin());
    use(network.variables[v], least[v], 1, room);
  }
  for (size_t v = 0; v < choice.size(); ++v) {
    const NetworkVariable& variable = network.variables[v];
    use(variable, least[v], -1, room);
    double best = 1e300;
    choice[v] = least[v];
    for (int s = 0; s < network.size(static_cast<int>(v)); ++s) {
      bool fits = true;
      for (const UsageItem& item : variable.items)
        for (int row = item.first; fits && row < item.last; ++row)
          fits = item.use[static_cast<size_t>(s)] <= room[static_cast<size_t>(row)];
      if (!fits) continue;
      double cost = variable.cost[static_cast<size_t>(s)];
      for (const PairCost* pair : neighbours.of[v]) {
        const auto other = static_cast<size_t>(static_cast<size_t>(pair->a) == v ? pair->b : pair->a);
        if (choice[other] >= 0) cost += pair_cost(network, *pair, v, s, choice);
      }
      if (cost >= best) continue;
      best = cost;
      choice[v] = s;
    }
    use(variable, choice[v], 1, room);
  }
  return choice;
}

// Returns the best choice that fits; empty: none was met.
std::vector<int> anneal(const Network& network, const Neighbours& neighbours, std::vector<int> choice,
                        double seconds, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<int64_t> room = network.capacity;
  for (size_t v = 0; v < choice.size(); ++v) use(network.variables[v], choice[v], 1, room);
  double cost = cost_of(network, choice), best_cost = 1e300;
  int64_t most = 1;
  for (const int64_t capacity : network.capacity) most = std::max(most, capacity);
  const double unit =
      10 * cost / static_cast<double>(choice.size()) / static_cast<double>(most);  // of usage in excess
  std::vector<int> best;
  const auto begun = std::chrono::steady_clock::now();
  const double hot = cost / static_cast<double>(choice.size());
  double temperature = hot, excess = 0;
  for (const int64_t each : room) excess += each < 0 ? -static_cast<double>(each) : 0;
  for (int64_t step = 0;; ++step) {
    if (step % 256 == 0) {
      const double gone =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() / seconds;
      if (gone >= 1) return best;
      temperature = hot * std::pow(1e-5, gone);
    }
    const size_t v = random() % choice.size();
    const NetworkVariable& variable = network.variables[v];
    const int from = choice[v], to = static_cast<int>(random() % variable.cost.size());
    if (from == to) continue;
    double change = variable.cost[static_cast<size_t>(to)] - variable.cost[static_cast<size_t>(from)];
    for (const PairCost* pair : neighbours.of[v])
      change += pair_cost(network, *pair, v, to, choice) - pair_cost(network, *pair, v, from, choice);
    double more = 0;
    for (const UsageItem& item : variable.items) {
      const int64_t use = item.use[static_cast<size_t>(to)] - item.use[static_cast<size_t>(from)];
      for (int row = item.first; row < item.last && use != 0; ++row) {
        const int64_t before = room[static_cast<size_t>(row)], after = before - use;
        more += static_cast<double>(std::max<int64_t>(0, -after)) -
                static_cast<double>(std::max<int64_t>(0, -before));
      }
    }
    if (change + unit * more > -temperature * std::log(1e-300 + uniform())) continue;
    use(variable, from, -1, room);
    use(variable, to, 1, room);
    choice[v] = to;
    cost += change;
    excess = more == 0 ? excess : std::max(0.0, excess + more);
    if (excess < 0.5 && cost < best_cost && temperature < 0.1 * hot) {
      best_cost = cost;
      best = choice;
    }
  }
}

void report(const char* name, const AssignmentProblem& problem, const std::vector<int>& choice) {
  if (choice.empty()) {
    fmt::print("{:8} nothing that fits\n", name);
    return;
  }
  const Evaluation found = evaluate(problem, choice);
  fmt::print("{:8} {} {}\n", name, to_text(found.cost), found.feasible ? "fits" : "exceeds the limit");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print(stderr, "usage: assignment_baselines FILE SECONDS [SEED]\n"), 2;
  try {
    const AssignmentProblem problem = read_instance(het::Path(argv[1]));
    const Network network = build_network(problem, Forbidden::count);
    const Neighbours neighbours(network);
    std::vector<int> start = greedy(network, neighbours);
    report("greedy", problem, start);
    report("anneal", problem,
           anneal(network, neighbours, start, std::atof(argv[2]),
                  argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1));
  } catch (const het::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
