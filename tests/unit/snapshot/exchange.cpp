// Snapshot files between processes: what is listed, read by range and fetched, how often bytes are sent, and
// what is left when servers end.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "core/io/file.h"
#include "tests/unit/snapshot/exchange_testing.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a file is fetched as it is, bit by bit, and listed with what its name says", "[exchange]") {
  const Scratch scratch;
  const std::string memory = folder_in(scratch, "memory"), disk = folder_in(scratch, "disk");
  const SampleState small = small_sample(7), older = small_sample(5, 0);
  const std::string file = write_sample(memory, small), old_file = write_sample(disk, older);
  write_sample(disk, small);  // too: the nearer one is listed
  const std::string large = write_sample(disk, ten_chunks(6));
  scratch.put("disk/notes.txt", "not a snapshot");
  scratch.put("disk/" + file + ".writing-00c0ffee-1", "not finished");
  std::filesystem::create_symlink(disk + "/" + large, disk + "/step-8-generation-2-rank-0-of-1.snapshot");
  const auto server = SnapshotServer::start(server_options({memory, disk, scratch.path("not there")}));
  PeerSnapshots peers(identity_of());

  const std::vector<ServedSnapshot> listed = peers.list(server->endpoint());
  REQUIRE(listed.size() == 3);
  const auto size_of = [](const std::string& path) {
    return static_cast<int64_t>(std::filesystem::file_size(path));
  };
  CHECK(listed[0] == ServedSnapshot{file, {{7, 2}, 1, 4}, size_of(memory + "/" + file), 0});
  CHECK(listed[1] == ServedSnapshot{large, {{6, 2}, 1, 4}, size_of(disk + "/" + large), 1});
  CHECK(listed[2] == ServedSnapshot{old_file, {{5, 2}, 0, 4}, size_of(disk + "/" + old_file), 1});

  for (const ServedSnapshot& held : listed) {
    const std::string into = scratch.path("fetched");
    const SnapshotTransfer transfer = peers.fetch(server->endpoint(), held.file, into);
    CHECK((read_file(into) == read_file((held.folder == 0 ? memory : disk) + "/" + held.file)));
    CHECK(transfer.copied == 0);
    CHECK(transfer.transferred <= held.bytes);
    CHECK(transfer.transferred > held.bytes - 5 * kSnapshotPage);  // all but padding
  }
  CHECK(small.is_in(*SnapshotFile::open(memory + "/" + file)));
}

TEST_CASE("ranges of a file are read without the rest", "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(scratch.folder(), ten_chunks(1));
  const std::string content = read_file(scratch.path(file));
  const auto size = static_cast<int64_t>(content.size());
  const auto server = SnapshotServer::start(server_options({scratch.folder()}));
  PeerSnapshots peers(identity_of());
  for (const auto& [offset, bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {4095, 3}, {size - 1, 1}, {0, size}, {1, 17 << 20}, {12345, 0}}) {
    std::string into(static_cast<size_t>(bytes), '?');
    peers.read_range(server->endpoint(), file, offset, bytes, into.data());
    CHECK((into == content.substr(static_cast<size_t>(offset), static_cast<size_t>(bytes))));
  }
  std::string into(64, '?');
  const auto problem_of = [&](const std::string& name, int64_t offset) {
    return error_of([&] { peers.read_range(server->endpoint(), name, offset, 64, into.data()); });
  };
  CHECK_THAT(problem_of(file, size - 63), Contains("peer: ") && Contains("refuses: '" + file + "' has"));
  CHECK_THAT(problem_of(file, INT64_MAX), Contains("refuses"));
  CHECK_THAT(problem_of("step-9-generation-2-rank-0-of-1.snapshot", 0), Contains("there is no file"));
  CHECK(into == std::string(64, '?'));
}

TEST_CASE("chunks that the previous version has are not sent again", "[exchange]") {
  const Scratch scratch;
  const std::string there = folder_in(scratch, "there"), here = folder_in(scratch, "here");
  const std::string old_file = write_sample(there, ten_chunks(1)),
                    file = write_sample(there, ten_chunks(2, 4));
  const auto server = SnapshotServer::start(server_options({there}));
  PeerSnapshots peers(identity_of());
  const std::string previous = here + "/" + old_file, into = here + "/" + file;
  peers.fetch(server->endpoint(), old_file, previous);
  const std::string old_content = read_file(previous);
  const int64_t data = 10 * kSnapshotChunk + 20;
  FetchOptions options;
  options.previous = previous;

  SECTION("one of ten was changed") {
    const SnapshotTransfer transfer = peers.fetch(server->endpoint(), file, into, options);
    CHECK(transfer.copied == data - kSnapshotChunk);
    CHECK(transfer.transferred > kSnapshotChunk + kSnapshotPage);
    CHECK(transfer.transferred < kSnapshotChunk + 2 * kSnapshotPage);  // header, manifest
  }
  SECTION("nothing was changed") {
    const std::string same = write_sample(there, ten_chunks(3));
    const SnapshotTransfer transfer = peers.fetch(server->endpoint(), same, here + "/" + same, options);
    CHECK(transfer.copied == data);
    CHECK(transfer.transferred < 2 * kSnapshotPage);
    CHECK((read_file(here + "/" + same) == read_file(there + "/" + same)));
    peers.fetch(server->endpoint(), file, into);
  }
  SECTION("a chunk of the previous version is damaged where its checksum is not") {
    std::string damaged = old_content;
    damaged[static_cast<size_t>(2 * kSnapshotPage + 7 * kSnapshotChunk)] ^= 1;
    write_file(previous, damaged);
    const SnapshotTransfer transfer = peers.fetch(server->endpoint(), file, into, options);
    CHECK(transfer.copied == data - 2 * kSnapshotChunk);
  }
  SECTION("the previous version is no snapshot, or is gone") {
    write_file(previous, "no snapshot");
    CHECK(peers.fetch(server->endpoint(), file, into, options).copied == 0);
    std::filesystem::remove(previous);
    CHECK(peers.fetch(server->endpoint(), file, into, options).copied == 0);
  }
  SECTION("units lie elsewhere and have other slices") {
    SampleState cut = ten_chunks(4);
    cut.parts.clear();
    cut.add("w", TensorSlice::whole({10, 1024, 1024}).narrowed(0, Range{0, 4}));
    cut.add("b", TensorSlice::whole({5}));
    const std::string other = write_sample(there, cut);
    const SnapshotTransfer transfer = peers.fetch(server->endpoint(), other, here + "/" + other, options);
    CHECK(transfer.copied == 20);  // `b` alone is the same slice
    CHECK((read_file(here + "/" + other) == read_file(there + "/" + other)));
    peers.fetch(server->endpoint(), file, into);
  }
  CHECK((read_file(into) == read_file(there + "/" + file)));
}

TEST_CASE("a file that is removed while it is read stays readable on its connection", "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(scratch.folder(), ten_chunks(1));
  const std::string content = read_file(scratch.path(file));
  const auto server = SnapshotServer::start(server_options({scratch.folder()}));
  PeerSnapshots reader(identity_of()), other(identity_of());
  std::string into(content.size(), '?');
  reader.read_range(server->endpoint(), file, 0, 10, into.data());
  std::filesystem::remove(scratch.path(file));
  reader.read_range(server->endpoint(), file, 10, static_cast<int64_t>(content.size()) - 10,
                    into.data() + 10);
  CHECK((into == content));
  CHECK(other.list(server->endpoint()).empty());
  CHECK_THAT(error_of([&] { other.fetch(server->endpoint(), file, scratch.path("a")); }),
             Contains("there is no file"));
}

TEST_CASE("a server that ends while it serves ends its connections, and a fetch leaves what was there",
          "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(scratch.folder(), ten_chunks(1));
  const std::string into = scratch.put("into", "the previous file");
  auto server = SnapshotServer::start(server_options({scratch.folder()}));
  const Endpoint endpoint = server->endpoint();
  PeerSnapshots peers(identity_of());
  SECTION("in the middle of a file") {
    const HandClient client(endpoint);
    client.ask(ReadSnapshot{file, 0, 40 << 20});
    REQUIRE(std::holds_alternative<SnapshotData>(client.response()));
    CHECK(read_bytes(client.socket(), 1000).size() == 1000);  // the rest stays in the sockets
    server.reset();
    CHECK(read_bytes(client.socket(), 40 << 20).size() < (40 << 20) - 1000);
  }
  SECTION("between requests of a connection that is kept") {
    peers.list(endpoint);
    server.reset();
  }
  CHECK_THAT(error_of([&] { peers.fetch(endpoint, file, into); }), Contains("peer: "));
  CHECK(read_file(into) == "the previous file");
  CHECK(scratch.files() == 2);
}

TEST_CASE("a client is stopped while it waits for a peer that says nothing", "[exchange]") {
  Endpoint silent{"127.0.0.1", 0};
  const Descriptor listener = listen_at(silent);
  ExchangeIdentity patient = identity_of();
  patient.connect = patient.progress = std::chrono::minutes(10);
  PeerSnapshots peers(patient);
  std::string error;
  std::thread thread([&] { error = error_of([&] { peers.list(silent); }); });
  std::string who;
  Descriptor connection;
  while (!connection) connection = accept_from(listener, who);
  peers.stop();
  thread.join();
  CHECK_THAT(error, Contains("peer: ") && Contains("was ended here"));
  CHECK_THAT(error_of([&] { peers.list(silent); }), Contains("was ended here"));
}

TEST_CASE("servers that start and end leave no descriptor and no thread", "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(scratch.folder(), small_sample(3));
  size_t descriptors = 0, threads = 0;
  for (int round = 0; round < 201; ++round) {
    const auto server = SnapshotServer::start(server_options({scratch.folder()}));
    PeerSnapshots peers(identity_of());
    peers.list(server->endpoint());
    peers.fetch(server->endpoint(), file, scratch.path("into"));
    if (round % 10 == 0) HandClient(server->endpoint()).say("half a fra");
    if (round == 0) {
      descriptors = entries("/proc/self/fd");
      threads = entries("/proc/self/task");
    }
    CHECK(entries("/proc/self/fd") <= descriptors + 2);  // a connection that is closing
    CHECK(entries("/proc/self/task") <= threads + 2);
  }
  CHECK(entries("/proc/self/task") <= threads - 2);
}

TEST_CASE("a connection that asks nothing gives way to a new one, a busy one does not", "[exchange]") {
  const Scratch scratch;
  const std::string file = write_sample(scratch.folder(), ten_chunks(1));
  SnapshotServerOptions options = server_options({scratch.folder()});
  options.connections = 2;
  const auto server = SnapshotServer::start(options);
  const HandClient busy(server->endpoint());
  busy.ask(ReadSnapshot{file, 0, 40 << 20});
  REQUIRE(std::holds_alternative<SnapshotData>(busy.response()));
  const HandClient idle(server->endpoint());
  PeerSnapshots peers(identity_of());
  CHECK(peers.list(server->endpoint()).size() == 1);
  CHECK(is_closed(idle.socket()));
  // For a moment after its answer to `peers` the server still counts that connection as busy.
  std::optional<HandClient> second;
  bool is_served = false;
  for (int tries = 0; tries < 1000 && !is_served; ++tries) {
    second.emplace(server->endpoint());
    second->ask(ReadSnapshot{file, 0, 40 << 20});
    is_served = std::holds_alternative<SnapshotData>(second->response());
    if (!is_served) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(is_served);
  PeerSnapshots late(identity_of());
  CHECK_THAT(error_of([&] { late.list(server->endpoint()); }),
             Contains("refuses: all 2 connections are busy"));
  CHECK(read_bytes(busy.socket(), 40 << 20).size() == 40 << 20);
}
