// The protocol of rosters (core/run/roster.h) in every order of events, to a depth: three members in an open
// generation; one crashes, an answer of the store is lost and a fourth comes. Members receive the events of
// the store and of their connections in turn; time goes on whenever a member waits for it. Two orders that
// give each member the same events at the same times lead to the same state, which is examined once.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/run/roster.h"

using namespace het;
using std::chrono::milliseconds;

namespace {

using Time = RosterMachine::Time;
using Event = RosterMachine::Event;

constexpr milliseconds kPatience{1'000'000};  // for longer no schedule goes on

uint64_t mixed(uint64_t hash, uint64_t value) {
  return (hash ^ (value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2))) * 0xff51afd7ed558ccdULL;
}
uint64_t mixed(uint64_t hash, const std::string& text) { return mixed(hash, std::hash<std::string>{}(text)); }

std::string text_of(const Event& event) {
  if (const auto* seen = std::get_if<RosterMachine::MemberSeen>(&event)) return to_text(seen->record);
  if (const auto* gone = std::get_if<RosterMachine::MemberGone>(&event)) return "gone " + gone->id;
  if (const auto* seen = std::get_if<RosterMachine::RosterSeen>(&event))
    return fmt::format("{} {}", to_text(seen->roster), seen->revision);
  if (const auto* lost = std::get_if<RosterMachine::PeerLost>(&event))
    return fmt::format("lost {} {}", lost->generation, lost->id);
  if (const auto* broken = std::get_if<RosterMachine::Broken>(&event))
    return fmt::format("broken {}", broken->generation);
  if (const auto* opened = std::get_if<RosterMachine::Opened>(&event))
    return fmt::format("opened {}", opened->generation);
  return fmt::format("event {}", event.index());
}

struct Process {
  RosterMachine machine;
  MemberRecord record;
  bool alive = true;
  int64_t formed = 0, opened = 0, aborted = 0;
  std::deque<Event> store;  // what the store has to tell it, in order
  std::set<Time> wakes;
  uint64_t events = 0;  // hash of all that it received, and when
};

// All there is, to be copied at each branch.
struct World {
  Time now{};
  std::vector<Process> processes;
  std::map<std::string, std::pair<MemberRecord, int64_t>> keys;
  std::optional<Roster> roster;
  int64_t revision = 0, revision_of_roster = 0;
  std::map<int64_t, std::string> rosters;
  std::vector<std::pair<size_t, Event>> traffic;  // what connections have to tell, in any order
  int crashes = 1, lost_answers = 1, joiners = 1;
  std::string problem;
};

class Interleavings {
 public:
  explicit Interleavings(int depth) : depth_(depth) {}

  // Returns what is wrong in some order; empty: nothing in any.
  std::string explore() {
    World world;
    for (int i = 0; i < 3; ++i) come(world, i);
    // They have begun: the first generation is open at all.
    for (int steps = 0; steps < 200; ++steps)
      if (!step_in_order(world)) break;
    for (const Process& process : world.processes)
      if (process.opened != 1) return "the first generation is not open";
    visit(world, depth_);
    return problem_;
  }
  int64_t states() const { return static_cast<int64_t>(seen_.size()); }
  int64_t ends() const { return ends_; }

 private:
  static RosterOptions options_of(const std::string& id, bool joins) {
    RosterOptions options;
    options.id = id;
    options.joins = joins;
    options.launched = 3;
    options.most = 4;
    options.timeout = 2 * kPatience;
    return options;
  }

  static void come(World& world, int order) {
    const std::string id = fmt::format("m{}", world.processes.size());
    Process process{RosterMachine(options_of(id, order < 0), world.now), {}, true, 0, 0, 0, {}, {}, 0};
    process.record.id = id;
    process.record.order = order;
    for (const auto& [other, stored] : world.keys)
      process.store.push_back(RosterMachine::MemberSeen{stored.first, stored.second});
    if (world.roster)
      process.store.push_back(RosterMachine::RosterSeen{*world.roster, world.revision_of_roster});
    world.processes.push_back(std::move(process));
    put(world, world.processes.size() - 1);
  }

  static void tell_all(World& world, const Event& event) {
    for (Process& process : world.processes)
      if (process.alive) process.store.push_back(event);
  }
  static void put(World& world, size_t p) {
    const MemberRecord& record = world.processes[p].record;
    const auto [entry, fresh] = world.keys.try_emplace(record.id, record, world.revision + 1);
    entry->second.first = record;
    ++world.revision;
    tell_all(world, RosterMachine::MemberSeen{record, entry->second.second});
  }

  // --- what may happen next

  // All branches of a state, each a change of a copy.
  static std::vector<std::function<void(World&)>> branches(const World& world) {
    std::vector<std::function<void(World&)>> all;
    for (size_t p = 0; p < world.processes.size(); ++p) {
      const Process& process = world.processes[p];
      if (process.alive && !process.store.empty())
        all.push_back([p](World& w) {
          const Event event = w.processes[p].store.front();
          w.processes[p].store.pop_front();
          feed(w, p, event, false);
        });
      if (process.alive && process.opened > process.aborted && world.crashes > 0)
        all.push_back([p](World& w) { crash(w, p); });
      if (!process.alive && world.keys.count(process.record.id) != 0)
        all.push_back([p](World& w) {
          w.keys.erase(w.processes[p].record.id);
          ++w.revision;
          tell_all(w, RosterMachine::MemberGone{w.processes[p].record.id});
        });
    }
    for (size_t t = 0; t < world.traffic.size(); ++t)
      all.push_back([t](World& w) {
        const auto [p, event] = w.traffic[t];
        w.traffic.erase(w.traffic.begin() + static_cast<std::ptrdiff_t>(t));
        if (w.processes[p].alive) feed(w, p, event, false);
      });
    if (world.lost_answers > 0)  // the store makes a proposal and does not say so
      for (size_t p = 0; p < world.processes.size(); ++p)
        if (world.processes[p].alive && !world.processes[p].wakes.empty() &&
            *world.processes[p].wakes.begin() <= world.now)
          all.push_back([p](World& w) { tick(w, p, true); });
    for (size_t p = 0; p < world.processes.size(); ++p)
      if (world.processes[p].alive && !world.processes[p].wakes.empty() &&
          *world.processes[p].wakes.begin() <= world.now)
        all.push_back([p](World& w) { tick(w, p, false); });
    const std::optional<Time> next = next_wake(world);
    if (next && *next > world.now) all.push_back([next](World& w) { w.now = *next; });
    if (world.joiners > 0)
      all.push_back([](World& w) {
        --w.joiners;
        come(w, -1);
      });
    return all;
  }

  static std::optional<Time> next_wake(const World& world) {
    std::optional<Time> next;
    for (const Process& process : world.processes)
      if (process.alive && !process.wakes.empty() && (!next || *process.wakes.begin() < *next))
        next = *process.wakes.begin();
    return next;
  }

  static void tick(World& world, size_t p, bool loses_answer) {
    std::set<Time>& wakes = world.processes[p].wakes;
    wakes.erase(wakes.begin(), wakes.upper_bound(world.now));
    feed(world, p, RosterMachine::Tick{}, loses_answer);
  }

  static void crash(World& world, size_t p) {
    --world.crashes;
    world.processes[p].alive = false;
    for (size_t other = 0; other < world.processes.size(); ++other)
      if (other != p && world.processes[other].alive && world.processes[other].opened > 0)
        world.traffic.emplace_back(
            other, RosterMachine::PeerLost{world.processes[other].opened, world.processes[p].record.id});
  }

  // The first thing that can happen, time last; false: none, without crashes and joiners.
  static bool step_in_order(World& world) {
    world.crashes = world.joiners = world.lost_answers = 0;
    const auto all = branches(world);
    if (!all.empty()) all.front()(world);
    world.crashes = world.joiners = world.lost_answers = 1;
    return !all.empty();
  }

  // --- what members do

  static void feed(World& world, size_t p, const Event& event, bool loses_answer) {
    Process& process = world.processes[p];
    process.events =
        mixed(mixed(process.events, text_of(event)), static_cast<uint64_t>((world.now - Time{}).count()));
    for (const RosterMachine::Action& action : process.machine.on(event, world.now))
      act(world, p, action, loses_answer);
  }

  static void act(World& world, size_t p, const RosterMachine::Action& action, bool loses_answer) {
    Process& process = world.processes[p];
    if (const auto* wake = std::get_if<RosterMachine::Wake>(&action)) {
      if (wake->at < world.now + kPatience)
        process.wakes.insert(std::max(wake->at, world.now + milliseconds(1)));
    } else if (const auto* proposal = std::get_if<RosterMachine::Propose>(&action)) {
      propose(world, p, *proposal, loses_answer);
    } else if (const auto* report = std::get_if<RosterMachine::Report>(&action)) {
      process.record.generation = report->generation;
      process.record.unreachable = report->unreachable;
      put(world, p);
    } else if (const auto* abort = std::get_if<RosterMachine::Abort>(&action)) {
      process.aborted = std::max(process.aborted, abort->generation);
      for (size_t other = 0; other < world.processes.size(); ++other)
        if (other != p && world.processes[other].formed == abort->generation &&
            world.processes[other].aborted < abort->generation)
          world.traffic.emplace_back(other, RosterMachine::Broken{abort->generation, "it gave up"});
    } else if (const auto* form = std::get_if<RosterMachine::Form>(&action)) {
      if (form->roster.number <= process.formed) world.problem = "an old generation is formed";
      if (process.formed > process.aborted) world.problem = "a generation is formed while another is open";
      process.formed = form->roster.number;
      connect(world, form->roster);
    } else if (std::holds_alternative<RosterMachine::Evicted>(action)) {
      world.problem = process.record.id + " is dropped, though it lives";
    } else if (std::holds_alternative<RosterMachine::GiveUp>(action)) {
      world.problem = process.record.id + " gives up";
    }
  }

  static void propose(World& world, size_t p, const RosterMachine::Propose& proposal, bool loses_answer) {
    if ((world.roster ? world.revision_of_roster : 0) == proposal.revision) {
      if (!world.rosters.emplace(proposal.roster.number, to_text(proposal.roster)).second)
        world.problem = "two rosters have one number";
      if (world.roster && proposal.roster.number <= world.roster->number)
        world.problem = "the number of the roster has not grown";
      world.roster = proposal.roster;
      world.revision_of_roster = ++world.revision;
      tell_all(world, RosterMachine::RosterSeen{*world.roster, world.revision_of_roster});
    }
    if (loses_answer) {
      --world.lost_answers;
      world.processes[p].store.push_front(RosterMachine::ProposalLost{});
    } else if (world.roster) {
      world.processes[p].store.push_front(RosterMachine::RosterSeen{*world.roster, world.revision_of_roster});
    }
  }

  // All members open a generation when each has come to it; who has crashed refuses connections.
  static void connect(World& world, const Roster& roster) {
    std::vector<size_t> members;
    bool dead = false;
    for (const std::string& id : roster.members)
      for (size_t p = 0; p < world.processes.size(); ++p)
        if (world.processes[p].record.id == id) {
          const Process& process = world.processes[p];
          dead = dead || !process.alive;
          if (process.alive && (process.formed != roster.number || process.aborted >= roster.number)) return;
          members.push_back(p);
        }
    for (const size_t p : members) {
      Process& process = world.processes[p];
      if (!process.alive) continue;
      if (!dead) process.opened = roster.number;
      for (const size_t other : members)
        if (!world.processes[other].alive)
          world.traffic.emplace_back(
              p, RosterMachine::PeerLost{roster.number, world.processes[other].record.id});
      if (!dead) world.traffic.emplace_back(p, RosterMachine::Opened{roster.number});
    }
  }

  // --- the search

  static uint64_t fingerprint(const World& world) {
    uint64_t hash = mixed(static_cast<uint64_t>((world.now - Time{}).count()),
                          static_cast<uint64_t>(world.crashes * 16 + world.lost_answers * 4 + world.joiners));
    for (const Process& process : world.processes) {
      hash = mixed(mixed(hash, process.events), process.alive ? 1 : 2);
      for (const Event& event : process.store) hash = mixed(hash, text_of(event));
    }
    uint64_t traffic = 0;  // in no order
    for (const auto& [p, event] : world.traffic) traffic += mixed(mixed(7, p), text_of(event));
    for (const auto& [id, stored] : world.keys) hash = mixed(hash, to_text(stored.first));
    return mixed(mixed(hash, traffic), world.roster ? to_text(*world.roster) : "");
  }

  void visit(const World& world, int left) {
    if (!problem_.empty()) return;
    auto [seen, fresh] = seen_.try_emplace(fingerprint(world), left);
    if (!fresh && seen->second >= left) return;
    seen->second = left;
    if (left == 0) {
      ++ends_;
      finish(world);
      return;
    }
    for (const auto& branch : branches(world)) {
      World next = world;
      branch(next);
      if (!next.problem.empty()) problem_ = next.problem;
      visit(next, left - 1);
      if (!problem_.empty()) return;
    }
  }

  // From any state, things taking their course, all who live end in one open generation.
  void finish(World world) {
    world.crashes = world.joiners = world.lost_answers = 0;
    for (int steps = 0; steps < 2000 && world.problem.empty(); ++steps) {
      const auto all = branches(world);
      if (all.empty()) break;
      all.front()(world);
    }
    if (!world.problem.empty()) problem_ = world.problem;
    for (const Process& process : world.processes) {
      const bool is_in =
          std::count(world.roster->members.begin(), world.roster->members.end(), process.record.id) != 0;
      const bool is_open = process.opened == world.roster->number && process.aborted < process.opened;
      if (!process.alive && is_in) problem_ = process.record.id + " is dead and in the last roster";
      if (process.alive && is_in && !is_open)
        problem_ = process.record.id + " has not opened the last generation";
      if (process.alive && !is_in && process.record.order >= 0) problem_ = process.record.id + " is left out";
    }
    if (!problem_.empty()) problem_ += fmt::format("; the rosters: {}", fmt::join(world.rosters, "\n"));
  }

  const int depth_;
  std::unordered_map<uint64_t, int> seen_;  // and with how much depth left
  int64_t ends_ = 0;
  std::string problem_;
};

}  // namespace

TEST_CASE("in no order of events three members disagree or block", "[roster]") {
  const char* text = std::getenv("HETRUN_ROSTER_DEPTH");
  const int depth = text == nullptr ? 6 : std::atoi(text);
  Interleavings interleavings(depth);
  const std::string problem = interleavings.explore();
  INFO(problem);
  CHECK(problem.empty());
  WARN("depth " << depth << ": " << interleavings.states() << " states, " << interleavings.ends()
                << " brought to their end");
}
