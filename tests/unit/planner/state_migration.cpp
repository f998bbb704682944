#include "planner/migrate/state_migration.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/base/error.h"
#include "planner/fallback.h"
#include "tests/unit/planner/random_case.h"
#include "tests/unit/planner/random_plan.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

// Two pipelines of two stages on machines "a" and "b", two devices each.
Plan two_by_two() {
  Plan plan;
  plan.pipelines = {{4, {{{"a:0"}, 0, 3}, {{"a:1"}, 3, 3}}}, {4, {{{"b:0"}, 0, 3}, {{"b:1"}, 3, 3}}}};
  return plan;
}

Cluster machines(const std::string& names, int devices) {
  Cluster cluster;
  cluster.types = {plain_type("unit", 1, 64)};
  cluster.types[0].inside = {0, 1e10};
  for (const char name : names) cluster.nodes.push_back(plain_machine(std::string(1, name), "unit", devices));
  cluster.between = {1e-3, 1e9};
  return merged(cluster);
}

// Everything that six layers of 1e6 parameters have: 2 bytes of weights and 12 of state for each.
constexpr double kLayer = 14e6;

double least_by_hand(const StateMigration& migration, const PlanLayout& layout, const Cluster& cluster) {
  // All ways to exchange hosts of a node and devices of a host.
  Plan plan = to_plan(layout, cluster);
  std::vector<std::string> names;
  for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n)
    for (int h = 0; h < static_cast<int>(cluster.nodes[static_cast<size_t>(n)].hosts.size()); ++h)
      for (int d = 0; d < cluster.nodes[static_cast<size_t>(n)].devices; ++d)
        names.push_back(device_name(cluster, n, h, d));
  const auto node_of = [&](size_t i) {
    size_t at = 0;
    for (size_t n = 0; n < cluster.nodes.size(); ++n) {
      at += cluster.nodes[n].hosts.size() * static_cast<size_t>(cluster.nodes[n].devices);
      if (i < at) return n;
    }
    return size_t{0};
  };
  const auto host_of = [&](size_t i) { return names[i].substr(0, names[i].find(':')); };
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), 0);
  double least = 1e300;
  do {
    bool alike = true;
    for (size_t i = 0; i < order.size() && alike; ++i) {
      alike = node_of(i) == node_of(order[i]);
      for (size_t j = 0; j < i && alike; ++j)
        alike = (host_of(i) == host_of(j)) == (host_of(order[i]) == host_of(order[j]));
    }
    if (!alike) continue;
    Plan named = plan;
    for (Pipeline& pipeline : named.pipelines)
      for (Stage& stage : pipeline.stages)
        for (std::string& device : stage.devices)
          device = names[order[static_cast<size_t>(std::find(names.begin(), names.end(), device) -
                                                   names.begin())]];
    least = std::min(least, migration.move(named).bytes);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

}  // namespace

TEST_CASE("who is assigned what costs least", "[planner][replan]") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 50; ++trial) {
    const size_t rows = 1 + random() % 5, columns = rows + random() % 3;
    std::vector<std::vector<double>> cost(rows, std::vector<double>(columns));
    for (auto& row : cost)
      for (double& value : row) value = static_cast<double>(random() % 20);
    const std::vector<int> found = assign(cost);
    double sum = 0;
    for (size_t r = 0; r < rows; ++r) sum += cost[r][static_cast<size_t>(found[r])];
    std::vector<size_t> order(columns);
    std::iota(order.begin(), order.end(), 0);
    double least = 1e300;
    do {
      double here = 0;
      for (size_t r = 0; r < rows; ++r) here += cost[r][order[r]];
      least = std::min(least, here);
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(sum == least);
  }
  CHECK(assign({}).empty());
}

TEST_CASE("the same plan moves nothing, whatever alike devices it names", "[planner][replan]") {
  const Cluster cluster = machines("ab", 2);
  const Model model = plain_model(6);
  const Plan old = two_by_two();
  StateMigration migration(old, cluster, model);
  CHECK(migration.move(old) == Move{});
  PlanLayout layout = to_layout(old, cluster);
  for (PipelineLayout& pipeline : layout.pipelines)
    for (StageLayout& stage : pipeline.stages) stage.host = 1 - stage.host;
  CHECK(migration.bytes(layout) == 0);
  CHECK(migration.move(migration.place(layout)).bytes == 0);
  // Alike are hosts, not devices of different ones.
  std::swap(layout.pipelines[0].stages[0].host, layout.pipelines[1].stages[0].host);
  CHECK(migration.bytes(layout) == 0);
}

TEST_CASE("what a device needs and does not hold is moved", "[planner][replan]") {
  const Cluster cluster = machines("ab", 2);
  const Model model = plain_model(6);
  StateMigration migration(two_by_two(), cluster, model);
  Plan plan = two_by_two();
  plan.pipelines[0].stages = {{{"a:0"}, 0, 2}, {{"a:1"}, 2, 4}};
  Move move = migration.move(plan);
  REQUIRE(move.devices.size() == 1);
  CHECK(move.devices[0].device == "a:1");
  CHECK(move.devices[0].weight_bytes == Approx(2e6));
  CHECK(move.devices[0].optimizer_bytes == Approx(12e6));
  CHECK(move.unavailable_bytes == 0);
  // Layer 2 is on a:0 and on b:0: inside at 10 GB/s and from outside at 1 GB/s together.
  CHECK(move.seconds == Approx(kLayer / 11e9 + 1e-3));

  // A layer that no device holds any more.
  const Cluster left = merged(without(without(cluster, "a:0"), "b:0"));
  StateMigration after(two_by_two(), left, model);
  Plan rest;
  rest.pipelines = {{8, {{{"a:1"}, 0, 3}, {{"b:1"}, 3, 3}}}};
  move = after.move(rest);
  REQUIRE(move.devices.size() == 1);
  CHECK(move.bytes == Approx(3 * kLayer));
  CHECK(move.unavailable_bytes == Approx(3 * kLayer));
  CHECK(move.seconds == 0);
}

TEST_CASE("parts of a layer and shares of its state are counted separately", "[planner][replan]") {
  const Cluster cluster = machines("ab", 2);
  Model model = plain_model(6);
  model.kinds[0].whole_parameters = 2e5;
  model.weight_bytes = 6;
  model.made_bytes = 2;  // bf16 copies, made from f32
  model.optimizer_bytes = 8;
  Plan old;
  old.pipelines = {{8, {{{"a:0"}, 0, 6}}}};
  StateMigration migration(old, cluster, model);
  Plan halves;
  halves.tensor = 2;
  halves.pipelines = {{8, {{{"a:0", "a:1"}, 0, 6}}}};
  Move move = migration.move(halves);
  REQUIRE(move.devices.size() == 1);  // a:0 has its half
  CHECK(move.devices[0].weight_bytes == Approx(6 * 4 * (2e5 + 4e5)));
  CHECK(move.devices[0].optimizer_bytes == Approx(6 * 8 * (2e5 + 4e5)));

  Plan sharded;
  sharded.sharded_optimizer = true;
  sharded.pipelines = {{4, {{{"a:0"}, 0, 6, false, 3}}}, {4, {{{"b:0"}, 0, 6, false, 1}}}};
  move = migration.move(sharded);
  REQUIRE(move.devices.size() == 1);
  CHECK(move.devices[0].weight_bytes == Approx(6 * 4e6));
  CHECK(move.devices[0].optimizer_bytes == Approx(6 * 8e6 / 4));
  // Back: a:0 lacks the quarter that b:0 has.
  StateMigration back(sharded, cluster, model);
  CHECK(back.move(old).bytes == Approx(6 * 8e6 / 4));
  CHECK(back.move(halves).devices[1].optimizer_bytes == Approx(6 * 8 * 6e5));
}

namespace {

// By device, layer and state, the elements that a plan has it hold, one by one. The states are weights that
// tensor parallelism divides, weights that it does not, and the optimizer state of each.
using Elements = std::map<std::string, std::map<std::pair<int, int>, std::set<int64_t>>>;

Elements elements_of(const Plan& plan, const Model& model) {
  Elements elements;
  for (int layer = 0; layer < model.count(); ++layer) {
    Shares owners;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages)
        if (stage.first_layer <= layer && layer < stage.first_layer + stage.layers)
          owners.push_back(stage.optimizer_share);
    size_t owner = 0;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages) {
        if (layer < stage.first_layer || layer >= stage.first_layer + stage.layers) continue;
        const LayerKind& kind = model.layer(layer);
        const auto divided = static_cast<int64_t>(kind.parameters - kind.whole_parameters);
        const auto whole = static_cast<int64_t>(kind.whole_parameters);
        const std::vector<int64_t> points = cut_points(divided, tensor_shares(plan, stage));
        for (size_t t = 0; t < stage.devices.size(); ++t)
          for (const int state : {0, 1, 2, 3}) {
            const int64_t first = state % 2 == 0 ? points[t] : 0;
            const int64_t size = state % 2 == 0 ? points[t + 1] - points[t] : whole;
            const auto own = cut_points(size, owners);
            const bool shared = state >= 2 && plan.sharded_optimizer;
            std::set<int64_t>& held = elements[stage.devices[t]][{layer, state}];
            for (int64_t i = shared ? own[owner] : 0; i < (shared ? own[owner + 1] : size); ++i)
              held.insert(first + i);
          }
        ++owner;
      }
  }
  return elements;
}

}  // namespace

TEST_CASE("what moves is what sets of elements say, for any shares and degrees", "[planner][replan]") {
  constexpr int kLayers = 8;
  Model model = plain_model(kLayers, 101, 0);
  model.kinds[0].whole_parameters = 13;
  LayerKind other = model.kinds[0];
  other.name = "other";
  other.parameters = 57;
  other.whole_parameters = 0;
  model.kinds.push_back(other);
  model.layers.back() = 1;
  model.weight_bytes = 6;
  model.made_bytes = 2;
  Cluster cluster = machines("d", 12);
  int uneven = 0, differing = 0, lost = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    const Plan old = random_plan(random, kLayers, 1, true), plan = random_plan(random, kLayers, 1, true);
    cluster.nodes[0].devices = std::max(devices_in(plan), 1 + static_cast<int>(random() % 12));
    StateMigration migration(old, cluster, model);
    const Move move = migration.move(plan);
    Elements had = elements_of(old, model);
    std::erase_if(had, [&](const auto& entry) {  // devices that the cluster has no more
      return std::stoi(entry.first.substr(2)) >= cluster.nodes[0].devices;
    });
    std::map<std::string, std::pair<double, double>> missing;
    double nowhere = 0;
    for (const auto& [device, parts] : elements_of(plan, model))
      for (const auto& [of, elements] : parts)
        for (const int64_t element : elements) {
          const auto has = [&](const std::string& name) {
            const auto holder = had.find(name);
            if (holder == had.end()) return false;
            const auto part = holder->second.find(of);
            return part != holder->second.end() && part->second.count(element) != 0;
          };
          if (has(device)) continue;
          const double bytes = of.second < 2 ? 4 : 12;
          (of.second < 2 ? missing[device].first : missing[device].second) += bytes;
          const bool anywhere =
              std::any_of(had.begin(), had.end(), [&](const auto& entry) { return has(entry.first); });
          nowhere += anywhere ? 0 : bytes;
        }
    INFO("seed " << seed << "\n" << to_lua(old) << "\n" << to_lua(plan));
    std::map<std::string, std::pair<double, double>> said;
    for (const DeviceMove& device : move.devices)
      said[device.device] = {device.weight_bytes, device.optimizer_bytes};
    CHECK(said == missing);
    CHECK(move.unavailable_bytes == nowhere);
    CHECK((move.seconds > 0) == (move.bytes > move.unavailable_bytes));
    uneven += tensor_shares(old) != Shares(static_cast<size_t>(old.tensor), 1);
    differing += !has_uniform_cut(old) || !has_uniform_cut(plan);
    lost += nowhere > 0;
  }
  CHECK(uneven > 20);
  CHECK(differing > 100);
  CHECK(lost > 50);
}

TEST_CASE("devices and hosts that are alike are named so that least moves", "[planner][replan]") {
  std::mt19937 random(3);
  const Model model = plain_model(6);
  const Cluster cluster = machines("abc", 2);
  const auto any = [&] {
    PlanLayout layout;
    std::vector<int> hosts = {0, 0, 1, 1, 2, 2};
    std::shuffle(hosts.begin(), hosts.end(), random);
    layout.sharded_optimizer = random() % 2 == 0;
    for (size_t used = 0; used < hosts.size();) {
      const size_t stages = std::min<size_t>(1 + random() % 3, hosts.size() - used);
      PipelineLayout pipeline{2, {}};
      int first = 0;
      for (size_t s = 0; s < stages; ++s) {
        const int rest = static_cast<int>(stages - s - 1);
        const int layers = rest == 0 ? 6 - first : 1 + static_cast<int>(random() % (5 - first - rest + 1));
        pipeline.stages.push_back(
            {0, hosts[used++], first, layers, false, 1 + static_cast<int>(random() % 2)});
        first += layers;
      }
      layout.pipelines.push_back(pipeline);
    }
    return layout;
  };
  for (int trial = 0; trial < 40; ++trial) {
    StateMigration migration(to_plan(any(), cluster), cluster, model);
    const PlanLayout layout = any();
    const double bytes = migration.bytes(layout);
    CHECK(migration.move(migration.place(layout)).bytes == Approx(bytes));
    CHECK(bytes == Approx(least_by_hand(migration, layout, cluster)));
    CHECK(to_layout(migration.place(layout), cluster).pipelines.size() == layout.pipelines.size());
  }
}

TEST_CASE("a lost device leaves a gap in its host's names", "[planner][replan]") {
  const Cluster cluster = machines("ab", 3);
  const Cluster left = without(without(cluster, "a:1"), "a:2");
  CHECK(validate(left).empty());
  REQUIRE(total_devices(left) == 4);
  std::vector<std::string> names;
  for (int n = 0; n < static_cast<int>(left.nodes.size()); ++n)
    for (int d = 0; d < left.nodes[static_cast<size_t>(n)].devices; ++d)
      names.push_back(device_name(left, n, 0, d));
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"a:0", "b:0", "b:1", "b:2"});
  CHECK(total_devices(without(left, "a:0")) == 3);
  CHECK(without(without(left, "a:0"), "b").nodes.empty());
  CHECK_THROWS_WITH(without(left, "a:1"), "the cluster has no host and no device a:1");
  CHECK_THROWS_WITH(without(left, "c"), "the cluster has no host and no device c");
}

TEST_CASE("a link to a zone that is lost goes with it", "[planner][replan]") {
  Cluster cluster = machines("ab", 1);
  cluster.nodes = {plain_machine("a", "unit", 1), plain_machine("b", "unit", 1)};
  cluster.nodes[1].zone = "far";
  cluster.zone_links = {{"", "far", {1e-3, 1e8}}};
  CHECK(validate(without(cluster, "b")).empty());
}

TEST_CASE("of near-equal plans the one that moves least is taken", "[planner][replan]") {
  int trials = 0, fewer = 0;
  for (uint64_t seed = 1; trials < 24; ++seed) {
    Request request = random_request(seed);
    const Planned before = plan_with(request, "search");
    if (!before.feasible) continue;
    const std::vector<Loss> losses = likely_losses(request.cluster, before.plan);
    if (losses.empty()) continue;
    const Cluster left = without(request.cluster, losses[seed % losses.size()].name);
    if (left.nodes.empty()) continue;
    request.cluster = left;
    const Planned fresh = plan_with(request, "search");
    request.old = before.plan;
    const Planned found = plan_with(request, "search");
    INFO("seed " << seed);
    REQUIRE((found.feasible || !fresh.feasible));
    if (!found.feasible) continue;
    ++trials;
    CHECK(validate(found.plan, {request.model.count(), request.batch}).empty());
    REQUIRE(found.moved);
    // The best by time is at least what it was without an old plan, and the plan is near it.
    CHECK(found.moved->best_seconds <= fresh.best.simulation.seconds * (1 + 1e-9));
    CHECK(found.best.simulation.seconds <= 1.02 * found.moved->best_seconds * (1 + 1e-9));
    CHECK(found.moved->move.bytes <= found.moved->best_bytes);
    StateMigration migration(before.plan, request.cluster, request.model);
    CHECK(migration.move(found.plan) == found.moved->move);
    CHECK(simulate(found.plan, request.cluster, request.model, request.profile).seconds ==
          Approx(found.best.simulation.seconds));
    fewer += found.moved->move.bytes < migration.move(fresh.plan).bytes;
  }
  CHECK(fewer >= trials / 2);
}

namespace {

// Every layout of a cluster of few devices: who is in which pipeline and stage, cuts, micro-batches.
class Everything {
 public:
  Everything(Evaluator& evaluator, int microbatch) : evaluator_(evaluator), microbatch_(microbatch) {
    const Cluster& cluster = evaluator.request().cluster;
    for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n)
      for (int h = 0; h < static_cast<int>(cluster.nodes[static_cast<size_t>(n)].hosts.size()); ++h)
        for (int d = 0; d < cluster.nodes[static_cast<size_t>(n)].devices; ++d) places_.push_back({n, h});
  }

  void run() {
    PlanLayout layout;
    layout.microbatch = microbatch_;
    std::vector<bool> used(places_.size(), false);
    add_stage(layout, used);
  }

 private:
  // A further stage of the last pipeline, or of a new one; layers are cut when all stages are there.
  void add_stage(PlanLayout& layout, std::vector<bool>& used) {
    if (!layout.pipelines.empty()) cut(layout, 0);
    for (size_t d = 0; d < places_.size(); ++d) {
      if (used[d]) continue;
      used[d] = true;
      const StageLayout stage{places_[d].first, places_[d].second, 0, 1};
      for (const bool fresh : {false, true}) {
        if (!fresh && layout.pipelines.empty()) continue;
        PlanLayout more = layout;
        if (fresh) more.pipelines.emplace_back();
        more.pipelines.back().stages.push_back(stage);
        add_stage(more, used);
      }
      used[d] = false;
    }
  }

  void cut(PlanLayout layout, size_t p) {
    if (p == layout.pipelines.size()) {
      divide(layout, 0, evaluator_.request().batch / microbatch_);
      return;
    }
    auto& stages = layout.pipelines[p].stages;
    const int layers = evaluator_.request().model.count();
    const std::function<void(size_t, int)> choose = [&](size_t s, int first) {
      stages[s].first = first;
      const int rest = static_cast<int>(stages.size() - s) - 1;
      for (int count = rest == 0 ? layers - first : 1; first + count + rest <= layers; ++count) {
        stages[s].layers = count;
        if (rest > 0)
          choose(s + 1, first + count);
        else
          cut(layout, p + 1);
      }
    };
    if (static_cast<int>(stages.size()) <= layers) choose(0, 0);
  }

  void divide(PlanLayout& layout, size_t p, int left) {
    const int others = static_cast<int>(layout.pipelines.size() - p) - 1;
    for (int m = others == 0 ? left : 1; m + others <= left && m > 0; ++m) {
      layout.pipelines[p].microbatches = m;
      if (others > 0)
        divide(layout, p + 1, left - m);
      else
        evaluator_.simulate(layout, "everything");
    }
  }

  Evaluator& evaluator_;
  int microbatch_;
  std::vector<std::pair<int, int>> places_;
};

}  // namespace

TEST_CASE("no near-equal plan moves less, on clusters that are small enough to try all",
          "[planner][replan]") {
  int trials = 0, exact = 0, grown = 0;
  double found_bytes = 0, least_bytes = 0;
  for (uint64_t seed = 300; trials < 24; ++seed) {
    Request request = random_request(seed);
    if (total_devices(request.cluster) > 5 || request.model.count() > 6) continue;
    for (DeviceType& type : request.cluster.types) type.memory_bytes *= 4;  // no stage recomputes or shards
    request.microbatches = {1};
    const Planned before = plan_with(request, "search");
    REQUIRE(before.feasible);
    if (before.plan.sharded_optimizer) continue;
    const std::vector<Loss> losses = likely_losses(request.cluster, before.plan);
    const Cluster left = without(request.cluster, losses.back().name);
    if (left.nodes.empty()) continue;
    request.near = 0.05;
    if (seed % 3 == 0 && total_devices(request.cluster) <= 4) {  // the lost device comes back
      Request smaller = request;
      smaller.cluster = left;
      request.old = plan_with(smaller, "search").plan;
      ++grown;
    } else {
      request.old = before.plan;
      request.cluster = left;
    }
    const Planned found = plan_with(request, "search");
    REQUIRE(found.feasible);
    Evaluator all(request);
    Everything(all, 1).run();
    ++trials;
    INFO("seed " << seed << "\n" << to_lua(*request.old) << "\n" << to_lua(found.plan));
    // What is near depends on the best: where brute force's is the same, so is the limit.
    CHECK(found.moved->best_seconds <= 1.005 * all.near().front().candidate.simulation.seconds);
    found_bytes += found.moved->move.bytes;
    least_bytes += all.near().back().bytes;
    exact += found.moved->move.bytes <= all.near().back().bytes * (1 + 1e-9);
  }
  CAPTURE(found_bytes, least_bytes, exact);
  CHECK(exact >= trials - 1);
  CHECK(found_bytes <= 1.05 * least_bytes);
  CHECK(grown > 2);
}
