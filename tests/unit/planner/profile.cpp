#include "planner/profile/profile.h"

#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

namespace {

struct Fixture {
  Cluster cluster = cluster_of({{"A100-80", 8}, {"H20", 8}});
  Model model = known_model("llama2-7b");
  Profile profile{"llama2-7b",
                  {{"block", "A100-80", 1, 2, 0.010, 0.011, 0.009, 0.001},
                   {"block", "A100-80", 1, 8, 0.034, 0.035, 0.033, 0.001},
                   {"block", "A100-80", 1, 4, 0.018, 0.019, 0.017, 0.001}}};
  LayerSeconds seconds(int node, int tensor, int microbatch) const {
    return layer_seconds(profile, cluster, node, model, model.kinds[1], tensor, microbatch);
  }
};

}  // namespace

TEST_CASE("measured points are returned as they are; between them a line; outside it a bounded one") {
  Fixture f;
  CHECK(f.seconds(0, 1, 4).source == Source::measured);
  CHECK(f.seconds(0, 1, 4).forward == 0.018);
  CHECK(f.seconds(0, 1, 6).source == Source::interpolated);
  CHECK(f.seconds(0, 1, 6).forward == Approx(0.026));
  CHECK(f.seconds(0, 1, 6).update == 0.001);
  CHECK(f.seconds(0, 1, 16).forward == Approx(0.066));
  CHECK(f.seconds(0, 1, 16).source == Source::extrapolated);
  CHECK(f.seconds(0, 1, 1).forward == Approx(0.006));
  CHECK(f.seconds(0, 1, 1).weight >= 0.009 / 2);
  CHECK(f.seconds(0, 1, 1).source == Source::extrapolated);
  CHECK(f.seconds(0, 2, 16).source == Source::extrapolated);
  f.profile.points.resize(1);
  CHECK(f.seconds(0, 1, 6).source == Source::extrapolated);
  // Faster than the roofline: by as much at the other size.
  const auto roof = [&](int microbatch) {
    return roofline(f.cluster, 0, f.model, f.model.kinds[1], 1, microbatch).forward;
  };
  REQUIRE(roof(2) > 0.010);
  CHECK(f.seconds(0, 1, 6).forward == Approx(0.010 * roof(6) / roof(2)));
  CHECK(f.seconds(0, 1, 6).forward < 0.030);
  CHECK(f.seconds(0, 1, 2).source == Source::measured);
  CHECK(name_of(Source::extrapolated) == "extrapolated");
  CHECK(name_of(Source::calibrated) == "calibrated");
}

TEST_CASE("another degree scales by the roofline, another device type is estimated") {
  const Fixture f;
  const LayerSeconds two = f.seconds(0, 2, 4);
  CHECK(two.source == Source::interpolated);
  CHECK(two.forward < 0.018);
  CHECK(two.forward > 0.018 / 2);
  CHECK(two.update == Approx(0.0005));
  CHECK(f.seconds(1, 1, 4).source == Source::estimated);
}

TEST_CASE("an estimated update takes the longer of its memory traffic and its arithmetic") {
  Fixture f;
  const LayerKind& block = f.model.kinds[1];
  const auto update = [&] { return roofline(f.cluster, 0, f.model, block, 1, 1).update; };
  const double traffic = update();
  f.model.update_flops = 15;
  CHECK(update() == traffic);
  DeviceType& type = f.cluster.types[0];
  REQUIRE(type.name == "A100-80");
  type.f32_flops = 1e9;
  CHECK(update() == Approx(block.parameters * 15 / (1e9 * type.efficiency)));
  CHECK(update() > traffic);
}

TEST_CASE("of a type with one kind measured, the others are its data sheet's, scaled", "[calibrated]") {
  Fixture f;
  const LayerKind &embedding = f.model.kinds[0], &block = f.model.kinds[1], &head = f.model.kinds[2];
  REQUIRE(embedding.forward_flops == 0);
  REQUIRE(head.forward_flops > 0);
  const auto seconds = [&](int node, const LayerKind& kind, int tensor) {
    return layer_seconds(f.profile, f.cluster, node, f.model, kind, tensor, 4);
  };
  const auto sheet = [&](int node, const LayerKind& kind, int tensor = 1) {
    return roofline(f.cluster, node, f.model, kind, tensor, 4);
  };
  const LayerSeconds roof = sheet(0, block);
  const double forward = 0.018 / roof.forward, backward = (0.019 + 0.017) / (roof.input + roof.weight);
  for (const LayerKind* kind : {&embedding, &head}) {
    const LayerSeconds found = seconds(0, *kind, 1);
    CHECK(found.source == Source::calibrated);
    CHECK(found.forward == Approx(forward * sheet(0, *kind).forward));
    CHECK(found.recompute == Approx(forward * sheet(0, *kind).recompute));
    CHECK(found.input == Approx(backward * sheet(0, *kind).input));
    CHECK(found.weight == Approx(backward * sheet(0, *kind).weight));
    CHECK(found.update == Approx(0.001 / roof.update * sheet(0, *kind).update));
  }
  CHECK(calibrating_kinds(f.profile, f.model, "A100-80") == std::vector<std::string>{"block"});
  // The link's collectives are not scaled: what was measured has none.
  const LayerSeconds two = seconds(0, head, 2);
  Cluster without = f.cluster;
  for (Machine& node : without.nodes) node.inside = {0, 1e30};
  const double reductions = sheet(0, head, 2).forward - roofline(without, 0, f.model, head, 2, 4).forward;
  const double measured = layer_seconds(f.profile, without, 0, f.model, block, 2, 4).forward /
                          roofline(without, 0, f.model, block, 2, 4).forward;
  CHECK(two.forward == Approx(measured * roofline(without, 0, f.model, head, 2, 4).forward + reductions));
  // Of another type nothing was measured.
  CHECK(seconds(1, head, 1).source == Source::estimated);
  CHECK(seconds(1, head, 1).forward == sheet(1, head).forward);
  // An update that was not measured is the data sheet's.
  for (ProfilePoint& point : f.profile.points) point.update = -1;
  CHECK(seconds(0, head, 1).update == sheet(0, head).update);
  // A layer without work says nothing of others.
  for (ProfilePoint& point : f.profile.points) point.kind = embedding.name;
  CHECK(calibrating_kinds(f.profile, f.model, "A100-80").empty());
  CHECK(seconds(0, head, 1).source == Source::estimated);
}

TEST_CASE("a table of which rows are read multiplies nothing, whatever is added to the rows",
          "[calibrated]") {
  Fixture f;
  LayerKind& embedding = f.model.kinds[0];
  const LayerSeconds before = roofline(f.cluster, 0, f.model, embedding, 1, 4);
  // Positions: an addition for each feature of a token.
  embedding.forward_flops = embedding.input_flops = embedding.parameters / 1000 * f.model.tokens;
  for (ProfilePoint& point : f.profile.points) point.kind = embedding.name;
  CHECK(calibrating_kinds(f.profile, f.model, "A100-80").empty());
  // No pass reads the table: it takes its launch, and the additions.
  const DeviceType& type = f.cluster.types[0];
  const double rate = type.flops(f.model.precision) * type.efficiency;
  const auto takes = [&](double flops) {
    return std::max(4 * flops / rate, 4 * embedding.forward_bytes / type.memory_bytes_per_second) +
           kLaunchSeconds;
  };
  const LayerSeconds found = roofline(f.cluster, 0, f.model, embedding, 1, 4);
  CHECK(found.forward == Approx(takes(embedding.forward_flops)));
  CHECK(found.weight == Approx(takes(0)));
  CHECK(before.forward == Approx(takes(0)));
  // A head whose product runs in one pass reads its table in that pass alone.
  LayerKind& head = f.model.kinds[2];
  head.input_flops += head.forward_flops + head.weight_flops;
  head.forward_flops = head.weight_flops = head.forward_bytes = 0;
  const LayerSeconds fused = roofline(f.cluster, 0, f.model, head, 1, 4);
  CHECK(fused.forward == Approx(kLaunchSeconds));
  CHECK(fused.weight == Approx(kLaunchSeconds));
  CHECK(fused.input >= head.parameters * f.model.weight_bytes / type.memory_bytes_per_second);
}

TEST_CASE("a layer that works was not measured in no time", "[calibrated]") {
  Fixture f;
  CHECK(validate(f.profile, f.model).empty());
  f.profile.points[1].forward = 0;
  const auto problems = validate(f.profile, f.model);
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].find("profile point 2 (block on A100-80): forward takes 0 seconds") != std::string::npos);
}

TEST_CASE("the device's type says what launches take") {
  Cluster cluster = cluster_of({{"A100-80", 1}});
  const Model model = known_model("llama2-7b");
  const LayerKind& block = model.kinds[1];
  const auto with = [&](double launch) {
    cluster.types[0].launch_seconds = launch;
    return roofline(cluster, 0, model, block, 1, 1);
  };
  const LayerSeconds none = with(0), some = with(1e-4);
  CHECK(some.forward - none.forward == Approx(1e-4));
  CHECK(some.input - none.input == Approx(1e-4));
  CHECK(some.weight - none.weight == Approx(1e-4));
  CHECK(some.update == none.update);
  cluster.types[0].launch_seconds = -1;
  CHECK(mentions(validate(cluster), "launch = -1; it is 0 or more"));
}

TEST_CASE("the roofline follows work, then memory, then the link of the tensor-parallel group") {
  const Cluster cluster = cluster_of({{"A100-80", 8}, {"T4", 4}});
  const Model model = known_model("llama2-7b");
  const LayerKind& block = model.kinds[1];
  const LayerSeconds one = roofline(cluster, 0, model, block, 1, 1),
                     two = roofline(cluster, 0, model, block, 1, 2);
  CHECK(one.forward - kLaunchSeconds == Approx(block.forward_flops / (312e12 * 0.5)));
  CHECK(two.forward - kLaunchSeconds == Approx(2 * (one.forward - kLaunchSeconds)));
  const LayerSeconds wide = roofline(cluster, 0, model, block, 8, 1);
  CHECK(wide.forward < one.forward);
  CHECK(wide.forward > one.forward / 8);
  // T4 has no bf16: it computes in f32.
  CHECK(roofline(cluster, 1, model, block, 1, 1).forward - kLaunchSeconds ==
        Approx(block.forward_flops / (8.1e12 * 0.5)));
  const auto all_reduce = [](const Link& link, int members, double bytes) {
    return collective_seconds(CollectiveKind::all_reduce, false, link, members, bytes);
  };
  CHECK(all_reduce({1e-5, 1e9}, 1, 1e6) == 0);
  CHECK(all_reduce({0, 1e9}, 4, 1e6) == Approx(2 * 0.75 * 1e-3));
  CHECK(all_reduce({1e-3, 1e9}, 64, 8) == Approx(12e-3).epsilon(0.01));
}

TEST_CASE("a profile survives JSON, and mistakes in one are named") {
  const Fixture f;
  CHECK(profile_from_json(parse_json(dump(to_json(f.profile)), "p"), "p") == f.profile);
  CHECK(validate(f.profile, f.model).empty());
  Profile other = f.profile;
  other.model = "gpt3-13b";
  other.points[0].kind = "blok";
  other.points[1].forward = -1;
  CHECK(validate(other, f.model).size() == 3);
  CHECK_THROWS_WITH(profile_from_json(parse_json(R"({"profile":9})", "p"), "old.json"),
                    Catch::Contains("old.json is not a profile of format 2"));
  CHECK_THROWS_WITH(
      profile_from_json(parse_json(R"({"profile":2,"model":3,"points":[{"kind":"a","tensor":1.5}]})", "p"),
                        "p.json"),
      Catch::Contains("\"model\" is missing or no text") &&
          Catch::Contains("entry 1 of points: \"forward\" is missing or no number") &&
          Catch::Contains("\"tensor\" is no whole number"));
  CHECK_THROWS_WITH(profile_from_json(parse_json(R"({"profile":2,"model":"a"})", "p"), "p.json"),
                    Catch::Contains("\"points\" is missing or no list"));
}

TEST_CASE("all that hetrun measures survives JSON") {
  Fixture f;
  ProfilePoint point{"block", "cpu", 2, 4, 0.1, 0.2, 0.3};
  point.recompute = 0.05;
  point.collectives = false;
  point.weight_bytes = 1;
  point.gradient_bytes = 2;
  point.optimizer_bytes = 3;
  point.activation_bytes = 4;
  f.profile.points.push_back(point);
  f.profile.version = "0.1.0";
  f.profile.digest = "12ab";
  f.profile.devices = {{"cpu", "some processor"}};
  f.profile.links = {{"cpu", "a", "b", {{64, 1e-5}, {1024, 2e-5}}}};
  CHECK(profile_from_json(parse_json(dump(to_json(f.profile)), "p"), "p") == f.profile);
}

TEST_CASE("a profile is of layers: their number may differ, their figures not; and of one hetrun") {
  Fixture f;
  f.profile.digest = digest_of(f.model);
  f.profile.version = HET_VERSION;
  f.model.name = "the same, deeper";
  f.model.layers.push_back(1);
  CHECK(validate(f.profile, f.model).empty());
  f.model.kinds[1].forward_flops *= 2;
  CHECK(mentions(validate(f.profile, f.model), "it was measured for \"llama2-7b\", this model is"));
  f.model.name = f.profile.model;
  CHECK(mentions(validate(f.profile, f.model), "with another precision, context or optimizer"));
  f.profile.digest = digest_of(f.model);
  f.profile.version = "0.0.1";
  CHECK(mentions(validate(f.profile, f.model), "it was measured by hetrun 0.0.1, this is hetrun"));
}

TEST_CASE("what was measured without its group gets the group's collectives from the link") {
  Fixture f;
  const LayerKind& block = f.model.kinds[1];
  const double reduce =
      block.tensor_reductions * collective_seconds(CollectiveKind::all_reduce, false,
                                                   inside_link(f.cluster, 0), 2, block.boundary_bytes * 4);
  ProfilePoint point{"block", "A100-80", 2, 4, 0.010, 0.011, 0.009};
  f.profile.points = {point};
  CHECK(f.seconds(0, 2, 4).forward == 0.010);
  f.profile.points[0].collectives = false;
  f.profile.points[0].recompute = 0.004;
  const LayerSeconds alone = f.seconds(0, 2, 4);
  CHECK(alone.source == Source::measured);
  CHECK(alone.forward == Approx(0.010 + reduce));
  CHECK(alone.recompute == Approx(0.004 + reduce));
  CHECK(alone.input == Approx(0.011 + reduce));
  CHECK(alone.weight == 0.009);
  // Alone on a device there are none.
  CHECK(f.seconds(0, 1, 4).forward < 2.5 * 0.010);
}

TEST_CASE("from one measured size to another launches stay and the rest goes by the roofline") {
  Cluster cluster;
  cluster.types = {plain_type("unit", 1, 16)};
  cluster.nodes = {plain_machine("a", "unit", 1)};
  Model model = plain_model(1);
  const auto at = [&](double forward, int measured, int microbatch) {
    Profile profile;
    profile.points = {{"layer", "unit", 1, measured, forward, forward, forward}};
    return layer_seconds(profile, cluster, 0, model, model.kinds[0], 1, microbatch);
  };
  constexpr double kSample = 2e-3;  // by the roofline, beside a launch
  const auto roof = [](int samples) { return samples * kSample + kLaunchSeconds; };
  // 0.4 ms that launches explain: twice the samples add what a sample computes.
  const LayerSeconds twice = at(2.4e-3, 1, 2);
  CHECK(twice.forward == Approx(2.4e-3 + kSample));
  CHECK(twice.input == Approx(2.4e-3 + kSample));
  CHECK(twice.source == Source::extrapolated);
  CHECK(at(2.4e-3, 1, 8).forward == Approx(2.4e-3 + 7 * kSample));
  // Three times the roofline is no launches: the device is slow, at other sizes too.
  constexpr double kLaunches = 25 * kLaunchSeconds;
  CHECK(at(6e-3, 1, 2).forward == Approx(kLaunches + (6e-3 - kLaunches) * roof(2) / roof(1)));
  CHECK(at(24e-3, 4, 1).forward == Approx(kLaunches + (24e-3 - kLaunches) * roof(1) / roof(4)));
  // As fast as the roofline: the launch is not paid twice. Faster: as much less is added.
  CHECK(at(roof(1), 1, 2).forward == Approx(roof(2)));
  CHECK(at(0.5 * roof(1), 1, 2).forward == Approx(0.5 * roof(2)));
  // Fewer samples: what they compute is gone, but never more than in proportion.
  CHECK(at(8.4e-3, 4, 2).forward == Approx(8.4e-3 - 2 * kSample));
  CHECK(at(1e-3, 4, 1).forward >= 0.25e-3);
  // A device that launches nothing, and a layer of unknown work.
  cluster.types[0].launch_seconds = 0;
  CHECK(at(2.4e-3, 1, 2).forward == Approx(4.8e-3));
  cluster.types[0].launch_seconds = kLaunchSeconds;
  model.kinds[0].forward_flops = model.kinds[0].input_flops = model.kinds[0].weight_flops = 0;
  CHECK(at(2e-3, 1, 2).forward == Approx(4e-3 - kLaunchSeconds));
  CHECK(at(1e-6, 1, 4).forward == Approx(1e-6));
}

TEST_CASE("a pass without work has a time at other degrees than the measured one") {
  Cluster cluster;
  cluster.types = {plain_type("unit", 1, 16)};
  cluster.types[0].launch_seconds = 0;
  cluster.nodes = {plain_machine("a", "unit", 2)};
  Model model = plain_model(1);
  model.kinds[0].input_flops = model.kinds[0].forward_bytes = 0;
  Profile profile;
  profile.points = {{"layer", "unit", 1, 1, 4e-3, 1e-6, 4e-3}};
  const LayerSeconds seconds = layer_seconds(profile, cluster, 0, model, model.kinds[0], 2, 1);
  CHECK(seconds.forward >= 2e-3);
  CHECK(seconds.input >= 1e-6);
  CHECK(seconds.input < 1e-3);
}

TEST_CASE("activations are kept as measured at the same degree, in proportion to samples") {
  Fixture f;
  const LayerKind& block = f.model.kinds[1];
  f.profile.points[1].activation_bytes = 8e6;
  CHECK(kept_bytes(f.profile, block, 1, 8) == 8e6);
  CHECK(kept_bytes(f.profile, block, 1, 2) == 2e6);
  CHECK(kept_bytes(f.profile, block, 2, 1) == block.activation_bytes / 2);
  CHECK(kept_bytes(f.profile, f.model.kinds[0], 1, 3) == 3 * f.model.kinds[0].activation_bytes);
}

TEST_CASE("a link is the line through its messages, and device types take the slowest measured") {
  std::vector<Message> messages;
  for (const double bytes : {64.0, 4096.0, 1e6, 1e8}) messages.push_back({bytes, 2e-5 + bytes / 5e9});
  const Link link = fit(messages);
  CHECK(link.latency_seconds == Approx(2e-5));
  CHECK(link.bytes_per_second == Approx(5e9));
  CHECK(fit({{1e6, 1e-3}}).bytes_per_second == Approx(1e9));
  CHECK(fit({{1e6, 1e-3}}).latency_seconds == 0);
  CHECK_THROWS_WITH(fit({}), Catch::Contains("without messages"));

  Fixture f;
  f.profile.links = {
      {"H20", "a", "a", messages}, {"H20", "b", "b", {{1e6, 1e-3}}}, {"H20", "a", "b", {{1e6, 1}}}};
  const Link other = find_device_type("A100-80")->inside;
  apply_links(f.profile, f.cluster);
  CHECK(inside_link(f.cluster, 1).bytes_per_second == Approx(1e9));
  CHECK(inside_link(f.cluster, 0) == other);
  f.profile.links[0].messages[0].seconds = 0;
  CHECK(mentions(validate(f.profile, f.model), "times are above 0"));
}
