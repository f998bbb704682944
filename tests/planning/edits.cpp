// Whether small edits beat the answers of `auto`: over the combinations of
// tests/bench/planner/combinations.json and over random large clusters of 64 to 512 devices. Each edit is
// simulated in full, beside what refine_best looks at. usage: edits combinations.json, for a sample; with
// HETRUN_EDITS=all for all 80 combinations and 100 clusters, with HETRUN_EDITS=N for the random cluster of
// seed N alone. Prints each plan and its best edit; fails where an edit gains more than 0.5 %.
#include "planner/autohet/edits.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "planner/policy.h"
#include "tests/bench/planner/combinations.h"

namespace {

using namespace het;
using namespace het::planner;

constexpr double kAllowed = 0.005;
constexpr uint64_t kFirstSeed = 7000;
constexpr int kClusters = 100;

// 1 to 4 types of data-centre and desktop devices, 64 to 512 together; links between hosts of 10 Gbit/s to 50
// GB/s; a known model, or one like the larger Llamas.
Request random_large_request(uint64_t seed) {
  uint64_t draws = 0;
  const PhiloxKey key = philox_key(seed, hash_of("large cluster"));
  const auto below = [&](int count) {
    return static_cast<int>(uniform_of(philox(key, draws++)[0]) * static_cast<float>(count));
  };
  const auto any = [&](const auto& values) {
    return values[static_cast<size_t>(below(static_cast<int>(values.size())))];
  };
  const std::vector<std::string> types{"A100-80", "A100-40", "H800", "H20",     "H100",
                                       "V100-32", "L40S",    "A10G", "RTX-4090"};
  const std::vector<int> sizes{64, 96, 128, 192, 256, 384, 512}, in_host{4, 8, 8, 8};
  Request request;
  const int kinds = 1 + below(4);
  int left = any(sizes);
  for (int kind = 0; kind < kinds; ++kind) {
    const int devices = any(in_host);
    const int most = std::max(1, left / devices - (kinds - 1 - kind));
    const int hosts = kind == kinds - 1 ? most : 1 + below(most);
    request.cluster.nodes.push_back(
        known_machine(std::string(1, static_cast<char>('a' + kind)), any(types), devices, hosts));
    left = std::max(8, left - devices * hosts);
  }
  add_known_types(request.cluster);
  request.cluster.between = {any(std::vector<double>{5e-6, 20e-6, 60e-6}),
                             any(std::vector<double>{1.25e9, 3.125e9, 12.5e9, 25e9, 50e9})};
  const std::vector<const char*> models{"bert-large", "gpt3-6.7b", "llama2-7b", "llama3-8b", "gpt3-13b"};
  const int model = below(static_cast<int>(models.size()) + 1);
  request.model = model < static_cast<int>(models.size())
                      ? known_model(models[static_cast<size_t>(model)])
                      : transformer({"llama-30b", 60, 6656, 52, 52, 17920, 32000, 2048, true});
  request.batch = any(std::vector<int>{256, 512, 1024, 2048});
  return request;
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Tally {
  int plans = 0, edits = 0, beaten = 0, infeasible = 0;
  double worst = 0, longest = 0;
};

void check(const Request& request, const std::string& title, Tally& tally) {
  const double start = processor_seconds();
  const Planned planned = plan_with(request, "auto");
  const double took = processor_seconds() - start;
  if (!planned.feasible) {
    fmt::print("{}: no plan fits\n", title);
    ++tally.infeasible;
    return;
  }
  Evaluator evaluator(request);
  const double score = evaluator.simulate(planned.best.layout, "auto").score;
  std::vector<Edit> edits = edits_of(planned.best.layout, evaluator);
  double best = 0;
  std::string name = "none";
  for (Edit& edit : edits) {
    const auto problems =
        validate(to_plan(edit.layout, request.cluster), {request.model.count(), request.batch});
    if (!problems.empty())
      fail_usage("{}: the edit \"{}\" makes no valid plan: {}", title, edit.name, problems[0]);
    const double gain = 1 - evaluator.simulate(std::move(edit.layout), "edit").score / score;
    if (gain <= best) continue;
    best = gain;
    name = std::move(edit.name);
  }
  ++tally.plans;
  tally.edits += static_cast<int>(edits.size());
  tally.beaten += best > kAllowed;
  tally.worst = std::max(tally.worst, best);
  tally.longest = std::max(tally.longest, took);
  fmt::print("{}{}: {:.4g} s, planned in {:.2f} processor seconds; best of {} edits gains {:.2f} % ({})\n",
             best > kAllowed ? "BEATEN " : "", title, planned.best.simulation.seconds, took, edits.size(),
             100 * best, name);
  std::fflush(stdout);
}

std::string title_of(const Request& request) {
  return fmt::format("{} of {} on {}, {:.3g} GB/s", request.batch, request.model.name,
                     title_of(request.cluster), request.cluster.between.bytes_per_second / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) fail_usage("usage: edits combinations.json");
    const char* asked = std::getenv("HETRUN_EDITS");
    const std::string which = asked == nullptr ? "" : asked;
    Tally tally;
    const auto random = [&](uint64_t seed) {
      const Request request = random_large_request(seed);
      check(request, fmt::format("seed {}: {}", seed, title_of(request)), tally);
    };
    if (!which.empty() && which != "all") {
      random(std::stoull(which));
    } else {
      int number = 0;
      each_combination(read_json(argv[1]), [&](const Request& request) {
        if (which == "all" || number % 9 == 0) check(request, title_of(request), tally);
        ++number;
      });
      for (int i = 0; i < (which == "all" ? kClusters : 4); ++i)
        random(kFirstSeed + static_cast<uint64_t>(i));
    }
    fmt::print(
        "{} plans, {} edits, {} plans beaten, most by {:.2f} %; {} without a plan; longest planning {:.2f} "
        "processor seconds\n",
        tally.plans, tally.edits, tally.beaten, 100 * tally.worst, tally.infeasible, tally.longest);
    return tally.beaten == 0 && tally.plans > 0 ? 0 : 1;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.kind());
  }
}
