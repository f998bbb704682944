// Who may connect to a rank: hellos, generations, and peers that are not of the run.
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "core/comm/tcp.h"
#include "tests/fuzz/hello.h"
#include "tests/fuzz/mutated.h"
#include "tests/unit/core/comm_tcp_testing.h"

using namespace het;
using namespace het::testing;
using std::chrono::milliseconds;

namespace {

const std::string kSecret = kTestSecret;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

AcceptorOptions options_of(const std::string& run) {
  AcceptorOptions options;
  options.address = "127.0.0.1";
  options.run = run;
  options.secret = kSecret;
  return options;
}

// Rank 0 of two whose addresses are known; rank 1 listens at `other`.
TcpOptions first_of_two(int64_t generation, const std::shared_ptr<Acceptor>& own, const Endpoint& other) {
  TcpOptions options;
  options.size = 2;
  options.acceptor = own;
  options.generation = generation;
  options.addresses = {{"host0", own->endpoint()}, {"host1", other}};
  options.board = make_memory_key_value();
  options.host = "host0";
  return options;
}

TcpOptions second_of_two(const TcpOptions& first, const std::shared_ptr<Acceptor>& own) {
  TcpOptions options = first;
  options.rank = 1;
  options.acceptor = own;
  options.host = "host1";
  return options;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a peer that knows the secret is delivered with what it said, and answered", "[comm]") {
  Acceptor acceptor(options_of("run"));
  Inbox inbox;
  acceptor.open(3, [&](Acceptor::Arrival arrival) { inbox.put(std::move(arrival)); });
  HandPeer peer(acceptor.endpoint());
  const Hello hello = hello_of("run", 3, "all", 0, 2);
  peer.say(hello, kSecret);
  const Acceptor::Arrival arrival = inbox.take();
  CHECK(arrival.hello == hello);
  CHECK(acceptor.answer(arrival, {Verdict::accepted, 3}));
  const auto reply = peer.reply(kSecret);
  REQUIRE(reply);
  CHECK(reply->verdict == Verdict::accepted);
  acceptor.close(3);
}

TEST_CASE("a hello counts only with the secret, in one run, and on the connection it was written for",
          "[comm]") {
  Acceptor acceptor(options_of("run"));
  Inbox inbox;
  acceptor.open(1, [&](Acceptor::Arrival arrival) { inbox.put(std::move(arrival)); });
  const Hello hello = hello_of("run", 1, "all", 0, 1);
  SECTION("another secret") {
    HandPeer peer(acceptor.endpoint());
    peer.say(hello, "another secret, of another run");
    const auto reply = peer.reply(kSecret);
    REQUIRE(reply);
    CHECK(reply->verdict == Verdict::other_secret);
    CHECK(is_closed(peer.socket));
    CHECK(acceptor.rejected() == std::vector<std::string>{"127.0.0.1"});
  }
  SECTION("another run with the same secret") {
    HandPeer peer(acceptor.endpoint());
    peer.say(hello_of("another run", 1, "all", 0, 1), kSecret);
    const auto reply = peer.reply(kSecret);
    REQUIRE(reply);
    CHECK(reply->verdict == Verdict::other_run);
    CHECK(acceptor.rejected().empty());
  }
  SECTION("said again on another connection") {
    HandPeer first(acceptor.endpoint()), second(acceptor.endpoint());
    first.say(hello, kSecret);
    inbox.take();
    write_all(second.socket, first.message);
    second.message = first.message;
    const auto reply = second.reply(kSecret);
    REQUIRE(reply);
    CHECK(reply->verdict == Verdict::other_secret);
  }
  SECTION("any byte changed") {
    HandPeer peer(acceptor.endpoint());
    const std::string message = write_hello(hello, peer.greeting, kSecret);
    for (size_t at = 0; at < message.size(); ++at) {
      std::string changed = message;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      CHECK(!proves(changed, peer.greeting, kSecret));
    }
    CHECK(proves(message, peer.greeting, kSecret));
  }
  CHECK(inbox.size() == 0);
}

TEST_CASE("a reply counts only from who knows the secret and for this hello", "[comm]") {
  const std::string greeting = write_greeting(random_bytes(kHelloNonceBytes));
  const std::string hello = write_hello(hello_of("run", 1, "all", 0, 1), greeting, kSecret);
  const std::string other = write_hello(hello_of("run", 1, "all", 0, 1), greeting, kSecret);
  const std::string reply = write_reply({Verdict::over, 7}, greeting, hello, kSecret);
  const auto read = read_reply(reply, greeting, hello, kSecret);
  REQUIRE(read);
  CHECK(read->verdict == Verdict::over);
  CHECK(read->generation == 7);
  CHECK(!read_reply(reply, greeting, other, kSecret));
  CHECK(!read_reply(reply, greeting, hello, "the secret of another run"));
  CHECK(!read_reply(write_reply({Verdict::over, 7}, write_greeting(random_bytes(16)), hello, kSecret),
                    greeting, hello, kSecret));
  for (size_t at = 0; at < reply.size(); ++at) {
    std::string changed = reply;
    changed[at] = static_cast<char>(changed[at] ^ 0x40);
    CHECK(!read_reply(changed, greeting, hello, kSecret));
  }
}

TEST_CASE("a lower generation is refused with the newest number, a closed one too", "[comm]") {
  Acceptor acceptor(options_of("run"));
  Inbox inbox;
  const auto deliver = [&](Acceptor::Arrival arrival) { inbox.put(std::move(arrival)); };
  acceptor.open(4, deliver);
  const auto verdict_of = [&](int64_t generation) {
    HandPeer peer(acceptor.endpoint());
    peer.say(hello_of("run", generation, "all", 0, 1), kSecret);
    const auto reply = peer.reply(kSecret);
    return reply ? std::pair(reply->verdict, reply->generation) : std::pair(Verdict::accepted, int64_t{-1});
  };
  CHECK(verdict_of(3) == std::pair(Verdict::over, int64_t{4}));
  acceptor.close(4);
  CHECK(verdict_of(4) == std::pair(Verdict::over, int64_t{4}));
  acceptor.open(9, deliver);
  CHECK(verdict_of(4) == std::pair(Verdict::over, int64_t{9}));
  CHECK(inbox.size() == 0);
  acceptor.close(9);
}

TEST_CASE("a higher generation is parked, delivered when it is opened, and refused when it was skipped",
          "[comm]") {
  AcceptorOptions options = options_of("run");
  options.parked = 3;
  Acceptor acceptor(options);
  Inbox inbox;
  acceptor.open(1, [](Acceptor::Arrival) {});
  std::vector<HandPeer> peers;
  for (const int64_t generation : {2, 5, 3, 5}) {
    peers.emplace_back(acceptor.endpoint());
    peers.back().say(hello_of("run", generation, "all", static_cast<int>(generation), 7), kSecret);
    // The next comes after it.
    HandPeer probe(acceptor.endpoint());
    probe.say(hello_of("run", 0, "all", 0, 7), kSecret);
    REQUIRE(probe.reply(kSecret));
  }
  CHECK(is_closed(peers[0].socket));  // a fourth came, and it was the oldest
  acceptor.close(1);
  acceptor.open(5, [&](Acceptor::Arrival arrival) { inbox.put(std::move(arrival)); });
  CHECK(inbox.size() == 2);
  for (const size_t delivered : {1, 3}) {
    const Acceptor::Arrival arrival = inbox.take();
    CHECK(acceptor.answer(arrival, {Verdict::accepted, 5}));
    CHECK(peers[delivered].reply(kSecret));
  }
  const auto skipped = peers[2].reply(kSecret);
  REQUIRE(skipped);
  CHECK(skipped->verdict == Verdict::over);
  CHECK(skipped->generation == 5);
  acceptor.close(5);
}

TEST_CASE("what is parked for too long is closed", "[comm]") {
  AcceptorOptions options = options_of("run");
  options.park_for = milliseconds(20);
  Acceptor acceptor(options);
  HandPeer peer(acceptor.endpoint());
  peer.say(hello_of("run", 2, "all", 0, 1), kSecret);
  CHECK(is_closed(peer.socket));
}

TEST_CASE("garbage and silence block no other peer, and are closed", "[comm]") {
  AcceptorOptions options = options_of("run");
  options.hello_within = milliseconds(300);
  options.unauthenticated = 8;
  Acceptor acceptor(options);
  Inbox inbox;
  acceptor.open(1, [&](Acceptor::Arrival arrival) { inbox.put(std::move(arrival)); });
  std::vector<HandPeer> silent;
  for (int i = 0; i < 20; ++i) silent.emplace_back(acceptor.endpoint());
  std::vector<HandPeer> noisy;
  for (const size_t bytes : {size_t{1}, size_t{70}, kHelloBytes, size_t{100'000}}) {
    noisy.emplace_back(acceptor.endpoint());
    write_all(noisy.back().socket, std::string(bytes, 'x'));
  }
  HandPeer good(acceptor.endpoint());
  good.say(hello_of("run", 1, "all", 0, 1), kSecret);
  CHECK(acceptor.answer(inbox.take(), {Verdict::accepted, 1}));
  CHECK(good.reply(kSecret));
  for (const auto* peers : {&silent, &noisy})
    for (const HandPeer& peer : *peers) CHECK(is_closed(peer.socket));
  CHECK(inbox.size() == 0);
  acceptor.close(1);
}

TEST_CASE("what is read of a hello, a reply and a frame is what was written, whatever comes", "[comm]") {
  std::mt19937 random(11);
  const std::string greeting = write_greeting(random_bytes(kHelloNonceBytes));
  const std::string hello = write_hello(hello_of("run", 2, "all", 0, 1), greeting, kSecret);
  CHECK(fuzz::hello(hello));
  CHECK(fuzz::hello(text_of({FrameKind::data, 7, 3, 70})));
  CHECK(fuzz::accepted(20'000, hello, random, "HETRUNh1",
                       [](const std::string& text) { return fuzz::hello(text); }) > 1000);
  const std::string frame = text_of({FrameKind::data, 7, 3, 70});
  CHECK(fuzz::accepted(20'000, frame, random, std::string_view("\0\1\2\5\xff", 5),
                       [](const std::string& text) { return fuzz::hello(text); }) > 1000);
}

TEST_CASE("peers that are not let in are named once for each address, with the reason", "[comm]") {
  const auto warning_of = [](const std::function<void(HandPeer&)>& act, const std::string& secret) {
    AcceptorOptions options = options_of("run");
    std::vector<std::string> warnings;
    options.warn = [&](const std::string& sentence) { warnings.push_back(sentence); };
    options.secret = secret;
    {
      Acceptor acceptor(options);
      acceptor.open(1, [](Acceptor::Arrival) {});
      for (int i = 0; i < 3; ++i) {
        HandPeer peer(acceptor.endpoint());
        act(peer);
        read_bytes(peer.socket, kReplyBytes + 1);  // to its end
      }
    }
    return warnings;
  };
  const auto say = [](HandPeer& peer) { peer.say(hello_of("another run", 1, "all", 0, 1), kSecret); };
  const auto garbage = [](HandPeer& peer) { write_all(peer.socket, std::string(kHelloBytes, 'x')); };
  const std::vector<std::string> secret = warning_of(say, "another secret, of this run"),
                                 run = warning_of(say, kSecret), noise = warning_of(garbage, kSecret);
  for (const auto* warnings : {&secret, &run, &noise}) {
    REQUIRE(warnings->size() == 1);
    CHECK(has(warnings->front(), "127.0.0.1:"));
  }
  CHECK(has(secret.front(), "its shared secret is another one"));
  CHECK(has(run.front(), "it is of another run"));
  CHECK(has(noise.front(), "what it said is no hello"));
}

TEST_CASE("a short secret and every address are refused", "[comm]") {
  AcceptorOptions options = options_of("run");
  options.secret = "short";
  CHECK(has(error_of([&] { Acceptor acceptor(options); }), "has 5 bytes; communication needs 16 or more"));
  for (const char* address : {"0.0.0.0", "::", ""}) {
    AcceptorOptions every = options_of("run");
    every.address = address;
    CHECK(has(error_of([&] { Acceptor acceptor(every); }), "every address of this machine"));
  }
}

TEST_CASE("a rank of a lower generation learns which one its peer is in", "[comm]") {
  const auto own = std::make_shared<Acceptor>(options_of("run"));
  const auto other = std::make_shared<Acceptor>(options_of("run"));
  const TcpOptions options = first_of_two(4, own, other->endpoint());
  TcpOptions newer = second_of_two(options, other);
  newer.generation = 6;
  const auto second = make_tcp(newer);
  const auto first = make_tcp(options);
  const std::string text = error_of([&] { first->group("all", {0, 1}); });
  CHECK(text == "could not form group 'all': rank 1 on host1 is in generation 6 already, this rank in 4");
}

TEST_CASE("a rank that comes to a generation early waits for its peer to open it", "[comm]") {
  const auto own = std::make_shared<Acceptor>(options_of("run"));
  const auto other = std::make_shared<Acceptor>(options_of("run"));
  const TcpOptions options = first_of_two(2, own, other->endpoint());
  TcpOptions before = second_of_two(options, other);
  before.generation = 1;
  auto old = make_tcp(before);
  std::string early, late;
  std::thread thread([&] {
    early = error_of([&] {
      const auto first = make_tcp(options);
      float value = 1;
      run_once(*first->group("all", {0, 1}), {CollectiveKind::all_reduce, DType::f32, {1}}, &value, &value);
      HET_REQUIRE(value == 3, value);
    });
  });
  std::this_thread::sleep_for(milliseconds(50));  // it is parked, if the machine is not too busy
  old = nullptr;
  late = error_of([&] {
    const auto second = make_tcp(second_of_two(options, other));
    float value = 2;
    run_once(*second->group("all", {0, 1}), {CollectiveKind::all_reduce, DType::f32, {1}}, &value, &value);
    HET_REQUIRE(value == 3, value);
  });
  thread.join();
  CHECK(early == "");
  CHECK(late == "");
}

TEST_CASE("the port of a dead member that another run, or another program, has taken is not its rank",
          "[comm]") {
  const auto own = std::make_shared<Acceptor>(options_of("run"));
  SECTION("another run with another secret") {
    AcceptorOptions foreign = options_of("run");
    foreign.secret = "the secret of another run";
    const auto other = std::make_shared<Acceptor>(foreign);
    const auto first = make_tcp(first_of_two(1, own, other->endpoint()));
    const std::string text = error_of([&] { first->group("all", {0, 1}); });
    CHECK(has(text, "lost rank 1 on host1 (what listens at 127.0.0.1:"));
    CHECK(has(text, "does not know the run's secret) while forming group 'all'"));
  }
  SECTION("another run with the same secret, and another rank of this one") {
    for (const char* run : {"run", "another run"}) {
      const auto mine = std::make_shared<Acceptor>(options_of("run"));
      const auto other = std::make_shared<Acceptor>(options_of(run));
      const TcpOptions options = first_of_two(1, mine, other->endpoint());
      TcpOptions third = second_of_two(options, other);
      third.size = 3;
      third.rank = 2;
      third.addresses.push_back(third.addresses[1]);
      const auto foreign = make_tcp(third), first = make_tcp(options);
      const std::string text = error_of([&] { first->group("all", {0, 1}); });
      CHECK(has(text, "is of another run, or another rank of this one)"));
    }
  }
  SECTION("another program") {
    Endpoint endpoint{"127.0.0.1", 0};
    const Descriptor listener = listen_at(endpoint);
    std::thread server([&] {
      std::string who;
      if (wait_for(listener, Ready::read, soon()))
        write_all(accept_from(listener, who), "220 mail.example.org ESMTP at your service");
    });
    const auto first = make_tcp(first_of_two(1, own, endpoint));
    const std::string text = error_of([&] { first->group("all", {0, 1}); });
    server.join();
    CHECK(has(text, "lost rank 1 on host1 (what listens at 127.0.0.1:"));
    CHECK(has(text, "is not of hetrun)"));
  }
  SECTION("no program") {
    Endpoint endpoint{"127.0.0.1", 0};
    { const Descriptor listener = listen_at(endpoint); }
    const auto first = make_tcp(first_of_two(1, own, endpoint));
    CHECK(has(error_of([&] {
                first->group("all", {0, 1});
              }),
              "lost rank 1 on host1 (nothing listens at 127.0.0.1:"));
  }
}

TEST_CASE("who connected without the secret is named when a member does not come", "[comm]") {
  const auto own = std::make_shared<Acceptor>(options_of("run"));
  const auto other = std::make_shared<Acceptor>(options_of("run"));
  TcpOptions options = second_of_two(first_of_two(1, other, own->endpoint()), own);
  options.timeouts.timeout = milliseconds(300);
  const auto second = make_tcp(options);
  HandPeer peer(own->endpoint());
  peer.say(hello_of("run", 1, "all", 0, 1), "a secret that somebody guessed");
  const std::string text = error_of([&] { second->group("all", {0, 1}); });
  CHECK(text ==
        "lost rank 0 on host0 (did not join within 0.3 s) while forming group 'all'; 127.0.0.1 connected "
        "without knowing the run's secret");
}

TEST_CASE("ranks find each other over IPv6", "[comm]") {
  AcceptorOptions options = options_of("run");
  options.address = "::1";
  std::shared_ptr<Acceptor> acceptors[2];
  try {
    for (auto& acceptor : acceptors) acceptor = std::make_shared<Acceptor>(options);
  } catch (const Error&) {
    WARN("this machine has no IPv6");
    return;
  }
  const TcpOptions first = first_of_two(1, acceptors[0], acceptors[1]->endpoint());
  std::string texts[2];
  const auto run = [&](int rank) {
    texts[rank] = error_of([&] {
      const auto fabric = make_tcp(rank == 0 ? first : second_of_two(first, acceptors[1]));
      float value = 1;
      run_once(*fabric->group("all", {0, 1}), {CollectiveKind::all_reduce, DType::f32, {1}}, &value, &value);
      HET_REQUIRE(value == 2, value);
    });
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  CHECK(texts[0] == "");
  CHECK(texts[1] == "");
}
