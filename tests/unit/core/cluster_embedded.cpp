#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/cluster/embedded_store.h"
#include "core/cluster/secret.h"
#include "core/cluster/store_protocol.h"
#include "core/net/socket.h"
#include "tests/unit/core/cluster_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;

namespace {

std::unique_ptr<StoreServer> serve(LedgerLimits limits = {}, int port = 0) {
  StoreServerOptions options;
  options.address = "127.0.0.1";
  options.port = port;
  options.secret = kClusterSecret;
  options.limits = limits;
  return serve_store(options);
}

StoreClientOptions client_of(const StoreServer& server) {
  return {server.endpoint(), "127.0.0.1", kClusterSecret, kStoreHung};
}

template <typename Body>
std::string sentence_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.sentence());
  }
  return "nothing was thrown";
}

std::string noise(std::mt19937_64& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace

TEST_CASE("HMAC-SHA256 gives the digests of RFC 4231", "[cluster]") {
  CHECK(hex_of(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex_of(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(equal_proofs("abc", "abc"));
  CHECK_FALSE(equal_proofs("abc", "abd"));
  CHECK_FALSE(equal_proofs("abc", "abcd"));
}

TEST_CASE("a client with another secret is refused in a sentence", "[cluster]") {
  const auto server = serve();
  StoreClientOptions options = client_of(*server);
  options.secret = "not the secret of the run";
  CHECK_THAT(sentence_of([&] { connect_store(options); }),
             Contains("usage: the store at " + server->endpoint() + " refuses 127.0.0.1:") &&
                 Contains(": its shared secret is another one"));
  CHECK(server->rejected() == std::vector<std::string>{"127.0.0.1"});
  connect_store(client_of(*server))->put("still", "served");
}

// A server that lets everyone in, to learn what they write, cannot show the proof.
TEST_CASE("a client refuses a server that does not know the secret", "[cluster]") {
  Endpoint at{"127.0.0.1", 0};
  const Descriptor listener = listen_at(at);
  std::thread impostor([&] {
    const auto deadline = std::chrono::steady_clock::now() + kStoreHung;
    std::string who;
    if (!wait_for(listener, Ready::read, deadline)) return;
    const Descriptor client = accept_from(listener, who);
    const Greeting greeting{"instance", std::string(kNonceBytes, 'n')};
    send_some(client, write_frame(write_greeting(greeting)));
    std::string auth(kFrameHeaderBytes + 8 + kNonceBytes + kProofBytes, '\0');
    for (size_t got = 0; got < auth.size() && wait_for(client, Ready::read, deadline);)
      got += static_cast<size_t>(std::max(0L, receive_some(client, auth.data() + got, auth.size() - got)));
    const Auth shown = read_auth(std::string_view(auth).substr(kFrameHeaderBytes));
    send_some(client, write_frame(write_auth_ok({shown.proof, ""})));
    wait_for(client, Ready::read, deadline);
  });
  CHECK(sentence_of([&] {
          connect_store({to_string(at), "", kClusterSecret, kStoreHung});
        }) ==
        fmt::format("usage: what answers at {} does not know the shared secret: it is not this run's store",
                    to_string(at)));
  impostor.join();
}

TEST_CASE("the embedded store listens at no address that was not named", "[cluster]") {
  for (const char* address : {"", "0.0.0.0", "::", "*"}) {
    StoreServerOptions options;
    options.address = address;
    options.secret = kClusterSecret;
    CHECK_THAT(sentence_of([&] { serve_store(options); }),
               Contains("usage: the store would listen at every"));
  }
  StoreServerOptions options;
  options.address = "192.0.2.1";  // no host has it: RFC 5737
  options.secret = kClusterSecret;
  CHECK(sentence_of([&] { serve_store(options); }) ==
        "usage: this machine does not have the address 192.0.2.1");
  options.address = "127.0.0.1";
  options.secret = "short";
  CHECK_THAT(sentence_of([&] { serve_store(options); }), Contains("has 5 bytes; it needs 16 or more"));
}

TEST_CASE("an endpoint without a server is reported within the timeout", "[cluster]") {
  Endpoint at{"127.0.0.1", 0};
  { const Descriptor listener = listen_at(at); }
  CHECK(sentence_of([&] {
          connect_store({to_string(at), "", kClusterSecret, milliseconds(100)});
        }) == fmt::format("peer: cannot connect to {}: Connection refused", to_string(at)));
  StoreClientOptions options{to_string(at), "", kClusterSecret, milliseconds(100)};
  options.server = "rank 0";
  CHECK(sentence_of([&] { connect_store(options); }) ==
        fmt::format("peer: cannot connect to {}: Connection refused; rank 0 should serve the store there",
                    to_string(at)));
  const Descriptor silent = listen_at(at);
  CHECK(sentence_of([&] {
          connect_store({to_string(at), "", kClusterSecret, milliseconds(100)});
        }) == fmt::format("peer: the store at {} did not answer within 100 ms", to_string(at)));
}

TEST_CASE("a client waits for the server to start, and says so", "[cluster]") {
  Endpoint at{"127.0.0.1", 0};
  { const Descriptor listener = listen_at(at); }
  std::unique_ptr<StoreServer> server;
  std::vector<std::string> warnings;
  StoreClientOptions options{to_string(at), "", kClusterSecret, milliseconds(50)};
  options.connect_timeout = kStoreHung;
  options.warn_after = milliseconds(60);
  options.warn = [&](const std::string& sentence) {
    warnings.push_back(sentence);
    if (warnings.size() != 2) return;
    StoreServerOptions late;
    late.address = at.host;
    late.port = at.port;
    late.secret = kClusterSecret;
    server = serve_store(std::move(late));
  };
  const auto store = connect_store(options);
  REQUIRE(warnings.size() >= 2);
  CHECK_THAT(warnings[0], Catch::Matchers::StartsWith("waited "));
  CHECK_THAT(warnings[0], Contains(fmt::format(" s for who serves the store at {}: cannot connect to {}",
                                               to_string(at), to_string(at))));
}

TEST_CASE("messages of the embedded store are read back as written", "[cluster]") {
  StoreRequest request;
  request.kind = StoreRequest::Kind::replace;
  request.key = std::string("k\0ey", 4);
  request.value = std::string("\xff\x00", 2);
  request.lease = -1;
  request.revision = 1LL << 62;
  request.ttl_ms = 7;
  CHECK(read_request(write_request(request)) == request);
  StoreResponse response;
  response.failed = true;
  response.error = ErrorKind::usage;
  response.sentence = "no";
  response.events = {{StoreEvent::Kind::put, {"a", "b", 1, 2, 3}},
                     {StoreEvent::Kind::removed, {"c", "", 0, 9, 0}}};
  CHECK(read_response(write_response(response)) == response);
}

// Every cut and many changed bytes of every message: an error or another message, and no access outside.
TEST_CASE("readers of the embedded store's messages take hostile bytes", "[cluster]") {
  const uint64_t seed = 20240611;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  StoreResponse response;
  response.events.assign(3, {StoreEvent::Kind::put, {"key", "value", 1, 2, 3}});
  StoreRequest request;
  request.key = "key";
  const std::vector<std::string> messages = {
      write_response(response), write_request(request),
      write_greeting({"instance", std::string(kNonceBytes, 'n')}),
      write_auth({std::string(kNonceBytes, 'n'), std::string(kProofBytes, 'p')}), write_auth_ok({"", "no"})};
  const auto read_all = [](const std::string& bytes) {
    // On the heap and no longer than it is, so that the sanitizers see a read past the end.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    const std::string_view content(exact.data(), exact.size());
    int refused = 0;
    const auto refuses = [&](const auto& reader) {
      try {
        reader(content);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::peer) ++refused;
      }
    };
    refuses([](std::string_view c) { read_response(c); });
    refuses([](std::string_view c) { read_request(c); });
    refuses([](std::string_view c) { read_greeting(c); });
    refuses([](std::string_view c) { read_auth(c); });
    refuses([](std::string_view c) { read_auth_ok(c); });
    return refused;
  };
  for (const std::string& message : messages) {
    CHECK(read_all(message) == 4);
    for (size_t cut = 0; cut < message.size(); ++cut) CHECK(read_all(message.substr(0, cut)) == 5);
    CHECK(read_all(message + "x") == 5);
    for (int trial = 0; trial < 2000; ++trial) {
      std::string changed = message;
      for (int i = 0; i <= trial % 3; ++i) changed[random() % changed.size()] = static_cast<char>(random());
      read_all(changed);
    }
  }
  for (int trial = 0; trial < 2000; ++trial) CHECK(read_all(noise(random, random() % 200)) >= 4);
}

TEST_CASE("the embedded store outlives clients that send garbage", "[cluster]") {
  const uint64_t seed = 7;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto server = serve();
  const auto good = connect_store(client_of(*server));
  const auto deadline = std::chrono::steady_clock::now() + kStoreHung;
  const auto until_closed = [&](const Descriptor& socket) {
    std::string bytes(4096, '\0');
    while (wait_for(socket, Ready::read, deadline))
      if (receive_some(socket, bytes.data(), bytes.size()) < 0) return true;
    return false;
  };
  for (int trial = 0; trial < 200; ++trial) {
    const Descriptor socket = connect_to(parse_endpoint(server->endpoint()), "", deadline);
    std::string bytes = noise(random, 1 + random() % 2000);
    if (trial % 2) bytes.insert(0, write_frame(bytes.substr(0, random() % kGreetingFrameBytes)));
    send_some(socket, bytes);
    if (trial % 4 == 0) good->put("trial", std::to_string(trial));
    // A length that is too large, or a message that is none, ends the connection; too few bytes would wait.
    if (trial % 2) CHECK(until_closed(socket));
  }
  // Questions before the proof are not answered.
  const Descriptor socket = connect_to(parse_endpoint(server->endpoint()), "", deadline);
  StoreRequest request;
  request.kind = StoreRequest::Kind::put;
  request.key = "intruder";
  send_some(socket, write_frame(write_request(request)));
  CHECK(until_closed(socket));
  CHECK_FALSE(good->get("intruder"));
  CHECK(good->get("trial")->value == "196");
}

// Past the proof, with bytes that are no requests, and requests with fields drawn at random.
TEST_CASE("the embedded store outlives members that send garbage", "[cluster]") {
  const uint64_t seed = 11;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto server = serve();
  const auto good = connect_store(client_of(*server));
  const auto deadline = std::chrono::steady_clock::now() + kStoreHung;
  const auto frame_from = [&](const Descriptor& socket, std::string& in) {
    while (true) {
      const size_t bytes = frame_bytes(in, kAnswerFrameBytes);
      if (bytes && in.size() >= bytes) {
        std::string content = in.substr(kFrameHeaderBytes, bytes - kFrameHeaderBytes);
        in.erase(0, bytes);
        return content;
      }
      if (!wait_for(socket, Ready::read, deadline)) return std::string();
      std::string more(65536, '\0');
      const long got = receive_some(socket, more.data(), more.size());
      if (got < 0) return std::string();
      in += more.substr(0, static_cast<size_t>(got));
    }
  };
  int answered = 0, dropped = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const Descriptor socket = connect_to(parse_endpoint(server->endpoint()), "", deadline);
    std::string in;
    const Greeting greeting = read_greeting(frame_from(socket, in));
    const std::string nonce(kNonceBytes, 'x');
    send_some(socket, write_frame(write_auth({nonce, client_proof(kClusterSecret, greeting, nonce)})));
    REQUIRE(read_auth_ok(frame_from(socket, in)).refusal.empty());
    for (int i = 0; i < 20; ++i) {
      StoreRequest request;
      request.kind = static_cast<StoreRequest::Kind>(random() % 12);
      request.key = noise(random, random() % 8);
      request.value = noise(random, random() % 8);
      request.lease = static_cast<int64_t>(random() % 3 ? random() % 4 : random());
      request.revision = static_cast<int64_t>(random() % 3 ? random() % 50 : random());
      request.ttl_ms = static_cast<int64_t>(random() % 3 ? random() % 50 : random());
      const std::string content = random() % 10 ? write_request(request) : noise(random, random() % 100);
      if (send_some(socket, write_frame(content)) < 0) break;
      const std::string response = frame_from(socket, in);
      if (response.empty()) {
        ++dropped;
        break;
      }
      read_response(response);
      ++answered;
    }
  }
  CHECK(answered > 100);
  CHECK(dropped > 10);
  good->put("alive", "yes");
  CHECK(good->get("alive")->value == "yes");
}

TEST_CASE("a watch that fell behind what the embedded store remembers says so", "[cluster]") {
  LedgerLimits limits;
  limits.history_events = 10;
  const auto server = serve(limits);
  const auto store = connect_store(client_of(*server));
  for (int i = 0; i < 30; ++i) store->put("k", std::to_string(i));
  const int64_t first = store->list("k").revision - 29;
  CHECK(sentence_of([&] { store->watch("k", first)->next(kStoreHung); }) ==
        fmt::format("peer: the store has forgotten the events from revision {} to {}", first, first + 19));
  const auto watch = store->watch("k", first + 20);
  CHECK(take_events(*watch, 10).size() == 10);
}

TEST_CASE("a server that ends lets clients hear what has happened, while they are there", "[cluster]") {
  StoreServerOptions options;
  options.address = "127.0.0.1";
  options.secret = kClusterSecret;
  options.goodbye = kStoreHung;
  // False: this thread was held up for so long that the server took its clients for gone.
  const auto is_heard = [&] {
    auto server = serve_store(options);
    auto own = connect_store(client_of(*server)), other = connect_store(client_of(*server));
    own->put("run/last", "words");
    own.reset();
    const auto began = std::chrono::steady_clock::now();
    std::thread ending([&] { server.reset(); });
    std::this_thread::sleep_for(milliseconds(50));
    std::optional<StoreEntry> heard;
    try {
      heard = other->get("run/last");
    } catch (const Error&) {
    }
    const bool in_time = std::chrono::steady_clock::now() - began < milliseconds(500);
    other.reset();
    ending.join();  // long before the goodbye is over
    if (!heard && !in_time) return false;
    REQUIRE(heard.has_value());
    CHECK(heard->value == "words");
    return true;
  };
  bool heard = false;
  for (int trial = 0; trial < 5 && !heard; ++trial) heard = is_heard();
  CHECK(heard);
}

TEST_CASE("a server that ends does not wait for clients that ask nothing any more", "[cluster]") {
  StoreServerOptions options;
  options.address = "127.0.0.1";
  options.secret = kClusterSecret;
  options.goodbye = 2 * kStoreHung;
  auto server = serve_store(options);
  const auto stopped = connect_store(client_of(*server));
  stopped->grant(std::chrono::milliseconds(100'000));
  const auto watch = stopped->watch("run/");
  const auto start = std::chrono::steady_clock::now();
  server.reset();
  CHECK(std::chrono::steady_clock::now() - start < kStoreHung);
}

TEST_CASE("a full embedded store refuses, and takes again when there is room", "[cluster]") {
  LedgerLimits limits;
  limits.content_bytes = 100;
  const auto server = serve(limits);
  const auto store = connect_store(client_of(*server));
  store->put("a", std::string(60, 'a'));
  CHECK_THAT(sentence_of([&] { store->put("b", std::string(60, 'b')); }),
             Contains("peer: the store is full"));
  store->put("a", std::string(99, 'a'));
  store->remove("a");
  store->put("b", std::string(60, 'b'));
}

TEST_CASE("an embedded store that was restarted is not taken for the old one", "[cluster]") {
  auto server = serve();
  const auto store = connect_store(client_of(*server));
  const auto watch = store->watch("");
  const int port = parse_endpoint(server->endpoint()).port;
  server.reset();
  server = serve({}, port);
  const std::string sentence =
      fmt::format("peer: the store at {} was restarted and has forgotten this run", server->endpoint());
  CHECK(sentence_of([&] { store->get("k"); }) == sentence);
  CHECK(sentence_of([&] { watch->next(kStoreHung); }) == sentence);
  CHECK(sentence_of([&] { store->put("k", ""); }) == sentence);
}

TEST_CASE("who follows an embedded store that was started again finds it empty", "[cluster]") {
  auto server = serve();
  const auto store = connect_store(client_of(*server));
  store->follow_restarts();
  const StoreLease lease = store->grant(milliseconds(10'000));
  const int64_t revision = *store->create("k", "before");
  const auto watch = store->watch("");
  const int port = parse_endpoint(server->endpoint()).port;
  server.reset();
  server = serve({}, port);
  CHECK_FALSE(store->get("k"));
  CHECK_THAT(sentence_of([&] { watch->next(kStoreHung); }), Contains("was restarted"));
  // A lease and a revision of before are none of now.
  const StoreLease other = store->grant(milliseconds(10'000));
  CHECK(other.id != lease.id);
  CHECK_THAT(sentence_of([&] { store->keep_alive(lease.id); }), Contains("has lapsed"));
  CHECK(*store->create("k", "after") != revision);
  CHECK_FALSE(store->replace("k", "stale", revision));
  CHECK(store->watch("")->next(milliseconds(0)).empty());
}

TEST_CASE("leases of the ledger lapse in the ledger's time, and wait while it is stopped", "[cluster]") {
  Ledger ledger;
  const Ledger::Time start{};
  const StoreLease lease = ledger.grant(milliseconds(100), start);
  ledger.put("k", "v", lease.id);
  ledger.lapse(start + milliseconds(99));
  CHECK(ledger.get("k"));
  ledger.keep_alive(lease.id, start + milliseconds(99));
  CHECK(ledger.next_lapse() == start + milliseconds(199));
  ledger.postpone_lapses(milliseconds(1000));
  ledger.lapse(start + milliseconds(1198));
  CHECK(ledger.get("k"));
  ledger.lapse(start + milliseconds(1199));
  CHECK_FALSE(ledger.get("k"));
  CHECK_FALSE(ledger.next_lapse());
  CHECK(ledger.revision() == 2);
}

TEST_CASE("serves a store until it is killed", "[.child]") {
  const char* port = std::getenv("HET_TEST_PORT");
  REQUIRE(port);
  const auto server = serve({}, std::atoi(port));
  while (true) std::this_thread::sleep_for(kStoreHung);
}

// The whole server is stopped for longer than a lease lives: no member could keep it alive, so it has not
// lapsed.
TEST_CASE("leases of an embedded store outlive a pause of its server", "[cluster]") {
  using Clock = std::chrono::steady_clock;
  constexpr milliseconds kTtl{3'000}, kPause{3'500};
  constexpr int kTrials = 5;
  bool conclusive = false;
  for (int trial = 0; trial < kTrials && !conclusive; ++trial) {
    Endpoint at{"127.0.0.1", 0};
    { const Descriptor listener = listen_at(at); }
    ChildTest child("serves a store until it is killed", {fmt::format("HET_TEST_PORT={}", at.port)});
    const auto store = connect_store({to_string(at), "", kClusterSecret, kStoreHung});
    const StoreLease lease = store->grant(kTtl);
    store->put("k", "v", lease.id);
    child.stop();
    std::this_thread::sleep_for(kPause);
    const auto gone_on = Clock::now();
    child.go_on();
    const bool there = store->get("k").has_value();
    conclusive = Clock::now() - gone_on < kTtl / 2;  // else this test was held up itself, and says nothing
    if (conclusive) CHECK(there);
    if (conclusive) CHECK_NOTHROW(store->keep_alive(lease.id));
  }
  CHECK(conclusive);
}

TEST_CASE("endpoints are read and written", "[cluster]") {
  CHECK(parse_endpoint("10.0.0.7:80") == Endpoint{"10.0.0.7", 80});
  CHECK(parse_endpoint("[fd00::7]:4711") == Endpoint{"fd00::7", 4711});
  CHECK(to_string(Endpoint{"fd00::7", 4711}) == "[fd00::7]:4711");
  for (const char* text :
       {"", "host", "host:", ":80", "host:0", "host:65536", "host:8x", "fd00::7:80", "[]:80"})
    CHECK_THAT(sentence_of([&] { parse_endpoint(text); }), Contains("is no endpoint"));
}
