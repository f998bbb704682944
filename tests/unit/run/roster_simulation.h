// The protocol of rosters (core/run/roster.h) against a simulated store and simulated connections, by random
// schedules: members crash, stop for a while, come late and lose answers of the store or connections; the
// store is silent or starts again; what members hear is late, and later for some than for others.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/run/roster.h"

namespace het::testing {

using std::chrono::milliseconds;

using Time = RosterMachine::Time;

// Of a random schedule.
struct Settings {
  int launched = 6, least = 1, most = 8;
  int crashes = 0, joiners = 0;
  bool cut = false;            // a connection between two members breaks
  double lost_answers = 0.05;  // of the store to proposals
  int restarts = 0;            // of the store, which forgets all
  int silences = 0;            // of the store, which forgets nothing
  int longest_silence = 700;   // ms
  bool watch_breaks = false;   // by a silence, as by a restart of etcd
  double lapses = 0;           // how many leases lapse in a silence though their members live
  int stops = 0;               // of members: SIGSTOP, and SIGCONT later
  bool partition = false;      // connections between two sides, when a generation forms
  bool joins_again = false;    // who is evicted
  milliseconds timeout{1000};
};

inline constexpr milliseconds kLease{500}, kGrace = 2 * kLease;

// Runs one, and checks the protocol's invariants after each event.
class Simulation {
 public:
  Simulation(uint64_t seed, const Settings& settings) : settings_(settings), random_(seed) {
    for (int i = 0; i < settings.launched; ++i) later(draw(0, 40), [this, i] { join(i); });
    for (int i = 0; i < settings.joiners; ++i) later(draw(0, 300), [this] { join(-1); });
    for (int i = 0; i < settings.crashes; ++i) later(draw(20, 300), [this] { crash(); });
    if (settings.cut) later(draw(60, 300), [this] { cut(); });
    for (int i = 0; i < settings.restarts; ++i) later(draw(0, 400), [this] { restart(); });
    for (int i = 0; i < settings.silences; ++i) later(draw(0, 400), [this] { be_silent(); });
    for (int i = 0; i < settings.stops; ++i) later(draw(0, 400), [this] { stop(); });
    if (settings.partition) later(draw(0, 300), [this] { partition_next_ = true; });
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

  int64_t generations() const { return static_cast<int64_t>(rosters_.size()); }

 private:
  struct Member {
    std::string id;
    std::unique_ptr<RosterMachine> machine;
    MemberRecord record;
    bool alive = true, evicted = false, gave_up = false;
    int64_t formed = 0, opened = 0, aborted = 0;
    // Events that the watch has yet to deliver, in order, each with its watch. A broken watch delivers no
    // more.
    std::deque<std::pair<int64_t, RosterMachine::Event>> inbox;
    int64_t watch = 0;
    bool watches = true, puts = false;  // a put is under way
    Time heard{};                       // when the last event of the watch comes
    std::set<Time> wakes;
    bool stopped = false;
    std::vector<std::function<void(Member&)>> held;  // what came while it was stopped
    int evictions = 0;
    bool side = false;  // of a partition
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
  // For a member, unless it has crashed by then; later when it is stopped.
  void later(const Member& member, int ms, std::function<void(Member&)> what) {
    later(ms, [this, id = member.id, what = std::move(what)] { meet(*find(id), what); });
  }
  static void meet(Member& member, const std::function<void(Member&)>& what) {
    if (member.alive && member.stopped)
      member.held.push_back(what);
    else if (member.alive)
      what(member);
  }
  void fail(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
  }

  // --- members

  // `before`: the member that was evicted and comes back as this one.
  void join(int order, const Member* before = nullptr) {
    if (is_silent()) return later(draw(0, 5) + silence_left(), [=, this] { join(order, before); });
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
    options.timeout = settings_.timeout;
    options.grace = kGrace;
    member->evictions = before == nullptr ? 0 : before->evictions + 1;
    member->side = before == nullptr ? happens(0.4) : before->side;
    member->machine = std::make_unique<RosterMachine>(options, now_);
    Member& own = *member;
    members_.push_back(std::move(member));
    note(own.id + " comes");
    put(own);
    if (before != nullptr)
      tell(own, RosterMachine::RosterSeen{*before->machine->roster(), before->machine->revision()});
    if (before != nullptr && !roster_) tell(own, RosterMachine::Listed{});
    tell_listing(own, false);
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
    disturbed_ = true;
    if (victim.formed > victim.aborted) leave_connections(victim, victim.formed, false);
  }

  // A connection of an open generation breaks, and does not come back.
  void cut() {
    std::vector<Member*> open;
    for (auto& member : members_)
      if (member->alive && roster_ && member->opened == roster_->number && member->aborted < member->opened)
        open.push_back(member.get());
    if (open.size() < 3) return;
    std::shuffle(open.begin(), open.end(), random_);
    note(fmt::format("{} and {} lose each other", open[0]->id, open[1]->id));
    disturbed_ = true;
    was_cut_ = {open[0]->id, open[1]->id};
    lose(*open[0], open[0]->opened, open[1]->id);
    lose(*open[1], open[1]->opened, open[0]->id);
  }

  void lose(Member& member, int64_t generation, const std::string& other) {
    later(member, draw(0, 4), [this, generation, other](Member& own) {
      if (own.aborted < generation) feed(own, RosterMachine::PeerLost{generation, other});
    });
  }

  // SIGSTOP, and SIGCONT after less or more than its lease lives. Who is silent for so long counts as lost.
  void stop() {
    std::vector<Member*> live;
    for (auto& member : members_)
      if (member->alive && !member->gave_up && !member->stopped) live.push_back(member.get());
    if (live.size() <= 1) return;
    Member& own = *live[static_cast<size_t>(draw(0, static_cast<int>(live.size()) - 1))];
    note(own.id + " stops");
    own.stopped = disturbed_ = true;
    const std::string id = own.id;
    const int length = happens(0.3) ? draw(5, 300) : draw(600, 1500), lapse = draw(500, 700);
    if (lapse < length)
      later(lapse, [this, id] {
        if (!find(id)->alive) return;
        remove(id);
        for (auto& other : members_)
          if (Member& silent = *find(id); other->formed == silent.formed && other->id != id)
            lose(*other, silent.formed, id);
      });
    later(length, [this, id] { go_on(*find(id)); });
  }

  void go_on(Member& own) {
    if (!own.alive) return;
    note(own.id + " goes on");
    own.stopped = false;
    auto held = std::exchange(own.held, {});
    if (happens(0.5))
      std::shuffle(held.begin(), held.end(), random_);  // the watch keeps its order: see tell()
    for (auto& what : held) later(own, draw(0, 6), std::move(what));
    if (own.formed > own.aborted) connect(rosters_.at(own.formed));
  }

  // Both sides reach the store.
  void partition() {
    note(fmt::format("a partition: {}", fmt::join(of_side(true), " ")));
    disturbed_ = partitioned_ = true;
    const int length = draw(20, 700);
    later(length, [this, length, began = now_] {
      note("the partition ends");
      partitioned_ = false;
      constexpr int kEnough = 300;
      const bool nothing_else =
          settings_.stops + settings_.silences + settings_.restarts + settings_.crashes == 0;
      if (nothing_else && length > kEnough && last_opened_ < began) fail("no side goes on without the other");
    });
    for (auto& member : members_)
      for (auto& other : members_)
        if (member->alive && other->alive && member->formed == other->formed && member->formed != 0 &&
            is_cut(*member, *other))
          lose(*member, member->formed, other->id);
  }
  bool is_cut(const Member& a, const Member& b) const {
    const bool for_ever = a.id != b.id && was_cut_.count(a.id) != 0 && was_cut_.count(b.id) != 0;
    return for_ever || (partitioned_ && a.side != b.side);
  }
  std::vector<std::string> of_side(bool side) const {
    std::vector<std::string> ids;
    for (auto& member : members_)
      if (member->alive && member->side == side) ids.push_back(member->id);
    return ids;
  }

  // The others of a generation see that a member's connections close; `goodbye`: it says that it lives.
  void leave_connections(Member& member, int64_t generation, bool goodbye) {
    for (auto& other : members_) {
      if (other.get() == &member || other->formed != generation || other->aborted >= generation) continue;
      if (!goodbye && other->opened == generation) {
        lose(*other, generation, member.id);
        continue;
      }
      later(*other, draw(0, 4), [this, generation](Member& own) {
        if (own.aborted < generation)
          feed(own, RosterMachine::Broken{generation, "another member gave it up"});
      });
    }
  }

  // --- the store

  bool is_silent() const { return now_ < silent_until_; }
  int silence_left() const {
    return static_cast<int>(std::chrono::ceil<milliseconds>(silent_until_ - now_).count());
  }

  // Its calls fail or wait, and its watches say nothing. While connections are whole training goes on.
  void be_silent() {
    if (is_silent()) return;
    const milliseconds length(happens(0.5) ? draw(5, 100) : draw(100, settings_.longest_silence));
    note(fmt::format("the store is silent for {} ms", length.count()));
    silent_until_ = now_ + length;
    if (settings_.watch_breaks) break_watches();
    later(silence_left(), [this] {
      note("the store answers");
      std::vector<std::string> lapsed;
      for (const auto& [id, stored] : keys_)
        if (happens(settings_.lapses)) lapsed.push_back(id);
      for (const std::string& id : lapsed) remove(id);
    });
  }

  // It comes back empty: without keys and leases, and with other revisions.
  void restart() {
    note("the store starts again");
    ++instance_;
    restarted_ = now_;
    keys_.clear();
    roster_.reset();
    revision_of_roster_ = 0;
    revision_ = static_cast<int64_t>(random_() % (1U << 31)) << 20;
    silent_until_ = std::max(silent_until_, now_ + milliseconds(draw(1, 200)));
    break_watches();
  }

  // Members list all that there is, and watch from there.
  void break_watches() {
    for (auto& member : members_) {
      member->watches = false;
      if (happens(0.5)) ++member->watch;  // what it has not heard yet is lost
      list_later(*member, silence_left());
    }
  }
  void list_later(Member& member, int ms) {
    later(member, ms + draw(0, 250), [this](Member& own) {
      if (own.watches) return;
      if (is_silent()) return list_later(own, silence_left());
      ++own.watch;
      own.watches = true;
      RosterMachine::Listed listed;
      listed.roster = roster_.has_value();
      for (const auto& [id, stored] : keys_) listed.members.insert(id);
      tell(own, listed);
      tell_listing(own, true);
    });
  }
  void tell_listing(Member& member, bool listed) {
    for (const auto& [id, stored] : keys_)
      tell(member, RosterMachine::MemberSeen{stored.first, stored.second});
    if (roster_) tell(member, RosterMachine::RosterSeen{*roster_, revision_of_roster_, listed});
  }

  void tell(Member& member, const RosterMachine::Event& event) {
    member.inbox.emplace_back(member.watch, event);
    member.heard = std::max({member.heard, now_ + milliseconds(draw(0, 6)), silent_until_});
    queue_.push({member.heard, ++events_, [this, id = member.id] {
                   meet(*find(id), [this](Member& own) {
                     const auto [watch, event] = std::move(own.inbox.front());
                     own.inbox.pop_front();
                     if (watch == own.watch) feed(own, event);
                   });
                 }});
  }
  void tell_all(const RosterMachine::Event& event) {
    for (auto& member : members_)
      if (member->alive && member->watches) tell(*member, event);
  }
  void put(Member& member) {
    if (is_silent()) {
      if (std::exchange(member.puts, true)) return;
      return later(member, silence_left(), [this, instance = instance_](Member& own) {
        own.puts = false;
        if (instance == instance_ && happens(0.5)) return put(own);
        later(own, draw(1, 200), [this](Member& unseen) { write_again(unseen); });
      });
    }
    const auto [entry, fresh] = keys_.try_emplace(member.id, member.record, revision_ + 1);
    entry->second.first = member.record;
    ++revision_;
    tell_all(RosterMachine::MemberSeen{member.record, entry->second.second});
  }
  // The record of a member whose lease has lapsed.
  void write_again(Member& member) {
    if (member.alive && member.machine->record(member.id) == nullptr && keys_.count(member.id) == 0)
      put(member);
  }
  void remove(const std::string& id) {
    if (is_silent()) return later(silence_left(), [this, id] { remove(id); });
    removed_.insert(id);
    if (keys_.erase(id) == 0) return;
    ++revision_;
    tell_all(RosterMachine::MemberGone{id});
  }

  // A call to a silent store fails; or it waits, and is answered late; or it fails and is done all the same.
  void propose(Member& member, const RosterMachine::Propose& proposal) {
    if (!is_silent()) return decide(member, proposal, happens(settings_.lost_answers));
    const int what = draw(0, 2), end = silence_left();
    if (what < 2)
      later(member, draw(20, 100), [this](Member& own) { feed(own, RosterMachine::ProposalLost{}); });
    if (what == 0) return;
    later(end, [this, id = member.id, proposal, lost = what == 1, instance = instance_] {
      Member& own = *find(id);
      const bool same = instance == instance_;
      const bool made = same && make(own, proposal);
      if (!lost) answer(own, made);
    });
  }
  void decide(Member& member, const RosterMachine::Propose& proposal, bool lost) {
    const bool made = !(lost && happens(0.5)) && make(member, proposal);
    answer(member, made && !lost);
  }
  void feed_late(Member& member, RosterMachine::Event event) {
    later(member, draw(0, 6), [this, event](Member& own) { feed(own, event); });
  }
  // Perhaps before the watch reports what was made.
  void answer(Member& member, bool made) {
    if (made)
      feed_late(member, RosterMachine::RosterSeen{*roster_, revision_of_roster_});
    else
      feed_late(member, RosterMachine::ProposalLost{});
  }

  // Compare and set.
  bool make(Member& member, const RosterMachine::Propose& proposal) {
    if ((roster_ ? revision_of_roster_ : 0) != proposal.revision) return false;
    const Roster& roster = proposal.roster;
    note(fmt::format("{} makes generation {}: {}", member.id, roster.number, fmt::join(roster.members, " ")));
    const auto [made, fresh] = rosters_.emplace(roster.number, roster);
    if (!fresh && made->second != roster) fail(fmt::format("two rosters have the number {}", roster.number));
    if (roster_ && roster.number <= roster_->number) fail("the number of the roster has not grown");
    if (instance_ == 0 && lost_.count(member.id) != 0)
      fail(member.id + ", without which others go on, makes a roster");
    if (instance_ == 0)  // else a member may make one that has not seen all that the store forgot
      for (const std::string& id : roster.members)
        if (lost_.count(id) != 0) fail(id + " comes back by the same name");
    lost_.insert(roster.lost.begin(), roster.lost.end());
    roster_ = roster;
    revision_of_roster_ = ++revision_;
    maker_ = member.id;
    tell_all(RosterMachine::RosterSeen{*roster_, revision_of_roster_});
    return true;
  }

  // --- what members do

  void feed(Member& member, const RosterMachine::Event& event) {
    const auto actions = member.machine->on(event, now_);
    write_again(member);
    for (const RosterMachine::Action& action : actions)
      if (member.alive) act(member, action);
  }

  void act(Member& member, const RosterMachine::Action& action) {
    if (const auto* wake = std::get_if<RosterMachine::Wake>(&action)) {
      const Time at = std::max(wake->at, now_ + milliseconds(1));
      if (!member.wakes.insert(at).second) return;
      queue_.push({at, ++events_, [this, id = member.id, at] {
                     meet(*find(id), [this, at](Member& own) {
                       own.wakes.erase(at);
                       feed(own, RosterMachine::Tick{});
                     });
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
      if (is_silent() && !disturbed_ && member.opened == abort->generation)
        fail(fmt::format("{} ends generation {} because the store is silent: {}", member.id,
                         abort->generation, abort->why));
      give_up_generation(member, abort->generation);
    } else if (const auto* form = std::get_if<RosterMachine::Form>(&action)) {
      if (form->roster.number <= member.formed) fail(member.id + " forms an old generation");
      if (member.formed > member.aborted) fail(member.id + " forms a generation while another is open");
      const auto made = rosters_.find(form->roster.number);
      if (made == rosters_.end() || made->second != form->roster)
        fail(fmt::format("{} forms a generation {} that was not made", member.id, form->roster.number));
      if (instance_ == 0 && roster_ == form->roster && maker_ != member.id)
        for (const std::string& id : form->roster.members)
          if (const auto key = keys_.find(id); id != member.id && key != keys_.end() &&
                                               key->second.second < revision_of_roster_ &&
                                               member.machine->record(id) == nullptr)
            fail(fmt::format("{} forms {} without the address of {}", member.id, form->roster.number, id));
      // After a restart it waits until they have written their records again, for as long as they may take.
      for (const std::string& id : form->roster.members)
        if (instance_ == 1 && now_ < restarted_ + kGrace && id != member.id && removed_.count(id) == 0 &&
            member.machine->record(id) == nullptr)
          fail(fmt::format("{} forms {} before {} is there", member.id, form->roster.number, id));
      member.formed = form->roster.number;
      if (std::exchange(partition_next_, false)) later(draw(0, 3), [this] { partition(); });
      connect(form->roster);
    } else if (std::holds_alternative<RosterMachine::Evicted>(action)) {
      note(member.id + " is evicted");
      member.evicted = true;
      member.alive = false;
      remove(member.id);
      if (member.formed > member.aborted) fail(member.id + " is evicted, and its generation is open");
      if (settings_.joins_again) {
        constexpr int kAgain = 500;
        later(kAgain << member.evictions, [this, before = &member] { join(-1, before); });
      }
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

  // All members of a generation open it when each has come to it and answers. Who does not reach another
  // names it.
  void connect(const Roster& roster) {
    for (const std::string& a : roster.members)
      for (const std::string& b : roster.members)
        if (is_cut(*find(a), *find(b)) && find(a)->formed == roster.number) lose(*find(a), roster.number, b);
    for (const std::string& id : roster.members) {
      const Member* const member = find(id);
      if (member->alive &&
          (member->stopped || member->formed != roster.number || member->aborted >= roster.number))
        return;
      for (const std::string& other : roster.members)
        if (is_cut(*member, *find(other))) return;
    }
    for (const std::string& id : roster.members) {
      Member& member = *find(id);
      if (!member.alive) {  // it refuses connections
        leave_connections(member, roster.number, true);
        return;
      }
    }
    for (const std::string& id : roster.members)
      later(*find(id), draw(0, 3), [this, id, number = roster.number](Member& member) {
        if (member.aborted >= number || member.opened >= number) return;
        for (const std::string& other : rosters_.at(number).members)
          if (find(other)->formed < number) fail(fmt::format("{} opens {} without {}", id, number, other));
        member.opened = number;
        last_opened_ = now_;
        feed(member, RosterMachine::Opened{number});
      });
  }

  // While members wait to come in, those of an open generation end a step together and let them.
  void let_in() {
    if (!roster_ || asked_ == roster_->number) return;
    const auto& in = roster_->members;
    for (auto& member : members_) {
      const bool is_in = std::find(in.begin(), in.end(), member->id) != in.end();
      if (is_in && (!member->alive || member->stopped || member->opened != roster_->number ||
                    member->aborted >= roster_->number))
        return;
    }
    if (in.empty() || find(in[0])->machine->joinable() == 0) return;
    asked_ = roster_->number;
    disturbed_ = true;
    for (const std::string& id : roster_->members)
      later(*find(id), draw(5, 12), [this, number = asked_](Member& member) {
        if (member.aborted >= number) return;
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
    if (settings_.joins_again) evicted.clear();  // it costs time and is no fault
    if (std::set<std::string>(roster_->members.begin(), roster_->members.end()) != live)
      return fail(fmt::format("the last roster has {}, but {} live", fmt::join(roster_->members, " "),
                              fmt::join(live, " ")));
    for (const std::string& id : roster_->members)
      if (const Member& member = *find(id);
          member.opened != roster_->number || member.aborted >= roster_->number)
        return fail(fmt::format("{} has not opened generation {}", id, roster_->number));
    // No member that lives and reaches the others is dropped.
    if (evicted.size() > (was_cut_.empty() ? 0U : 1U))
      return fail(fmt::format("{} were dropped", fmt::join(evicted, " ")));
    for (const std::string& id : evicted)
      if (was_cut_.count(id) == 0) fail(id + " was dropped, which reached everybody");
  }

  const Settings settings_;
  std::mt19937_64 random_;
  Time now_{};
  int64_t events_ = 0, revision_ = 0, revision_of_roster_ = 0, asked_ = 0, instance_ = 0;
  Time silent_until_{}, restarted_{}, last_opened_{};
  bool disturbed_ = false;  // something but the store ends generations
  bool partition_next_ = false, partitioned_ = false;
  std::priority_queue<Entry> queue_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::string, std::pair<MemberRecord, int64_t>> keys_;
  std::optional<Roster> roster_;
  std::map<int64_t, Roster> rosters_;
  std::set<std::string> was_cut_, lost_, removed_;
  std::string maker_;  // of the roster
  std::vector<std::string> log_;
  std::string problem_;
};

}  // namespace het::testing
