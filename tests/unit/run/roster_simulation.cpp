// The protocol of rosters (core/run/roster.h) against a simulated store and simulated connections, by random
// schedules: members crash, come late and lose answers of the store; what they hear is late, and later for
// some than for others.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/run/roster.h"

using namespace het;
using std::chrono::milliseconds;

namespace {

using Time = RosterMachine::Time;

struct Settings {
  int launched = 6, least = 1, most = 8;
  int crashes = 0, joiners = 0;
  bool cut = false;            // a connection between two members breaks
  double lost_answers = 0.05;  // of the store to proposals
};

class Simulation {
 public:
  Simulation(uint64_t seed, const Settings& settings) : settings_(settings), random_(seed) {
    for (int i = 0; i < settings.launched; ++i) later(draw(0, 40), [this, i] { join(i); });
    for (int i = 0; i < settings.joiners; ++i) later(draw(0, 300), [this] { join(-1); });
    for (int i = 0; i < settings.crashes; ++i) later(draw(20, 300), [this] { crash(); });
    if (settings.cut) later(draw(60, 300), [this] { cut(); });
  }

  // Runs until nothing more happens, or for so long. Returns what is wrong; empty: nothing.
  std::string run(milliseconds limit) {
    while (!queue_.empty() && problem_.empty()) {
      const auto [at, number, what] = queue_.top();
      if (at > Time{} + limit) break;
      queue_.pop();
      now_ = at;
      what();
      let_in();
    }
    if (problem_.empty()) judge();
    if (problem_.empty()) return {};
    return fmt::format("{}\n{}", problem_, fmt::join(log_, "\n"));
  }

  int64_t generations() const { return roster_ ? roster_->number : 0; }

 private:
  struct Member {
    std::string id;
    std::unique_ptr<RosterMachine> machine;
    MemberRecord record;
    bool alive = true, evicted = false, gave_up = false;
    int64_t formed = 0, opened = 0, aborted = 0;
    Time heard{};  // when the last event of the store comes: they keep their order
    std::set<int64_t> wakes;
  };
  using What = std::function<void()>;
  struct Entry {
    Time at;
    int64_t number;
    What what;
    bool operator<(const Entry& other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };

  int draw(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool happens(double chance) { return draw(0, 9999) < chance * 10000; }
  void later(int ms, What what) { queue_.push({now_ + milliseconds(ms), ++events_, std::move(what)}); }
  void note(std::string text) {
    log_.push_back(fmt::format("{:4} {}", std::chrono::round<milliseconds>(now_ - Time{}).count(), text));
  }
  void fail(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
  }

  // --- members

  void join(int order) {
    auto member = std::make_unique<Member>();
    member->id = fmt::format("m{}", members_.size());
    member->record.id = member->id;
    member->record.order = order;
    RosterOptions options;
    options.id = member->id;
    options.joins = order < 0;
    options.launched = settings_.launched;
    options.least = settings_.least;
    options.most = settings_.most;
    options.timeout = milliseconds(1000);
    member->machine = std::make_unique<RosterMachine>(options, now_);
    Member& own = *member;
    members_.push_back(std::move(member));
    note(own.id + " comes");
    put(own);
    for (const auto& [id, stored] : keys_) tell(own, RosterMachine::MemberSeen{stored.first, stored.second});
    if (roster_) tell(own, RosterMachine::RosterSeen{*roster_, revision_of_roster_});
  }

  Member* find(const std::string& id) {
    for (auto& member : members_)
      if (member->id == id) return member.get();
    return nullptr;
  }

  void crash() {
    std::vector<Member*> live;
    for (auto& member : members_)
      if (member->alive && !member->gave_up) live.push_back(member.get());
    if (live.size() <= 1) return;
    Member& victim = *live[static_cast<size_t>(draw(0, static_cast<int>(live.size()) - 1))];
    victim.alive = false;
    note(victim.id + " crashes");
    const std::string id = victim.id;
    // Its store sees at once that it is gone, or waits whether it comes back.
    later(happens(0.5) ? draw(0, 60) : draw(500, 700), [this, id] { remove(id); });
    if (victim.formed > victim.aborted) leave_connections(victim, victim.formed, false);
  }

  // A connection of an open generation breaks, and is not to be had again.
  void cut() {
    std::vector<Member*> open;
    for (auto& member : members_)
      if (member->alive && roster_ && member->opened == roster_->number && member->aborted < member->opened)
        open.push_back(member.get());
    if (open.size() < 3) return;
    std::shuffle(open.begin(), open.end(), random_);
    note(fmt::format("{} and {} lose each other", open[0]->id, open[1]->id));
    was_cut_ = {open[0]->id, open[1]->id};
    lose(*open[0], open[0]->opened, open[1]->id);
    lose(*open[1], open[1]->opened, open[0]->id);
  }

  void lose(Member& member, int64_t generation, const std::string& other) {
    const std::string id = member.id;
    later(draw(0, 4), [this, id, generation, other] {
      Member& own = *find(id);
      if (own.alive && own.aborted < generation) feed(own, RosterMachine::PeerLost{generation, other});
    });
  }

  // The others of a generation see that a member's connections close; `goodbye`: it says that it lives.
  void leave_connections(Member& member, int64_t generation, bool goodbye) {
    for (auto& other : members_) {
      if (other.get() == &member || other->formed != generation || other->aborted >= generation) continue;
      if (!goodbye && other->opened == generation) {
        lose(*other, generation, member.id);
        continue;
      }
      const std::string id = other->id;
      later(draw(0, 4), [this, id, generation] {
        Member& own = *find(id);
        if (own.alive && own.aborted < generation)
          feed(own, RosterMachine::Broken{generation, "another member gave it up"});
      });
    }
  }

  // --- the store

  void tell(Member& member, const RosterMachine::Event& event) {
    member.heard = std::max(member.heard, now_ + milliseconds(draw(0, 6)));
    const std::string id = member.id;
    queue_.push({member.heard, ++events_, [this, id, event] {
                   Member& own = *find(id);
                   if (own.alive) feed(own, event);
                 }});
  }
  void tell_all(const RosterMachine::Event& event) {
    for (auto& member : members_)
      if (member->alive) tell(*member, event);
  }
  void put(Member& member) {
    const auto [entry, fresh] = keys_.try_emplace(member.id, member.record, revision_ + 1);
    entry->second.first = member.record;
    ++revision_;
    tell_all(RosterMachine::MemberSeen{member.record, entry->second.second});
  }
  void remove(const std::string& id) {
    if (keys_.erase(id) == 0) return;
    ++revision_;
    tell_all(RosterMachine::MemberGone{id});
  }

  void propose(Member& member, const RosterMachine::Propose& proposal) {
    const bool lost = happens(settings_.lost_answers), made = !(lost && happens(0.5));
    if (made && (roster_ ? revision_of_roster_ : 0) == proposal.revision) {
      note(fmt::format("{} makes generation {}: {}", member.id, proposal.roster.number,
                       fmt::join(proposal.roster.members, " ")));
      if (!rosters_.emplace(proposal.roster.number, proposal.roster).second)
        fail(fmt::format("two rosters have the number {}", proposal.roster.number));
      if (roster_ && proposal.roster.number <= roster_->number)
        fail("the number of the roster has not grown");
      for (const std::string& id : proposal.roster.members)
        if (lost_.count(id) != 0) fail(id + " comes back by the same name");
      lost_.insert(proposal.roster.lost.begin(), proposal.roster.lost.end());
      roster_ = proposal.roster;
      revision_of_roster_ = ++revision_;
      tell_all(RosterMachine::RosterSeen{*roster_, revision_of_roster_});
    }
    if (lost)
      tell(member, RosterMachine::ProposalLost{});
    else if (roster_)
      tell(member, RosterMachine::RosterSeen{*roster_, revision_of_roster_});
  }

  // --- what members do

  void feed(Member& member, const RosterMachine::Event& event) {
    for (const RosterMachine::Action& action : member.machine->on(event, now_)) act(member, action);
  }

  void act(Member& member, const RosterMachine::Action& action) {
    if (const auto* wake = std::get_if<RosterMachine::Wake>(&action)) {
      const std::string id = member.id;
      queue_.push({std::max(wake->at, now_ + milliseconds(1)), ++events_, [this, id] {
                     Member& own = *find(id);
                     if (own.alive) feed(own, RosterMachine::Tick{});
                   }});
    } else if (const auto* proposal = std::get_if<RosterMachine::Propose>(&action)) {
      propose(member, *proposal);
    } else if (const auto* report = std::get_if<RosterMachine::Report>(&action)) {
      member.record.generation = report->generation;
      member.record.unreachable = report->unreachable;
      if (!report->unreachable.empty())
        note(fmt::format("{} does not reach {}", member.id, fmt::join(report->unreachable, " ")));
      put(member);
    } else if (const auto* abort = std::get_if<RosterMachine::Abort>(&action)) {
      give_up_generation(member, abort->generation);
    } else if (const auto* form = std::get_if<RosterMachine::Form>(&action)) {
      if (form->roster.number <= member.formed) fail(member.id + " forms an old generation");
      if (member.formed > member.aborted) fail(member.id + " forms a generation while another is open");
      member.formed = form->roster.number;
      connect(form->roster);
    } else if (std::holds_alternative<RosterMachine::Evicted>(action)) {
      note(member.id + " is evicted");
      member.evicted = true;
      member.alive = false;
      remove(member.id);
    } else if (std::holds_alternative<RosterMachine::GiveUp>(action)) {
      note(member.id + " gives up");
      member.gave_up = true;
      if (member.record.order >= 0 || member.machine->roster())
        return;  // else it ends: there is no run to join
      member.alive = false;
      remove(member.id);
    }
  }

  void give_up_generation(Member& member, int64_t generation) {
    if (member.aborted >= generation) return;
    member.aborted = generation;
    leave_connections(member, generation, true);
  }

  // All members of a generation open it when each has come to it.
  void connect(const Roster& roster) {
    for (const std::string& id : roster.members) {
      const Member* const member = find(id);
      if (member->alive && (member->formed != roster.number || member->aborted >= roster.number)) return;
    }
    for (const std::string& id : roster.members) {
      Member& member = *find(id);
      if (!member.alive) {  // it refuses connections
        leave_connections(member, roster.number, true);
        return;
      }
    }
    for (const std::string& id : roster.members)
      later(draw(0, 3), [this, id, number = roster.number] {
        Member& member = *find(id);
        if (!member.alive || member.aborted >= number) return;
        for (const std::string& other : rosters_.at(number).members)
          if (find(other)->formed < number) fail(fmt::format("{} opens {} without {}", id, number, other));
        member.opened = number;
        feed(member, RosterMachine::Opened{number});
      });
  }

  // While members wait to come in, those of an open generation end a step together and let them.
  void let_in() {
    if (!roster_ || asked_ == roster_->number) return;
    bool waits = false;
    for (auto& member : members_) {
      const auto& in = roster_->members;
      const bool is_in = std::find(in.begin(), in.end(), member->id) != in.end();
      waits = waits || (member->alive && !is_in && keys_.count(member->id) != 0);
      if (is_in &&
          (!member->alive || member->opened != roster_->number || member->aborted >= roster_->number))
        return;
    }
    if (!waits) return;
    asked_ = roster_->number;
    for (const std::string& id : roster_->members)
      later(draw(5, 12), [this, id, number = asked_] {
        Member& member = *find(id);
        if (!member.alive || member.aborted >= number) return;
        feed(member, RosterMachine::ChangeAsked{number, "members wait to come in"});
        give_up_generation(member, number);
        feed(member, RosterMachine::Broken{number, "members wait to come in"});
      });
  }

  void judge() {
    std::set<std::string> live, evicted;
    for (auto& member : members_) {
      if (member->alive) live.insert(member->id);
      if (member->evicted) evicted.insert(member->id);
    }
    if (!roster_) return fail("no roster was made");
    if (std::set<std::string>(roster_->members.begin(), roster_->members.end()) != live)
      return fail(fmt::format("the last roster has {}, but {} live", fmt::join(roster_->members, " "),
                              fmt::join(live, " ")));
    for (const std::string& id : roster_->members)
      if (const Member& member = *find(id);
          member.opened != roster_->number || member.aborted >= roster_->number)
        return fail(fmt::format("{} has not opened generation {}", id, roster_->number));
    // Nobody who lives and reaches the others is dropped.
    if (evicted.size() > (was_cut_.empty() ? 0U : 1U))
      return fail(fmt::format("{} were dropped", fmt::join(evicted, " ")));
    for (const std::string& id : evicted)
      if (was_cut_.count(id) == 0) fail(id + " was dropped, which reached everybody");
  }

  const Settings settings_;
  std::mt19937_64 random_;
  Time now_{};
  int64_t events_ = 0, revision_ = 0, revision_of_roster_ = 0, asked_ = 0;
  std::priority_queue<Entry> queue_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::string, std::pair<MemberRecord, int64_t>> keys_;
  std::optional<Roster> roster_;
  std::map<int64_t, Roster> rosters_;
  std::set<std::string> was_cut_, lost_;
  std::vector<std::string> log_;
  std::string problem_;
};

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

TEST_CASE("of two members that lose each other one is dropped, and nobody else", "[roster]") {
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
