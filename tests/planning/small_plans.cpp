// Whether brute force, or a part of the cluster, beats the answers of `auto` on random small clusters. Brute
// force: every degree, size, grouping, order of stages and cut, under 1F1B and a split backward with up to
// two forwards ahead, on 2 to 4 devices. usage: small_plans [FIRST COUNT [DEVICES]]: seeds, for a sample by
// default; with more than 4 devices parts alone. Prints each plan that is beaten; fails where there is one.
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "planner/autohet/balance.h"
#include "planner/autohet/drafts.h"
#include "planner/autohet/group.h"
#include "planner/policy.h"

namespace {

using namespace het;
using namespace het::planner;

constexpr double kAllowed = 0.005;
constexpr uint64_t kFirstSeed = 100, kSeeds = 100;
constexpr int kMostByForce = 4, kMostWarmup = 2;
constexpr size_t kMostOrders = 900, kMostGroupings = 2000;  // more than there are

Request random_small_request(uint64_t seed, int most) {
  uint64_t draws = 0;
  const PhiloxKey key = philox_key(seed, hash_of("small cluster"));
  const auto below = [&](int count) {
    return static_cast<int>(uniform_of(philox(key, draws++)[0]) * static_cast<float>(count));
  };
  const auto any = [&](const auto& values) {
    return values[static_cast<size_t>(below(static_cast<int>(values.size())))];
  };
  const std::vector<std::string> types{"A100-80", "A100-40", "H800", "H100", "H200", "RTX-3090",  "V100-16",
                                       "V100-32", "L4",      "T4",   "A10",  "B200", "Titan-RTX", "L40S"};
  Request request;
  int left = 2 + below(most - 1);
  for (char name = 'a'; left > 0; ++name) {
    const int devices = std::min(left, 1 + below(4)), count = left >= 2 * devices ? 1 + below(2) : 1;
    request.cluster.nodes.push_back(known_machine(std::string(1, name), any(types), devices, count));
    left -= devices * count;
  }
  add_known_types(request.cluster);
  request.cluster.between = {any(std::vector<double>{5e-6, 20e-6, 60e-6, 200e-6}),
                             any(std::vector<double>{1.25e8, 1.25e9, 3.125e9, 12.5e9, 50e9})};
  const int heads = any(std::vector<int>{4, 8, 12});
  const int width = heads * any(std::vector<int>{32, 64, 128});
  request.model =
      transformer({"random", any(std::vector<int>{3, 4, 6, 8}), width, heads, heads / 2, 4 * width,
                   any(std::vector<int>{256, 32000}), any(std::vector<int>{128, 512, 2048}), true});
  request.batch = any(std::vector<int>{8, 16, 24, 32});
  return request;
}

// Every order of stages and every cut, as drafts.
std::vector<PipelineDraft> all_drafts(const Composition& composition, const CostTable& costs,
                                      bool recompute) {
  std::vector<PipelineDraft> drafts;
  for (const std::vector<int>& order : stage_orders(composition, costs, kMostOrders)) {
    const int stages = static_cast<int>(order.size());
    if (stages > costs.layers) continue;
    std::vector<int> layers(order.size(), 1);
    const std::function<void(int, int)> cut = [&](int stage, int left) {
      if (stage + 1 == stages) {
        layers[static_cast<size_t>(stage)] = left;
        PipelineDraft draft;
        draft.nodes = order;
        draft.solution.feasible = true;
        draft.solution.layers = layers;
        draft.solution.recompute.assign(order.size(), recompute);
        drafts.push_back(draft);
        return;
      }
      for (int n = 1; left - n >= stages - stage - 1; ++n) {
        layers[static_cast<size_t>(stage)] = n;
        cut(stage + 1, left - n);
      }
    };
    cut(0, costs.layers);
  }
  return drafts;
}

struct Best {
  double seconds = 1e300;
  PlanLayout layout;
};

// The layout under every schedule; only what may take less than `bound` counts.
void try_schedules(Evaluator& evaluator, PlanLayout layout, Best& best, double bound) {
  const bool is_pipeline = std::any_of(layout.pipelines.begin(), layout.pipelines.end(),
                                       [](const PipelineLayout& each) { return each.stages.size() > 1; });
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::split_backward})
    for (int warmup = 0; warmup <= kMostWarmup; ++warmup) {
      if (!is_pipeline && (schedule != Schedule::one_f_one_b || warmup > 0)) continue;
      layout.schedule = schedule;
      layout.warmup = warmup;
      if (evaluator.estimate(layout, {}).score >= std::min(bound, best.seconds)) continue;
      const Candidate candidate = evaluator.simulate(layout, {});
      if (candidate.feasible() && candidate.score < best.seconds) best = {candidate.score, candidate.layout};
    }
}

// Every combination of drafts of the pipelines that have none yet.
void combine(const Request& request, Evaluator& evaluator, const CostTable& costs,
             const std::vector<std::vector<PipelineDraft>>& options, std::vector<PipelineDraft>& picked,
             Best& best, double bound) {
  if (picked.size() < options.size()) {
    for (const PipelineDraft& draft : options[picked.size()]) {
      picked.push_back(draft);
      combine(request, evaluator, costs, options, picked, best, bound);
      picked.pop_back();
    }
    return;
  }
  PlanLayout layout = make_layout(request, costs, picked, true);
  if (!balance(layout, costs, request.batch / costs.microbatch, true)) return;
  try_schedules(evaluator, layout, best, bound);
  layout.sharded_optimizer = true;
  if (picked.size() > 1 && place_optimizer(layout, costs)) try_schedules(evaluator, layout, best, bound);
}

Best brute_force(const Request& request, double bound) {
  Evaluator evaluator(request);
  Best best;
  for (const int tensor : tensor_degrees(request))
    for (const int microbatch : microbatch_sizes(request)) {
      const CostTable& costs = evaluator.costs(tensor, microbatch);
      const Pool pool = pool_of(request, costs);
      const int groups = std::accumulate(pool.groups.begin(), pool.groups.end(), 0);
      for (int pipelines = 1; pipelines <= std::min(groups, request.batch / microbatch); ++pipelines)
        for (const Grouping& grouping : all_groupings(pool, pipelines, kMostGroupings))
          for (const bool recompute : {false, true}) {
            std::vector<std::vector<PipelineDraft>> options;
            for (const auto& [composition, copies] : grouping.parts)
              options.insert(options.end(), static_cast<size_t>(copies),
                             all_drafts(composition, costs, recompute));
            std::vector<PipelineDraft> picked;
            combine(request, evaluator, costs, options, picked, best, bound);
          }
    }
  return best;
}

std::string title_of(const Cluster& cluster) {
  std::string text;
  for (const Machine& node : cluster.nodes)
    text +=
        fmt::format("{}{} x {} {}", text.empty() ? "" : " + ", node.hosts.size(), node.devices, node.type);
  return text;
}

std::string show(const PlanLayout& layout) {
  std::string text = fmt::format(
      "tensor {}, size {}, {} warm-up {}{}{}", layout.tensor, layout.microbatch, name_of(layout.schedule),
      layout.warmup, layout.sharded_optimizer ? ", sharded" : "", layout.groups.empty() ? "" : ", groups");
  for (const auto& pipeline : layout.pipelines) {
    text += fmt::format("; {} x", pipeline.microbatches);
    for (const auto& s : pipeline.stages)
      text += fmt::format(" {}{}:{}{}", static_cast<char>('a' + s.node), s.host, s.layers,
                          s.recompute ? "r" : "");
  }
  return text;
}

struct Tally {
  int plans = 0, beaten = 0, grown = 0;
  double planning = 0, longest = 0;
};

void report(const char* what, double gain, const std::string& title, const std::string& better) {
  fmt::print("{} by {:.2f} %: {}\n    {}\n", what, 100 * gain, title, better);
  std::fflush(stdout);
}

// Whether one host of a node less, or one device less in each of its hosts, is planned better for.
void check_parts(const Request& request, const Planned& planned, const std::string& title, Tally& tally) {
  for (size_t n = 0; n < request.cluster.nodes.size(); ++n)
    for (const bool is_device : {false, true}) {
      Request part = request;
      Machine& node = part.cluster.nodes[n];
      if (is_device && node.devices == 1) continue;
      if (is_device)
        --node.devices;
      else
        node.hosts.pop_back();
      if (node.hosts.empty())
        part.cluster.nodes.erase(part.cluster.nodes.begin() + static_cast<ptrdiff_t>(n));
      if (part.cluster.nodes.empty()) continue;
      const Planned smaller = plan_with(part, "auto");
      if (!smaller.feasible) continue;
      const double gain = 1 - smaller.best.simulation.seconds / planned.best.simulation.seconds;
      if (gain <= kAllowed) continue;
      ++tally.grown;
      report("BETTER WITH LESS", gain, title,
             fmt::format("without a {} of {}: {}", is_device ? "device" : "host",
                         request.cluster.nodes[n].hosts[0], show(smaller.best.layout)));
    }
}

void check(uint64_t seed, int most, Tally& tally) {
  const Request request = random_small_request(seed, most);
  const std::clock_t start = std::clock();
  const Planned planned = plan_with(request, "auto");
  const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  tally.longest = std::max(tally.longest, took);
  tally.planning += took;
  if (!planned.feasible) return;
  ++tally.plans;
  const double seconds = planned.best.simulation.seconds;
  const std::string title =
      fmt::format("seed {}: {} of {} layers on {}, {:.3g} GB/s: {:.4g} s, {}", seed, request.batch,
                  request.model.count(), title_of(request.cluster),
                  request.cluster.between.bytes_per_second / 1e9, seconds, show(planned.best.layout));
  if (most <= kMostByForce)
    if (const Best best = brute_force(request, seconds); best.seconds < seconds * (1 - kAllowed)) {
      ++tally.beaten;
      report("BEATEN", 1 - best.seconds / seconds, title, show(best.layout));
    }
  check_parts(request, planned, title, tally);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 2 || argc > 4) fail_usage("usage: small_plans [FIRST COUNT [DEVICES]]");
    const uint64_t first = argc > 2 ? std::stoull(argv[1]) : kFirstSeed;
    const uint64_t count = argc > 2 ? std::stoull(argv[2]) : kSeeds;
    Tally tally;
    for (uint64_t seed = first; seed < first + count; ++seed)
      check(seed, argc > 3 ? std::stoi(argv[3]) : kMostByForce, tally);
    fmt::print(
        "{} plans, {} beaten by brute force, {} by a part of the cluster; planning took {:.2f} processor "
        "seconds, "
        "the longest {:.2f}\n",
        tally.plans, tally.beaten, tally.grown, tally.planning, tally.longest);
    return tally.beaten + tally.grown == 0 && tally.plans > 0 ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.kind());
  }
}
