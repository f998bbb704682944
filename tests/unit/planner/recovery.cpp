#include "planner/migrate/recovery.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "core/base/error.h"
#include "core/base/units.h"

using namespace het;
using namespace het::planner;

namespace {

using Elements = std::set<int64_t>;  // places in the whole tensor

Elements elements_of(const TensorSlice& slice) {
  Elements found{0};
  for (size_t d = 0; d < slice.whole_shape().size(); ++d) {
    Elements next;
    for (const int64_t before : found)
      for (const Range& range : slice.ranges(static_cast<int64_t>(d)))
        for (int64_t i = range.begin; i < range.end; ++i) next.insert(before * slice.whole_shape()[d] + i);
    found = std::move(next);
  }
  return found;
}

struct Holding {
  std::string name;
  int source = 0;
  TensorSlice slice;
  Version version;
};

// A recovery as plain lists, beside the inventory.
struct Case {
  std::map<std::string, Inventory::Tensor> tensors;
  std::vector<StateSource> sources;
  std::vector<Holding> holdings;
  std::vector<std::vector<StatePart>> needs;
  RecoveryOptions options;
  std::vector<std::vector<double>> links;  // [from][to]; empty: options have none

  Inventory inventory(std::optional<Version> only = {}) const {
    Inventory inventory;
    for (const Holding& each : holdings)
      if (!only || each.version == *only)
        inventory.add(each.name, tensors.at(each.name), each.source, each.slice, each.version);
    return inventory;
  }
  RecoveryPlan plan() const { return plan_recovery(sources, inventory(), needs, options); }
  int host_of(int member) const {
    return options.host_of.empty() ? member : options.host_of[static_cast<size_t>(member)];
  }
  double link(int from, int to) const {
    return links.empty() ? 1e9 : links[static_cast<size_t>(from)][static_cast<size_t>(to)];
  }
  // Places of a tensor that a source has; of the store what any source of it has.
  bool has(const Holding& holding, int member, Tier tier) const {
    const StateSource& source = sources[static_cast<size_t>(holding.source)];
    return source.tier == tier && (source.member == member || tier == Tier::store);
  }
  Elements held(const std::string& name, Version version, int member, Tier tier) const {
    Elements found;
    for (const Holding& each : holdings)
      if (each.name == name && each.version == version && has(each, member, tier))
        found.merge(elements_of(each.slice));
    return found;
  }
  bool has_store(int member) const {
    return std::any_of(sources.begin(), sources.end(), [&](const StateSource& source) {
      return source.member == member && source.tier == Tier::store;
    });
  }
};

TensorSlice random_slice(const Shape& shape, std::mt19937& random) {
  TensorSlice slice = TensorSlice::whole(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (random() % 3 == 0) continue;
    Ranges keep;
    for (unsigned r = 0; r <= random() % 2; ++r) {
      const auto a = static_cast<int64_t>(random() % static_cast<unsigned>(shape[d]));
      keep.push_back({a, a + 1 + static_cast<int64_t>(random() % static_cast<unsigned>(shape[d] - a))});
    }
    slice = slice.narrowed(static_cast<int64_t>(d), keep);
  }
  return slice;
}

Case random_case(uint32_t seed) {
  std::mt19937 random(seed);
  const auto rate = [&] { return static_cast<double>(1 + random() % 8) * 1e8; };
  Case made;
  const int members = 2 + static_cast<int>(random() % 5);
  made.needs.resize(static_cast<size_t>(members));
  const std::vector<Shape> shapes{{8, 6}, {1, 40}, {17}, {}, {2, 3, 5}, {64, 4}};
  for (size_t t = 0; t < 2 + random() % 4; ++t)
    made.tensors["t" + std::to_string(t)] = {{DType::f32, shapes[random() % shapes.size()]}, t % 2 == 0};
  for (int m = 0; m < members; ++m)
    for (const Tier tier : {Tier::live, Tier::memory, Tier::disk, Tier::store})
      if (random() % 4 != 0) made.sources.push_back({m, tier, random() % 3 == 0 ? 0 : rate()});
  const std::vector<Version> versions{{10, 1}, {12, 1}, {12, 2}};
  const bool scarce = random() % 3 == 0;
  for (const Version& version : versions)
    for (size_t s = 0; s < made.sources.size(); ++s) {
      // Either the source has all tensors whole, or some of some, or nothing.
      const auto kind = scarce ? 1 + random() % 5 : random() % 4;
      for (const auto& [name, tensor] : made.tensors)
        if (kind == 0)
          made.holdings.push_back(
              {name, static_cast<int>(s), TensorSlice::whole(tensor.type.shape), version});
        else if (kind < 3 && random() % 2 == 0)
          made.holdings.push_back(
              {name, static_cast<int>(s), random_slice(tensor.type.shape, random), version});
    }
  for (auto& needs : made.needs)
    for (const auto& [name, tensor] : made.tensors)
      if (random() % 3 != 0) needs.push_back({name, tensor, random_slice(tensor.type.shape, random)});
  if (random() % 2 == 0)
    for (int m = 0; m < members; ++m) made.options.host_of.push_back(static_cast<int>(random() % 3));
  if (random() % 2 == 0) {
    for (int m = 0; m < members; ++m) {
      auto& row = made.links.emplace_back();
      for (int n = 0; n < members; ++n) row.push_back(rate());
    }
    made.options.bytes_per_second = [links = made.links](int from, int to) {
      return links[static_cast<size_t>(from)][static_cast<size_t>(to)];
    };
  }
  if (random() % 2 == 0) made.options.store_bytes_per_second = rate();
  made.options.newest_step = 12;
  made.options.step_seconds = std::array{0.0, 1e-9, 1e-7, 1e-3}[random() % 4];
  made.options.round_bytes = random() % 2 == 0 ? 256 << 20 : 200;
  return made;
}

std::string show(const RecoveryPlan& plan) {
  std::string text = fmt::format("{}.{} {} {}\n", plan.moves.version.step, plan.moves.version.generation,
                                 plan.seconds, plan.bound_seconds);
  for (const auto& round : plan.moves.rounds) {
    for (const std::string& name : round.tensors) text += name + " ";
    text += "\n";
    for (const SliceMove& move : round.moves)
      text += fmt::format("{} {} {}>{} {} {}\n", move.tensor, to_string(move.slice), move.from, move.to,
                          move.bytes, static_cast<int>(move.tier));
  }
  for (const std::string& sentence : plan.why) text += sentence + "\n";
  return text;
}

// Seconds of each port, link and source by the moves, and the longest that one row of a move takes.
struct Load {
  double seconds = 0, row_seconds = 0;
};
Load load_of(const Case& made, const RecoveryPlan& plan) {
  std::map<std::string, double> seconds;
  Load load;
  for (const auto& round : plan.moves.rounds)
    for (const SliceMove& move : round.moves) {
      const auto source = std::find_if(
          made.sources.begin(), made.sources.end(),
          [&](const StateSource& each) { return each.member == move.from && each.tier == move.tier; });
      REQUIRE(source != made.sources.end());
      const Shape& whole = made.tensors.at(move.tensor).type.shape;
      const auto rows = std::find_if(whole.begin(), whole.end(), [](int64_t size) { return size > 1; });
      double row_bytes = 4;
      for (auto size = rows; size != whole.end() && ++size != whole.end();)
        row_bytes *= static_cast<double>(*size);
      const auto take = [&](const std::string& limit, double rate) {
        if (rate <= 0) return;
        seconds[limit] += static_cast<double>(move.bytes) / rate;
        load.row_seconds = std::max(load.row_seconds, row_bytes / rate);
      };
      take(fmt::format("read {} {}", move.from, static_cast<int>(move.tier)), source->bytes_per_second);
      if (move.tier == Tier::store) {
        CHECK(move.from == move.to);
        take("store", made.options.store_bytes_per_second);
      } else if (made.host_of(move.from) != made.host_of(move.to)) {
        take(fmt::format("out {}", made.host_of(move.from)), made.link(move.from, move.to));
        take(fmt::format("in {}", made.host_of(move.to)), made.link(move.from, move.to));
      } else if (move.tier == Tier::live) {
        take(fmt::format("send {}", move.from), made.link(move.from, move.to));
        take(fmt::format("receive {}", move.to), made.link(move.from, move.to));
      }
    }
  for (const auto& [limit, time] : seconds) load.seconds = std::max(load.seconds, time);
  return load;
}

// What `rank` cannot get of a need in this version.
Elements missing_of(const Case& made, int rank, const StatePart& need, Version version) {
  Elements left = elements_of(need.slice);
  for (const Holding& each : made.holdings) {
    if (each.name != need.name || each.version != version) continue;
    if (made.sources[static_cast<size_t>(each.source)].tier == Tier::store && !made.has_store(rank)) continue;
    for (const int64_t element : elements_of(each.slice)) left.erase(element);
  }
  return left;
}

bool is_whole(const Case& made, Version version) {
  for (size_t r = 0; r < made.needs.size(); ++r)
    for (const StatePart& need : made.needs[r])
      if (!missing_of(made, static_cast<int>(r), need, version).empty()) return false;
  return true;
}

// Every element that a rank needs it has live or gets once, from a source that has it.
void check_cover(const Case& made, const RecoveryPlan& plan) {
  const Version version = plan.moves.version;
  std::map<std::pair<int, std::string>, Elements> moved;
  std::map<Tier, int64_t> bytes;
  for (const auto& round : plan.moves.rounds)
    for (const SliceMove& move : round.moves) {
      CHECK(std::count(round.tensors.begin(), round.tensors.end(), move.tensor) == 1);
      const Elements elements = elements_of(move.slice);
      CHECK(move.bytes == static_cast<int64_t>(elements.size()) * 4);
      bytes[move.tier] += move.bytes;
      const Elements held = made.held(move.tensor, version, move.from, move.tier);
      for (const int64_t element : elements) {
        CHECK(moved[{move.to, move.tensor}].insert(element).second);
        CHECK(held.contains(element));
      }
    }
  CHECK(bytes == plan.bytes);
  int64_t needed_bytes = 0, stored_bytes = 0;
  for (size_t r = 0; r < made.needs.size(); ++r)
    for (const StatePart& need : made.needs[r]) {
      const int rank = static_cast<int>(r);
      Elements expected;
      const Elements live = made.held(need.name, version, rank, Tier::live);
      for (const int64_t element : elements_of(need.slice))
        if (!live.contains(element)) expected.insert(element);
      CHECK(moved[{rank, need.name}] == expected);
      needed_bytes += 4 * static_cast<int64_t>(expected.size());
      for (int m = 0; m < static_cast<int>(made.needs.size()); ++m)
        for (const Tier tier : {Tier::live, Tier::memory, Tier::disk})
          for (const int64_t element : made.held(need.name, version, m, tier)) expected.erase(element);
      stored_bytes += 4 * static_cast<int64_t>(expected.size());
    }
  int64_t sum = 0;
  for (const auto& [tier, count] : plan.bytes) sum += count;
  CHECK(sum == needed_bytes);
  const auto stored = plan.bytes.find(Tier::store);
  CHECK((stored == plan.bytes.end() ? 0 : stored->second) == stored_bytes);
}

void check_rounds(const Case& made, const RecoveryPlan& plan) {
  std::set<std::string> seen;
  for (const auto& round : plan.moves.rounds) {
    std::map<int, std::map<std::string, int64_t>> taken;
    for (const std::string& name : round.tensors) CHECK(seen.insert(name).second);
    for (const SliceMove& move : round.moves) {
      taken[move.to][move.tensor] += move.bytes;
      if (move.from != move.to) taken[move.from][move.tensor] += move.bytes;
    }
    for (const auto& [rank, tensors] : taken) {
      int64_t sum = 0;
      for (const auto& [name, bytes] : tensors) sum += bytes;
      CHECK((sum <= made.options.round_bytes || tensors.size() == 1));
    }
  }
}

// The version by trying each alone.
Version best_version(const Case& made) {
  std::optional<Version> best;
  double least = 0;
  for (const Version& version : made.inventory().versions()) {
    if (!is_whole(made, version)) continue;
    const RecoveryPlan alone = plan_recovery(made.sources, made.inventory(version), made.needs, made.options);
    CHECK(alone.moves.version == version);
    const double cost = alone.seconds + static_cast<double>(made.options.newest_step - version.step) *
                                            made.options.step_seconds;
    if (!best || (made.options.step_seconds > 0 && cost < least * (1 - 1e-9))) {
      best = version;
      least = cost;
    }
  }
  REQUIRE(best);
  return *best;
}

// A source has all of a tensor.
void hold(Case& made, const std::string& name, const Shape& shape, int source, Version version = {}) {
  made.tensors[name] = {{DType::f32, shape}, true};
  made.holdings.push_back({name, source, TensorSlice::whole(shape), version});
}

// By tier, and 10 more for a peer's.
std::map<int, int64_t> bytes_by_distance(const RecoveryPlan& plan) {
  std::map<int, int64_t> bytes;
  for (const auto& round : plan.moves.rounds)
    for (const SliceMove& move : round.moves)
      bytes[static_cast<int>(move.tier) + (move.from == move.to ? 0 : 10)] += move.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("a recovery gives every rank what it needs once, the store only what nothing nearer has",
          "[planner][recovery]") {
  int whole = 0, refused = 0, older = 0, cut = 0, tight = 0;
  double worst = 1;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    INFO("seed " << seed);
    const Case made = random_case(seed);
    const auto versions = made.inventory().versions();
    const bool any = std::any_of(versions.begin(), versions.end(),
                                 [&](const Version& version) { return is_whole(made, version); });
    if (!any) {
      ++refused;
      CHECK_THROWS_AS(made.plan(), Error);
      continue;
    }
    ++whole;
    const RecoveryPlan plan = made.plan();
    INFO(show(plan));
    check_cover(made, plan);
    check_rounds(made, plan);
    const Load load = load_of(made, plan);
    CHECK(plan.seconds == Approx(load.seconds).epsilon(1e-9).margin(1e-18));
    CHECK(plan.bound_seconds <= plan.seconds * (1 + 1e-6));
    CHECK(plan.seconds <=
          std::max(1.2 * plan.bound_seconds, plan.bound_seconds + load.row_seconds) * (1 + 1e-6));
    if (plan.seconds > 1.2 * plan.bound_seconds * (1 + 1e-6))
      ++tight;
    else if (plan.bound_seconds > 0)
      worst = std::max(worst, plan.seconds / plan.bound_seconds);
    CHECK(plan.moves.version == best_version(made));
    if (plan.moves.version != versions.front()) ++older;
    for (const RecoveryPlan::Candidate& candidate : plan.candidates)
      if (candidate.seconds || !candidate.missing.empty())
        CHECK(candidate.missing.empty() == is_whole(made, candidate.version));
    for (const auto& round : plan.moves.rounds)
      for (size_t i = 1; i < round.moves.size(); ++i)
        if (round.moves[i].tensor == round.moves[i - 1].tensor && round.moves[i].to == round.moves[i - 1].to)
          ++cut;
  }
  CHECK(whole >= 200);
  CHECK(refused >= 20);
  CHECK(older >= 50);
  CHECK(cut >= 200);
  CHECK(tight <= whole / 20);
}

TEST_CASE("where nothing takes time, every byte comes from the nearest tier", "[planner][recovery]") {
  for (uint32_t seed = 1000; seed < 1150; ++seed) {
    INFO("seed " << seed);
    Case made = random_case(seed);
    for (StateSource& source : made.sources) source.bytes_per_second = 0;
    made.options.store_bytes_per_second = 0;
    made.options.bytes_per_second = [](int, int) { return std::numeric_limits<double>::infinity(); };
    const auto versions = made.inventory().versions();
    if (std::none_of(versions.begin(), versions.end(),
                     [&](const Version& version) { return is_whole(made, version); }))
      continue;
    const RecoveryPlan plan = made.plan();
    INFO(show(plan));
    CHECK(plan.seconds == 0);
    std::map<int, int64_t> expected;
    const int members = static_cast<int>(made.needs.size());
    for (int r = 0; r < members; ++r)
      for (const StatePart& need : made.needs[static_cast<size_t>(r)]) {
        Elements left = elements_of(need.slice);
        const auto take = [&](int member, Tier tier) {
          int64_t bytes = 0;
          for (const int64_t element : made.held(need.name, plan.moves.version, member, tier))
            bytes += left.erase(element) > 0 ? 4 : 0;
          return bytes;
        };
        take(r, Tier::live);
        for (const auto& [tier, own] : std::vector<std::pair<Tier, bool>>{{Tier::live, false},
                                                                          {Tier::memory, true},
                                                                          {Tier::memory, false},
                                                                          {Tier::disk, true},
                                                                          {Tier::disk, false},
                                                                          {Tier::store, true}})
          for (int m = 0; m < members; ++m)
            if ((m == r) == own)
              if (const int64_t bytes = take(m, tier); bytes > 0)
                expected[static_cast<int>(tier) + (own ? 0 : 10)] += bytes;
        CHECK(left.empty());
      }
    CHECK(bytes_by_distance(plan) == expected);
  }
}

TEST_CASE("a recovery does not depend on the order in which the inventory was filled",
          "[planner][recovery]") {
  std::mt19937 random(7);
  int plans = 0;
  for (uint32_t seed = 2000; seed < 2100; ++seed) {
    INFO("seed " << seed);
    Case made = random_case(seed);
    const auto text = [&] {
      try {
        const std::string plan = show(made.plan());
        ++plans;
        return plan;
      } catch (const Error& error) {
        return error.sentence();
      }
    };
    const std::string first = text();
    for (int order = 0; order < 4; ++order) {
      std::shuffle(made.holdings.begin(), made.holdings.end(), random);
      CHECK(text() == first);
    }
  }
  CHECK(plans >= 200);
}

TEST_CASE("no assignment of whole ranges is faster than the bound, and plans are as fast as the best",
          "[planner][recovery]") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 60; ++trial) {
    INFO("trial " << trial);
    // Ranges of one row (`rows` = 1) or of many, each on two of three members' disks.
    for (const int64_t rows : {int64_t{1}, int64_t{256}}) {
      Case made;
      made.needs.resize(3);
      for (int m = 0; m < 3; ++m)
        made.sources.push_back({m, Tier::disk, static_cast<double>(1 + random() % 4) * 1e8});
      std::vector<std::pair<int, std::array<int, 2>>> ranges;  // receiver, holders
      const size_t count = 2 + random() % 6;
      for (size_t i = 0; i < count; ++i) {
        const int to = static_cast<int>(random() % 3), skipped = static_cast<int>(random() % 3);
        const std::array<int, 2> holders{skipped == 0 ? 1 : 0, skipped == 2 ? 1 : 2};
        const std::string name = "t" + std::to_string(i);
        const Shape shape{rows, 256 / rows};
        // 1,024 bytes: of one row only if the columns do not count as rows.
        const Shape one{};
        for (const int holder : holders) hold(made, name, rows == 1 ? one : shape, holder);
        made.needs[static_cast<size_t>(to)].push_back(
            {name, made.tensors.at(name), TensorSlice::whole(rows == 1 ? one : shape)});
        ranges.emplace_back(to, holders);
      }
      const double bytes = rows == 1 ? 4 : 1024;
      double least = 1e300;
      for (unsigned choice = 0; choice < 1U << count; ++choice) {
        std::array<double, 3> read{}, in{}, out{};
        for (size_t i = 0; i < count; ++i) {
          const auto to = static_cast<size_t>(ranges[i].first);
          const auto from = static_cast<size_t>(ranges[i].second[choice >> i & 1U]);
          read[from] += bytes / made.sources[from].bytes_per_second;
          if (from == to) continue;
          in[to] += bytes / 1e9;
          out[from] += bytes / 1e9;
        }
        double seconds = 0;
        for (const auto& each : {read, in, out})
          seconds = std::max(seconds, *std::max_element(each.begin(), each.end()));
        least = std::min(least, seconds);
      }
      const RecoveryPlan plan = made.plan();
      INFO(show(plan) << "least " << least);
      CHECK(plan.bound_seconds <= least * (1 + 1e-9));
      if (rows == 1) CHECK(plan.seconds >= least * (1 - 1e-9));
      // Whole ranges are at most a range from the flow; rows nearly reach it.
      const double row = bytes / static_cast<double>(rows) / 1e8;
      CHECK(plan.seconds <= std::max(1.2 * plan.bound_seconds, plan.bound_seconds + row));
      if (rows > 1) CHECK(plan.seconds <= 1.02 * least + row);
    }
  }
}

TEST_CASE("members of one host read its tiers without the network, and share its ports",
          "[planner][recovery]") {
  Case made;
  made.needs.resize(3);
  made.sources = {{0, Tier::memory, 0}};
  for (int m = 1; m < 3; ++m)
    made.needs[static_cast<size_t>(m)] = {{"w", {{DType::f32, {1000}}, true}, TensorSlice::whole({1000})}};
  hold(made, "w", {1000}, 0);
  CHECK(made.plan().seconds == Approx(2 * 4000 / 1e9));  // out of rank 0
  made.options.host_of = {0, 0, 1};
  CHECK(made.plan().seconds == Approx(4000 / 1e9));
  made.options.host_of = {0, 0, 0};
  CHECK(made.plan().seconds == 0);
  made.options.host_of = {0, 1, 1};  // two sources, but one port into their host
  made.sources.push_back({0, Tier::disk, 0});
  hold(made, "w", {1000}, 1);
  CHECK(made.plan().seconds == Approx(2 * 4000 / 1e9));
  CHECK(made.plan().why.at(2) == "what host 0 sends takes longest");
}

TEST_CASE("a recovery is planned by the links and tiers that members report", "[planner][recovery]") {
  // Two hosts have the state in memory; one has the slower link.
  RecoveryRequest request;
  const Inventory::Tensor tensor{{DType::f32, {1000}}, true};
  for (int m = 0; m < 2; ++m) {
    request.sources.push_back({m, Tier::memory, 0});
    request.inventory.add("w", tensor, m, TensorSlice::whole({1000}), {7, 1});
  }
  request.needs.resize(3);
  request.needs[2] = {{"w", tensor, TensorSlice::whole({1000})}};
  const auto senders = [&] {
    std::map<int, int64_t> bytes;
    for (const auto& round : recovery_planner()(request).moves.rounds)
      for (const SliceMove& move : round.moves) bytes[move.from] += move.bytes;
    return bytes;
  };
  request.links = {{0, 1, 2}, {1e6, 1e9, 1e9}};
  CHECK(senders() == std::map<int, int64_t>{{1, 4000}});
  CHECK(recovery_planner()(request).seconds == Approx(4000 / 1e9));
  request.links.bytes_per_second = {1e9, 1e6, 1e9};
  CHECK(senders() == std::map<int, int64_t>{{0, 4000}});
  request.links.bytes_per_second = {0, 0, 0};  // nothing is known
  CHECK(recovery_planner()(request).seconds == Approx(4000 / 1e9));
  request.links.host_of = {0, 1, 0};
  CHECK(recovery_planner()(request).seconds == 0);
  request.sources[0].bytes_per_second = 1e3;  // its memory is slower than the other's link
  CHECK(senders() == std::map<int, int64_t>{{1, 4000}});
}

TEST_CASE("the store helps only where it may or must", "[planner][recovery]") {
  Case made;
  made.needs.resize(2);
  const StatePart whole{"w", {{DType::f32, {1000, 2}}, true}, TensorSlice::whole({1000, 2})};
  made.needs[0] = {whole};
  made.sources = {{1, Tier::disk, 1e6}, {1, Tier::store, 0}, {0, Tier::store, 3e6}};
  hold(made, "w", {1000, 2}, 0);
  hold(made, "w", {1000, 2}, 1);
  RecoveryPlan plan = made.plan();
  CHECK(plan.bytes == std::map<Tier, int64_t>{{Tier::disk, 8000}});
  CHECK(plan.seconds == Approx(8e-3));
  made.options.store_may_help = true;
  plan = made.plan();  // rank 0 reads itself what rank 1 lists
  CHECK(plan.bytes == std::map<Tier, int64_t>{{Tier::disk, 2000}, {Tier::store, 6000}});
  CHECK(plan.seconds == Approx(2e-3));
  made.options.store_bytes_per_second = 1e6;  // of all readers
  CHECK(made.plan().seconds == Approx(4e-3));
  made.options.store_may_help = false;
  made.holdings.erase(made.holdings.begin());
  CHECK(made.plan().seconds == Approx(8e-3));
  made.sources.pop_back();  // rank 0 reaches no store
  CHECK_THROWS_AS(made.plan(), Error);
}

TEST_CASE("a version costs its transfer and the steps to repeat", "[planner][recovery]") {
  Case made;
  made.needs.resize(2);
  made.needs[0] = {{"w", {{DType::f32, {1000}}, true}, TensorSlice::whole({1000})}};
  made.sources = {{0, Tier::memory, 4e6}, {0, Tier::disk, 4e3}};
  hold(made, "w", {1000}, 1, {10, 1});  // 1 s
  hold(made, "w", {1000}, 0, {8, 1});   // 1 ms
  hold(made, "w", {1000}, 0, {2, 1});
  made.options.newest_step = 11;
  made.options.step_seconds = 0.4;
  RecoveryPlan plan = made.plan();  // 1.4 s or 1.201 s
  CHECK(plan.moves.version == Version{8, 1});
  CHECK(plan.steps_repeated == 3);
  REQUIRE(plan.candidates.size() == 3);
  CHECK(*plan.candidates[0].seconds == Approx(1));
  CHECK(*plan.candidates[1].seconds == Approx(1e-3));
  CHECK_FALSE(plan.candidates[2].seconds);  // 3.6 s of steps
  CHECK(plan.why.back() == "step 2 (generation 1) takes longer: 9 steps to repeat in 3.6 s");
  made.options.step_seconds = 0.6;
  CHECK(made.plan().moves.version == Version{10, 1});
  made.options.step_seconds = 0;  // unknown
  CHECK(made.plan().moves.version == Version{10, 1});
  // Of the same step the newer generation, where it costs the same.
  hold(made, "w", {1000}, 1, {10, 2});
  made.options.step_seconds = 0.6;
  CHECK(made.plan().moves.version == Version{10, 2});
}

TEST_CASE("what no tier has is refused by name", "[planner][recovery]") {
  Case made;
  made.needs.resize(2);
  made.needs[1] = {{"w", {{DType::f32, {8, 2}}, true}, TensorSlice::whole({8, 2})}};
  CHECK_THROWS_WITH(made.plan(),
                    Catch::Contains("nothing has any of the run's state; read from: no live state, no "
                                    "memory, no disk, no store"));
  made.sources = {{0, Tier::live, 0}, {0, Tier::disk, 0}, {1, Tier::disk, 0}};
  hold(made, "w", {8, 2}, 0, {5, 1});
  made.holdings[0].slice = TensorSlice::whole({8, 2}).narrowed(0, Range{0, 2});
  hold(made, "w", {8, 2}, 1, {4, 1});
  made.holdings[1].slice = TensorSlice::whole({8, 2}).narrowed(0, Range{0, 6});
  hold(made, "w", {8, 2}, 2, {3, 1});
  made.holdings[2].slice = TensorSlice::whole({8, 2}).narrowed(0, Range{2, 8});
  try {
    made.plan();
    FAIL("a state that is not there was planned for");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::environment);
    CHECK(error.sentence() ==
          "nothing has all of the run's state; step 4 (generation 1) is nearest, and lacks w [6:8, :] (16 "
          "B); read "
          "from: live state of 1 rank, disk of 2 ranks; no memory, no store; step 5 (generation 1) lacks w "
          "[2:8, :]; "
          "step 3 (generation 1) lacks w [0:2, :]");
  }
  made.needs[1][0].tensor.type.dtype = DType::f64;
  CHECK_THROWS_WITH(made.plan(), Catch::Contains("in the recipe's model (rank 1): another model's state"));
}

TEST_CASE("flows beyond the size of linear programs are near the least time, and prove it",
          "[planner][recovery]") {
  std::mt19937 random(11);
  for (int trial = 0; trial < 104; ++trial) {
    INFO("trial " << trial);
    const bool large = trial >= 100;  // hundreds of demands
    const unsigned scale = large ? 10 : 1;
    const unsigned limits = (3 + static_cast<unsigned>(random() % 30)) * scale;
    std::vector<FlowDemand> demands((1 + random() % 60) * scale);
    for (FlowDemand& demand : demands) {
      const double size = static_cast<double>(1 + random() % 1000);
      const size_t choices = 1 + random() % 6;
      for (size_t c = 0; c < choices; ++c) {
        FlowChoice& choice = demand.emplace_back();
        choice.cost = static_cast<double>(random() % 5);
        std::set<int> used;
        for (size_t u = 0; u < 1 + c % 3; ++u)
          if (const int limit = static_cast<int>(random() % limits); used.insert(limit).second)
            choice.uses.push_back({limit, size / static_cast<double>(1 + random() % 10)});
      }
    }
    const Flow exact = least_time_flow(demands), near = least_time_flow(demands, 0);
    for (const Flow& flow : {exact, near}) {
      for (const auto& shares : flow.shares) {
        CHECK(std::accumulate(shares.begin(), shares.end(), 0.0) == Approx(1));
        for (const double share : shares) CHECK(share >= 0);
      }
      std::vector<double> seconds(limits);
      for (size_t d = 0; d < demands.size(); ++d)
        for (size_t c = 0; c < demands[d].size(); ++c)
          for (const FlowUse& use : demands[d][c].uses)
            seconds[static_cast<size_t>(use.limit)] += flow.shares[d][c] * use.seconds;
      CHECK(*std::max_element(seconds.begin(), seconds.end()) == Approx(flow.seconds).epsilon(1e-6));
    }
    CHECK(exact.bound_seconds == exact.seconds);
    CHECK(near.bound_seconds <= exact.seconds * (1 + 1e-6));
    CHECK(near.bound_seconds >= exact.seconds * (large ? 0.99 : 0.9));
    CHECK(near.seconds >= exact.seconds * (1 - 1e-6));
    CHECK(near.seconds <= exact.seconds * (large ? 1.02 : 1.05));
  }
}

// Seconds to plan for a large run that lost members: not asserted. 1,024 ranks, 4 (tensor) x 8 (stages) x 32
// replicas, 100 layers of 36 tensors, a third of them parameters.
TEST_CASE("recoveries of 1,024 members are planned in seconds", "[.][recovery_bench]") {
  constexpr int kTensor = 4, kStages = 8, kReplicas = 32, kLayers = 100, kTensors = 36;
  constexpr int kRanks = kTensor * kStages * kReplicas;
  const Inventory::Tensor tensor{{DType::f32, {1024, 256}}, false};
  const TensorSlice whole = TensorSlice::whole(tensor.type.shape);
  const auto stage_of = [](int layer, int shift) {
    return std::min(kStages - 1, (layer + shift) * kStages / kLayers);
  };
  // What a rank has of a tensor; optimizer state is divided among replicas where `sharded`.
  const auto slice_of = [&](int rank, int t, bool sharded) {
    const int place = rank % kTensor, replica = rank / kTensor % kReplicas;
    const Range columns = share_of(256, kTensor, place);
    const TensorSlice part = whole.narrowed(1, columns);
    return sharded && t % 3 != 0 ? part.narrowed(0, share_of(1024, kReplicas, replica)) : part;
  };
  const auto each = [&](int shift, bool sharded, const auto& visit) {
    for (int layer = 0; layer < kLayers; ++layer)
      for (int t = 0; t < kTensors; ++t) {
        const std::string name = fmt::format("blocks.{}.tensor{}", layer, t);
        for (int r = 0; r < kTensor * kReplicas; ++r) {
          const int rank = stage_of(layer, shift) * kTensor * kReplicas + r;
          visit(name, rank, slice_of(rank, t, sharded));
        }
      }
  };
  struct Kind {
    std::string name;
    bool sharded = false;
    int shift = 0;     // layers by which stages move
    int lost = 0;      // members whose live state and memory are gone
    bool live = true;  // some live state is left
  };
  for (const Kind& kind :
       {Kind{"8 members replaced", false, 0, 8, true}, Kind{"stages moved by 3 layers", false, 3, 8, true},
        Kind{"all from memory, stages moved", false, 3, 0, false},
        Kind{"sharded, 8 members replaced", true, 0, 8, true},
        Kind{"sharded, all from memory, stages moved", true, 3, 0, false}}) {
    std::vector<StateSource> sources;  // of a member: live, memory, disk, store
    for (int m = 0; m < kRanks; ++m)
      for (const Tier tier : {Tier::live, Tier::memory, Tier::disk, Tier::store})
        sources.push_back({m, tier, std::array{0.0, 1e10, 2e9, 1e9}[static_cast<size_t>(tier)]});
    RecoveryOptions options;
    options.newest_step = 100;
    options.step_seconds = 2;
    options.store_bytes_per_second = 2e10;
    options.bytes_per_second = [](int, int) { return 2.5e10; };
    for (int m = 0; m < kRanks; ++m) options.host_of.push_back(m / 8);
    std::vector<std::vector<StatePart>> needs(kRanks);
    Inventory inventory;
    each(0, kind.sharded, [&](const std::string& name, int rank, const TensorSlice& slice) {
      if (kind.live && rank >= kind.lost) inventory.add(name, tensor, 4 * rank, slice, {100, 1});
      // A snapshot in memory, and a copy on the host after it; older ones on disk.
      const int peer = (rank + 8) % kRanks;
      for (const int member : {rank, peer})
        if (member >= kind.lost) inventory.add(name, tensor, 4 * member + 1, slice, {99, 1});
      inventory.add(name, tensor, 4 * peer + 2, slice, {90, 1});
    });
    each(kind.shift, kind.sharded, [&](const std::string& name, int rank, const TensorSlice& slice) {
      needs[static_cast<size_t>(rank)].push_back({name, tensor, slice});
    });
    const auto begin = std::chrono::steady_clock::now();
    const RecoveryPlan plan = plan_recovery(sources, inventory, needs, options);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    size_t moves = 0;
    for (const auto& round : plan.moves.rounds) moves += round.moves.size();
    std::cout << fmt::format("{}: planned in {:.2f} s; {} moves in {} rounds, {:.4f} s, bound {:.4f} s\n",
                             kind.name, seconds, moves, plan.moves.rounds.size(), plan.seconds,
                             plan.bound_seconds);
    for (const std::string& sentence : plan.why) std::cout << "  " << sentence << "\n";
    CHECK(plan.seconds <= 1.2 * plan.bound_seconds);
  }
}
