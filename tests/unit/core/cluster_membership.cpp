#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/cluster/lease.h"
#include "core/cluster/membership.h"
#include "core/cluster/store_key_value.h"
#include "tests/unit/core/cluster_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;

namespace {

MemberInfo member_on(const std::string& host, int rank) {
  return {rank, host, "cpu", 1LL << 31, "127.0.0.1", "0.1.0", "r1", "d1"};
}

JoinOptions options_of(int world_size) {
  JoinOptions options;
  options.run = "test";
  options.world_size = world_size;
  options.secret = kClusterSecret;
  options.timeout = kStoreHung;
  options.lease_ttl = milliseconds(20'000);
  return options;
}

struct Outcome {
  std::unique_ptr<Membership> membership;
  std::string error;
};

Outcome try_to_join(StoreUnderTest& stores, const MemberInfo& member, const JoinOptions& options) {
  Outcome outcome;
  try {
    outcome.membership = join(stores.connect(), member, options);
  } catch (const Error& error) {
    outcome.error = fmt::format("{}: {}", name_of(error.kind()), error.sentence());
  }
  return outcome;
}

// All at a time, each on a separate thread.
std::vector<Outcome> join_all(StoreUnderTest& stores, const std::vector<MemberInfo>& members,
                              const JoinOptions& options) {
  std::vector<Outcome> outcomes(members.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members.size(); ++i)
    threads.emplace_back([&, i] { outcomes[i] = try_to_join(stores, members[i], options); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// One after the other has published itself, so that it is known who came first.
std::vector<Outcome> join_in_order(StoreUnderTest& stores, const std::vector<MemberInfo>& members,
                                   const std::vector<JoinOptions>& options) {
  std::vector<Outcome> outcomes(members.size());
  std::vector<std::thread> threads;
  const auto watch = stores.connect()->watch("test/1/member/");
  std::set<std::string> came;
  for (size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = try_to_join(stores, members[i], options[i]); });
    while (came.size() <= i)
      for (const StoreEvent& event : take_events(*watch, 1)) came.insert(event.entry.key);
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<MemberChange> take_changes(Membership& membership, size_t count) {
  std::vector<MemberChange> changes;
  const auto until = std::chrono::steady_clock::now() + kStoreHung;
  while (changes.size() < count && std::chrono::steady_clock::now() < until)
    for (MemberChange& change : membership.watch_members(milliseconds(1000)))
      changes.push_back(std::move(change));
  return changes;
}

std::unique_ptr<StoreUnderTest> embedded() { return store_kinds()[0].start(); }

}  // namespace

TEST_CASE("members keep the ranks they were given, and know each other", "[cluster]") {
  for (const StoreKind& kind : store_kinds()) DYNAMIC_SECTION("in the " << kind.name << " store") {
      const auto stores = kind.start();
      std::vector<MemberInfo> members;
      for (int rank : {2, 0, 3, 1}) {
        members.push_back(member_on(fmt::format("host{}", rank), rank));
        members.back().device = fmt::format("device \"{}\"", rank);
        members.back().device_memory = rank;
      }
      const auto outcomes = join_all(*stores, members, options_of(4));
      for (size_t i = 0; i < members.size(); ++i) {
        CHECK(outcomes[i].error.empty());
        REQUIRE(outcomes[i].membership);
        CHECK(outcomes[i].membership->rank() == members[i].rank);
        CHECK(outcomes[i].membership->generation() == 1);
        CHECK(outcomes[i].membership->members() ==
              std::vector<MemberInfo>{members[1], members[3], members[0], members[2]});
      }
    }
}

TEST_CASE("members without a rank get those that are free, host by host", "[cluster]") {
  const auto stores = embedded();
  const auto outcomes = join_all(
      *stores,
      {member_on("b", -1), member_on("a", -1), member_on("c", 1), member_on("b", -1), member_on("a", -1)},
      options_of(5));
  std::set<int> ranks;
  for (const Outcome& outcome : outcomes) {
    REQUIRE(outcome.membership);
    ranks.insert(outcome.membership->rank());
    CHECK(outcome.membership->members() == outcomes[0].membership->members());
  }
  CHECK(ranks == std::set<int>{0, 1, 2, 3, 4});
  std::string hosts;
  for (const MemberInfo& member : outcomes[0].membership->members()) hosts += member.host;
  CHECK(hosts == "acabb");
}

TEST_CASE("members that do not go together are refused by name, on every member", "[cluster]") {
  struct Case {
    const char* name;
    void (*change)(MemberInfo&, JoinOptions&);
    std::string sentence;
  };
  const std::vector<Case> cases = {
      {"version", [](MemberInfo& m, JoinOptions&) { m.version = "0.2.0"; },
       "rank 1 on beta runs hetrun 0.2.0, but rank 0 on alpha, which came first, runs hetrun 0.1.0; all "
       "members need "
       "the same version"},
      {"recipe", [](MemberInfo& m, JoinOptions&) { m.recipe_digest = "r2"; },
       "rank 1 on beta has the recipe with hash r2, but rank 0 on alpha, which came first, has the recipe "
       "with hash r1; all "
       "members need "
       "the same recipe"},
      {"setting", [](MemberInfo& m, JoinOptions&) { m.recipe_digest = "r2\nbatch = 8\nsteps = 40"; },
       "rank 1 on beta has the recipe with batch = 8, but rank 0 on alpha, which came first, has the recipe "
       "with batch not set; all members need the same recipe"},
      {"data", [](MemberInfo& m, JoinOptions&) { m.data_digest = "d2\ntokens = 40"; },
       "rank 1 on beta has the data with tokens = 40, but rank 0 on alpha, which came first, has the data "
       "with "
       "tokens not set; all members need the same data"},
      {"world size", [](MemberInfo&, JoinOptions& o) { o.world_size = 7; },
       "rank 1 on beta expects a world of 7, but rank 0 on alpha, which came first, expects a world of 3; "
       "all members "
       "need the same world size"},
      {"rank", [](MemberInfo& m, JoinOptions&) { m.rank = 0; },
       "rank 0 is taken twice: by a process on alpha, and by one on beta; give every process a separate "
       "rank"},
  };
  for (const Case& c : cases) DYNAMIC_SECTION(c.name) {
      const auto stores = embedded();
      MemberInfo odd = member_on("beta", 1);
      JoinOptions odd_options = options_of(3);
      c.change(odd, odd_options);
      // The last to come meets those that wait already; two of them agree.
      std::vector<Outcome> outcomes(2);
      outcomes = join_in_order(*stores, {member_on("alpha", 0), odd}, {options_of(3), odd_options});
      for (const Outcome& outcome : outcomes) CHECK(outcome.error == "usage: " + c.sentence);
    }
}

// One that was killed and started again finds its old entry, until the lease of the old one lapses.
TEST_CASE("a member that was started again is not taken for a second one", "[cluster]") {
  const auto stores = embedded();
  const auto store = stores->connect();
  const auto watch = store->watch("test/");
  ChildTest child("joins a run and waits", {"HET_TEST_STORE=" + stores->where(), "HET_TEST_RANK=0"});
  while (take_events(*watch, 1).at(0).entry.key.find("/member/") == std::string::npos) continue;
  child.kill();
  MemberInfo again = member_on("alpha", 0);
  again.recipe_digest = "a recipe that was corrected";
  MemberInfo other = member_on("beta", 1);
  other.recipe_digest = again.recipe_digest;
  const auto outcomes = join_all(*stores, {again, other}, options_of(2));
  for (const Outcome& outcome : outcomes) CHECK(outcome.error.empty());
}

TEST_CASE("who did not come is said, once in a while and at the end", "[cluster]") {
  const auto stores = embedded();
  JoinOptions options = options_of(3);
  options.timeout = milliseconds(2000);
  options.warn_after = milliseconds(100);
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& sentence) { warnings.push_back(sentence); };
  CHECK(try_to_join(*stores, member_on("alpha", 1), options).error ==
        "peer: 1 of 3 members of run 'test' came within 2000 ms: rank 1 on alpha; missing: rank 0, rank 2");
  REQUIRE(!warnings.empty());
  CHECK_THAT(warnings[0], StartsWith("1 of 3 members of run 'test' came within ") &&
                              Contains(" ms: rank 1 on alpha; missing: rank 0, rank 2"));
  options.timeout = milliseconds(300);
  CHECK(try_to_join(*stores, member_on("alpha", -1), options).error ==
        "peer: 1 of 3 members of run 'test' came within 300 ms: a member on alpha; missing: 2 more");
  options.rejected = [] { return std::vector<std::string>{"10.0.0.8", "10.0.0.9"}; };
  CHECK_THAT(try_to_join(*stores, member_on("alpha", 1), options).error,
             Contains("; the store turned away who came from 10.0.0.8, 10.0.0.9 with another secret"));
}

TEST_CASE("members that wait in vain all say the same, and who was there before", "[cluster]") {
  const auto stores = embedded();
  const auto watch = stores->connect()->watch("test/1/member/");
  ChildTest child("joins a run and waits",
                  {"HET_TEST_STORE=" + stores->where(), "HET_TEST_RANK=2", "HET_TEST_WORLD=4"});
  take_events(*watch, 1);
  // The second would wait much longer, and see the first one go.
  std::vector<JoinOptions> options(2, options_of(4));
  options[0].timeout = milliseconds(3000);
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int i : {0, 1})
    threads.emplace_back(
        [&, i] { outcomes[i] = try_to_join(*stores, member_on(i == 0 ? "alpha" : "beta", i), options[i]); });
  for (int came = 0; came < 2;)  // they may come again, to show that they live
    for (const StoreEvent& event : take_events(*watch, 1)) came += event.kind == StoreEvent::Kind::put;
  child.kill();
  for (std::thread& thread : threads) thread.join();
  CHECK_THAT(outcomes[0].error, StartsWith("peer: 2 of 4 members of run 'test' came within 3000 ms: ") &&
                                    Contains("missing: rank 2, which came and was lost, rank 3"));
  CHECK(outcomes[1].error == outcomes[0].error);
}

TEST_CASE("what cannot be joined is refused at once", "[cluster]") {
  const auto stores = embedded();
  CHECK(try_to_join(*stores, member_on("a", 3), options_of(3)).error ==
        "usage: rank 3 is not among the ranks 0 to 2");
  JoinOptions options = options_of(3);
  options.run = "a/b";
  CHECK_THAT(try_to_join(*stores, member_on("a", 0), options).error, Contains("'a/b' is no name of a run"));
  options = options_of(3);
  options.secret = "short";
  CHECK_THAT(try_to_join(*stores, member_on("a", 0), options).error,
             Contains("has 5 bytes; it needs 16 or more"));
}

// Whoever can write into the store, as into an etcd without users, still is no member.
TEST_CASE("a member without the run's secret is refused, and keeps no member from joining", "[cluster]") {
  const auto stores = embedded();
  std::vector<MemberInfo> members = {member_on("alpha", 0), member_on("mallory", 1), member_on("beta", 1)};
  std::vector<JoinOptions> options(3, options_of(2));
  options[1].secret = "a secret of another run";
  const auto outcomes = join_in_order(*stores, members, options);
  CHECK(outcomes[0].error.empty());
  CHECK(outcomes[1].error ==
        "usage: the members of run 'test' that came before this one have another shared secret");
  CHECK(outcomes[2].error.empty());
  REQUIRE(outcomes[0].membership);
  CHECK(outcomes[0].membership->members()[1].host == "beta");
}

TEST_CASE("an entry without the seal keeps no member of the run out", "[cluster]") {
  const auto stores = embedded();
  const auto store = stores->connect();
  const auto watch = store->watch("test/1/member/");
  Outcome alpha;
  std::thread first([&] { alpha = try_to_join(*stores, member_on("alpha", 0), options_of(2)); });
  take_events(*watch, 1);
  store->put("test/1/member/mallory", "no seal");
  const Outcome beta = try_to_join(*stores, member_on("beta", 1), options_of(2));
  first.join();
  CHECK(alpha.error.empty());
  CHECK(beta.error.empty());
}

TEST_CASE("an entry copied from another run is no member", "[cluster]") {
  const auto stores = embedded();
  const auto store = stores->connect();
  JoinOptions other = options_of(1);
  other.run = "other";
  const auto membership = join(store, member_on("alpha", 0), other);
  const StoreEntry entry = store->list("other/1/member/").entries.at(0);
  store->put("test/1/member/" + entry.key.substr(15), entry.value);
  JoinOptions options = options_of(1);
  options.timeout = milliseconds(200);
  CHECK_THAT(try_to_join(*stores, member_on("alpha", 0), options).error,
             Contains("have another shared secret"));
}

TEST_CASE("a member that leaves, and one that dies, are distinguished", "[cluster]") {
  for (const StoreKind& kind : store_kinds()) DYNAMIC_SECTION("in the " << kind.name << " store") {
      const auto stores = kind.start();
      ChildTest child("joins a run and waits",
                      {"HET_TEST_STORE=" + stores->where(), "HET_TEST_RANK=2", "HET_TEST_WORLD=3"});
      auto outcomes = join_all(*stores, {member_on("alpha", 0), member_on("beta", 1)}, options_of(3));
      REQUIRE(outcomes[0].error.empty());
      REQUIRE(outcomes[1].error.empty());
      outcomes[1].membership->leave();
      const auto left = take_changes(*outcomes[0].membership, 1);
      REQUIRE(left.size() == 1);
      CHECK(left[0].kind == MemberChange::Kind::left);
      CHECK(left[0].rank == 1);
      CHECK(left[0].sentence == "rank 1 on beta has left");
      child.kill();
      const auto lost = take_changes(*outcomes[0].membership, 1);
      REQUIRE(lost.size() == 1);
      CHECK(lost[0].kind == MemberChange::Kind::lost);
      CHECK(lost[0].rank == 2);
      CHECK(lost[0].generation == 1);
      CHECK(lost[0].sentence == "lost rank 2 on child (its lease has lapsed)");
      CHECK(outcomes[0].membership->watch_members(milliseconds(0)).empty());
    }
}

TEST_CASE("why a member gave up is heard by the others", "[cluster]") {
  for (const StoreKind& kind : store_kinds()) DYNAMIC_SECTION("in the " << kind.name << " store") {
      const auto stores = kind.start();
      auto outcomes = join_all(*stores, {member_on("alpha", 0), member_on("beta", 1)}, options_of(2));
      REQUIRE(outcomes[0].membership);
      REQUIRE(outcomes[1].membership);
      const std::string word = outcomes[1].membership->prefix() + "word";
      stores->connect()->put(word, "more", outcomes[1].membership->lease());
      outcomes[1].membership->give_up("the disk is full");
      outcomes[1].membership.reset();
      const auto lost = take_changes(*outcomes[0].membership, 1);
      REQUIRE(lost.size() == 1);
      CHECK(lost[0].kind == MemberChange::Kind::lost);
      CHECK(lost[0].rank == 1);
      CHECK_FALSE(lost[0].lapsed);
      CHECK(lost[0].sentence == "lost rank 1 on beta (the disk is full)");
      CHECK(stores->connect()->get(word));  // what else it said outlives it for a while
    }
}

TEST_CASE("a member whose lease lapsed in a pause may still leave", "[cluster]") {
  const auto stores = embedded();
  JoinOptions options = options_of(2);
  options.lease_ttl = milliseconds(2000);
  auto outcomes = join_all(*stores, {member_on("alpha", 0), member_on("beta", 1)}, options);
  REQUIRE(outcomes[0].membership);
  REQUIRE(outcomes[1].membership);
  stores->connect()->revoke(outcomes[1].membership->lease());
  CHECK(take_changes(*outcomes[0].membership, 1).at(0).lapsed);
  CHECK(take_changes(*outcomes[1].membership, 2).at(1).kind == MemberChange::Kind::cut_off);
  outcomes[1].membership->leave();
  CHECK(take_changes(*outcomes[0].membership, 1).at(0).kind == MemberChange::Kind::left);
}

TEST_CASE("survivors open the next generation once, and meet in it", "[cluster]") {
  const auto stores = embedded();
  auto outcomes =
      join_all(*stores, {member_on("alpha", 0), member_on("beta", 1), member_on("gamma", 2)}, options_of(3));
  for (const Outcome& outcome : outcomes) REQUIRE(outcome.membership);
  outcomes[1].membership.reset();
  CHECK(take_changes(*outcomes[0].membership, 1).at(0).sentence ==
        "lost rank 1 on beta (its lease has lapsed)");
  CHECK(open_generation(*stores->connect(), "test", 1) == 2);
  CHECK(open_generation(*stores->connect(), "test", 1) == 2);
  const auto changes = take_changes(*outcomes[2].membership, 2);
  REQUIRE(changes.size() == 2);
  CHECK(changes[1].kind == MemberChange::Kind::generation);
  CHECK(changes[1].generation == 2);
  CHECK(changes[1].sentence == "generation 2 of run 'test' was opened");
  JoinOptions options = options_of(2);
  options.generation = 2;
  const auto again = join_all(*stores, {member_on("alpha", 0), member_on("gamma", -1)}, options);
  for (const Outcome& outcome : again) {
    REQUIRE(outcome.membership);
    CHECK(outcome.membership->generation() == 2);
    CHECK(outcome.membership->members()[1].host == "gamma");
  }
}

TEST_CASE("a run that is complete takes no member in until its members have gone", "[cluster]") {
  const auto stores = embedded();
  auto outcome = try_to_join(*stores, member_on("alpha", 0), options_of(1));
  REQUIRE(outcome.membership);
  JoinOptions late = options_of(1);
  late.timeout = milliseconds(200);
  CHECK(try_to_join(*stores, member_on("beta", 0), late).error ==
        "peer: generation 1 of run 'test' has its 1 members already, among them rank 0 on alpha");
  late.generation = 1;
  CHECK(try_to_join(*stores, member_on("beta", 0), late).error ==
        "peer: generation 1 of run 'test' has its 1 members already; rank 0 on beta came too late");
  outcome.membership.reset();
  JoinOptions next = options_of(1);
  next.secret = "another secret, made for another launch";
  const auto again = try_to_join(*stores, member_on("beta", 0), next);
  REQUIRE(again.membership);
  CHECK(again.membership->generation() == 2);
}

TEST_CASE("a watch of members ends from another thread, and with its store", "[cluster]") {
  auto stores = embedded();
  const auto outcome = try_to_join(*stores, member_on("alpha", 0), options_of(1));
  REQUIRE(outcome.membership);
  std::thread closer([&] { outcome.membership->close_watch(); });
  CHECK(outcome.membership->watch_members(kStoreHung).empty());
  closer.join();
}

TEST_CASE("keys with a member's lease vanish with it", "[cluster]") {
  const auto stores = embedded();
  const auto store = stores->connect();
  auto outcome = try_to_join(*stores, member_on("alpha", 0), options_of(1));
  REQUIRE(outcome.membership);
  const auto values = make_store_key_value(store, outcome.membership->prefix() + "meet/",
                                           [lease = outcome.membership->lease()] { return lease; });
  values->set("0", "card");
  CHECK(store->get("test/1/meet/0")->value == "card");
  outcome.membership.reset();
  CHECK_FALSE(values->get("0"));
}

TEST_CASE("ranks meet through the store as through any place for names", "[cluster]") {
  for (const StoreKind& kind : store_kinds()) DYNAMIC_SECTION("in the " << kind.name << " store") {
      const auto stores = kind.start();
      const auto a = make_store_key_value(stores->connect(), "meet/"),
                 b = make_store_key_value(stores->connect(), "meet/");
      CHECK_FALSE(a->get("k"));
      CHECK_FALSE(a->wait("k", milliseconds(20)));
      std::thread late([&] { b->set("k", "value"); });
      CHECK(a->wait("k", kStoreHung) == "value");
      late.join();
      CHECK(a->wait("k", milliseconds(0)) == "value");
      b->set("kk", "longer");
      CHECK(a->get("k") == "value");
    }
}

TEST_CASE("a lease that can no longer be kept is lost", "[cluster]") {
  const auto stores = embedded();
  const auto store = stores->connect();
  HeldLease lease(store, milliseconds(200));
  CHECK_FALSE(lease.lost());
  store->revoke(lease.id());
  const auto until = std::chrono::steady_clock::now() + kStoreHung;
  while (!lease.lost() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(milliseconds(10));
  CHECK(lease.lost());
}

namespace {

// A store that can fall silent; only its leases are used.
class FaintStore final : public Store {
 public:
  std::atomic<bool> silent = false;
  std::atomic<int> revoked = 0;
  std::shared_ptr<Store> behind;  // which hears what is said to it

  std::string describe() const override { return "a faint store"; }
  StoreLease grant(milliseconds ttl) override { return {1, ttl, ttl / 4}; }
  void keep_alive(int64_t lease) override {
    if (behind) behind->keep_alive(lease);
    if (silent) fail(ErrorKind::peer, "no response");
  }
  void revoke(int64_t) override { ++revoked; }
  std::optional<StoreEntry> get(const std::string&) override { return std::nullopt; }
  StoreListing list(const std::string&) override { return {}; }
  int64_t put(const std::string&, const std::string&, int64_t) override { return 0; }
  std::optional<int64_t> create(const std::string&, const std::string&, int64_t) override { return {}; }
  std::optional<int64_t> replace(const std::string&, const std::string&, int64_t, int64_t) override {
    return {};
  }
  bool remove(const std::string&) override { return false; }
  std::unique_ptr<StoreWatch> watch(const std::string&, int64_t) override { return nullptr; }
};

bool comes_to_be(const HeldLease& lease, bool lost) {
  const auto until = std::chrono::steady_clock::now() + kStoreHung;
  while (lease.lost() != lost && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(milliseconds(1));
  return lease.lost() == lost;
}

}  // namespace

TEST_CASE("a lease is kept again when its store answers again", "[cluster]") {
  const auto store = std::make_shared<FaintStore>();
  HeldLease lease(store, milliseconds(40));
  for (int round = 0; round < 2; ++round) {
    store->silent = true;
    REQUIRE(comes_to_be(lease, true));
    store->silent = false;
    REQUIRE(comes_to_be(lease, false));
  }
  lease.revoke();
  CHECK(store->revoked == 1);
}

TEST_CASE("a silent store is not waited for once more when a lease is given back", "[cluster]") {
  const auto store = std::make_shared<FaintStore>(), lease_store = std::make_shared<FaintStore>();
  {
    HeldLease lease(store, milliseconds(40), lease_store);
    lease_store->silent = true;
    REQUIRE(comes_to_be(lease, true));
  }
  CHECK(store->revoked == 0);
}

TEST_CASE("a member that hears nothing from its store is reported cut off, once", "[cluster]") {
  const auto stores = embedded();
  const auto lease_store = std::make_shared<FaintStore>();
  lease_store->behind = stores->connect();  // the lease lives; only the responses are lost
  JoinOptions options = options_of(1);
  options.lease_ttl = milliseconds(2000);
  options.lease_store = lease_store;
  const auto membership = join(stores->connect(), member_on("alpha", 0), options);
  lease_store->silent = true;
  const auto changes = take_changes(*membership, 1);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].kind == MemberChange::Kind::cut_off);
  CHECK(changes[0].rank == 0);
  CHECK_THAT(changes[0].sentence,
             StartsWith("rank 0 could not keep its lease alive for 2000 ms, and may count as dead: the "
                        "embedded store at 127.0.0.1:"));
  CHECK(membership->watch_members(milliseconds(0)).empty());
}

TEST_CASE("joins a run and waits", "[.child]") {
  const char *where = std::getenv("HET_TEST_STORE"), *rank = std::getenv("HET_TEST_RANK");
  REQUIRE(where);
  REQUIRE(rank);
  const char* world = std::getenv("HET_TEST_WORLD");
  JoinOptions options = options_of(world ? std::atoi(world) : 2);
  options.lease_ttl = milliseconds(4000);
  const auto membership = join(connect_where(where), member_on("child", std::atoi(rank)), options);
  while (true) membership->watch_members(kStoreHung);
}
