// What a planner is asked, what it answers, and how candidates are compared: by the simulator, for one
// objective.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/migrate/state_migration.h"
#include "planner/simulate/simulate.h"

namespace het::planner {

enum class Objective {
  time,      // seconds of a step
  cost,      // money of a step: the hosts that are used, for its seconds
  progress,  // seconds of a step and its share of what preemptions of the used hosts will cost
};
std::string_view name_of(Objective objective);

// What goes beyond the published decomposition, each to be switched off alone.
struct Extensions {
  bool uneven_microbatches = true;  // pipelines may run different numbers of micro-batches
  bool placed_optimizer = true;     // optimizer state divided over replicas by free memory instead of evenly
  bool recompute_per_stage = true;  // instead of everywhere or nowhere
  bool schedules = true;            // split backward, deeper warm-up, interleaving, besides 1F1B
  bool mixed_stages = true;  // degrees and uneven shares of single stages, also over devices of several hosts
  bool local_search = true;  // move layers, micro-batches and devices while the simulator says it pays
  bool operator==(const Extensions&) const = default;
};
inline constexpr Extensions kPublished{false, false, false, false, false, false};

struct Request {
  Cluster cluster;  // valid; merged() for speed
  Model model;
  Profile profile;
  int batch = 1;
  Objective objective = Objective::time;
  Extensions extensions;
  std::vector<int> tensors;       // degrees to try; empty: powers of two that the model and the nodes allow
  std::vector<int> microbatches;  // sizes to try; empty: those of microbatch_sizes
  // The plan that ran until now, maybe on devices that are gone: of the plans that are at most `near` worse
  // than the best, the one that moves least of its state.
  std::optional<Plan> old;
  double near = 0.02;
  // The state of the model's layers where its graph is known: then `old` may have `sharding`. Absent: as the
  // model's numbers say (migrate/model_state.h).
  std::shared_ptr<const ModelState> state;
  // How the ranks of a plan that is simulated wait for each other; plans are looked for as hetrun runs them.
  Runtime runtime = {};
  // Whether the model's layers can be divided by these shares; empty: as its heads can.
  std::function<bool(const Shares&)> can_divide;
  // Policy auto also looks for a part of the cluster that is nearly as fast and much cheaper
  // (Planned::cheaper).
  bool cheaper = false;
  // Asked between candidates, by any thread of the pool; false ends the search by an Error. Empty: it goes
  // on.
  std::function<bool()> goes_on;
};

// Every mistake that makes planning impossible, each with what would work.
std::vector<std::string> validate(const Request& request);
// Of these: the prices that an objective needs and the cluster does not have.
std::optional<std::string> price_problem(const Cluster& cluster, Objective objective);
// Requests that can be planned but are probably mistakes, each a sentence.
std::vector<std::string> notes_of(const Request& request);
std::vector<int> tensor_degrees(const Request& request);
// The sizes to try, ascending: of what divides the batch all up to 16 and powers of two up to 64, equal parts
// of it for up to as many pipelines as there are devices, and what was measured.
std::vector<int> microbatch_sizes(const Request& request);

struct Candidate {
  PlanLayout layout;
  Simulation simulation;
  double score = 0;    // of the objective; infinite when it does not fit
  std::string origin;  // the part of a policy that found it
  bool feasible() const { return simulation.fits && !layout.pipelines.empty(); }
};

// Evaluates layouts of one request and keeps the best; holds cost tables and simulators by degree and
// micro-batch size. One thread.
class Evaluator {
 public:
  explicit Evaluator(const Request& request);

  const CostTable& costs(int tensor, int microbatch);
  // Of what devices compute, without the collectives of a tensor-parallel group (make_compute_costs).
  const CostTable& compute_costs(int tensor, int microbatch);
  Candidate simulate(PlanLayout layout, std::string_view origin);
  // The same without contention between transfers: many times faster, as a rule no more seconds than
  // simulate() gives. Do not submit what it returns.
  Candidate estimate(PlanLayout layout, std::string_view origin);
  Simulation details(const PlanLayout& layout);  // with Simulation::stages
  // Keeps the candidate when it is better than the best so far: by its score; of equal scores the one that
  // takes less time, then the one whose times were measured in more layers.
  bool submit(Candidate candidate);
  const Candidate& best() const { return best_; }
  // The best that fits of each degree, micro-batch size and, by powers of two, number of pipelines, with
  // interleaved stages and without; the best first.
  std::vector<Candidate> bests() const;
  double best_score() const { return best_.score; }
  // Of the layouts that do not fit, the one that exceeds memory least: reported when none fits.
  const Candidate& nearest() const { return nearest_; }
  int64_t simulations() const { return simulations_; }
  // No plan of this degree and micro-batch size takes less (as lower_bound_seconds says of all).
  double least_seconds(int tensor, int microbatch);
  // By that bound they cannot beat the best, nor, with an old plan, come near it.
  bool can_prune(int tensor, int microbatch);

  // With an old plan: the Pareto front of all simulated layouts in score and moved bytes, the best first and
  // the least moved last; only what is near the best.
  struct Near {
    Candidate candidate;
    double bytes = 0;
  };
  const std::vector<Near>& near() const { return near_; }
  StateMigration* migration() { return migration_.get(); }
  const Request& request() const { return request_; }

 private:
  struct Entry {
    CostTable costs;
    std::unique_ptr<Simulator> simulator;
    std::optional<double> least_seconds;
  };
  Entry& entry(int tensor, int microbatch);
  Candidate run(PlanLayout layout, std::string_view origin, bool contention);
  // Without details and events: looked up where the layout was simulated before, which more than half are.
  Simulation simulation_of(const PlanLayout& layout, bool contention);

  const Request& request_;
  std::map<std::pair<int, int>, std::unique_ptr<Entry>> entries_;
  std::map<std::pair<int, int>, CostTable> compute_;
  void remember(const Candidate& candidate);
  double measured_share(const PlanLayout& layout);
  bool wins(const Candidate& a, const Candidate& b);  // both fit

  struct HashOfLayout {
    size_t operator()(const PlanLayout& layout) const;
  };
  std::unordered_map<PlanLayout, Simulation, HashOfLayout> known_[2];  // without contention, with it
  size_t known_words_ = 0;                                             // of all layouts there
  Candidate best_, nearest_;
  std::map<std::tuple<int, int, int, bool>, Candidate> bests_;
  int64_t simulations_ = 0;
  std::unique_ptr<StateMigration> migration_;
  std::vector<Near> near_;
};

// What a plan uses: the hosts of its devices, by node and host, and what they cost and suffer in an hour.
struct UsedHosts {
  std::set<DevicePlace> hosts;
  double price_per_hour = 0, preemptions_per_hour = 0;
};
UsedHosts used_hosts(const Cluster& cluster, const PlanLayout& layout);
// The share of the time that preemptions leave, each of which costs two minutes: detecting it, planning,
// fetching state, repeating the step.
double useful_share(double preemptions_per_hour);
// Whether the search goes on: what Request::goes_on says.
bool goes_on(const Request& request);

double score_of(const Request& request, const PlanLayout& layout, double seconds);

// No plan of this request takes less time, whatever its micro-batch size (of those that the request names; if
// it names none, of all that divide the batch): each layer's work on each node at that node's best degree and
// size, divided freely over all devices (a linear program); and one micro-batch through the whole model,
// forward and backward to its input.
// With a layout that is `given`, plans of its degrees count, too; where it has groups, plans of any shares.
double lower_bound_seconds(const Request& request, Evaluator& evaluator, const PlanLayout* given = nullptr);

}  // namespace het::planner
