// Policies over the combinations of combinations.json: usage table FILE [extensions | seconds]
// Without a second word: all policies. `extensions`: autohet with each extension alone. `seconds`: planning
// time by size, by the wall clock and of the processors that it keeps busy.
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>

#include <fmt/core.h>

#include "core/base/error.h"
#include "core/io/json.h"
#include "planner/policy.h"
#include "tests/bench/planner/combinations.h"

namespace {

using namespace het;
using namespace het::planner;

double seconds_of(const Planned& planned) {
  return planned.feasible ? planned.best.simulation.seconds : std::numeric_limits<double>::infinity();
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int run_table(const Json& file) {
  double best = 0, worst = 1e9, sum = 0, published = 0;
  int count = 0;
  each_combination(file, [&](const Request& request) {
    double seconds[4];
    const char* policies[] = {"megatron", "whale", "autohet", "auto"};
    double took = 0, bound = 0;
    for (int i = 0; i < 4; ++i) {
      const double start = now();
      const Planned planned = plan_with(request, policies[i]);
      took = now() - start;
      bound = planned.lower_bound_seconds;
      seconds[i] = seconds_of(planned);
    }
    const double baseline = std::min(seconds[0], seconds[1]), ratio = baseline / seconds[3];
    fmt::print("{} | {} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.3f} | {:.2f} s\n",
               title_of(request.cluster), request.model.name, seconds[0], seconds[1], seconds[2], seconds[3],
               bound, ratio, took);
    std::fflush(stdout);
    if (!std::isfinite(ratio)) return;
    best = std::max(best, ratio);
    worst = std::min(worst, ratio);
    sum += ratio;
    published += baseline / seconds[2];
    ++count;
  });
  fmt::print(
      "{{\"combinations\": {}, \"best_ratio\": {:.3f}, \"mean_ratio\": {:.3f}, \"worst_ratio\": {:.3f}, "
      "\"autohet_mean_ratio\": {:.3f}}}\n",
      count, best, sum / count, worst, published / count);
  return worst >= 1 ? 0 : 1;
}

// Speed-up over the published decomposition with one extension on, where both have a plan.
int run_extensions(const Json& file) {
  const std::pair<const char*, bool Extensions::*> each[] = {
      {"uneven_microbatches", &Extensions::uneven_microbatches},
      {"placed_optimizer", &Extensions::placed_optimizer},
      {"recompute_per_stage", &Extensions::recompute_per_stage},
      {"schedules", &Extensions::schedules},
      {"mixed_stages", &Extensions::mixed_stages},
      {"local_search", &Extensions::local_search}};
  double sum[7] = {}, best[7] = {};
  int count[7] = {}, only[7] = {}, lost[7] = {}, feasible = 0, all = 0;
  each_combination(file, [&](Request request) {
    const double published = seconds_of(plan_with(request, "autohet"));
    feasible += std::isfinite(published);
    ++all;
    for (int i = 0; i < 7; ++i) {
      request.extensions = i < 6 ? kPublished : Extensions{};
      if (i < 6) request.extensions.*each[i].second = true;
      const double seconds = seconds_of(plan_with(request, "search"));
      only[i] += std::isfinite(seconds) && !std::isfinite(published);
      lost[i] += !std::isfinite(seconds) && std::isfinite(published);
      if (!std::isfinite(seconds) || !std::isfinite(published)) continue;
      sum[i] += published / seconds;
      best[i] = std::max(best[i], published / seconds);
      ++count[i];
    }
  });
  fmt::print("autohet has a plan for {} of {}\n", feasible, all);
  for (int i = 0; i < 7; ++i)
    fmt::print("{} | mean {:.4f} | best {:.4f} | a plan for {} more, {} fewer\n",
               i < 6 ? each[i].first : "all", sum[i] / std::max(count[i], 1), best[i], only[i], lost[i]);
  return 0;
}

int run_seconds() {
  const std::pair<const char*, const char*> sizes[] = {
      {"64", R"([["A100-80",8,3],["H20",8,3],["H800",8,2]])"},
      {"1024", R"([["A100-80",8,28],["H20",8,20],["H800",8,20],["V100-32",4,76],["A10G",4,44]])"},
      {"10000", R"([["A100-80",8,300],["H20",8,300],["H800",8,200],["V100-32",8,200],["A10G",8,250]])"}};
  const int batches[] = {256, 2048, 8192};
  std::string figures;
  for (int i = 0; i < 3; ++i) {
    const Request request = request_of(parse_json(sizes[i].second, "sizes"), "llama2-7b", batches[i]);
    const double start = now();
    const std::clock_t busy = std::clock();
    const Planned planned = plan_with(request, "auto");
    const double wall = now() - start, processor = static_cast<double>(std::clock() - busy) / CLOCKS_PER_SEC;
    fmt::print(
        "{} devices: {:.2f} s, {:.2f} of the processor; {} plans simulated, step {:.3f} s, bound {:.3f} s\n",
        total_devices(request.cluster), wall, processor, planned.simulations, seconds_of(planned),
        planned.lower_bound_seconds);
    figures += fmt::format("{}\"seconds_{}\": {:.3f}, \"processor_seconds_{}\": {:.3f}", i > 0 ? ", " : "",
                           sizes[i].first, wall, sizes[i].first, processor);
    std::fflush(stdout);
  }
  fmt::print("{{{}}}\n", figures);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) fail_usage("usage: table combinations.json [extensions | seconds]");
    if (argc > 2 && std::strcmp(argv[2], "seconds") == 0) return run_seconds();
    const Json file = read_json(argv[1]);
    return argc > 2 && std::strcmp(argv[2], "extensions") == 0 ? run_extensions(file) : run_table(file);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.kind());
  }
}
