#include "core/run/roster.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/overloaded.h"
#include "core/io/json.h"

namespace het {
namespace {

constexpr size_t kRemembered = 256;  // of those who are gone
// After a store forgot the rosters, the next number is higher by as many as another member may have seen and
// this one not, and by some that differ between proposers: no number may stand for two rosters.
constexpr int64_t kUnseen = 1000, kProposers = 1'000'000;

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

bool has(const std::vector<std::string>& ids, const std::string& id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Json to_json(const std::vector<std::string>& texts) { return Json::array_t(texts.begin(), texts.end()); }

// Reads fields, and remembers whether one was missing.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}
  std::string text(const char* name) { return required(as_string(find_member(json_, name))); }
  int64_t number(const char* name) { return required(as_integer(find_member(json_, name))); }
  bool flag(const char* name) { return required(as_bool(find_member(json_, name))); }
  std::vector<std::string> texts(const char* name) {
    std::vector<std::string> all;
    for (const Json& each : required(as_array(find_member(json_, name))))
      all.push_back(required(as_string(each)));
    return all;
  }
  bool complete() const { return complete_; }

 private:
  template <typename T>
  T required(const T* value) {
    complete_ = complete_ && value != nullptr;
    return value == nullptr ? T() : *value;
  }

  const Json& json_;
  bool complete_ = true;
};

std::optional<Json> json_of(const std::string& text) {
  try {
    return parse_json(text, "a value of the store");
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string to_text(const MemberRecord& r) {
  return dump(Json(Json::object_t{{"id", r.id},
                                  {"host", r.host},
                                  {"address", r.address},
                                  {"version", r.version},
                                  {"recipe", r.recipe_digest},
                                  {"data", r.data_digest},
                                  {"order", r.order},
                                  {"generation", r.generation},
                                  {"unreachable", to_json(r.unreachable)},
                                  {"about", r.about}}));
}

std::optional<MemberRecord> parse_record(const std::string& text) {
  const auto json = json_of(text);
  if (!json) return std::nullopt;
  Fields fields(*json);
  MemberRecord r;
  r.id = fields.text("id");
  r.host = fields.text("host");
  r.address = fields.text("address");
  r.version = fields.text("version");
  r.recipe_digest = fields.text("recipe");
  r.data_digest = fields.text("data");
  r.order = static_cast<int>(fields.number("order"));
  r.generation = fields.number("generation");
  r.unreachable = fields.texts("unreachable");
  r.about = fields.text("about");
  return fields.complete() ? std::optional(r) : std::nullopt;
}

std::string to_text(const Roster& r) {
  return dump(Json(Json::object_t{{"number", r.number},
                                  {"members", to_json(r.members)},
                                  {"reason", r.reason},
                                  {"lost", to_json(r.lost)},
                                  {"joined", to_json(r.joined)},
                                  {"gone", to_json(r.gone)},
                                  {"least", r.least},
                                  {"most", r.most},
                                  {"first", r.first}}));
}

std::optional<Roster> parse_roster(const std::string& text) {
  const auto json = json_of(text);
  if (!json) return std::nullopt;
  Fields fields(*json);
  Roster r;
  r.number = fields.number("number");
  r.members = fields.texts("members");
  r.reason = fields.text("reason");
  r.lost = fields.texts("lost");
  r.joined = fields.texts("joined");
  r.gone = fields.texts("gone");
  r.least = static_cast<int>(fields.number("least"));
  r.most = static_cast<int>(fields.number("most"));
  if (const int64_t* const first = as_integer(find_member(*json, "first"))) r.first = *first;
  const bool valid = r.number > 0 && r.first > 0 && r.first <= r.number && r.least > 0 && r.most >= r.least &&
                     std::set(r.members.begin(), r.members.end()).size() == r.members.size();
  return fields.complete() && valid ? std::optional(r) : std::nullopt;
}

std::vector<RosterMachine::Action> RosterMachine::on(const Event& event, Time now) {
  actions_.clear();
  if (ended_) return {};
  note(event, now);
  decide(now);
  return std::move(actions_);
}

void RosterMachine::note(const Event& event, Time now) {
  if (std::holds_alternative<MemberSeen>(event) || std::holds_alternative<MemberGone>(event) ||
      std::holds_alternative<RosterSeen>(event) || std::holds_alternative<Listed>(event) ||
      std::holds_alternative<Opened>(event))
    store_silent_since_.reset();
  std::visit(Overloaded{
                 [&](const MemberSeen& seen) {
                   members_[seen.record.id] = {seen.record, seen.created, {}};
                   removed_.erase(seen.record.id);
                 },
                 [&](const MemberGone& gone) {
                   members_.erase(gone.id);
                   removed_.insert(gone.id);
                 },
                 [&](const Listed& listed) { compare(listed, now); },
                 [&](const RosterSeen& seen) { adopt(seen, now); },
                 [&](const LaunchLost& lost) { launches_lost_.insert(lost.order); },
                 [&](const ProposalLost&) {
                   proposed_ = false;
                   give_up_silent_store(now);
                   ++lost_proposals_;
                   settled_since_ = now;
                   restore_at_ = now + options_.confirm;
                 },
                 [&](const PeerLost& lost) {
                   if (roster_ && lost.generation == roster_->number && is_in_roster(lost.id))
                     losses_.emplace(lost.id, now);
                 },
                 [&](const Broken& broken) {
                   if (!roster_ || broken.generation != roster_->number || !why_.empty()) return;
                   why_ = broken.why;
                   broken_since_ = now;
                 },
                 [&](const Opened& opened) {
                   if (roster_ && opened.generation == roster_->number) opened_ = true;
                 },
                 [&](const ChangeAsked& asked) {
                   if (roster_ && asked.generation == roster_->number) change_ = asked.reason;
                 },
                 [&](const RunEnded& ended) { run_ended_ = ended.why; },
                 [&](const Hurry&) { hurries_ = true; },
                 [&](const Tick&) {},
             },
             event);
}

// What the store lacks. A store that was started again is empty: its members write their keys again, and a
// missing key means little until they had the time. The newest roster that any member knows is created again.
void RosterMachine::compare(const Listed& listed, Time now) {
  bool lacks = roster_.has_value();
  for (auto& [id, known] : members_) {
    if (listed.members.count(id) != 0) continue;
    lacks = true;
    if (!known.missing) known.missing = now;
  }
  if (members_.count(options_.id) != 0 && members_[options_.id].missing) members_.erase(options_.id);
  if (listed.roster) return;
  revision_ = 0;
  store_forgot_ = store_forgot_ || lacks;
  if (roster_) outdated_ = 0;
  restore_at_ = now;
}

// No roster can follow without a store.
void RosterMachine::give_up_silent_store(Time now) {
  if (!store_silent_since_) store_silent_since_ = now;
  if (now - *store_silent_since_ < options_.timeout) return;
  ended_ = true;
  actions_.emplace_back(
      GiveUp{fmt::format("the store where the members of the run meet has not answered for {} s",
                         std::chrono::duration_cast<std::chrono::seconds>(options_.timeout).count())});
}

void RosterMachine::forget_missing(Time now) {
  std::optional<Time> next;
  for (auto each = members_.begin(); each != members_.end();) {
    const auto& missing = each->second.missing;
    const bool over = missing && now >= *missing + options_.grace;
    if (missing && !over) next = std::min(next.value_or(Time::max()), *missing + options_.grace);
    if (over) removed_.insert(each->first);
    if (over && roster_ && is_in_roster(each->first)) store_forgot_ = true;  // what it has seen is not known
    each = over ? members_.erase(each) : std::next(each);
  }
  if (next) actions_.emplace_back(Wake{*next});
}

bool RosterMachine::knows_members() const {
  return std::all_of(roster_->members.begin(), roster_->members.end(), [&](const std::string& id) {
    return id == options_.id || record(id) != nullptr || removed_.count(id) != 0;
  });
}

// The newest roster counts, whoever proposed it.
void RosterMachine::adopt(const RosterSeen& seen, Time now) {
  proposed_ = false;
  if (!roster_ && seen.roster.members.empty() && !options_.joins &&
      options_.begins) {  // another run of this name, before
    revision_ = seen.revision;
    ended_before_ = seen.roster.number;
    return;
  }
  if (roster_ && seen.roster == *roster_) {
    store_forgot_ = store_forgot_ || seen.revision != revision_;  // it was created again
    revision_ = seen.revision;
    outdated_.reset();
    return;
  }
  if (roster_ && seen.roster.number < roster_->number) {
    // Created again by who had not seen the newest; or an event that is late.
    if (seen.listed || outdated_) outdated_ = seen.revision;
    return;
  }
  if (roster_ && seen.roster.number == roster_->number) {
    const std::string why =
        fmt::format("the store has another roster of generation {} than this member", roster_->number);
    if (is_in_roster(options_.id) && !aborted_) actions_.emplace_back(Abort{roster_->number, why});
    ended_ = true;
    actions_.emplace_back(GiveUp{why});
    return;
  }
  const bool was_in = roster_ && is_in_roster(options_.id);
  if (was_in && !aborted_ && !seen.roster.members.empty())
    actions_.emplace_back(Abort{roster_->number, seen.roster.reason});
  // A roster that came while the watch was broken may have been created again, unless its number says
  // otherwise.
  if (roster_ && seen.roster.number > roster_->number + kUnseen)
    store_forgot_ = false;
  else
    store_forgot_ = store_forgot_ || seen.listed;
  outdated_.reset();
  roster_ = seen.roster;
  revision_ = seen.revision;
  opened_ = aborted_ = false;
  why_.clear();
  change_.reset();
  losses_.clear();
  dead_.clear();
  edges_.clear();
  settled_since_ = now;
  short_since_ = {};
  forms_ = false;
  for (const std::string& id : roster_->members)  // those who wrote no record yet since the store forgot all
    if (id != options_.id && members_.count(id) == 0 && removed_.count(id) == 0) members_[id].missing = now;
  if (roster_->members.empty()) {
    ended_ = true;
    actions_.emplace_back(Ended{});
  } else if (is_in_roster(options_.id)) {
    const MemberRecord* const own = record(options_.id);
    if (own != nullptr && !own->unreachable.empty()) actions_.emplace_back(Report{roster_->number, {}});
    forms_ = true;
  } else if (!evicted_ &&
             (was_in || has(roster_->gone, options_.id))) {  // perhaps before it heard of any roster
    evicted_ = true;
    actions_.emplace_back(Evicted{*roster_});
  }
}

void RosterMachine::decide(Time now) {
  if (ended_) return;
  forget_missing(now);
  if (forms_ && knows_members()) {
    forms_ = false;
    actions_.emplace_back(Form{*roster_});
  }
  if (outdated_) propose_at(restore_at_, *roster_, *outdated_, now);
  if (!run_ended_.empty() && roster_) {
    Roster none{next_number(), {}, run_ended_, {}, {}, {}, least(), most(), roster_->first};
    propose_at(restore_at_, std::move(none), revision_, now);  // a pause behind one that was lost
  } else if (!roster_) {
    decide_first(now);
  } else if (is_in_roster(options_.id)) {
    decide_next(now);
  } else {
    decide_as_joiner(now);
  }
}

// Whoever came first proposes, when all that were launched are there, or enough after a while. Those that
// join count where fewer were launched than the run needs: then the first of these wait for them.
void RosterMachine::decide_first(Time now) {
  std::vector<const Known*> came, joining;
  for (const auto& [id, known] : members_) {
    if (known.missing || known.record.id.empty()) continue;
    if (known.record.order < 0)
      joining.push_back(&known);
    else if (launches_lost_.count(known.record.order) == 0)
      came.push_back(&known);
  }
  const auto earlier = [](const Known* a, const Known* b) { return a->created < b->created; };
  std::sort(came.begin(), came.end(), earlier);
  const auto own = std::find_if(came.begin(), came.end(),
                                [&](const Known* known) { return known->record.id == options_.id; });
  if (own == came.end()) return wait_for_members(came.size(), began_, now);
  const auto place = own - came.begin();
  const bool launched = came.size() + launches_lost_.size() >= static_cast<size_t>(options_.launched);
  std::stable_sort(came.begin(), came.end(),
                   [](const Known* a, const Known* b) { return a->record.order < b->record.order; });
  std::sort(joining.begin(), joining.end(), earlier);
  for (const Known* known : joining)
    if (static_cast<int>(came.size()) < least()) came.push_back(known);
  const bool all = launched && static_cast<int>(came.size()) >= least();
  const Time late = began_ + options_.timeout;
  if (!all && (now < late || static_cast<int>(came.size()) < least()))
    return wait_for_members(came.size(), began_, now);
  Roster roster{next_number(), {}, "the run begins", {}, {}, {}, least(), most()};
  if (!store_forgot_) roster.first = roster.number;  // else it may go on
  for (const Known* known : came)
    if (static_cast<int>(roster.members.size()) < most()) roster.members.push_back(known->record.id);
  if (dead_.empty()) {  // the first look: from here others wait for this one
    dead_.insert("");
    settled_since_ = now;
  }
  propose_at(settled_since_ + place * options_.stagger, std::move(roster), revision_, now);
}

// In a roster: something speaks against it, or nothing does.
void RosterMachine::decide_next(Time now) {
  std::set<std::string> dead;
  for (const std::string& id : roster_->members)
    if (id != options_.id && is_dead(id)) dead.insert(id);
  const bool waits = report_losses(now);
  const std::set<Edge> said = edges();
  if (dead != dead_ || said != edges_) {
    if (edges_.empty() && !said.empty()) edges_since_ = now;
    dead_ = dead;
    edges_ = said;
    settled_since_ = now;
  }
  const std::string fault = why_broken();
  if (!aborted_ && !fault.empty()) why_ = fault;
  // Who is lost may be heard a moment after another member gave up because of it.
  const Time known = fault.empty() && opened_ ? broken_since_ + options_.settle : now;
  if (!aborted_ && !why_.empty() && now < known) actions_.emplace_back(Wake{known});
  if (!aborted_ && !why_.empty() && now >= known) {
    aborted_ = true;
    aborted_since_ = now;
    forms_ = false;
    if (fault.empty()) settled_since_ = now;
    actions_.emplace_back(Abort{roster_->number, why_});
  }
  if (!aborted_ && !change_) return;
  if (aborted_ && give_up_waiting(now)) return;
  if (waits) return;  // whether the key of a closed connection goes

  std::vector<std::string> left;
  for (const std::string& id : roster_->members)
    if (dead.count(id) == 0) left.push_back(id);
  std::set<std::string> reporters;
  for (const Edge& edge : said) reporters.insert(edge.first);
  Time ready = settled_since_ + options_.settle;
  if (reporters.size() == 1) ready = std::max(ready, edges_since_ + options_.confirm);
  if (aborted_ && !change_ && dead.empty() && said.empty())
    ready = settled_since_ + options_.confirm;  // who is it?
  left = without_edges(std::move(left), said);
  const auto own = std::find(left.begin(), left.end(), options_.id);
  if (own == left.end()) return;  // the others decide
  Roster next = next_roster(left);
  if (static_cast<int>(next.members.size()) < least()) {
    // Others may come. Then those that are left go on, to save what they have; they do not wait again.
    const bool waits_for_others = !hurries_ && static_cast<int>(roster_->members.size()) >= least();
    if (short_since_ == Time{}) short_since_ = now;
    if (waits_for_others) ready = std::max(ready, short_since_ + options_.timeout);
    next.reason += ", and " + (waits_for_others ? too_few(next.members.size())
                                                : fmt::format("{} of at least {} ranks are left",
                                                              next.members.size(), least()));
  }
  propose_at(ready + (own - left.begin()) * options_.stagger, std::move(next), revision_, now);
}

// Whoever proposes waits for as long as the timeout for others, or for the store. Those that only wait for a
// proposal do not wait for ever: the proposers may be gone, and the store silent.
bool RosterMachine::give_up_waiting(Time now) {
  const Time last = aborted_since_ + 2 * options_.timeout;
  if (now < last) {
    actions_.emplace_back(Wake{last});
    return false;
  }
  ended_ = true;
  actions_.emplace_back(
      GiveUp{fmt::format("no next generation was formed within {} s ({})",
                         std::chrono::ceil<std::chrono::seconds>(2 * options_.timeout).count(), why_)});
  return true;
}

// While no member of the roster is left, those who wait go on by themselves.
void RosterMachine::decide_as_joiner(Time now) {
  const bool any = std::any_of(roster_->members.begin(), roster_->members.end(),
                               [&](const std::string& id) { return members_.count(id) != 0; });
  const std::vector<std::string> all = waiting();
  const auto own = std::find(all.begin(), all.end(), options_.id);
  if (any || own == all.end()) {
    dead_.clear();
    short_since_ = {};
    return;
  }
  if (dead_.empty()) {
    dead_.insert(roster_->members.begin(), roster_->members.end());
    settled_since_ = now;
  }
  Roster next = next_roster({});
  if (static_cast<int>(next.members.size()) < least()) {
    if (short_since_ == Time{}) short_since_ = now;
    return wait_for_members(next.members.size(), short_since_, now);
  }
  propose_at(settled_since_ + options_.settle + (own - all.begin()) * options_.stagger, std::move(next),
             revision_, now);
}

// What speaks against the roster, in words; empty: nothing does.
std::string RosterMachine::why_broken() const {
  if (!dead_.empty()) return fmt::format("lost {}", name_of(*dead_.begin()));
  if (!losses_.empty()) return fmt::format("lost {} (connection closed)", name_of(losses_.begin()->first));
  if (edges_.empty()) return {};
  return fmt::format("{} does not reach {}", name_of(edges_.begin()->first), name_of(edges_.begin()->second));
}

bool RosterMachine::is_in_roster(const std::string& id) const { return has(roster_->members, id); }

// Its key is gone, and so is its connection as long as there are any: the store alone may have been cut off.
bool RosterMachine::is_dead(const std::string& id) const {
  return members_.count(id) == 0 && (!opened_ || aborted_ || losses_.count(id) != 0);
}

std::set<RosterMachine::Edge> RosterMachine::edges() const {
  std::set<Edge> edges;
  for (const std::string& id : roster_->members) {
    const MemberRecord* const said = record(id);
    if (said == nullptr || said->generation != roster_->number) continue;
    for (const std::string& other : said->unreachable)
      if (is_in_roster(other) && members_.count(other) != 0 && other != id) edges.insert({id, other});
  }
  return edges;
}

// Reports the members with a key that this one does not reach. Returns whether it still waits for a key to
// go.
bool RosterMachine::report_losses(Time now) {
  std::vector<std::string> unreachable;
  bool waits = false;
  for (const auto& [id, since] : losses_) {
    if (members_.count(id) == 0) continue;  // it is dead
    if (now < since + options_.settle) {
      actions_.emplace_back(Wake{since + options_.settle});
      waits = true;
    } else {
      unreachable.push_back(id);
    }
  }
  const MemberRecord* const own = record(options_.id);
  if (own == nullptr || waits || unreachable.empty()) return waits;
  if (own->generation != roster_->number || own->unreachable != unreachable) {
    members_[options_.id].record.generation = roster_->number;
    members_[options_.id].record.unreachable = unreachable;
    actions_.emplace_back(Report{roster_->number, unreachable});
  }
  return false;
}

// Drops whoever stands in most of the edges, of equal ones the last, until none is left. Who says that it
// does not reach another lives; of the other that is not known, unless it says so, too.
std::vector<std::string> RosterMachine::without_edges(std::vector<std::string> members,
                                                      std::set<Edge> edges) const {
  for (;;) {
    std::map<std::string, int> count;
    for (const auto& [from, to] : edges) {
      const bool both = has(members, from) && has(members, to);
      if (!both) continue;
      count[from] += 1;
      count[to] += 2;
    }
    if (count.empty()) return members;
    auto worst = members.begin();
    for (auto each = members.begin(); each != members.end(); ++each)
      if (count[*each] >= count[*worst]) worst = each;
    members.erase(worst);
  }
}

int64_t RosterMachine::next_number() const {
  const int64_t next = (roster_ ? roster_->number : ended_before_) + 1;
  if (!store_forgot_) return next;
  const std::string proposal = fmt::format("{} {}", options_.id, lost_proposals_);  // one may have been made
  return next + kUnseen + static_cast<int64_t>(std::hash<std::string>{}(proposal) % kProposers);
}

Roster RosterMachine::next_roster(const std::vector<std::string>& left) const {
  Roster next{next_number(), left,   change_.value_or(why_), {}, {}, roster_->gone,
              least(),       most(), roster_->first};
  for (const std::string& id : waiting())
    if (static_cast<int>(next.members.size()) < most()) {
      next.members.push_back(id);
      next.joined.push_back(id);
    }
  for (const std::string& id : roster_->members)
    if (!has(next.members, id)) next.lost.push_back(id);
  next.gone.insert(next.gone.end(), next.lost.begin(), next.lost.end());
  if (next.gone.size() > kRemembered)
    next.gone.erase(next.gone.begin(), next.gone.end() - static_cast<std::ptrdiff_t>(kRemembered));
  if (!next.lost.empty()) {
    std::vector<std::string> names;
    for (const std::string& id : next.lost) names.push_back(name_of(id));
    next.reason = fmt::format("{} {} lost", fmt::join(names, ", "), names.size() == 1 ? "is" : "are");
  }
  if (next.reason.empty()) next.reason = "no member was left";
  return next;
}

std::vector<std::string> RosterMachine::waiting() const {
  std::vector<std::pair<int64_t, std::string>> came;
  for (const auto& [id, known] : members_)
    if (!known.missing && !(roster_ && (is_in_roster(id) || has(roster_->gone, id))))
      came.emplace_back(known.created, id);
  std::sort(came.begin(), came.end());
  std::vector<std::string> ids;
  for (auto& [created, id] : came) ids.push_back(std::move(id));
  return ids;
}

size_t RosterMachine::joinable() const {
  if (!roster_ || !is_in_roster(options_.id)) return 0;
  const size_t room =
      static_cast<size_t>(most()) - std::min(roster_->members.size(), static_cast<size_t>(most()));
  return std::min(waiting().size(), room);
}

std::vector<MemberRecord> RosterMachine::spares() const {
  std::vector<MemberRecord> records;
  if (!roster_ || !is_in_roster(options_.id)) return records;
  for (const std::string& id : waiting())
    if (const MemberRecord* const known = record(id)) records.push_back(*known);
  return records;
}

const MemberRecord* RosterMachine::record(const std::string& id) const {
  const auto found = members_.find(id);
  return found == members_.end() || found->second.record.id.empty() ? nullptr : &found->second.record;
}

std::string RosterMachine::name_of(const std::string& id) const {
  const auto rank =
      std::find(roster_->members.begin(), roster_->members.end(), id) - roster_->members.begin();
  const MemberRecord* const known = record(id);
  return known == nullptr ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, known->host);
}

void RosterMachine::propose_at(Time at, Roster roster, int64_t revision, Time now) {
  if (proposed_ || (outdated_ && roster.number != roster_->number)) return;  // first the newest that there is
  if (now < at) {
    actions_.emplace_back(Wake{at});
    return;
  }
  proposed_ = true;
  actions_.emplace_back(Propose{std::move(roster), revision});
}

void RosterMachine::wait_for_members(size_t count, Time since, Time now) {
  const Time late = since + options_.timeout;
  if (now < late) {
    actions_.emplace_back(Wake{late});
    return;
  }
  ended_ = true;
  if (!roster_ && options_.joins) {
    actions_.emplace_back(
        GiveUp{fmt::format("the run to join has not begun within {:g} s", seconds_of(options_.timeout))});
    return;
  }
  const std::string reason = why_.empty() ? "" : fmt::format(" ({})", why_);
  actions_.emplace_back(GiveUp{too_few(count) + reason});
}

std::string RosterMachine::too_few(size_t count) const {
  return fmt::format("{} of at least {} ranks were there within {:g} s", count, least(),
                     seconds_of(options_.timeout));
}

}  // namespace het
