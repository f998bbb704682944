#include "planner/cluster/cluster.h"

#include <catch2/catch.hpp>
#include <set>

#include "core/base/error.h"
#include "planner/cluster/type_sources.h"
#include "planner/request.h"
#include "tests/unit/planner/testing.h"

using namespace het;
using namespace het::planner;
using namespace het::testing;

TEST_CASE("every known device type is complete, named once, and slower in f32 than in half precision") {
  std::set<std::string> names;
  for (const DeviceType& type : known_device_types()) {
    INFO(type.name);
    CHECK(names.insert(type.name).second);
    CHECK(type.f16_flops > type.f32_flops);
    CHECK((type.bf16_flops == 0 || type.bf16_flops == type.f16_flops));
    CHECK(type.memory_bytes >= 11 * 1073741824.0);
    CHECK(type.memory_bytes_per_second > type.inside.bytes_per_second);
    CHECK(source_of(type.name).source.find("20") != std::string_view::npos);  // published when
  }
  for (const char* name :
       {"A100-40", "A100-80", "A800", "H100",  "H800",     "H20",      "H200",        "P100",
        "T4",      "L4",      "A10G", "L40S",  "RTX-3090", "RTX-4090", "RTX-2080-Ti", "Titan-RTX",
        "V100-16", "V100-32", "B200", "GB200", "A10",      "L20",      "MI300X"})
    CHECK(find_device_type(name) != nullptr);
}

TEST_CASE("a plan on a type that hetrun cannot run says so, once") {
  Request request;
  request.cluster = cluster_of({{"MI300X", 8}, {"H100", 8}, {"MI300X", 4}});
  const auto notes = notes_of(request);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("MI300X is for plans and simulations only") == 0);
}

TEST_CASE("a good cluster has no problem, of a bad one all are reported") {
  CHECK(validate(cluster_of({{"A100-80", 8, 2}, {"H20", 3}})).empty());
  Cluster bad = cluster_of({{"A100-80", 8}, {"H20", 0}});
  bad.nodes[1].hosts = {"a"};
  bad.nodes[1].price_per_hour = -2;
  bad.nodes[0].type = "A100-81";
  bad.types[1].memory_bytes = 0;
  bad.between = {};
  bad.nodes[1].zone = "far";
  bad.zone_links = {{"far", "moon", {1e-3, 0}}};
  const auto problems = validate(bad);
  CHECK(mentions(problems, "host a is named twice"));
  CHECK(mentions(problems, "price = -2"));
  CHECK(mentions(problems, "devices = 0"));
  CHECK(mentions(problems, "did you mean \"A100-80\"?"));
  CHECK(mentions(problems, "device type H20: memory = 0"));
  CHECK(mentions(problems, "no link between zones \"\" and \"far\""));
  CHECK(mentions(problems, "no node is in zone \"moon\""));
  CHECK(mentions(problems, "link far - moon: bandwidth = 0"));
  CHECK(problems.size() == 8);
}

TEST_CASE("names that no plan can write are refused, and so are machines without end") {
  for (const char* name : {"a\"b", "a'b", "a\\b", "a:0", "a\nb", "a\x7f", ""}) {
    Cluster cluster = cluster_of({{"T4", 1}});
    cluster.nodes[0].hosts = {name};
    INFO(name);
    CHECK(mentions(validate(cluster), "cannot stand in a plan"));
  }
  Cluster good = cluster_of({{"T4", 1}});
  good.nodes[0].hosts = {"gpu-01.example.org", "a b",
                         "k\xc3\xbc"
                         "che"};
  CHECK(validate(good).empty());
  Cluster many = cluster_of({{"T4", 1024, 2}});
  CHECK(validate(many).empty());
  many.nodes[0].devices = 1025;
  CHECK(mentions(validate(many), "devices = 1025; a machine has at most 1024"));
  CHECK(mentions(validate(cluster_of({{"T4", 1, 100'000}, {"L4", 1}})), "the cluster has 100001 hosts"));
}

TEST_CASE("two links between the same zones are a mistake, in either order") {
  Cluster cluster = cluster_of({{"T4", 1}, {"L4", 1}});
  cluster.nodes[0].zone = "x";
  cluster.nodes[1].zone = "y";
  cluster.zone_links = {{"x", "y", {1e-3, 1e9}}, {"x", "x", {1e-3, 1e9}}};
  CHECK(validate(cluster).empty());
  cluster.zone_links.push_back({"y", "x", {1e-3, 1e8}});
  CHECK(mentions(validate(cluster), "two links between zones \"y\" and \"x\""));
}

TEST_CASE("alike nodes merge into counts, others do not") {
  Cluster cluster;
  for (const char* name : {"a", "b", "c"}) cluster.nodes.push_back(known_machine(name, "T4", 4));
  cluster.nodes[1].zone = "west";
  cluster.between = {1e-5, 1e9};
  add_known_types(cluster);
  const Cluster small = merged(cluster);
  REQUIRE(small.nodes.size() == 2);
  CHECK(small.nodes[0].hosts == std::vector<std::string>{"a", "c"});
  CHECK(total_devices(small) == 12);
  CHECK(device_name(small, 0, 1, 3) == "c:3");
}

TEST_CASE("a link is found by zones in either order, else the common one is taken") {
  Cluster cluster = cluster_of({{"T4", 1}, {"L4", 1}, {"L4", 1}});
  cluster.nodes[0].zone = "x";
  cluster.nodes[1].zone = "y";
  cluster.zone_links = {{"y", "x", {1e-3, 5e8}}};
  CHECK(between_link(cluster, 0, 1).bytes_per_second == 5e8);
  CHECK(between_link(cluster, 1, 0).bytes_per_second == 5e8);
  CHECK(between_link(cluster, 1, 2).bytes_per_second == 25e9);
  CHECK(inside_link(cluster, 1) == find_device_type("L4")->inside);
}

TEST_CASE("an unknown type of a known node is refused") {
  CHECK_THROWS_AS(known_machine("a", "B9000", 1), Error);
}
