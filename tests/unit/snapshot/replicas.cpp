// Replicas: what is offered is kept, within a budget, whatever members die.
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include <sched.h>
#include <sys/stat.h>

#include "core/io/file.h"
#include "snapshot/replica_store.h"
#include "tests/unit/snapshot/exchange_testing.h"
#include "tests/unit/snapshot/relay.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

constexpr int64_t kNoLimit = int64_t{1} << 40;

int64_t size_of(const std::string& path) { return static_cast<int64_t>(std::filesystem::file_size(path)); }

// A member that has snapshots, and one that keeps replicas of them.
struct TwoMembers {
  Scratch scratch;
  Sentences warnings;
  std::string own = folder_in(scratch, "own"), replicas = folder_in(scratch, "replicas");
  std::unique_ptr<SnapshotServer> server = SnapshotServer::start(server_options({own}));

  ReplicaStoreOptions options(int64_t budget = kNoLimit) {
    ReplicaStoreOptions options;
    options.folder = replicas;
    options.budget_bytes = budget;
    options.identity = identity_of();
    options.warn = [this](const std::string& sentence) { warnings.add(sentence); };
    return options;
  }
  SnapshotOffer offer_of(const std::string& file) const {
    return {file, size_of(own + "/" + file), to_string(server->endpoint())};
  }
  std::string write(int64_t step, int rank = 1, int64_t generation = 2) const {
    SampleState state = small_sample(static_cast<uint32_t>(step), rank);
    state.manifest.version.generation = generation;
    return write_sample(own, state);
  }
  bool is_equal(const std::string& file) const {
    return read_file(own + "/" + file) == read_file(replicas + "/" + file);
  }
};

SnapshotResponse outcome_of(ReplicaStore& store, const SnapshotOffer& offer) {
  const StopSignal never;
  const auto response = store.on_offer(offer)->wait(std::chrono::seconds(20), never);
  if (!response) fail(ErrorKind::bug, "nothing became of the offer");
  return *response;
}
bool is_stored(const SnapshotResponse& response) {
  return std::holds_alternative<SnapshotTransfer>(response);
}
std::string refusal_in(const SnapshotResponse& response) {
  const auto* refusal = std::get_if<SnapshotRefusal>(&response);
  return refusal == nullptr ? "none" : refusal->sentence;
}
std::vector<std::string> held_by(const ReplicaStore& store) {
  std::vector<std::string> files;
  for (const HeldReplica& replica : store.held()) files.push_back(replica.file);
  return files;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("what is offered becomes a replica, and later versions send what has changed", "[exchange]") {
  TwoMembers members;
  ReplicaStore store(members.options());
  const std::string first = write_sample(members.own, ten_chunks(1)),
                    second = write_sample(members.own, ten_chunks(2, 3)), other = members.write(2, 0);
  CHECK(is_stored(outcome_of(store, members.offer_of(first))));
  const SnapshotResponse response = outcome_of(store, members.offer_of(second));
  REQUIRE(is_stored(response));
  CHECK(std::get<SnapshotTransfer>(response).transferred < kSnapshotChunk + 2 * kSnapshotPage);
  CHECK(is_stored(outcome_of(store, members.offer_of(other))));
  CHECK(held_by(store) == Names{other, second, first});
  for (const std::string& file : {first, second, other}) CHECK(members.is_equal(file));
  CHECK(outcome_of(store, members.offer_of(second)) == SnapshotResponse(SnapshotTransfer{}));  // again
  CHECK_THAT(refusal_in(outcome_of(store, {to_string(SnapshotName{{1, 1}, 1, 4}), 9000, "127.0.0.1:1"})),
             Contains("is here, which is later"));
  store.drop_before({2, 2});
  CHECK(held_by(store) == Names{other, second});
  CHECK(std::filesystem::exists(members.replicas + "/" + second));
  CHECK_FALSE(std::filesystem::exists(members.replicas + "/" + first));
  CHECK(members.warnings.size() == 0);
}

TEST_CASE("the memory of a dropped replica serves the next one of its size", "[exchange]") {
  TwoMembers members;
  const auto inode_of = [&](const std::string& file) {
    struct stat about {};
    REQUIRE(stat((members.replicas + "/" + file).c_str(), &about) == 0);
    return about.st_ino;
  };
  const auto files_there = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(members.replicas))
      count += entry.is_regular_file() ? 1 : 0;
    return count;
  };
  const std::string first = members.write(1), second = members.write(2), third = members.write(3),
                    longer = write_sample(members.own, ten_chunks(4));
  {
    ReplicaStore store(members.options());
    for (const std::string& file : {first, second})
      CHECK(is_stored(outcome_of(store, members.offer_of(file))));
    const auto inode = inode_of(first);
    store.drop_before({2, 2});
    CHECK(held_by(store) == Names{second});
    CHECK(files_there() == 2);
    CHECK(is_stored(outcome_of(store, members.offer_of(third))));
    CHECK(inode_of(third) == inode);
    CHECK(members.is_equal(third));
    store.drop_before({3, 2});

    SECTION("one of another size does not fit, and is freed with the next that is dropped") {
      CHECK(is_stored(outcome_of(store, members.offer_of(longer))));
      CHECK(members.is_equal(longer));
      store.drop_before({4, 2});  // the third one beside the second
      for (int waits = 0; waits < 2000 && files_there() > 2; ++waits)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      CHECK(files_there() == 2);
    }
    SECTION("what a failed fetch was to use is freed") {
      SnapshotOffer gone = members.offer_of(third);
      gone.file = to_string(SnapshotName{{9, 2}, 1, 4});
      CHECK_THAT(refusal_in(outcome_of(store, gone)), Contains("there is no file"));
      members.warnings.wait_for_one(gone.file);
      CHECK(files_there() == 1);
    }
    SECTION("it counts in the budget") {
      store.set_budget(size_of(members.own + "/" + longer) + size_of(members.own + "/" + third) + 1);
      CHECK(is_stored(outcome_of(store, members.offer_of(longer))));
      CHECK(held_by(store) == Names{longer, third});
      CHECK(files_there() == 2);
    }
  }
  size_t whole = 0;
  for (const std::string& file : {third, longer})
    whole += std::filesystem::exists(members.replicas + "/" + file) ? 1 : 0;
  CHECK(files_there() == whole);
}

TEST_CASE("fetches at idle priority are given up where they take much longer, and tried again later",
          "[exchange]") {
  constexpr int64_t kBytes = 100'000'000;
  FetchPriority priority;
  const auto normal_ones = [&] {
    int count = 0;
    for (; !priority.is_idle(); ++count) priority.count_normal(kBytes, 0.1);
    return count;
  };
  CHECK(normal_ones() == 1);
  CHECK(priority.limit(kBytes) == std::chrono::milliseconds(400));  // three times as long, and 0.1 s
  priority.give_up_idle();
  CHECK(normal_ones() == 4);
  priority.give_up_idle();
  CHECK(normal_ones() == 8);
  for (int success = 0; success < 3; ++success) priority.count_idle(kBytes, 0.3);
  CHECK(priority.is_idle());
  priority.give_up_idle();
  CHECK(normal_ones() == 4);
  priority.count_idle(kBytes, 0.05);
  CHECK(priority.limit(kBytes) == std::chrono::milliseconds(250));  // the one at normal priority was delayed
  for (int i = 0; i < 20; ++i) priority.give_up_idle();
  CHECK(normal_ones() == 256);
}

TEST_CASE("a connection at idle priority is served at it", "[exchange]") {
  const Scratch scratch;
  const auto server = SnapshotServer::start(server_options({scratch.folder()}));
  const auto idle_threads = [] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
      count += sched_getscheduler(std::stoi(entry.path().filename())) == SCHED_IDLE ? 1 : 0;
    return count;
  };
  ExchangeIdentity identity = identity_of();
  PeerSnapshots normal(identity);
  normal.list(server->endpoint());
  CHECK(idle_threads() == 0);
  identity.idle = true;
  PeerSnapshots idle(identity);
  idle.list(server->endpoint());
  CHECK(idle_threads() == 1);
}

TEST_CASE("a replica that does not come at idle priority comes at normal priority", "[exchange]") {
  TwoMembers members;
  Relay::Fault fault;
  fault.silent = 1;
  Relay relay(members.server->endpoint(), fault);
  ReplicaStore store(members.options());
  const std::string first = members.write(1), second = members.write(2);
  CHECK(is_stored(outcome_of(store, members.offer_of(first))));
  SnapshotOffer offer = members.offer_of(second);
  offer.from = to_string(relay.endpoint());
  CHECK(is_stored(outcome_of(store, offer)));
  CHECK(members.is_equal(second));
  CHECK(members.warnings.size() == 0);
}

TEST_CASE("what was trained after a rollback is later than what was rolled back", "[exchange]") {
  TwoMembers members;
  ReplicaStore store(members.options());
  const std::string before = members.write(10), rolled_back = members.write(20),
                    after = members.write(15, 1, 3);
  for (const std::string& file : {before, rolled_back, after})
    CHECK(is_stored(outcome_of(store, members.offer_of(file))));
  CHECK(held_by(store) == Names{after, rolled_back, before});
  store.drop_before({15, 3});
  CHECK(held_by(store) == Names{after});
}

TEST_CASE("a short budget drops earlier versions of the rank, then of others, never a rank's latest",
          "[exchange]") {
  TwoMembers members;
  const std::string rank1 = members.write(1), rank1_2 = members.write(2), rank1_3 = members.write(3),
                    rank0 = members.write(1, 0), rank0_2 = members.write(2, 0), rank2 = members.write(3, 2);
  const int64_t size = size_of(members.own + "/" + rank1);
  ReplicaStore store(members.options(4 * size + size / 2));
  for (const std::string& file : {rank1, rank0, rank0_2, rank1_2})
    CHECK(is_stored(outcome_of(store, members.offer_of(file))));
  CHECK(held_by(store) == Names{rank0_2, rank0, rank1_2, rank1});
  CHECK(is_stored(outcome_of(store, members.offer_of(rank1_3))));
  CHECK(held_by(store) == Names{rank0_2, rank0, rank1_3, rank1_2});
  CHECK(is_stored(outcome_of(store, members.offer_of(rank2))));
  CHECK(held_by(store) == Names{rank0_2, rank1_3, rank1_2, rank2});

  SECTION("where only the latest are left, nothing goes") {
    members.server.reset();
    ReplicaStoreOptions tight = members.options(size + size / 2);
    tight.folder = members.scratch.path("tight");
    members.server = SnapshotServer::start(server_options({members.own}));
    ReplicaStore narrow(tight);
    CHECK(is_stored(outcome_of(narrow, members.offer_of(rank1))));
    CHECK_THAT(
        refusal_in(outcome_of(narrow, members.offer_of(rank1_2))),
        Contains("no replica of '" + rank1_2 + "' was made") && Contains("the latest ones of all ranks"));
    CHECK(held_by(narrow) == Names{rank1});
  }
  SECTION("a file above all of the budget is refused at once") {
    SnapshotOffer large = members.offer_of(rank1);
    large.file = to_string(SnapshotName{{9, 2}, 1, 4});
    large.bytes = 5 * size;
    CHECK_THAT(refusal_in(outcome_of(store, large)), Contains("and replicas may take"));
  }
  SECTION("a version that cannot be fetched leaves the latest whole one") {
    SnapshotOffer gone = members.offer_of(rank1);
    gone.file = to_string(SnapshotName{{9, 2}, 1, 4});
    CHECK_THAT(refusal_in(outcome_of(store, gone)), Contains("there is no file"));
    CHECK_THAT(members.warnings.wait_for_one(gone.file), Contains("no replica of"));
    CHECK(held_by(store) == Names{rank0_2, rank1_3, rank2});
    CHECK(members.is_equal(rank1_3));
  }
}

TEST_CASE("a store takes over whole replicas of an earlier process, and removes what it left unfinished",
          "[exchange]") {
  TwoMembers members;
  const std::string first = members.write(1), second = members.write(2);
  {
    ReplicaStore store(members.options());
    for (const std::string& file : {first, second}) outcome_of(store, members.offer_of(file));
    CHECK_THAT(error_of([&] { ReplicaStore again(members.options()); }),
               Contains("usage: another process keeps its replicas in"));
  }
  const std::string torn = to_string(SnapshotName{{3, 2}, 1, 4});
  const std::string content = read_file(members.own + "/" + second);
  members.scratch.put("replicas/" + torn, content.substr(0, content.size() - 1));
  members.scratch.put("replicas/" + torn + ".writing-00c0ffee-7", "half of it");
  members.scratch.put("replicas/notes", "of a person");
  const ReplicaStore store(members.options());
  CHECK(held_by(store) == Names{second, first});
  CHECK_THAT(members.warnings.wait_for_one(torn), Contains("a replica is removed"));
  CHECK_FALSE(std::filesystem::exists(members.replicas + "/" + torn));
  CHECK_FALSE(std::filesystem::exists(members.replicas + "/" + torn + ".writing-00c0ffee-7"));
  CHECK(std::filesystem::exists(members.replicas + "/notes"));
}

TEST_CASE("an offer that has not begun gives way to a later one of its rank", "[exchange]") {
  TwoMembers members;
  Endpoint silent{"127.0.0.1", 0};
  const Descriptor listener = listen_at(silent);
  const std::string first = members.write(1), second = members.write(2), third = members.write(3);
  std::shared_ptr<OfferOutcome> stuck, earlier, later, older;
  const StopSignal never;
  {
    ReplicaStoreOptions options = members.options();
    options.identity.connect = options.identity.progress = std::chrono::minutes(10);
    ReplicaStore store(options);
    // The thread is held by a peer that says nothing.
    stuck = store.on_offer({to_string(SnapshotName{{1, 2}, 0, 4}), 9000, to_string(silent)});
    std::string who;
    Descriptor held;
    while (!held && wait_for(listener, Ready::read, soon())) held = accept_from(listener, who);
    earlier = store.on_offer(members.offer_of(second));
    later = store.on_offer(members.offer_of(third));
    older = store.on_offer(members.offer_of(first));
    CHECK_THAT(refusal_in(*earlier->wait(std::chrono::seconds(20), never)),
               Contains("'" + second + "' gave way to '" + third + "'"));
    CHECK_THAT(refusal_in(*older->wait(std::chrono::seconds(20), never)),
               Contains("'" + first + "' gave way to '" + third + "'"));
    SECTION("and is fetched when its turn comes") {
      held = Descriptor();
      CHECK(is_stored(*later->wait(std::chrono::seconds(20), never)));
      CHECK(held_by(store) == Names{third});
    }
    SECTION("or not, when the store ends") {}
  }
  CHECK_FALSE(is_stored(*stuck->wait(std::chrono::seconds(20), never)));
  CHECK(later->wait(std::chrono::seconds(20), never).has_value());
}
