#include <catch2/catch.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/cluster/embedded_store.h"
#include "core/cluster/etcd_store.h"
#include "core/cluster/http.h"
#include "core/net/socket.h"
#include "tests/unit/core/cluster_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;

namespace {

template <typename Body>
std::string sentence_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.sentence());
  }
  return "nothing was thrown";
}

EtcdOptions options_of(std::vector<std::string> endpoints, milliseconds timeout = kStoreHung) {
  EtcdOptions options;
  options.endpoints = std::move(endpoints);
  options.timeout = timeout;
  return options;
}

HttpReply post(const std::string& endpoint, const std::string& path, const std::string& body) {
  HttpClient client({});
  HttpRequest request;
  request.url = endpoint + "/v3/" + path;
  request.body = body;
  request.timeout = kStoreHung;
  return client.post(request);
}

}  // namespace

TEST_CASE("a rendezvous names the members of etcd", "[cluster]") {
  const EtcdPlaces one = parse_etcd_rendezvous("etcd://head:2379");
  CHECK(one.endpoints == std::vector<std::string>{"http://head:2379"});
  CHECK(one.host == "head");
  const EtcdPlaces two = parse_etcd_rendezvous("etcd://[fd00::7]:2379,10.0.0.8:80");
  CHECK(two.endpoints == std::vector<std::string>{"http://[fd00::7]:2379", "http://10.0.0.8:80"});
  CHECK(two.host == "fd00::7");
  for (const char* text : {"etcd://", "etcd://head", "etcd://head:2379,", "etcd://head:0"})
    CHECK_THAT(sentence_of([&] { parse_etcd_rendezvous(text); }), Contains("is no endpoint"));
  for (const char* text : {"", "head:2379", "http://head:2379"})
    CHECK_THAT(sentence_of([&] { parse_etcd_rendezvous(text); }), Contains("is no place to meet"));
}

TEST_CASE("endpoints of etcd that are none, or not etcd's, are said", "[cluster]") {
  CHECK_THAT(sentence_of([] { connect_etcd(options_of({})); }),
             Contains("usage: etcd needs at least one endpoint"));
  CHECK_THAT(sentence_of([] { connect_etcd(options_of({"10.0.0.7:2379"})); }),
             Contains("usage: '10.0.0.7:2379' is no endpoint of etcd"));
  Endpoint at{"127.0.0.1", 0};
  { const Descriptor listener = listen_at(at); }
  CHECK_THAT(
      sentence_of([&] { connect_etcd(options_of({"http://" + to_string(at)}, milliseconds(200))); }),
      Contains("peer: etcd at http://" + to_string(at) + " did not answer; http://" + to_string(at) + ": ") &&
          Contains("Failed to connect"));
  const Descriptor silent = listen_at(at);
  CHECK_THAT(sentence_of([&] { connect_etcd(options_of({"http://" + to_string(at)}, milliseconds(200))); }),
             Contains("no response within"));
  StoreServerOptions server;
  server.address = "127.0.0.1";
  server.secret = kClusterSecret;
  const auto other = serve_store(server);
  CHECK_THAT(
      sentence_of([&] { connect_etcd(options_of({"http://" + other->endpoint()}, milliseconds(200))); }),
      Contains("peer: etcd at http://" + other->endpoint() + " did not answer"));
}

TEST_CASE("etcd goes on when a member is killed, and misses no event", "[cluster]") {
  if (!etcd_is_here("three members of etcd")) return;
  EtcdMembers members(3);
  const auto store = connect_etcd(options_of(members.endpoints()));
  const StoreLease lease = store->grant(milliseconds(60'000));
  store->put("member", "alive", lease.id);
  const auto watch = store->watch("n/");
  constexpr int kBefore = 10, kAfter = 30;
  for (int i = 0; i < kBefore; ++i) store->put(fmt::format("n/{}", i), "");
  members.kill(0);  // the one that was asked first, and that the watch is at
  for (int i = kBefore; i < kAfter; ++i) store->put(fmt::format("n/{}", i), "");
  store->keep_alive(lease.id);
  CHECK(store->get("member")->value == "alive");
  // A put whose response was lost with the member may have been made twice; none is missing, and in order.
  for (int expected = 0; expected < kAfter;) {
    const auto events = take_events(*watch, 1);
    REQUIRE(!events.empty());
    for (const StoreEvent& event : events) {
      if (expected > 0 && event.entry.key == fmt::format("n/{}", expected - 1)) continue;
      REQUIRE(event.entry.key == fmt::format("n/{}", expected++));
    }
  }
  CHECK(store->create("once", ""));
  CHECK_FALSE(store->create("once", ""));
}

TEST_CASE("etcd is asked elsewhere when a member is silent", "[cluster]") {
  if (!etcd_is_here("a stopped member of etcd")) return;
  EtcdMembers members(3);
  connect_etcd(options_of(members.endpoints()))->put("k", "v");
  members.stop(0);
  const auto store = connect_etcd(options_of(members.endpoints()));
  CHECK(store->get("k")->value == "v");
  store->put("k", "w");
  CHECK(store->get("k")->value == "w");
}

TEST_CASE("etcd without a majority is said, by calls and by watches", "[cluster]") {
  if (!etcd_is_here("etcd without a majority")) return;
  EtcdMembers members(3);
  connect_etcd(options_of({members.endpoints()[2]}))->put("k", "v");  // that one has begun too
  const auto store = connect_etcd(options_of({members.endpoints()[2]}, milliseconds(5'000)));
  const auto watch = store->watch("k");
  members.kill(0);
  members.kill(1);
  CHECK_THAT(sentence_of([&] { store->put("k", "w"); }),
             Contains("peer: etcd at ") && Contains(" did not answer"));
  CHECK_THAT(sentence_of([&] { watch->next(kStoreHung); }),
             Contains("peer: etcd at ") && Contains(" did not answer"));
}

TEST_CASE("a watch from a revision that etcd has compacted says so", "[cluster]") {
  if (!etcd_is_here("compaction")) return;
  EtcdMembers members(1);
  const auto store = connect_etcd(options_of(members.endpoints()));
  int64_t last = 0;
  for (int i = 0; i < 5; ++i) last = store->put("k", std::to_string(i));
  REQUIRE(post(members.endpoints()[0], "kv/compaction", fmt::format(R"({{"revision":"{}"}})", last)).status ==
          200);
  CHECK(sentence_of([&] { store->watch("k", 2)->next(kStoreHung); }) ==
        fmt::format("peer: the store has forgotten the events from revision 2 to {}", last - 1));
}

TEST_CASE("a watch from a revision that etcd has not come to says that it has lost its data", "[cluster]") {
  if (!etcd_is_here("lost data of etcd")) return;
  EtcdMembers members(1);
  const auto store = connect_etcd(options_of(members.endpoints()));
  const int64_t last = store->put("k", "v");
  CHECK_NOTHROW(store->watch("k", last + 1));
  CHECK_THAT(sentence_of([&] { store->watch("k", last + 1000)->next(kStoreHung); }),
             Contains(fmt::format("is at revision {}, and has forgotten those to {}", last, last + 999)));
}

TEST_CASE("etcd lets in those who know a user and a password", "[cluster]") {
  if (!etcd_is_here("users of etcd")) return;
  EtcdMembers members(1);
  const std::string endpoint = members.endpoints()[0];
  connect_etcd(options_of({endpoint}))->put("k", "v");
  REQUIRE(post(endpoint, "auth/user/add", R"({"name":"root","password":"right"})").status == 200);
  REQUIRE(post(endpoint, "auth/role/add", R"({"name":"root"})").status == 200);
  REQUIRE(post(endpoint, "auth/user/grant", R"({"user":"root","role":"root"})").status == 200);
  REQUIRE(post(endpoint, "auth/enable", "{}").status == 200);
  EtcdOptions options = options_of({endpoint});
  CHECK_THAT(sentence_of([&] { connect_etcd(options); }),
             Contains("usage: etcd at " + endpoint + " refuses: "));
  options.user = "root";
  options.password = "wrong";
  CHECK_THAT(sentence_of([&] { connect_etcd(options); }),
             Contains("usage: etcd at " + endpoint + " refuses: "));
  options.password = "right";
  const auto store = connect_etcd(options);
  CHECK(store->get("k")->value == "v");
  const auto watch = store->watch("k");
  store->put("k", "w");
  CHECK(take_events(*watch, 1).size() == 1);
}
