#include "planner/profile.h"

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
  const Fixture f;
  CHECK(f.seconds(0, 1, 4).source == Source::measured);
  CHECK(f.seconds(0, 1, 4).forward == 0.018);
  CHECK(f.seconds(0, 1, 6).source == Source::interpolated);
  CHECK(f.seconds(0, 1, 6).forward == Approx(0.026));
  CHECK(f.seconds(0, 1, 6).update == 0.001);
  CHECK(f.seconds(0, 1, 16).forward == Approx(0.066));
  CHECK(f.seconds(0, 1, 1).forward == Approx(0.006));
  CHECK(f.seconds(0, 1, 1).weight >= 0.009 / 2);
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
  CHECK(all_reduce_seconds({1e-5, 1e9}, 1, 1e6) == 0);
  CHECK(all_reduce_seconds({0, 1e9}, 4, 1e6) == Approx(2 * 0.75 * 1e-3));
  CHECK(all_reduce_seconds({1e-3, 1e9}, 64, 8) == Approx(12e-3).epsilon(0.01));
}

TEST_CASE("a profile survives JSON, and mistakes in one are named") {
  const Fixture f;
  CHECK(profile_from_json(parse_json(to_string(to_json(f.profile)), "p"), "p") == f.profile);
  CHECK(validate(f.profile, f.model).empty());
  Profile other = f.profile;
  other.model = "gpt3-13b";
  other.points[0].kind = "blok";
  other.points[1].forward = -1;
  CHECK(validate(other, f.model).size() == 3);
  CHECK_THROWS_WITH(profile_from_json(parse_json(R"({"profile":9})", "p"), "old.json"),
                    Catch::Contains("old.json is not a profile of version 1"));
  CHECK_THROWS_WITH(
      profile_from_json(parse_json(R"({"profile":1,"model":3,"points":[{"kind":"a"}]})", "p"), "p.json"),
      Catch::Contains("\"model\" is missing or no text") &&
          Catch::Contains("\"forward\" is missing or no number"));
}
