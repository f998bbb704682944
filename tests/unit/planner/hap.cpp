// The synthesiser of sharding programs: that its costs are those of the programs it finds, that no program is
// cheaper, and that ranks which run them compute what one device does.
#include "planner/hap/hap.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/plan/sharding_spec.h"
#include "planner/hap/bound.h"
#include "planner/hap/fitting.h"
#include "planner/hap/grids.h"
#include "planner/hap/ratios.h"
#include "planner/hap/report.h"
#include "planner/hap/stages.h"
#include "planner/hap/units.h"
#include "planner/lower/lower.h"
#include "planner/megatron/sharding.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/planner/distributed.h"
#include "tests/unit/planner/hap_testing.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::testing;
using namespace het::testing::distributed;
using namespace het::testing::sharded;
using namespace het::planner;
using namespace het::planner::hap;

namespace {

// Often unequal ones for equal devices.
Shares random_shares(Draw& draw, const DeviceGroup& group) {
  Shares shares;
  const int64_t most = draw.of(std::vector<int64_t>{1, 2, 3, 10, 100});
  for (int d = 0; d < group.size(); ++d) shares.push_back(1 + draw.below(most));
  return shares;
}

// One that has these shares; as narrow as can be for every third one.
ShareRange random_range(Draw& draw, const DeviceGroup& group, const Shares& shares) {
  double all = 0;
  for (const int64_t share : shares) all += static_cast<double>(share);
  std::set<std::pair<int, int>> hosts;
  for (const hap::Device& device : group.devices()) hosts.emplace(device.node, device.host);
  std::vector<double> total(static_cast<size_t>(group.kinds()), 0), port = total;
  std::map<std::tuple<int, int, int>, double> of_port;
  for (int d = 0; d < group.size(); ++d) {
    const hap::Device& device = group.devices()[static_cast<size_t>(d)];
    const double part = static_cast<double>(shares[static_cast<size_t>(d)]) / all;
    const auto kind = static_cast<size_t>(group.kind_of(d));
    total[kind] += part;
    const bool alone = group.is_mesh() || hosts.size() == 1;
    double& own = of_port[{device.node, device.host, alone ? d : -1}];
    own += part;
    port[kind] = std::max(port[kind], own);
  }
  const int64_t wide = draw.below(3);
  const auto around = [&](double value) {
    constexpr double kRounding = 1e-12;
    const auto more = [&] { return static_cast<double>(wide * draw.below(100)) / 400 + kRounding; };
    return Interval{std::max(0.0, value - more()), std::min(1.0, value + more())};
  };
  ShareRange range;
  for (const double each : total) range.total.push_back(around(each));
  for (const double each : port) range.port.push_back(around(each));
  CHECK(group.tighten(range));
  return range;
}

}  // namespace

TEST_CASE("data parallelism cuts the samples where it costs more than to cut nothing", "[hap]") {
  for (uint64_t seed = first_seed(); seed < first_seed() + 10; ++seed) {
    const Graph graph = random_model(seed, 3);
    const PlacementTable table(graph);
    const DeviceGroup group(small_cluster(2, 1e3), Precision::f32);
    const hap::Request request{&table, &group};
    INFO("seed " << seed);
    const auto cut_nodes = [](const Synthesised& made) {
      return std::count_if(made.program.nodes.begin(), made.program.nodes.end(),
                           [](const NodeSharding& way) { return way.axis >= 0; });
    };
    const auto cheapest = cut_nodes(synthesise(request).best);
    for (const Baseline each : {Baseline::even_data, Baseline::proportional_data, Baseline::zero}) {
      std::string problem;
      const Synthesised made = baseline(request, each, problem);
      INFO(name_of(each) << ": " << problem);
      REQUIRE(made.found());
      CHECK(cheapest < cut_nodes(made));
      for (size_t n = 0; n < graph.nodes.size(); ++n)
        if (graph.nodes[n].phase == Phase::forward && !table.shardings(static_cast<NodeId>(n)).empty())
          CHECK(made.program.nodes[n].axis >= 0);
    }
  }
}

TEST_CASE("a search that may look at few states stops within a table", "[hap]") {
  const Graph graph = random_model(3, 6, true);
  const PlacementTable table(graph);
  const DeviceGroup group(small_cluster(2, 1e8), Precision::f32);
  ShardingCosts costs(table, group, 1);
  const SearchOptions options;
  JoinLimits limits;
  limits.most_looked_at = 10;
  CHECK(Units(costs, even_shares(group), options, limits).states() == 11);
  CHECK(Units(costs, even_shares(group), options, {}).states() > 100);
}

TEST_CASE("data parallelism needs a sample for each device", "[hap]") {
  const Graph graph = random_model(1, 3);
  const PlacementTable table(graph);
  const DeviceGroup group(small_cluster(4, 1e9), Precision::f32);
  for (const Baseline each : {Baseline::even_data, Baseline::zero}) {
    std::string problem;
    CHECK(!baseline({&table, &group}, each, problem).found());
    CHECK(problem == "2 samples cannot be cut among 4 devices");
  }
}

TEST_CASE("no sharding program is cheaper than the one that a search finds", "[hap]") {
  const int trials = trials_or(300);
  int64_t programs = 0, sharded = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(trial);
    Draw draw(seed * 7919 + 1);
    const bool adapted = trial % 3 == 2;
    const Graph graph = random_model(seed, static_cast<int>(draw.below(3)) + (adapted ? 1 : 0), adapted);
    const PlacementTable table(graph);
    const double bandwidth = std::pow(10.0, 6 + static_cast<double>(draw.below(40)) / 10);
    const DeviceGroup group(small_cluster(2, bandwidth, draw.below(2) == 0), Precision::f32);
    const bool priced = trial % 2 == 1;  // memory, too
    ShardingCosts costs(table, group, static_cast<int>(1 + draw.below(3)), priced);
    std::vector<double> prices;
    for (int kind = 0; priced && kind < group.kinds(); ++kind)
      prices.push_back(static_cast<double>(draw.below(4)) *
                       std::pow(10.0, static_cast<double>(draw.below(5))));
    const auto cost_of = [&](const ShardingProgram& program) {
      const Ticks cost = costs.program(program);
      return cost >= kNever ? kNever : cost + held_by(costs, program);
    };
    const Shares shares{1 + draw.below(2), 1};
    // A few ways of each node, so that all programs can be looked at.
    std::vector<std::vector<int>> allowed(graph.nodes.size(), {0});
    double count = 1;
    for (int more = 0; more < 400 && count < 800; ++more) {
      const auto n = static_cast<size_t>(draw.below(std::ssize(graph.nodes)));
      const auto ways = std::ssize(table.shardings(static_cast<NodeId>(n)));
      if (ways == 0 || graph.nodes[n].op->any_placement) continue;
      const int way = 1 + static_cast<int>(draw.below(ways));
      if (std::find(allowed[n].begin(), allowed[n].end(), way) != allowed[n].end()) continue;
      const auto size = static_cast<double>(allowed[n].size());
      if (count * (size + 1) / size > 1500) continue;
      count *= (size + 1) / size;
      allowed[n].push_back(way);
    }
    SearchOptions options;
    options.allows_node = [&](NodeId n, const NodeSharding& sharding) {
      const auto& ways = allowed[static_cast<size_t>(n)];
      return std::find(ways.begin(), ways.end(), costs.way_number(n, sharding)) != ways.end();
    };
    costs.set_memory_prices(prices);
    const SearchResult found = search(costs, shares, options);
    INFO("seed " << seed);
    REQUIRE(found.found);
    CHECK(found.bound == found.cost);
    const auto own = program_of(costs, shares, found.ways);
    REQUIRE(own);
    CHECK(cost_of(*own) == found.cost);
    sharded += own->conversions.empty() ? 0 : 1;
    Ticks least = kNever;
    std::vector<size_t> at(graph.nodes.size(), 0);
    for (bool more = true; more;) {
      std::vector<int> ways;
      for (size_t n = 0; n < at.size(); ++n) ways.push_back(allowed[n][at[n]]);
      if (const auto program = program_of(costs, shares, ways)) {
        least = std::min(least, cost_of(*program));
        ++programs;
      }
      more = false;
      for (size_t n = 0; n < at.size() && !more; ++n) {
        if (++at[n] < allowed[n].size())
          more = true;
        else
          at[n] = 0;
      }
    }
    CHECK(least == found.cost);
  }
  CHECK(programs > 100 * trials);
  CHECK(sharded > trials / 4);
}

TEST_CASE("no shares of a range cost less than its bound", "[hap]") {
  const int trials = trials_or(150);
  int64_t nodes = 0, conversions = 0, tight = 0, programs = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(trial);
    Draw draw(seed * 104729 + 3);
    const Graph graph = random_model(seed, static_cast<int>(draw.below(6)));
    const PlacementTable table(graph);
    const double bandwidth = std::pow(10.0, 6 + static_cast<double>(draw.below(50)) / 10);
    const DeviceGroup group(small_cluster(2 + static_cast<int>(draw.below(5)), bandwidth, draw.below(2) == 0),
                            Precision::f32);
    const int microbatches = static_cast<int>(1 + draw.below(3));
    INFO("seed " << seed);
    Ticks least = kNever;
    for (int more = 0; more < 4; ++more) {
      const Shares shares = random_shares(draw, group);
      ShardingCosts with_shares(table, group, microbatches), of_range(table, group, microbatches);
      of_range.set_range(random_range(draw, group, shares));
      for (size_t n = 0; n < graph.nodes.size(); ++n)
        for (size_t way = 0; way <= table.shardings(static_cast<NodeId>(n)).size(); ++way) {
          const auto node = static_cast<NodeId>(n);
          const Ticks cost = with_shares.node(node, static_cast<int>(way), shares);
          if (graph.nodes[n].op->any_placement || cost >= kNever) continue;
          const Ticks bound = of_range.node(node, static_cast<int>(way), std::nullopt);
          CHECK(bound <= cost);
          tight += cost - bound < cost / 100 ? 1 : 0;
          ++nodes;
        }
      for (size_t i = 0; i < graph.values.size(); ++i) {
        const auto id = static_cast<ValueId>(i);
        for (size_t from = 0; from < table.placements(id).size(); ++from)
          for (size_t to = 0; to < table.placements(id).size(); ++to) {
            const auto made = static_cast<PlacementId>(from), needed = static_cast<PlacementId>(to);
            if (!with_shares.fills(id, made, shares) || !with_shares.fills(id, needed, shares)) continue;
            CHECK(of_range.fills(id, made, std::nullopt));
            const Ticks cost = with_shares.conversion(id, made, needed, Phase::backward, shares);
            const Ticks bound = of_range.conversion(id, made, needed, Phase::backward, std::nullopt);
            CHECK(bound <= cost);
            tight += cost - bound < cost / 100 ? 1 : 0;
            ++conversions;
          }
      }
      const SearchResult found = search(with_shares, shares);
      REQUIRE(found.found);
      CHECK(search(of_range, std::nullopt).bound <= found.cost);
      least = std::min(least, found.cost);
      ++programs;
    }
    ShardingCosts costs(table, group, microbatches);
    CHECK(bound_of_all_shares(costs, 2 * least).cost <= least);
    const Bound close = bound_of_all_shares(costs, least);
    CHECK(close.cost <= least);
    CHECK(close.searches > 0);
  }
  CHECK(programs == 4 * trials);
  CHECK(tight > (nodes + conversions) / 4);
}

TEST_CASE("a search costs what its program costs, and no more than Megatron's", "[hap]") {
  for (const bool llama : {false, true})
    for (const double bandwidth : {1e6, 1e8, 1e10}) {
      const Graph graph = small_model(llama, DType::f32);
      const PlacementTable table(graph);
      const DeviceGroup group(small_cluster(2, bandwidth), Precision::f32);
      ShardingCosts costs(table, group, 1);
      const Shares shares{1, 1};
      const SearchResult found = search(costs, shares);
      REQUIRE(found.found);
      CHECK(found.bound == found.cost);
      CHECK(costs.program(propagate(table, shares, hints_of(costs, shares, found))) == found.cost);
      CHECK(costs.program(megatron_sharding(table, shares)) >= found.cost);
    }
}

TEST_CASE("a stage's program is the cheapest for the layers that it runs", "[hap]") {
  int cheaper = 0;
  for (const bool llama : {false, true})
    for (const double bandwidth : {1e6, 1e8, 1e10}) {
      const Graph graph = small_model(llama, DType::f32);
      const PlacementTable table(graph);
      const DeviceGroup group(small_cluster(2, bandwidth, false), Precision::f32);
      const Shares shares{2, 1};
      ShardingCosts costs(table, group, 2);
      const SearchResult whole = search(costs, shares);
      const ShardingProgram of_all = propagate(table, shares, hints_of(costs, shares, whole));
      const int layers = static_cast<int>(graph.layers.size());
      Ticks computed = 0;  // by stages of one layer each
      for (int first = 0; first < layers; ++first)
        for (int count = 1; first + count <= layers; ++count) {
          INFO("llama " << llama << ", bandwidth " << bandwidth << ", layers " << first << " + " << count);
          ShardingCosts own(table, group, 2, false, StageLayers{first, count, {1e-5, 1e7}});
          const SearchResult found = search(own, shares);
          REQUIRE(found.found);
          CHECK(found.bound == found.cost);
          const ShardingProgram program = propagate(table, shares, hints_of(own, shares, found));
          CHECK(own.program(program) == found.cost);
          CHECK(own.program(of_all) >= found.cost);
          cheaper += own.program(of_all) > found.cost ? 1 : 0;
          if (count == layers) CHECK(found.cost == whole.cost);
          const ShardingCosts::Parts parts = own.parts(of_all), all = costs.parts(of_all);
          CHECK(parts.compute + parts.communication <= all.compute + all.communication);
          CHECK((parts.receiving > 0) == (count < layers));
          if (count == 1) computed += parts.compute;
        }
      // Of a tied table each of its two stages updates all.
      CHECK(computed >= costs.parts(of_all).compute);
      CHECK(computed <= (llama ? 1.01 : 1.2) * costs.parts(of_all).compute);
    }
  CHECK(cheaper > 10);
}

TEST_CASE("no pipeline takes less than its arithmetic, each stage waiting for those before it", "[hap]") {
  double closest = 0;
  for (const bool llama : {false, true})
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::split_backward})
      for (int stages = 1; stages <= 4; ++stages)
        for (const int microbatches : {1, 2, 4, 8}) {
          const Graph graph = small_model(llama, DType::f32);
          const DeviceGroup group(small_cluster(stages, 1e12), Precision::f32);
          std::vector<double> rates;
          for (int d = 0; d < stages; ++d) rates.push_back(group.rate(d));
          const std::vector<int> layers = balanced_layers(layer_flops(graph), rates);
          Plan plan;
          plan.schedule = schedule;
          plan.microbatch = kSamples;
          plan.pipelines = {{microbatches, {}}};
          int first = 0;
          for (int d = 0; d < stages; ++d) {
            const std::string& name = group.devices()[static_cast<size_t>(d)].name;
            plan.pipelines[0].stages.push_back({{name}, first, layers[static_cast<size_t>(d)]});
            first += layers[static_cast<size_t>(d)];
          }
          INFO("llama " << llama << "\n" << to_lua(plan));
          const double seconds = simulate_plan(graph, plan, group).seconds;
          const double least = arithmetic_seconds(graph, layers, rates, microbatches);
          CHECK(seconds >= least);
          closest = std::max(closest, least / seconds);
        }
  CHECK(closest > 0.5);
}

TEST_CASE("ranks that run a synthesised program compute what one device does", "[hap]") {
  const int trials = trials_or(60);
  std::set<std::string> seen;
  std::map<Baseline, int> ran;
  for (int trial = 0; trial < trials; ++trial) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(trial);
    Draw draw(seed * 31 + 7);
    const Graph graph = trial % 20 == 0
                            ? small_model(false, DType::f64)
                            : random_model(seed, 5 + static_cast<int>(draw.below(8)), trial % 3 == 1);
    const PlacementTable table(graph);
    const double bandwidth = std::pow(10.0, 7 + static_cast<double>(draw.below(50)) / 10);
    const DeviceGroup group(small_cluster(2 + static_cast<int>(draw.below(2)), bandwidth, draw.below(2) == 0),
                            Precision::f32);
    hap::Request request{&table, &group, static_cast<int>(1 + draw.below(3)), {}, kSamples};
    if (trial % 4 == 1) request.options.most_looked_at = 0;  // each counts as wide
    const Answer answer = synthesise(request);
    INFO("seed " << seed);
    REQUIRE(answer.best.found());
    CHECK(answer.bound <= answer.bound_for_shares);
    CHECK(answer.bound_for_shares <= answer.best.cost);
    CHECK(answer.bound_for_shares >= answer.best.cost - answer.best.cost / 1'000'000);
    const Outcome one = distributed::alone(graph, request.microbatches);
    const auto equals_one_device = [&](const Synthesised& made, std::string_view name) {
      const Plan plan = to_plan(request, made.program);
      INFO(name << ": " << to_lua(plan));
      CHECK(judge(graph, plan, one, 1e-10).problem == "");
      seen.insert(to_lua(plan));
    };
    equals_one_device(answer.best, "the best");
    for (const Baseline each : kBaselines) {
      std::string problem;
      const Synthesised other = baseline(request, each, problem);
      CHECK(answer.best.cost <= other.cost);
      CHECK(answer.bound <= other.cost);
      if (!other.found()) continue;
      equals_one_device(other, name_of(each));
      ++ran[each];
    }
  }
  CHECK(static_cast<int>(seen.size()) > trials);
  for (const Baseline each : kBaselines) {
    INFO(name_of(each));
    CHECK(ran[each] > trials / 20);
  }
}

TEST_CASE("devices stand in rows of a machine, or of like ones", "[hap]") {
  const auto rows_of = [](const std::vector<Machines>& machines) {
    std::vector<std::vector<std::vector<int>>> rows;
    for (const Grid& grid : grids_of(DeviceGroup(cluster_of(machines), Precision::bf16)))
      rows.push_back(grid.rows);
    return rows;
  };
  using Rows = std::vector<std::vector<int>>;
  CHECK(rows_of({{"A100-80", 2, 2}}) == std::vector<Rows>{{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}});
  // The second machine has as many as two rows.
  const auto uneven = rows_of({{"A100-80", 4}, {"H20", 8}});
  REQUIRE(uneven.size() == 2);
  CHECK(uneven[0] == Rows{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}});
  CHECK(uneven[1].size() == 4);
  CHECK(rows_of({{"A100-80", 3, 1}}).empty());
  CHECK(rows_of({{"A100-80", 1}, {"H20", 1}, {"A100-80", 1}, {"H20", 1}})[0] == Rows{{0, 2}, {1, 3}});
}

TEST_CASE("a row is as one device, whose links are those of its devices", "[hap]") {
  const auto merged = [](bool mesh, const std::vector<std::vector<int>>& sets) {
    return DeviceGroup(small_cluster(4, 1e9, mesh), Precision::f32).merged(sets);
  };
  const DeviceGroup rows = merged(false, {{0, 1}, {2, 3}}), ranks = merged(true, {{0, 1}, {2, 3}}),
                    columns = merged(false, {{0, 2}, {1, 3}});
  CHECK(rows.devices()[0].f32_flops == Approx(2 * 3e9));
  CHECK(rows.devices()[1].f32_flops == Approx(2 * 1e9));
  CHECK(rows.kinds() == 2);
  CHECK(rows.link(0, 1).bytes_per_second == 1e9);   // the machines' network interfaces
  CHECK(ranks.link(0, 1).bytes_per_second == 2e9);  // one for each process
  CHECK(columns.kinds() == 1);
  CHECK(columns.link(0, 1).bytes_per_second == 8e9);  // inside of two machines
  CHECK(columns.link(0, 1).latency_seconds == 2e-6);
}

TEST_CASE("ranks that run programs along two axes compute what one device does", "[hap]") {
  const int trials = trials_or(10);
  int two_axes = 0, judged = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(trial);
    Draw draw(seed * 17 + 3);
    const Graph graph = trial % 6 == 0 ? small_model(trial % 12 == 0, DType::f64)
                                       : random_model(seed + 1000, 5 + static_cast<int>(draw.below(8)));
    const PlacementTable table(graph);
    const double bandwidth = std::pow(10.0, 7 + static_cast<double>(draw.below(40)) / 10);
    const DeviceGroup group(small_cluster(4, bandwidth, draw.below(2) == 0), Precision::f32);
    const hap::Request request{&table, &group, static_cast<int>(1 + draw.below(2)), {}, kSamples};
    const std::vector<Grid> grids = grids_of(group);
    const std::vector<GridProgram> programs = programs_for(request, grids, true);
    INFO("seed " << seed);
    const Outcome one = distributed::alone(graph, request.microbatches);
    std::set<std::string> seen;
    for (const GridProgram& each : programs) {
      if (seen.size() == 2 || !seen.insert(to_lua(each.plan)).second) continue;
      INFO(each.grid->name << ": " << to_lua(each.plan));
      try {
        lower_all(graph, each.plan, true);
      } catch (const Error& error) {
        REQUIRE(error.kind() == ErrorKind::usage);  // parts too small to be cut again
        continue;
      }
      CHECK(judge(graph, each.plan, one, 1e-10).problem == "");
      const auto cuts = [](const Synthesised& made) { return !made.program.conversions.empty(); };
      two_axes += cuts(each.between) && cuts(each.within) ? 1 : 0;
      ++judged;
    }
  }
  CHECK(judged > trials);
  CHECK(two_axes > trials / 2);
}

namespace {

// The same cluster with less memory: parts of what a plan needs on the first and on the last device.
DeviceGroup short_of_memory(const Cluster& cluster, const ProgramsTime& needs, double fast, double slow) {
  Cluster less = cluster;
  const double for_plans =
      needs.ranks[0].limit_bytes / cluster.types[0].memory_bytes;  // of what a device has
  less.types[0].memory_bytes = fast * needs.ranks.front().memory_bytes / for_plans;
  less.types[1].memory_bytes = slow * needs.ranks.back().memory_bytes / for_plans;
  return DeviceGroup(less, Precision::f32);
}

}  // namespace

TEST_CASE("where memory is short a program that fits is found", "[hap]") {
  const Graph graph = trained_gpt({8, 8, 32, 4, 64, 3});
  const PlacementTable table(graph);
  const Cluster cluster = small_cluster(4, 1e9);
  const DeviceGroup roomy(cluster, Precision::f32);
  const hap::Request free{&table, &roomy, 2, {}, 8};
  const ShardingProgram fastest = synthesise(free).best.program;
  const ProgramsTime needs = simulate_plan(graph, to_plan(free, fastest), roomy);
  REQUIRE(needs.fits());
  int found = 0;
  for (const double fast : {0.95, 0.8, 0.65, 0.5})
    for (const double slow : {0.9, 0.6}) {
      const DeviceGroup group = short_of_memory(cluster, needs, fast, slow);
      const hap::Request request{&table, &group, 2, {}, 8};
      const ProgramsTime time = simulate_plan(graph, to_plan(request, fastest), group);
      REQUIRE_FALSE(time.fits());
      const auto fitting = fit(request, fastest, time);
      INFO(fast << " and " << slow << " of what the fastest needs");
      if (!fitting) continue;
      ++found;
      CHECK(fitting->time.fits());
      CHECK(simulate_plan(graph, fitting->plan, group).seconds == fitting->time.seconds);
      CHECK(simulate_plan(table, fitting->plan, group).seconds == fitting->time.seconds);
      // Beside a plan that is much faster none is looked for.
      CHECK_FALSE(fit(request, fastest, time, fitting->time.seconds / 1000));
    }
  CHECK(found >= 6);
}

TEST_CASE("programs that hold less compute what one device does", "[hap]") {
  int found = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const Graph graph = random_model(seed, 8);
    const PlacementTable table(graph);
    const Cluster cluster = small_cluster(2, 1e8);
    const DeviceGroup roomy(cluster, Precision::f32);
    const hap::Request free{&table, &roomy, 2, {}, kSamples};
    const ShardingProgram fastest = synthesise(free).best.program;
    const ProgramsTime needs = simulate_plan(graph, to_plan(free, fastest), roomy);
    const DeviceGroup group = short_of_memory(cluster, needs, 0.9, 0.9);
    const hap::Request request{&table, &group, 2, {}, kSamples};
    const auto fitting = fit(request, fastest, simulate_plan(graph, to_plan(request, fastest), group));
    if (!fitting) continue;
    ++found;
    INFO("seed " << seed << ": " << to_lua(fitting->plan));
    CHECK_FALSE(fitting->made.program == fastest);
    CHECK(judge(graph, fitting->plan, distributed::alone(graph, 2), 1e-10).problem == "");
  }
  CHECK(found >= 4);
}

TEST_CASE("shares follow the devices where computing decides, and are even where links do", "[hap]") {
  const Graph graph = random_model(3, 5);
  const PlacementTable table(graph);
  const DeviceGroup group(small_cluster(4, 1e15), Precision::f32);
  CHECK(even_shares(group) == Shares{1, 1, 1, 1});
  CHECK(proportional_shares(group) == Shares{3, 3, 1, 1});
}

TEST_CASE("proportional shares follow the rates in the precision of the plan", "[hap]") {
  Cluster cluster = small_cluster(4, 1e15);
  for (DeviceType& type : cluster.types) type.bf16_flops = 4e9 - type.f32_flops;
  const DeviceGroup f32(cluster, Precision::f32), bf16(cluster, Precision::bf16),
      f16(cluster, Precision::f16);
  const double fast = f32.rate(0), slow = f32.rate(3);
  CHECK(fast == Approx(3 * slow));
  CHECK(f16.rate(0) == fast);  // no type has f16
  for (const DeviceGroup& group : {bf16, bf16.subgroup({0, 1, 2, 3}), bf16.merged({{0}, {1}, {2}, {3}})}) {
    CHECK(group.rate(0) == Approx(4e9 - fast));
    CHECK(group.total_rate() == Approx(16e9 - f32.total_rate()));
    CHECK(proportional_shares(group) == Shares{1, 1, 3, 3});
  }
}

TEST_CASE("costs of hours are no less than those of their slowest device", "[hap]") {
  const Graph graph = small_model(false, DType::f32);
  const PlacementTable table(graph);
  Cluster cluster = small_cluster(2, 1);  // a byte a second
  for (DeviceType& type : cluster.types) type.f32_flops = 1;
  const DeviceGroup group(cluster, Precision::f32);
  ShardingCosts costs(table, group, 1);
  const MaybeShares shares = even_shares(group);
  double longest = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto node = static_cast<NodeId>(n);
    const double least = costs.work(node, 0).flops;  // at one a second
    CHECK(planner::hap::seconds_of(costs.node(node, 0, shares)) >= 0.999 * least);
    if (graph.nodes[n].phase == Phase::backward) longest = std::max(longest, least);
  }
  CHECK(longest > 9223);  // whose ticks times a thousand are beyond 2^63
}

// Every operator that a recipe can call has rules.
TEST_CASE("an operator without rules is named, and every device runs all of it", "[hap]") {
  std::set<std::string> without;
  for (const OpDef& op : op_table())
    if (op.sharding.empty() && !op.any_placement && !op.collective) without.insert(std::string(op.name));
  CHECK(without == std::set<std::string>{"adamw_n"});  // made by lowering alone
  OpDef own = op_named("layer_norm");
  own.name = "own_norm";
  own.sharding.clear();
  Graph graph;
  size_t count = 0;
  for (uint64_t seed = 1; count == 0; ++seed) {
    graph = prune(random_model(seed, 6));
    for (Node& node : graph.nodes)
      if (node.op->name == "layer_norm") {
        node.op = &own;
        ++count;
      }
  }
  const PlacementTable table(graph);
  const DeviceGroup group(small_cluster(3, 1e9), Precision::f32);
  const planner::hap::Request request{&table, &group, 2, {}, kSamples};
  const Report report = report_of(request, synthesise(request), false, false);
  CHECK(report.whole == std::vector<std::string>{"own_norm"});
  CHECK(to_text(report).find("note: own_norm has no sharding rules; every device runs all of it\n") !=
        std::string::npos);
  size_t whole = 0;
  for (const planner::hap::Instruction& each : report.instructions)
    if (!each.is_exchange && each.name.find("own_norm") != std::string::npos) {
      CHECK(each.rule == "replicated");
      whole += static_cast<size_t>(each.count);
    }
  CHECK(whole == count);
}

TEST_CASE("what unlike devices compute alone counts as much as taking one copy of it", "[hap]") {
  const Graph graph = prune(random_model(3, 4));
  const PlacementTable table(graph);
  const std::vector<int> ways(graph.nodes.size(), 0);
  Cluster cluster = small_cluster(3, 1e9);
  const DeviceGroup unlike(cluster, Precision::f32);
  for (Machine& node : cluster.nodes) node.type = cluster.nodes[0].type;
  const DeviceGroup alike(cluster, Precision::f32);
  CHECK(unlike.has_unlike_types());
  CHECK_FALSE(alike.has_unlike_types());
  for (const DeviceGroup* group : {&unlike, &alike}) {
    ShardingCosts costs(table, *group, 2);
    const auto program = program_of(costs, Shares(3, 1), ways);
    REQUIRE(program);
    Ticks copies = 0;
    int updated = 0;
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (const ValueId gradient = costs.copied_gradient(static_cast<NodeId>(n), 0); gradient != kAbsent) {
        copies += costs.copying(gradient);
        ++updated;
      }
    CHECK((updated > 0) == (group == &unlike));
    CHECK(costs.parts(*program).communication == copies);
    CHECK(costs.program(*program) == costs.parts(*program).compute + copies);
  }
}
