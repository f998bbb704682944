// Which members keep whose replicas: properties over random rosters.
#include "snapshot/replica_placement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include <fmt/format.h>

using namespace het;

namespace {

std::vector<ReplicaMember> roster(int hosts, int per_host, int zones, std::mt19937& random) {
  std::vector<ReplicaMember> members;
  for (int host = 0; host < hosts; ++host)
    for (int i = 0; i < per_host; ++i)
      members.push_back({fmt::format("member-{}", random()), fmt::format("host-{}", host),
                         fmt::format("zone-{}", host % zones), int64_t{64} << 30});
  return members;
}

std::vector<int64_t> loads(const std::vector<std::vector<int>>& placed) {
  std::vector<int64_t> loads(placed.size());
  for (const std::vector<int>& keepers : placed)
    for (const int keeper : keepers) ++loads[static_cast<size_t>(keeper)];
  return loads;
}

// By names, whatever the order of the members.
std::map<std::string, std::set<std::string>> named(const std::vector<ReplicaMember>& members,
                                                   const std::vector<std::vector<int>>& placed) {
  std::map<std::string, std::set<std::string>> keepers;
  for (size_t of = 0; of < placed.size(); ++of)
    for (const int keeper : placed[of])
      keepers[members[of].id].insert(members[static_cast<size_t>(keeper)].id);
  return keepers;
}

}  // namespace

TEST_CASE("replicas lie on other hosts, in other zones, on as many hosts as there are", "[exchange]") {
  std::mt19937 random(31);
  for (int run = 0; run < 300; ++run) {
    const int hosts = static_cast<int>(random() % 12) + 2, per_host = static_cast<int>(random() % 4) + 1,
              zones = static_cast<int>(random() % 3) + 1, replicas = static_cast<int>(random() % 3) + 1;
    const auto members = roster(hosts, per_host, zones, random);
    const auto placed = place_replicas(members, replicas);
    INFO(hosts << " hosts of " << per_host << " members in " << zones << " zones, " << replicas
               << " replicas");
    REQUIRE(placed.size() == members.size());
    for (size_t of = 0; of < members.size(); ++of) {
      const std::set<int> keepers(placed[of].begin(), placed[of].end());
      const auto all = static_cast<int>(members.size());
      CHECK(static_cast<int>(keepers.size()) == std::min(replicas, all - 1));
      CHECK(keepers.count(static_cast<int>(of)) == 0);
      const ReplicaMember& first = members[static_cast<size_t>(placed[of][0])];
      CHECK(first.host != members[of].host);
      CHECK((first.zone != members[of].zone || std::min(zones, hosts) == 1));
      std::set<std::string> on;
      for (const int keeper : keepers)
        if (members[static_cast<size_t>(keeper)].host != members[of].host)
          on.insert(members[static_cast<size_t>(keeper)].host);
      if (std::min(zones, hosts) == 1) CHECK(static_cast<int>(on.size()) == std::min(replicas, hosts - 1));
    }
  }
}

TEST_CASE("no member keeps more than twice its share of replicas, in proportion to its free bytes",
          "[exchange]") {
  std::mt19937 random(32);
  for (int run = 0; run < 100; ++run) {
    const int hosts = static_cast<int>(random() % 30) + 4, replicas = static_cast<int>(random() % 3) + 1;
    auto members = roster(hosts, 1, 1, random);
    const bool equal = run % 2 == 0;
    double bytes = 0;
    for (ReplicaMember& member : members) {
      if (!equal) member.free_bytes = (static_cast<int64_t>(random() % 4) + 1) << 30;
      bytes += static_cast<double>(member.free_bytes);
    }
    const auto load = loads(place_replicas(members, replicas));
    for (size_t i = 0; i < members.size(); ++i) {
      const double share =
          static_cast<double>(members.size()) * replicas * static_cast<double>(members[i].free_bytes) / bytes;
      INFO(load[i] << " replicas, share " << share);
      CHECK(static_cast<double>(load[i]) <= std::max(2 * share, std::ceil(2 * share)));
    }
  }
  auto members = roster(6, 1, 1, random);
  members[2].free_bytes = 0;
  CHECK(loads(place_replicas(members, 2))[2] == 0);
}

TEST_CASE("a member that goes or comes moves few replicas, and the order of members none", "[exchange]") {
  std::mt19937 random(33);
  for (const int hosts : {8, 16, 64})
    for (const int replicas : {1, 2}) {
      double moved = 0, trials = 0;
      for (int run = 0; run < 10; ++run) {
        auto members = roster(hosts, 1, 2, random);
        const auto before = named(members, place_replicas(members, replicas));
        auto shuffled = members;
        std::shuffle(shuffled.begin(), shuffled.end(), random);
        CHECK(named(shuffled, place_replicas(shuffled, replicas)) == before);
        const size_t goes = random() % members.size();
        const std::string gone = members[goes].id;
        members.erase(members.begin() + static_cast<std::ptrdiff_t>(goes));
        for (const auto& [id, keepers] : named(members, place_replicas(members, replicas)))
          for (const std::string& keeper : keepers) moved += before.at(id).count(keeper) == 0 ? 1 : 0;
        trials += static_cast<double>(hosts - 1) * replicas;
      }
      INFO(hosts << " hosts, " << replicas << " replicas: " << moved / trials << " moved");
      CHECK(moved / trials <= 2.0 / hosts);
    }
}

TEST_CASE("a lone member keeps no replica, and one host's members keep each other's", "[exchange]") {
  CHECK(place_replicas({}, 2).empty());
  CHECK(place_replicas({{"a", "h", "z", 100}}, 2) == std::vector<std::vector<int>>{{}});
  const auto placed = place_replicas({{"a", "h", "z", 100}, {"b", "h", "z", 100}}, 2);
  CHECK(placed == std::vector<std::vector<int>>{{1}, {0}});
}
