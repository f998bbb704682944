#include "tests/unit/run/roster_simulation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

using namespace het;
using namespace het::testing;
using std::chrono::milliseconds;

namespace {

int runs(int usual) {
  const char* text = std::getenv("HETRUN_ROSTER_RUNS");
  return text == nullptr ? usual : std::atoi(text);
}

}  // namespace

TEST_CASE("whatever members crash or come, those that live end up in one open generation", "[roster]") {
  const int count = runs(3000);
  int64_t generations = 0;
  for (int seed = 1; seed <= count; ++seed) {
    Settings settings;
    settings.crashes = seed % 5;
    settings.joiners = seed % 3;
    Simulation simulation(static_cast<uint64_t>(seed), settings);
    const std::string problem = simulation.run(milliseconds(6000));
    INFO("seed " << seed << ": " << problem);
    REQUIRE(problem.empty());
    generations += simulation.generations();
  }
  WARN(count << " runs, " << generations << " generations");
}

TEST_CASE("of two members that lose each other one is dropped, and no other", "[roster]") {
  const int count = runs(1000);
  for (int seed = 1; seed <= count; ++seed) {
    Settings settings;
    settings.cut = true;
    Simulation simulation(static_cast<uint64_t>(seed), settings);
    const std::string problem = simulation.run(milliseconds(6000));
    INFO("seed " << seed << ": " << problem);
    REQUIRE(problem.empty());
  }
}

TEST_CASE("whatever the store does, members go on, and number no two generations alike", "[roster]") {
  const int count = runs(1500);
  int64_t generations = 0;
  for (int seed = 1; seed <= count; ++seed) {
    Settings settings;
    settings.timeout = milliseconds(4000);
    settings.restarts = seed % 3;
    settings.silences = seed % 2 + (settings.restarts == 0 ? 1 : 0);
    // Else members that could not write their keys again are dropped, as after a stop.
    if (settings.restarts > 0) settings.longest_silence = 200;
    settings.watch_breaks = seed / 6 % 2 == 0;
    settings.crashes = seed / 12 % 3;
    settings.joiners = seed / 36 % 3;
    settings.lapses = seed / 108 % 2 == 0 ? 0 : 0.3;
    // The store may forget a roster that few have seen: who joined by it may have to join again.
    settings.joins_again =
        settings.lapses != 0 || settings.restarts == 2 || (settings.restarts > 0 && settings.joiners > 0);
    Simulation simulation(static_cast<uint64_t>(seed), settings);
    const std::string problem = simulation.run(milliseconds(12'000));
    INFO("seed " << seed << ": " << problem);
    REQUIRE(problem.empty());
    generations += simulation.generations();
  }
  WARN(count << " runs, " << generations << " generations");
}

TEST_CASE("members that stop for a while or do not reach others come back by other names", "[roster]") {
  const int count = runs(1500);
  int64_t generations = 0;
  for (int seed = 1; seed <= count; ++seed) {
    Settings settings;
    settings.timeout = milliseconds(4000);
    settings.joins_again = true;
    settings.stops = seed % 4;
    settings.partition = seed % 4 == 0 || seed / 4 % 2 == 0;
    settings.crashes = seed / 8 % 3;
    settings.joiners = seed / 24 % 3;
    settings.silences = seed / 72 % 4 == 0 ? 1 : 0;
    settings.restarts = seed / 72 % 4 == 1 ? 1 : 0;
    Simulation simulation(static_cast<uint64_t>(seed), settings);
    const std::string problem = simulation.run(milliseconds(20'000));
    INFO("seed " << seed << ": " << problem);
    REQUIRE(problem.empty());
    generations += simulation.generations();
  }
  WARN(count << " runs, " << generations << " generations");
}

TEST_CASE("a member accepts no other roster of a generation that it knows, and puts its newer one back",
          "[roster]") {
  RosterOptions options;
  options.id = "a";
  RosterMachine machine(options, Time{});
  const auto on = [&](const RosterMachine::Event& event) { return machine.on(event, Time{}); };
  Roster roster;
  roster.number = 3;
  roster.members = {"a"};
  on(RosterMachine::RosterSeen{roster, 10});

  // The store was started again; who created its roster had not seen the newest.
  Roster older = roster;
  older.number = 2;
  on(RosterMachine::Listed{{}, true});
  const auto replacing = on(RosterMachine::RosterSeen{older, 4, true});
  REQUIRE(replacing.size() == 1);
  const auto* const proposal = std::get_if<RosterMachine::Propose>(&replacing[0]);
  REQUIRE(proposal);
  CHECK(proposal->roster == roster);
  CHECK(proposal->revision == 4);

  Roster other = roster;
  other.members = {"a", "b"};
  const auto refusing = on(RosterMachine::RosterSeen{other, 5});
  REQUIRE(refusing.size() == 2);
  CHECK(std::holds_alternative<RosterMachine::Abort>(refusing[0]));
  CHECK(std::holds_alternative<RosterMachine::GiveUp>(refusing[1]));
  CHECK(machine.roster() == roster);
}

TEST_CASE("a member that only waits for others to propose does not wait for ever", "[roster]") {
  RosterOptions options;
  options.id = "c";
  options.launched = 3;
  options.timeout = milliseconds(1000);
  const RosterMachine::Time began{};
  RosterMachine machine(options, began);
  Roster roster;
  roster.number = 1;
  roster.members = {"a", "b", "c"};
  roster.most = 3;
  for (const std::string& id : roster.members) {
    MemberRecord record;
    record.id = id;
    machine.on(RosterMachine::MemberSeen{record, 1}, began);
  }
  machine.on(RosterMachine::RosterSeen{roster, 2}, began);
  machine.on(RosterMachine::Opened{1}, began);
  for (const char* id : {"a", "b"}) {  // which would go on without "c", and say no more
    MemberRecord record;
    record.id = id;
    record.generation = 1;
    record.unreachable = {"c"};
    machine.on(RosterMachine::MemberSeen{record, 3}, began);
  }
  const auto gives_up = [&](milliseconds after) {
    const auto actions = machine.on(RosterMachine::Tick{}, began + after);
    return std::any_of(actions.begin(), actions.end(), [](const RosterMachine::Action& action) {
      return std::holds_alternative<RosterMachine::GiveUp>(action);
    });
  };
  CHECK_FALSE(gives_up(milliseconds(100)));
  CHECK_FALSE(gives_up(milliseconds(1900)));
  CHECK(gives_up(milliseconds(2200)));
}
