// Members of a run (core/run/member.h) over each kind of store: they form generations, lose members and take
// in others, with traffic over the network of this machine.
#include "core/run/member.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/cluster/embedded_store.h"
#include "core/cluster/store_key_value.h"
#include "core/comm/tcp.h"
#include "core/net/socket.h"
#include "core/run/generation.h"
#include "tests/unit/core/cluster_testing.h"

using namespace het;
using namespace het::testing;
using std::chrono::milliseconds;

namespace {

// An embedded store that can be started again, empty, where it was.
class RestartedStore final : public StoreUnderTest {
 public:
  RestartedStore() { serve(0); }
  void restart() {
    const int port = parse_endpoint(server_->endpoint()).port;
    server_.reset();
    serve(port);
  }
  std::shared_ptr<Store> connect() override { return connect_where(where()); }
  std::string where() const override { return "embedded " + server_->endpoint(); }

 private:
  void serve(int port) {
    StoreServerOptions options;
    options.address = "127.0.0.1";
    options.port = port;
    options.secret = kClusterSecret;
    server_ = serve_store(options);
  }

  std::unique_ptr<StoreServer> server_;
};

// A member with what a process has of it.
struct Process {
  std::shared_ptr<Store> store;
  std::shared_ptr<Acceptor> acceptor;
  std::shared_ptr<Member> member;
  std::unique_ptr<Generation> generation;
};

struct Script {
  StoreUnderTest& under_test;
  std::string run;
  int launched = 3, least = 1, most = 4;
  milliseconds steady{300'000}, timeout{20'000};

  Process begin(int order, const std::string& recipe = "r") const {
    Process process;
    process.store = under_test.connect();
    AcceptorOptions listening;
    listening.address = "127.0.0.1";
    listening.run = run;
    listening.secret = kClusterSecret;
    process.acceptor = std::make_shared<Acceptor>(listening);
    MemberOptions options;
    options.store = process.store;
    options.run = run;
    options.secret = kClusterSecret;
    options.launched = launched;
    options.least = least;
    options.most = most;
    options.steady = steady;
    options.timeout = timeout;
    options.record.host = "here";
    options.record.order = order;
    options.record.recipe_digest = recipe;
    options.record.about = fmt::format("of order {}", order);
    options.record.address = to_string(process.acceptor->endpoint());
    process.member = std::make_shared<Member>(std::move(options));
    return process;
  }

  // The next generation of a process. False: the run has ended.
  bool open(Process& process) const {
    const auto fabric_of = [&](const Member::Formation& formation, Generation::Ended ended) {
      TcpOptions tcp;
      tcp.run = run;
      tcp.secret = kClusterSecret;
      tcp.store = tcp.board =
          make_store_key_value(process.store, fmt::format("{}.traffic/{}/", run, formation.roster.number),
                               [member = process.member] { return member->lease(); });
      tcp.prefix = "traffic";
      tcp.rank = formation.rank;
      tcp.size = static_cast<int>(formation.members.size());
      tcp.generation = formation.roster.number;
      tcp.acceptor = process.acceptor;
      for (const MemberRecord& record : formation.members)
        tcp.addresses.push_back({record.host, parse_endpoint(record.address)});
      tcp.ended = std::move(ended);
      return make_tcp(std::move(tcp));
    };
    process.generation.reset();
    process.generation = next_generation(process.member, fabric_of);
    return process.generation != nullptr;
  }

  // Of all of them, at once.
  void open(std::vector<Process*> processes) const {
    std::vector<std::future<bool>> opening;
    for (Process* process : processes)
      opening.push_back(std::async(std::launch::async, [this, process] { return open(*process); }));
    for (auto& each : opening) REQUIRE(each.get());
  }
};

// Sums a number of each rank, at all of them.
void check_traffic(const std::vector<Process*>& processes) {
  std::vector<std::future<double>> sums;
  for (Process* process : processes)
    sums.push_back(std::async(std::launch::async, [process] {
      CollectiveRequest request;
      request.kind = CollectiveKind::all_reduce;
      request.dtype = DType::f64;
      request.counts = {1};
      double number = process->generation->rank() + 1;
      auto* bytes = reinterpret_cast<std::byte*>(&number);
      run_once(process->generation->world(), request, bytes, bytes);
      return number;
    }));
  const auto count = static_cast<double>(processes.size());
  for (auto& sum : sums) CHECK(sum.get() == count * (count + 1) / 2);
}

void check_generation(const std::vector<Process*>& processes, int64_t number) {
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    const Generation& generation = *processes[rank]->generation;
    INFO(generation.formation().roster.reason);
    CHECK(generation.number() == number);
    CHECK(generation.rank() == static_cast<int>(rank));
    CHECK(generation.formation().roster == processes[0]->generation->formation().roster);
    CHECK(generation.formation().roster.members[rank] == processes[rank]->member->id());
  }
  check_traffic(processes);
}

template <typename Condition>
void await(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + kStoreHung;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

std::string sentence_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("members form generations, leave, join and end the run over every store", "[member]") {
  for (const StoreKind& kind : store_kinds()) {
    INFO(kind.name);
    const auto under_test = kind.start();
    const Script script{*under_test, "members"};
    Process a = script.begin(2), b = script.begin(0), c = script.begin(1);
    script.open({&a, &b, &c});
    check_generation({&b, &c, &a}, 1);  // in the order of their launch

    c.member->leave();
    c.generation->close("it leaves");
    script.open({&a, &b});
    check_generation({&b, &a}, 2);
    CHECK(a.generation->formation().roster.lost.size() == 1);

    Process d = script.begin(-1);
    await([&] { return a.member->waiting() == 1 && b.member->waiting() == 1; });
    REQUIRE(b.member->spares().size() == 1);
    CHECK(b.member->spares()[0].about == "of order -1");
    for (Process* each : {&a, &b}) {
      each->member->ask_change(2, "others join");
      each->generation->close("others join", true);
    }
    script.open({&a, &b, &d});
    check_generation({&b, &a, &d}, 3);
    CHECK(d.generation->formation().joined);
    CHECK_FALSE(a.generation->formation().joined);
    CHECK(a.member->waiting() == 0);

    for (Process* each : {&a, &b, &d}) each->member->end_run("nothing has all of the state");
    for (Process* each : {&a, &b, &d}) CHECK_FALSE(script.open(*each));
    Process late = script.begin(-1);
    CHECK_FALSE(script.open(late));
    REQUIRE(late.member->roster());
    CHECK(late.member->roster()->reason == "nothing has all of the state");

    // The next run of this name.
    for (Process* each : {&a, &b, &d, &late}) each->member->leave();
    Process e = script.begin(0), f = script.begin(1), g = script.begin(2);
    script.open({&e, &f, &g});
    check_generation({&e, &f, &g}, 5);
    CHECK(e.member->roster()->first == 5);
    g.member->leave();
    g.generation->close("it leaves");
    script.open({&e, &f});
    check_generation({&e, &f}, 6);
    CHECK(f.member->roster()->first == 5);
  }
}

namespace {

// The last of three members loses the others, and joins again by another id.
void drop_and_take_in(const Script& script, Process& a, Process& b, Process& c) {
  const std::string before = c.member->id();
  const int64_t number = a.generation->number();
  for (Process* each : {&a, &b}) {
    each->member->peer_lost(number, 2);
    each->generation->close("rank 2 is lost");
  }
  auto again = std::async(std::launch::async, [&] {
    c.generation->close("rank 2 is lost");
    return script.open(c);
  });
  script.open({&a, &b});
  check_generation({&a, &b}, number + 1);
  await([&] { return a.member->waiting() == 1 && b.member->waiting() == 1; });
  for (Process* each : {&a, &b}) {
    each->member->ask_change(number + 1, "others join");
    each->generation->close("others join", true);
  }
  script.open({&a, &b});
  REQUIRE(again.get());
  check_generation({&a, &b, &c}, number + 2);
  CHECK(c.member->id() != before);
  CHECK(c.generation->formation().joined);
}

}  // namespace

TEST_CASE("a member that others do not reach joins again by another id", "[member]") {
  for (const StoreKind& kind : store_kinds()) {
    INFO(kind.name);
    const auto under_test = kind.start();
    const Script script{*under_test, "again"};
    Process a = script.begin(0), b = script.begin(1), c = script.begin(2);
    script.open({&a, &b, &c});
    drop_and_take_in(script, a, b, c);
  }
}

TEST_CASE("evictions before a long time with the others do not count", "[member]") {
  RestartedStore store;
  Script script{store, "steady"};
  script.steady = milliseconds(0);
  Process a = script.begin(0), b = script.begin(1), c = script.begin(2);
  script.open({&a, &b, &c});
  for (int i = 0; i < 4; ++i) drop_and_take_in(script, a, b, c);
}

TEST_CASE("members go on when the embedded store starts again", "[member]") {
  RestartedStore store;
  const Script script{store, "restart"};
  Process a = script.begin(0), b = script.begin(1), c = script.begin(2);
  script.open({&a, &b, &c});
  for (int i = 0; i < 2; ++i) {
    store.restart();
    check_generation({&a, &b, &c}, 1);  // which goes on
    const auto client = store.connect();
    await(
        [&] { return client->list("restart/member/").entries.size() == 3 && client->get("restart/roster"); });
  }

  Process d = script.begin(-1);
  await([&] { return a.member->waiting() == 1 && b.member->waiting() == 1 && c.member->waiting() == 1; });
  for (Process* each : {&a, &b, &c}) {
    each->member->ask_change(1, "others join");
    each->generation->close("others join", true);
  }
  script.open({&a, &b, &c, &d});
  const int64_t number = a.generation->number();
  CHECK(number > 1000);  // another member could have seen some that these have not
  check_generation({&a, &b, &c, &d}, number);

  store.restart();
  c.member->leave();
  c.generation->close("it leaves");
  script.open({&a, &b, &d});
  check_generation({&a, &b, &d}, a.generation->number());
  CHECK(a.generation->number() > number);
}

TEST_CASE("members that are too few wait for others, and then go on among themselves", "[member]") {
  const StoreKind kind = store_kinds().front();
  const auto under_test = kind.start();
  Script script{*under_test, "few"};
  script.least = 3;
  script.timeout = milliseconds(1'500);
  Process a = script.begin(0), b = script.begin(1), c = script.begin(2);
  script.open({&a, &b, &c});

  SECTION("without a new member") {
    c.member->leave();
    c.generation->close("it leaves");
    const auto began = std::chrono::steady_clock::now();
    script.open({&a, &b});
    CHECK(std::chrono::steady_clock::now() - began >= script.timeout);
    check_generation({&a, &b}, 2);
    const Roster& roster = a.generation->formation().roster;
    CHECK(roster.least == 3);
    CHECK_THAT(roster.reason, Catch::Contains("2 of at least 3 ranks were there within 1.5 s"));
    b.member->leave();  // another loss is not waited for
    b.generation->close("it leaves");
    script.open({&a});
    check_generation({&a}, 3);
  }

  SECTION("with a new member") {
    c.member->leave();
    c.generation->close("it leaves");
    Process d = script.begin(-1);
    script.open({&a, &b, &d});
    check_generation({&a, &b, &d}, 2);
    CHECK_THAT(a.generation->formation().roster.reason, !Catch::Contains("at least"));
  }
}

TEST_CASE("who comes to a full run waits; who has another recipe is refused", "[member]") {
  for (const StoreKind& kind : store_kinds()) {
    INFO(kind.name);
    const auto under_test = kind.start();
    Script script{*under_test, "full"};
    script.launched = script.most = 2;
    Process a = script.begin(0), b = script.begin(1);
    script.open({&a, &b});
    CHECK_THAT(sentence_of([&] { script.begin(-1, "another"); }),
               Catch::Matchers::Contains("another recipe than the member of run 'full' on here"));
    Process c = script.begin(-1);
    await([&] { return c.member->roster().has_value(); });
    CHECK(c.member->roster()->most == 2);
    CHECK(a.member->waiting() == 0);
    // It has no place yet, and takes that of the next who is lost.
    await([&] { return a.member->spares().size() == 1; });
    CHECK(a.member->spares()[0].id == c.member->id());
    CHECK(a.member->spares()[0].host == "here");
    CHECK(a.member->spares()[0].about == "of order -1");
    CHECK(c.member->spares().empty());
    b.member->leave();
    b.generation->close("it leaves");
    script.open({&a, &c});
    check_generation({&a, &c}, 2);
    await([&] { return a.member->spares().empty(); });
  }
}
