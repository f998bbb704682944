// Hostile and broken peers of the exchange of snapshots: they are cut off and named, others are served, and
// what was there stays.
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <random>
#include <thread>

#include <poll.h>
#include <sys/stat.h>

#include "core/io/file.h"
#include "tests/fuzz/exchange.h"
#include "tests/fuzz/mutated.h"
#include "tests/unit/snapshot/exchange_testing.h"
#include "tests/unit/snapshot/relay.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using std::chrono::milliseconds;

namespace {

ExchangeIdentity hasty(milliseconds within) {
  ExchangeIdentity identity = identity_of();
  identity.connect = identity.progress = within;
  return identity;
}

}  // namespace

TEST_CASE("a peer with another secret or of another run is not let in, and named", "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(scratch.folder(), small_sample(1));
  Sentences warnings;
  const auto server = SnapshotServer::start(server_options({scratch.folder()}, &warnings));
  PeerSnapshots stranger(identity_of("another secret, of another run")),
      cousin(identity_of(kTestSecret, "another run"));
  CHECK_THAT(error_of([&] { stranger.list(server->endpoint()); }),
             Contains("peer: ") && Contains("does not know the secret of this run"));
  CHECK_THAT(warnings.wait_for_one("not let in"), Contains("127.0.0.1") && Contains("secret is another one"));
  CHECK_THAT(error_of([&] { cousin.fetch(server->endpoint(), file, scratch.path("a")); }),
             Contains("peer: ") && Contains("it is of another run"));
  HandPeer mesh(server->endpoint());  // a rank that connects to the wrong port
  mesh.say(hello_of("run", 0, "all", 0, 1), kTestSecret);
  const auto reply = mesh.reply(kTestSecret);
  REQUIRE(reply);
  CHECK(reply->verdict == Verdict::other_run);
  CHECK(scratch.files() == 1);
}

TEST_CASE("a server that does not prove that it knows the secret is not believed", "[exchange]") {
  Endpoint endpoint{"127.0.0.1", 0};
  const Descriptor listener = listen_at(endpoint);
  PeerSnapshots peers(identity_of());
  const std::pair<std::string, const char*> greetings[] = {
      {write_greeting("0123456789abcdef"), "does not know the secret of this run"},
      {std::string(kGreetingBytes, 'x'), "is no process of a run"},
      {"HETRUN", "closed the connection"}};
  for (const auto& [greeting, sentence] : greetings) {
    std::thread thread([&, text = greeting] {
      std::string who;
      Descriptor client;
      while (!client && wait_for(listener, Ready::read, soon())) client = accept_from(listener, who);
      write_all(client, text);
      if (text.size() < kGreetingBytes) return;
      read_bytes(client, kHelloBytes);
      write_all(client, std::string(kReplyBytes, 'y'));
      read_bytes(client, 1);  // whether or not it is believed
    });
    CHECK_THAT(error_of([&] { peers.list(endpoint); }), Contains("peer: ") && Contains(sentence));
    thread.join();
  }
}

TEST_CASE("what is no request is cut off and named, and others are served", "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(folder_in(scratch, "served"), small_sample(1));
  const std::string secret = scratch.put("step-1-generation-2-rank-1-of-4.snapshot", "not for peers");
  std::filesystem::create_symlink(secret, scratch.path("served/step-2-generation-2-rank-1-of-4.snapshot"));
  std::filesystem::create_directory(scratch.path("served/step-3-generation-2-rank-1-of-4.snapshot"));
  REQUIRE(::mkfifo(scratch.path("served/step-4-generation-2-rank-1-of-4.snapshot").c_str(), 0600) == 0);
  std::mt19937 random(20);
  std::string noise(2000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());

  struct Attack {
    std::string bytes, sentence;
  };
  const auto framed = [](const SnapshotRequest& request) { return write_frame(encode_request(request)); };
  std::string bad_union = encode_request(ListSnapshots{});
  bad_union[16] = 9;
  const Attack attacks[] = {
      {std::string("\xff\xff\xff\xff", 4), "a message of 4294967295 bytes is more than the 1048576 allowed"},
      {std::string("\x01\x00\x10\x00", 4), "a message of 1048577 bytes"},
      {noise, "more than the 1048576 allowed"},
      {write_frame(""), "a message"},
      {write_frame("1234567"), "has 7 bytes, which no message has"},
      {write_frame(noise.substr(0, 800)), "a message"},
      {write_frame(bad_union), "is a request that is not known here"},
      {framed(ReadSnapshot{"../" + file, 0, 1}),
       "names '../" + file + "', which is no name of a snapshot's file"},
      {framed(ReadSnapshot{"/etc/passwd", 0, 1}), "which is no name"},
      {framed(ReadSnapshot{"served/" + file, 0, 1}), "which is no name"},
      {framed(ReadSnapshot{file + std::string("\0x", 2), 0, 1}), "which is no name"},
      {framed(ReadSnapshot{std::string(5000, 'a'), 0, 1}), "has a string of 5000 bytes"},
      {framed(ReadSnapshot{file, -1, 1}), "gives the offset -1"},
      {framed(ReadSnapshot{file, 0, 0}), "gives a length of 0"},
      {framed(ReadSnapshot{file, 0, kMostBytesInFlight + 1}), "gives a length of 67108865"},
      {framed(SnapshotOffer{file, 0, "127.0.0.1:1"}), "gives a file of 0"},
  };
  for (const Attack& attack : attacks) {
    Sentences warnings;
    const auto server = SnapshotServer::start(server_options({scratch.path("served")}, &warnings));
    const HandClient client(server->endpoint());
    client.say(attack.bytes);
    CHECK(is_closed(client.socket()));
    CHECK_THAT(warnings.wait_for_one("was cut off"), Contains("127.0.0.1:") && Contains(attack.sentence));
    PeerSnapshots good(identity_of());
    CHECK(good.list(server->endpoint()).size() == 1);
    for (const int step : {2, 3, 4})  // a link, a folder, a pipe
      CHECK_THAT(error_of([&] {
                   char byte = 0;
                   good.read_range(server->endpoint(),
                                   fmt::format("step-{}-generation-2-rank-1-of-4.snapshot", step), 0, 1,
                                   &byte);
                 }),
                 Contains("there is no file"));
  }
}

TEST_CASE("a slow or silent peer is cut off, whichever end it is", "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(scratch.folder(), ten_chunks(1));
  Sentences warnings;
  SnapshotServerOptions options = server_options({scratch.folder()}, &warnings);
  const milliseconds brief(150);
  SECTION("it does not take its bytes") {
    options.progress = brief;
    const auto server = SnapshotServer::start(options);
    const HandClient client(server->endpoint());
    client.ask(ReadSnapshot{file, 0, 40 << 20});
    CHECK_THAT(warnings.wait_for_one("was cut off"), Contains("is too slow"));
    CHECK(read_bytes(client.socket(), 40 << 20).size() < 40 << 20);
  }
  SECTION("it does not finish a frame") {
    options.progress = brief;
    const auto server = SnapshotServer::start(options);
    const HandClient client(server->endpoint());
    client.say(std::string("\x40\x00\x00\x00mor", 7));
    CHECK(is_closed(client.socket()));
    CHECK_THAT(warnings.wait_for_one("was cut off"), Contains("is too slow"));
  }
  SECTION("it asks nothing") {
    options.idle = brief;
    const auto server = SnapshotServer::start(options);
    const HandClient client(server->endpoint());
    CHECK(is_closed(client.socket()));
    CHECK(warnings.size() == 0);
  }
  SECTION("it does not say who it is") {
    options.hello_within = brief;
    const auto server = SnapshotServer::start(options);
    const HandPeer peer(server->endpoint());
    CHECK(is_closed(peer.socket));
    CHECK(warnings.size() == 0);
  }
  SECTION("it is a server that stops in the middle") {
    Endpoint endpoint{"127.0.0.1", 0};
    const Descriptor listener = listen_at(endpoint);
    PeerSnapshots peers(hasty(brief));
    const std::string into = scratch.put("into", "the previous file");
    CHECK_THAT(error_of([&] { peers.fetch(endpoint, file, into); }), Contains("is too slow"));
    CHECK(read_file(into) == "the previous file");
  }
}

TEST_CASE("an exchange that is cut at any byte ends in an error, and the next one is served", "[exchange]") {
  const Scratch scratch;
  const std::string folder = folder_in(scratch, "served");
  const std::string file = write_sample(folder, small_sample(1));
  Sentences warnings;
  const auto server = SnapshotServer::start(server_options({folder}, &warnings));
  int64_t bytes[2] = {0, 0};
  {
    const Relay relay(server->endpoint(), {});
    PeerSnapshots(identity_of()).list(relay.endpoint());
    for (const bool to_client : {false, true}) bytes[to_client ? 1 : 0] = relay.passed(to_client);
  }
  REQUIRE(bytes[0] > static_cast<int64_t>(kHelloBytes));
  REQUIRE(bytes[1] > static_cast<int64_t>(kGreetingBytes + kReplyBytes));
  for (const bool to_client : {false, true})
    for (int64_t at = 0; at < bytes[to_client ? 1 : 0]; ++at) {
      const Relay relay(server->endpoint(), {to_client, at, false});
      INFO("cut before byte " << at << (to_client ? " to the client" : " to the server"));
      CHECK_THAT(error_of([&] { PeerSnapshots(identity_of()).list(relay.endpoint()); }), Contains("peer: "));
    }
  // Of a whole fetch: every 61st byte.
  const std::string into = scratch.put("into", "the previous file");
  const Relay whole(server->endpoint(), {});
  PeerSnapshots(identity_of()).fetch(whole.endpoint(), file, scratch.path("other"));
  for (int64_t at = 61; at < whole.passed(true); at += 61) {
    const Relay relay(server->endpoint(), {true, at, false});
    CHECK_THAT(error_of([&] { PeerSnapshots(identity_of()).fetch(relay.endpoint(), file, into); }),
               Contains("peer: "));
    CHECK(read_file(into) == "the previous file");
  }
  CHECK(scratch.files() == 3);
  PeerSnapshots(identity_of()).fetch(server->endpoint(), file, into);
  CHECK((read_file(into) == read_file(folder + "/" + file)));
}

TEST_CASE("a flipped bit on the way is found, and named where it is in the data", "[exchange]") {
  const Scratch scratch;
  const std::string folder = folder_in(scratch, "served");
  const std::string file = write_sample(folder, small_sample(1));
  const std::string content = read_file(folder + "/" + file);
  Sentences warnings;
  const auto server = SnapshotServer::start(server_options({folder}, &warnings));
  int64_t bytes = 0;
  {
    const Relay relay(server->endpoint(), {});
    PeerSnapshots(identity_of()).fetch(relay.endpoint(), file, scratch.path("other"));
    bytes = relay.passed(true);
  }
  int named = 0, failed = 0, harmless = 0;
  const std::string into = scratch.path("into");
  for (int64_t at = 3; at < bytes; at += 53) {
    scratch.put("into", "the previous file");
    const Relay relay(server->endpoint(), {true, at, true});
    const std::string error =
        error_of([&] { PeerSnapshots(hasty(milliseconds(1000))).fetch(relay.endpoint(), file, into); });
    INFO("bit flipped in byte " << at << ": " << error);
    if (error == "none") {  // in padding
      CHECK((read_file(into) == content));
      ++harmless;
      continue;
    }
    CHECK_THAT(error, Contains("peer: "));
    CHECK(read_file(into) == "the previous file");
    ++failed;
    named += error.find("does not match its checksum") != std::string::npos &&
             error.find("chunk 1 of 1 of '") != std::string::npos;
  }
  CHECK(named > 50);     // 6000 + 77 + 8 + 3000 bytes of data
  CHECK(harmless > 50);  // padding is as long
  CHECK(failed > named);
}

TEST_CASE("a file that is not what its name or its announcement says is not taken", "[exchange]") {
  const Scratch scratch;
  const std::string folder = folder_in(scratch, "served");
  const std::string file = write_sample(folder, small_sample(1));
  const std::string other = to_string(SnapshotName{{9, 2}, 1, 4});
  std::filesystem::copy_file(folder + "/" + file, folder + "/" + other);
  const std::string torn = to_string(SnapshotName{{8, 2}, 1, 4});
  const std::string content = read_file(folder + "/" + file);
  scratch.put("served/" + torn, content.substr(0, content.size() - 4096));
  scratch.put("served/" + to_string(SnapshotName{{7, 2}, 1, 4}), "short");
  const auto server = SnapshotServer::start(server_options({folder}));
  PeerSnapshots peers(identity_of());
  const auto problem_of = [&](const std::string& name, const FetchOptions& options = {}) {
    return error_of([&] { peers.fetch(server->endpoint(), name, scratch.path("a"), options); });
  };
  CHECK_THAT(problem_of(other), Contains("is what should be called '" + file + "'"));
  CHECK_THAT(problem_of(torn), Contains("peer: ") && Contains("is truncated"));
  CHECK_THAT(problem_of(to_string(SnapshotName{{7, 2}, 1, 4})), Contains("has 5 bytes"));
  FetchOptions announced;
  announced.bytes = 5;
  CHECK_THAT(problem_of(file, announced), Contains("bytes; 5 were announced"));
  CHECK(scratch.files() == 1);
}

TEST_CASE("messages of the exchange are refused or hold what they promise, whatever comes", "[exchange]") {
  std::mt19937 random(13);
  const std::string file = to_string(SnapshotName{{12, 3}, 0, 4});
  const std::string_view typical("\x00\x01\x02\x04\xff", 5);
  for (const SnapshotRequest& request :
       {SnapshotRequest(ListSnapshots{}), SnapshotRequest(ReadSnapshot{file, 77, 1 << 20}),
        SnapshotRequest(SnapshotOffer{file, 1 << 30, "10.0.0.7:4711"})}) {
    const std::string whole = encode_request(request);
    CHECK(parse_request(whole) == request);
    CHECK(fuzz::exchange_request(whole));
    CHECK(fuzz::accepted(10'000, whole, random, typical, fuzz::exchange_request) < 9'000);
  }
  std::vector<ServedSnapshot> files;
  for (int64_t step = 0; step < 40; ++step) {
    const SnapshotName name{{step, 2}, step % 4, 4};
    files.push_back({to_string(name), name, 1000 * step, step % 2});
  }
  for (const SnapshotResponse& response :
       {SnapshotResponse(SnapshotRefusal{"no"}), SnapshotResponse(files),
        SnapshotResponse(SnapshotData{5, 70}), SnapshotResponse(OfferPending{}),
        SnapshotResponse(SnapshotTransfer{1, 2})}) {
    const std::string whole = encode_response(response);
    CHECK(parse_response(whole) == response);
    CHECK(fuzz::exchange_response(whole));
    CHECK(fuzz::accepted(10'000, whole, random, typical, fuzz::exchange_response) < 9'900);
  }
  const SnapshotName longest{{INT64_MAX, INT64_MAX}, INT64_MAX - 1, INT64_MAX};
  const std::vector<ServedSnapshot> most(kMostListedFiles, {to_string(longest), longest, 1, 1});
  CHECK(std::get<std::vector<ServedSnapshot>>(parse_response(encode_response(most))) == most);
}
