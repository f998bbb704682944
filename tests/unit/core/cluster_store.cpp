#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/cluster/store.h"
#include "tests/unit/core/cluster_testing.h"

using namespace het;
using namespace het::testing;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLongLease{600'000};

template <typename Body>
ErrorKind kind_of_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::bug;
}

void puts_and_gets(StoreUnderTest& stores) {
  const auto a = stores.connect(), b = stores.connect();
  CHECK_FALSE(a->get("colour"));
  const int64_t first = a->put("colour", "red");
  const auto entry = b->get("colour");
  REQUIRE(entry);
  CHECK(*entry == StoreEntry{"colour", "red", first, first, 0});
  const int64_t second = b->put("colour", "blue");
  CHECK(second > first);
  CHECK(*a->get("colour") == StoreEntry{"colour", "blue", first, second, 0});
  CHECK(a->remove("colour"));
  CHECK_FALSE(a->remove("colour"));
  CHECK_FALSE(b->get("colour"));
}

void holds_any_bytes(StoreUnderTest& stores) {
  const auto store = stores.connect();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  store->put("bytes/" + all, all);
  CHECK(store->get("bytes/" + all)->value == all);
  store->put("empty", "");
  CHECK(store->get("empty")->value.empty());
  const std::string large(kStoreValueBytes, '\x80');
  store->put("large", large);
  CHECK(store->get("large")->value == large);
  CHECK(kind_of_error([&] { store->put("larger", large + "x"); }) == ErrorKind::usage);
  CHECK(kind_of_error([&] { store->put("", "x"); }) == ErrorKind::usage);
  CHECK(kind_of_error([&] { store->put(std::string(kStoreKeyBytes + 1, 'k'), "x"); }) == ErrorKind::usage);
  CHECK(store->get("bytes/" + all)->value == all);
}

void lists_by_prefix(StoreUnderTest& stores) {
  const auto store = stores.connect();
  for (const char* key : {"m/2", "m/10", "m", "n/1", "m/", "l/9", "m/\xff", "m0"}) store->put(key, key);
  const StoreListing listing = store->list("m/");
  std::vector<std::string> keys;
  for (const StoreEntry& entry : listing.entries) keys.push_back(entry.key);
  CHECK(keys == std::vector<std::string>{"m/", "m/10", "m/2", "m/\xff"});
  CHECK(store->list("").entries.size() == 8);
  CHECK(store->list("zz").entries.empty());
  CHECK(store->list("zz").revision == listing.revision);
  const int64_t later = store->put("other", "");
  CHECK(later > listing.revision);
}

void compares_and_sets(StoreUnderTest& stores) {
  const auto store = stores.connect();
  const auto created = store->create("k", "1");
  REQUIRE(created);
  CHECK_FALSE(store->create("k", "2"));
  CHECK(store->get("k")->value == "1");
  const auto replaced = store->replace("k", "3", *created);
  REQUIRE(replaced);
  CHECK_FALSE(store->replace("k", "4", *created));
  CHECK(store->get("k")->value == "3");
  CHECK_FALSE(store->replace("absent", "5", *replaced));
  CHECK_FALSE(store->get("absent"));
  store->remove("k");
  CHECK_FALSE(store->replace("k", "6", *replaced));
  CHECK(store->create("k", "7"));
}

void one_of_many_creates(StoreUnderTest& stores) {
  constexpr int kThreads = 8, kRounds = 20;
  std::vector<std::vector<int>> winners(kThreads, std::vector<int>(kRounds));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const auto store = stores.connect();
      for (int round = 0; round < kRounds; ++round)
        winners[t][round] = store->create(fmt::format("race/{}", round), std::to_string(t)).has_value();
    });
  for (std::thread& thread : threads) thread.join();
  const auto store = stores.connect();
  for (int round = 0; round < kRounds; ++round) {
    int count = 0, winner = -1;
    for (int t = 0; t < kThreads; ++t)
      if (winners[t][round]) {
        ++count;
        winner = t;
      }
    CHECK(count == 1);
    CHECK(store->get(fmt::format("race/{}", round))->value == std::to_string(winner));
  }
}

// A counter that many increase by compare-and-set loses no increase. One client is shared by two threads.
void counts_by_replacing(StoreUnderTest& stores) {
  constexpr int kClients = 3, kIncreases = 10;
  stores.connect()->put("count", "0");
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    const auto store = stores.connect();
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([store] {
        for (int done = 0; done < kIncreases;) {
          const StoreEntry now = *store->get("count");
          done += store->replace("count", std::to_string(std::stoi(now.value) + 1), now.revision).has_value();
        }
      });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(stores.connect()->get("count")->value == std::to_string(kClients * 2 * kIncreases));
}

void watches_in_order(StoreUnderTest& stores) {
  const auto store = stores.connect();
  const int64_t before = store->put("w/old", "0");
  const auto now = store->watch("w/");
  const int64_t one = store->put("w/a", "1");
  store->put("x/b", "not watched");
  const int64_t two = store->put("w/a", "2");
  store->remove("w/a");
  const auto events = take_events(*now, 3);
  REQUIRE(events.size() == 3);
  CHECK(events[0] == StoreEvent{StoreEvent::Kind::put, {"w/a", "1", one, one, 0}});
  CHECK(events[1] == StoreEvent{StoreEvent::Kind::put, {"w/a", "2", one, two, 0}});
  CHECK(events[2].kind == StoreEvent::Kind::removed);
  CHECK(events[2].entry.key == "w/a");
  CHECK(events[2].entry.value.empty());
  CHECK(events[2].entry.revision > two);
  CHECK(now->next(milliseconds(0)).empty());

  const auto earlier = store->watch("w/", before);
  const auto again = take_events(*earlier, 4);
  REQUIRE(again.size() == 4);
  CHECK(again[0].entry.key == "w/old");
  CHECK(std::vector(again.begin() + 1, again.end()) == events);
}

void closes_a_watch(StoreUnderTest& stores) {
  const auto store = stores.connect();
  const auto watch = store->watch("nothing/");
  std::thread closer([&] { watch->close(); });
  CHECK(watch->next(kStoreHung).empty());
  closer.join();
  CHECK(watch->next(kStoreHung).empty());
}

// A listing, then a watch from the revision after it, while others write: together they are complete.
void misses_nothing(StoreUnderTest& stores) {
  constexpr int kWriters = 4, kWrites = 60;
  const auto reader = stores.connect();
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w)
    threads.emplace_back([&, w] {
      const auto store = stores.connect();
      for (int i = 0; i < kWrites; ++i) store->put(fmt::format("log/{}", w), std::to_string(i));
    });
  StoreListing listing = reader->list("log/");
  const auto watch = reader->watch("log/", listing.revision + 1);
  std::map<std::string, int> seen;
  for (const StoreEntry& entry : listing.entries) seen[entry.key] = std::stoi(entry.value);
  int64_t revision = listing.revision;
  bool in_order = true, complete = true;
  const auto all_seen = [&] {
    return seen.size() == kWriters &&
           std::all_of(seen.begin(), seen.end(), [](const auto& s) { return s.second == kWrites - 1; });
  };
  const auto until = std::chrono::steady_clock::now() + kStoreHung;
  while (!all_seen() && std::chrono::steady_clock::now() < until)
    for (const StoreEvent& event : watch->next(milliseconds(1000))) {
      in_order = in_order && event.entry.revision > revision;
      revision = event.entry.revision;
      const int value = std::stoi(event.entry.value);
      const auto last = seen.find(event.entry.key);
      complete = complete && value == (last == seen.end() ? 0 : last->second + 1);
      seen[event.entry.key] = value;
    }
  for (std::thread& thread : threads) thread.join();
  CHECK(in_order);
  CHECK(complete);
  CHECK(all_seen());
}

void leases_hold_keys(StoreUnderTest& stores) {
  const auto store = stores.connect();
  const StoreLease lease = store->grant(kLongLease);
  CHECK(lease.ttl >= kLongLease);
  store->put("held/1", "", lease.id);
  CHECK(store->create("held/2", "", lease.id));
  const int64_t freed = store->put("held/3", "", lease.id);
  CHECK(store->get("held/3")->lease == lease.id);
  CHECK(store->replace("held/3", "", freed));
  CHECK(store->get("held/3")->lease == 0);
  store->keep_alive(lease.id);
  const auto watch = store->watch("held/");
  store->revoke(lease.id);
  const auto events = take_events(*watch, 2);
  REQUIRE(events.size() == 2);
  std::set<std::string> gone;
  for (const StoreEvent& event : events) {
    CHECK(event.kind == StoreEvent::Kind::removed);
    gone.insert(event.entry.key);
  }
  CHECK(gone == std::set<std::string>{"held/1", "held/2"});
  CHECK(store->list("held/").entries.size() == 1);
  CHECK(kind_of_error([&] { store->keep_alive(lease.id); }) == ErrorKind::peer);
  CHECK(kind_of_error([&] { store->put("held/4", "", lease.id); }) == ErrorKind::peer);
  CHECK(kind_of_error([&] { store->create("held/4", "", lease.id); }) == ErrorKind::peer);
  store->revoke(lease.id);
  CHECK_FALSE(store->get("held/4"));
}

// One lease is kept alive for longer than it lives, the other is not; only the other's key goes. False: this
// thread was held up for so long that the trial says nothing.
bool one_of_two_lapses(Store& store) {
  using Clock = std::chrono::steady_clock;
  const auto watch = store.watch("lapse/");
  const StoreLease kept = store.grant(milliseconds(3000)), left = store.grant(milliseconds(300));
  const auto granted = Clock::now();
  try {
    store.put("lapse/kept", "", kept.id);
    store.put("lapse/left", "", left.id);
  } catch (const Error&) {
    if (Clock::now() - granted > left.ttl / 2) return false;
    throw;
  }
  const auto start = Clock::now(), until = start + kStoreHung;
  auto last = start;
  std::vector<StoreEvent> events;
  while ((events.size() < 3 || Clock::now() < start + kept.ttl + milliseconds(700)) && Clock::now() < until) {
    try {
      store.keep_alive(kept.id);
    } catch (const Error&) {
      if (Clock::now() - last > kept.ttl / 2) return false;
      throw;
    }
    last = Clock::now();
    for (StoreEvent& event : watch->next(milliseconds(100))) events.push_back(std::move(event));
  }
  REQUIRE(events.size() == 3);
  CHECK(events[2].kind == StoreEvent::Kind::removed);
  CHECK(events[2].entry.key == "lapse/left");
  CHECK(store.get("lapse/kept"));
  CHECK(kind_of_error([&] { store.keep_alive(left.id); }) == ErrorKind::peer);
  return true;
}

void leases_lapse(StoreUnderTest& stores) {
  constexpr int kTrials = 5;
  bool conclusive = false;
  for (int trial = 0; trial < kTrials && !conclusive; ++trial)
    conclusive = one_of_two_lapses(*stores.connect());
  CHECK(conclusive);
}

// Another process holds a lease and keeps it alive until it is killed.
void killed_holders_lapse(StoreUnderTest& stores) {
  const auto store = stores.connect();
  const auto watch = store->watch("child/");
  ChildTest child("holds a lease until it is killed", {"HET_TEST_STORE=" + stores.where()});
  const auto came = take_events(*watch, 1);
  REQUIRE(came.size() == 1);
  CHECK(came[0].kind == StoreEvent::Kind::put);
  child.kill();
  const auto gone = take_events(*watch, 1);
  REQUIRE(gone.size() == 1);
  CHECK(gone[0].kind == StoreEvent::Kind::removed);
  CHECK(gone[0].entry.key == "child/alive");
}

struct Behaviour {
  const char* name;
  void (*check)(StoreUnderTest&);
};
const std::vector<Behaviour> kBehaviours = {
    {"puts, gets and removes", puts_and_gets},
    {"holds any bytes, within limits", holds_any_bytes},
    {"lists by prefix", lists_by_prefix},
    {"compares and sets", compares_and_sets},
    {"has one winner of many that create", one_of_many_creates},
    {"counts by replacing", counts_by_replacing},
    {"watches in order, from now and from a revision", watches_in_order},
    {"closes a watch from another thread", closes_a_watch},
    {"misses nothing between a listing and a watch", misses_nothing},
    {"removes a lease's keys when it is revoked", leases_hold_keys},
    {"removes a lease's keys when it lapses", leases_lapse},
    {"removes the keys of a process that was killed", killed_holders_lapse},
};

}  // namespace

TEST_CASE("holds a lease until it is killed", "[.child]") {
  const char* where = std::getenv("HET_TEST_STORE");
  REQUIRE(where);
  const auto store = connect_where(where);
  const StoreLease lease = store->grant(milliseconds(1500));
  store->put("child/alive", "", lease.id);
  while (true) {
    store->keep_alive(lease.id);
    std::this_thread::sleep_for(lease.ttl / 4);
  }
}

TEST_CASE("every store behaves alike", "[cluster]") {
  for (const StoreKind& kind : store_kinds())
    for (const Behaviour& behaviour : kBehaviours)
      DYNAMIC_SECTION("the " << kind.name << " store " << behaviour.name) {
        const auto stores = kind.start();
        behaviour.check(*stores);
      }
}
