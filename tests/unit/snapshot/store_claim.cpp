// One run at a time sends snapshots to a bucket: StoreClaim.
#include "snapshot/store_claim.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "tests/unit/io/scratch.h"
#include "tests/unit/snapshot/s3_server.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;
using State = StoreClaim::State;

namespace {

constexpr std::chrono::milliseconds kNow{0}, kEver{3'600'000};

StoreClaimTimes quick() {
  StoreClaimTimes times;
  times.look = std::chrono::milliseconds(5);
  times.renew = std::chrono::milliseconds(20);
  times.expire = kEver;
  return times;
}

std::shared_ptr<ObjectStore> bucket_of(const S3Server& server) {
  return open_store(Path("s3://bucket/mine"), server.access());
}

}  // namespace

TEST_CASE("a bucket is one run's until it leaves", "[snapshot store]") {
  const S3Server server;
  const auto store = bucket_of(server);
  StoreClaim first(store, 7, false, quick());
  REQUIRE(first.wait(kEver) == State::held);
  for (const int64_t run : {3, 9}) {  // whichever has the lesser number
    StoreClaim other(store, run, false, quick());
    REQUIRE(other.wait(kEver) == State::refused);
    REQUIRE_THAT(other.sentence(),
                 Contains("'s3://bucket/mine' is in use: process " + std::to_string(getpid())));
  }
  StoreClaim same(store, 7, false, quick());  // another rank of the run
  REQUIRE(same.wait(kEver) == State::held);
  REQUIRE(store->list().size() == 1);
  same.leave();
  first.leave();
  REQUIRE(store->list().empty());
  StoreClaim next(store, 9, false, quick());
  REQUIRE(next.wait(kEver) == State::held);
}

TEST_CASE("of runs that come to a bucket at once one goes on", "[snapshot store]") {
  const S3Server server;
  const auto store = bucket_of(server);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<StoreClaim>> all;
    for (int64_t run = 1; run <= 4; ++run)
      all.push_back(std::make_unique<StoreClaim>(store, run, false, quick()));
    int held = 0;
    for (const auto& each : all) held += each->wait(kEver) == State::held ? 1 : 0;
    REQUIRE(held == 1);
    for (const auto& each : all) each->leave();
  }
}

TEST_CASE("a claim that is not renewed any more makes way", "[snapshot store]") {
  const Scratch scratch;
  const std::shared_ptr<ObjectStore> store = open_store(Path(scratch.folder() + "/store"));
  store->put("claims/5", scratch.put("file", "5 123 elsewhere boot/pid:[1] 1 44\n"));
  store->put("claims/nonsense", scratch.put("file", "not of a run"));
  store->put("claims/6", scratch.put("file", std::string(100'000, '6')));
  {
    StoreClaim waits(store, 7, false, quick());
    REQUIRE(waits.wait(std::chrono::milliseconds(100)) == State::looking);
    REQUIRE_THAT(waits.sentence(), Contains("process 123 on elsewhere has trained a run"));
    waits.leave();
  }
  REQUIRE_FALSE(store->size("claims/7"));
  StoreClaimTimes times = quick();
  times.expire = std::chrono::milliseconds(50);
  StoreClaim next(store, 7, false, times);
  REQUIRE(next.wait(kEver) == State::held);
  REQUIRE_FALSE(store->size("claims/5"));
}

TEST_CASE("a process of this machine that has ended keeps no run out", "[snapshot store]") {
  const Scratch scratch;
  const std::shared_ptr<ObjectStore> store = open_store(Path(scratch.folder() + "/store"));
  const pid_t child = fork();
  if (child == 0) {
    const StoreClaim claim(store, 5, false, quick());
    _exit(claim.wait(kEver) == State::held ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(store->size("claims/5"));
  StoreClaim next(store, 7, false, quick());
  REQUIRE(next.wait(kEver) == State::held);
}

TEST_CASE("a run that is met later is named", "[snapshot store]") {
  const Scratch scratch;
  const std::shared_ptr<ObjectStore> store = open_store(Path(scratch.folder() + "/store"));
  StoreClaim claim(store, 7, false, quick());
  REQUIRE(claim.wait(kEver) == State::held);
  REQUIRE(claim.foreign().empty());
  for (int write = 0; claim.foreign().empty(); ++write) {
    store->put("claims/5", scratch.put("file", fmt::format("5 123 elsewhere boot/pid:[1] 1 {}\n", write)));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  REQUIRE_THAT(claim.foreign(), Contains("process 123 on elsewhere trains another run that writes in"));
  REQUIRE(claim.wait(kNow) == State::held);
}

TEST_CASE("a rank that takes over has the claim, and says who came meanwhile", "[snapshot store]") {
  const S3Server server;
  const auto store = bucket_of(server);
  StoreClaim gone(store, 7, false, quick());
  REQUIRE(gone.wait(kEver) == State::held);
  gone.stop();
  REQUIRE(store->size("claims/7"));
  store->remove("claims/7");  // by another run, which the loss of the rank has let in
  StoreClaim other(store, 3, false, quick());
  REQUIRE(other.wait(kEver) == State::held);
  StoreClaim next(store, 7, true, quick());
  REQUIRE(next.wait(kNow) == State::held);
  for (const StoreClaim* claim : {&next, &other}) {
    while (claim->foreign().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE_THAT(claim->foreign(), Contains("trains another run that writes in 's3://bucket/mine'"));
  }
  next.leave();
  REQUIRE_FALSE(store->size("claims/7"));
}

TEST_CASE("a claim that stops while it looks at others stays", "[snapshot store]") {
  const Scratch scratch;
  const std::shared_ptr<ObjectStore> store = open_store(Path(scratch.folder() + "/store"));
  store->put("claims/5", scratch.put("file", "5 123 elsewhere boot/pid:[1] 1 44\n"));
  {
    const StoreClaim looks(store, 7, false, quick());
    while (looks.sentence().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  REQUIRE(store->size("claims/7"));
}

TEST_CASE("a bucket that takes no claim is said, and asked again", "[snapshot store]") {
  S3Server server;
  std::atomic<bool> refuses = true;
  server.fault = [&refuses](const S3Request&) {
    return refuses ? S3Fault{.status = 403, .code = "AccessDenied"} : S3Fault{};
  };
  const auto store = bucket_of(server);
  StoreClaim claim(store, 7, false, quick());
  REQUIRE(claim.wait(kEver) == State::failed);
  REQUIRE_FALSE(claim.sentence().empty());
  refuses = false;
  while (claim.wait(kNow) != State::held) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  REQUIRE(store->size("claims/7"));
  REQUIRE(claim.sentence().empty());
}
