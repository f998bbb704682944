#include "core/run/member.h"

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "core/base/overloaded.h"
#include "core/cluster/digest.h"
#include "core/cluster/seal.h"
#include "core/cluster/secret.h"

namespace het {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLook{200};  // how long a thread waits before it looks whether it is to end
// Before it joins again, twice as long each time: who does not reach the others costs them a generation.
constexpr milliseconds kAgain{500};
constexpr int kMostEvictions = 4;

RosterOptions roster_options(const MemberOptions& options, const MemberRecord& record) {
  RosterOptions roster;
  roster.id = record.id;
  roster.joins = record.order < 0;
  roster.begins = options.begins;
  roster.launched = options.launched;
  roster.least = options.least;
  roster.most = options.most;
  roster.timeout = options.timeout;
  roster.grace = options.lease_ttl;
  return roster;
}

}  // namespace

Member::Member(MemberOptions options) : options_(std::move(options)), record_(options_.record) {
  if (options_.lease_store == nullptr) options_.lease_store = options_.store;
  options_.store->follow_restarts();
  options_.lease_store->follow_restarts();
  record_.id = hex_of(random_bytes(8));
  fresh_ = record_.order < 0;
  lease_ = std::make_unique<HeldLease>(options_.store, options_.lease_ttl, options_.lease_store);
  machine_ = std::make_unique<RosterMachine>(roster_options(options_, record_), Clock::now());
  const auto list_alike = [this] {
    StoreListing listing = options_.store->list(options_.run + "/");
    for (const StoreEntry& entry : listing.entries)
      if (entry.key.starts_with(options_.run + "/member/"))
        if (const auto text = unsealed(options_.secret, entry.key, entry.value))
          if (const auto other = parse_record(*text)) check_alike(*other);
    return listing;
  };
  list_alike();  // before others count on this one
  write_record();
  const StoreListing listing = list_alike();  // and who came meanwhile
  watch_ = options_.store->watch(options_.run + "/", listing.revision + 1);
  for (const StoreEntry& entry : listing.entries) feed({StoreEvent::Kind::put, entry});
  watcher_ = std::thread([this] { watch(); });
  protocol_ = std::thread([this] { run(); });
}

Member::~Member() { leave(); }

std::string Member::member_key(const std::string& id) const {
  return fmt::format("{}/member/{}", options_.run, id);
}
std::string Member::roster_key() const { return options_.run + "/roster"; }

std::string Member::id() const {
  std::lock_guard lock(mutex_);
  return record_.id;
}
int64_t Member::lease() const {
  std::lock_guard lock(mutex_);
  return lease_->id();
}

void Member::check_alike(const MemberRecord& other) const {
  const auto refuse = [&](const char* what, const DigestDifference& unlike) {
    fail_usage("this process has another {} than the member of run '{}' on {}: {} here, {} there", what,
               options_.run, other.host, unlike.first, unlike.second);
  };
  const auto compare = [&](const char* what, const std::string& own, const std::string& theirs) {
    if (!same_digest(own, theirs)) refuse(what, difference_of(own, theirs));
  };
  if (other.version != record_.version) refuse("version of hetrun", {record_.version, other.version});
  compare("recipe", record_.recipe_digest, other.recipe_digest);
  compare("data", record_.data_digest, other.data_digest);
}

void Member::write_record() {
  const std::string key = member_key(record_.id), value = sealed(options_.secret, key, to_text(record_));
  try {
    if (!lease_->lost()) {
      options_.store->put(key, value, lease_->id());
      return;
    }
  } catch (const Error&) {  // it has lapsed, or the store was started again without it
  }
  auto lease = std::make_unique<HeldLease>(options_.store, options_.lease_ttl, options_.lease_store);
  options_.store->put(key, value, lease->id());
  std::lock_guard lock(mutex_);
  lease_.swap(lease);  // the old one ends when the key no longer hangs on it
}

// Tried again until the store has it.
void Member::try_write_record() {
  unwritten_ = true;
  try {
    write_record();
    unwritten_ = false;
  } catch (const Error&) {
  }
}

void Member::post(RosterMachine::Event event) {
  {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(event));
  }
  changed_.notify_all();
}

// What the store says, as an event of the protocol.
std::optional<RosterMachine::Event> Member::event_of(const StoreEvent& event, bool listed) {
  const StoreEntry& entry = event.entry;
  const std::string members_at = options_.run + "/member/";
  const auto text =
      event.kind == StoreEvent::Kind::put ? unsealed(options_.secret, entry.key, entry.value) : std::nullopt;
  if (entry.key == roster_key()) {
    if (event.kind == StoreEvent::Kind::removed) return std::nullopt;
    const auto roster = text ? parse_roster(*text) : std::nullopt;
    if (roster) return RosterMachine::RosterSeen{*roster, entry.revision, listed};
    fail_with(
        fmt::format("the store has a run '{}' of others, whose secret is another one; a run of another name "
                    "(train.name), or the same secret, works",
                    options_.run));
  } else if (entry.key.starts_with(members_at)) {
    const std::string id = entry.key.substr(members_at.size());
    if (event.kind == StoreEvent::Kind::removed) return RosterMachine::MemberGone{id};
    const auto record = text ? parse_record(*text) : std::nullopt;
    if (record && record->id == id) return RosterMachine::MemberSeen{*record, entry.created};
  }
  return std::nullopt;
}

void Member::feed(const StoreEvent& event, bool listed) {
  if (auto known = event_of(event, listed)) post(*std::move(known));
}

// Until there is a roster the launcher alone knows of processes that ended before they came.
void Member::look_for_lost_launches() {
  const auto lost = options_.store->get(kLaunchesLost);
  std::istringstream orders(lost ? lost->value : "");
  for (int order = 0; orders >> order;) post(RosterMachine::LaunchLost{order});
}

void Member::watch() {
  const auto is_over = [&] {
    std::lock_guard lock(mutex_);
    return stopping_;
  };
  while (!is_over()) {
    try {
      if (options_.by_launcher && !roster()) look_for_lost_launches();
      for (const StoreEvent& event : watch_->next(kLook)) feed(event);
    } catch (const Error&) {
      // The store is gone or has forgotten: nothing can change until it is back.
      try {
        sync();
      } catch (const Error&) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kLook, [&] { return stopping_; });
      }
    }
  }
}

// All that the store holds, again, and what has gone meanwhile.
void Member::sync() {
  const StoreListing listing = options_.store->list(options_.run + "/");
  auto watch = options_.store->watch(options_.run + "/", listing.revision + 1);
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    watch_ = std::move(watch);
  }
  feed(listing);
}

void Member::feed(const StoreListing& listing) {
  RosterMachine::Listed listed;
  const std::string members_at = member_key("");
  for (const StoreEntry& entry : listing.entries) {
    listed.roster = listed.roster || entry.key == roster_key();
    if (entry.key.starts_with(members_at)) listed.members.insert(entry.key.substr(members_at.size()));
  }
  post(std::move(listed));
  for (const StoreEntry& entry : listing.entries) feed({StoreEvent::Kind::put, entry}, true);
}

void Member::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto woken = [&] { return stopping_ || !inbox_.empty(); };
    changed_.wait_until(lock, wake_ ? std::min(*wake_, Clock::now() + kLook) : Clock::now() + kLook, woken);
    if (stopping_) return;
    std::vector<RosterMachine::Event> events = std::exchange(inbox_, {});
    const bool joins_again = join_again_at_ && Clock::now() >= *join_again_at_;
    if (events.empty() && !(wake_ && Clock::now() >= *wake_) && !joins_again && !lease_->lost() &&
        !unwritten_)
      continue;
    wake_.reset();
    if (events.empty()) events.emplace_back(RosterMachine::Tick{});
    std::vector<RosterMachine::Action> actions;
    for (const RosterMachine::Event& event : events)
      for (RosterMachine::Action& action : machine_->on(event, Clock::now()))
        actions.push_back(std::move(action));
    waiting_ = machine_->joinable();
    spares_ = machine_->spares();
    roster_ = machine_->roster();
    const bool unseen = !left_ && machine_->record(record_.id) == nullptr;  // its lease had lapsed
    lock.unlock();
    // Nothing else waits for a store that may be silent.
    const auto is_abort = [](const auto& action) {
      return std::holds_alternative<RosterMachine::Abort>(action);
    };
    const auto others = std::stable_partition(actions.begin(), actions.end(), is_abort);
    for (auto each = actions.begin(); each != others; ++each) act(*each);
    // Before it creates a roster: those who wait count a roster as lost when none of its members has a key.
    if (!join_again_at_ && (unseen || unwritten_ || lease_->lost()))
      act(RosterMachine::Report{record_.generation, record_.unreachable});
    for (auto each = others; each != actions.end(); ++each) act(*each);
    if (joins_again) join_again();
    lock.lock();
  }
}

void Member::act(const RosterMachine::Action& action) {
  std::visit(Overloaded{
                 [&](const RosterMachine::Wake& wake) { wake_ = std::min(wake_.value_or(wake.at), wake.at); },
                 [&](const RosterMachine::Propose& proposal) { propose(proposal); },
                 [&](const RosterMachine::Report& report) {
                   record_.generation = report.generation;
                   record_.unreachable = report.unreachable;
                   try_write_record();
                 },
                 [&](const RosterMachine::Abort& abort) {
                   std::lock_guard aborting(aborting_);
                   aborted_ = abort.generation;
                   aborted_why_ = abort.why;
                   if (abort_ && abort_of_ == abort.generation) abort_(abort.why);
                 },
                 [&](const RosterMachine::Form& form) { take(formation_of(form.roster)); },
                 [&](const RosterMachine::Evicted& evicted) { leave_and_come_back(evicted.roster.reason); },
                 [&](const RosterMachine::GiveUp& failure) { fail_with(failure.why); },
                 [&](const RosterMachine::Ended&) {
                   std::lock_guard lock(mutex_);
                   ended_ = true;
                   changed_.notify_all();
                 },
             },
             action);
}

Member::Formation Member::formation_of(const Roster& roster) const {
  Formation formation;
  formation.roster = roster;
  formation.joined =
      fresh_ || std::find(roster.joined.begin(), roster.joined.end(), record_.id) != roster.joined.end();
  for (size_t rank = 0; rank < roster.members.size(); ++rank) {
    const std::string& id = roster.members[rank];
    if (id == record_.id) formation.rank = static_cast<int>(rank);
    const MemberRecord* const record = id == record_.id ? &record_ : machine_->record(id);
    formation.members.push_back(record == nullptr ? MemberRecord{} : *record);
    formation.members.back().id = id;
  }
  return formation;
}

void Member::take(Formation formation) {
  std::lock_guard lock(mutex_);
  formation_ = std::move(formation);
  changed_.notify_all();
}

// The others went on without this member, which comes back as another one: join_again, a while later.
void Member::leave_and_come_back(const std::string& why) {
  const RosterMachine::Time since = with_others_since_.exchange({});
  if (since != RosterMachine::Time{} && Clock::now() - since >= options_.steady) evictions_ = 0;
  if (++evictions_ >= kMostEvictions)
    return fail_with(fmt::format(
        "the other members went on without this one {} times, the last time because {}", evictions_, why));
  join_again_at_ = Clock::now() + kAgain * (1 << evictions_) / 2;
  try {
    options_.store->remove(member_key(record_.id));
  } catch (const Error&) {  // it goes with the lease
  }
}

// As another member, after the others went on without this one.
void Member::join_again() {
  StoreListing listing;
  try {
    listing = options_.store->list(options_.run + "/");
  } catch (const Error&) {
    join_again_at_ = Clock::now() + kAgain;
    return;
  }
  join_again_at_.reset();
  const std::optional<Roster> known = machine_->roster();
  const int64_t revision = machine_->revision();
  {
    std::lock_guard lock(mutex_);
    record_.id = hex_of(random_bytes(8));
    record_.order = -1;
    fresh_ = true;
    record_.generation = 0;
    record_.unreachable.clear();
    machine_ = std::make_unique<RosterMachine>(roster_options(options_, record_), Clock::now());
  }
  // It knows the others before they count on it; a store that was started again may need its roster.
  std::vector<RosterMachine::Event> events;
  if (known) events.emplace_back(RosterMachine::RosterSeen{*known, revision});
  const auto is_roster = [&](const StoreEntry& entry) { return entry.key == roster_key(); };
  if (std::none_of(listing.entries.begin(), listing.entries.end(), is_roster))
    events.emplace_back(RosterMachine::Listed{});
  for (const StoreEntry& entry : listing.entries)
    if (auto event = event_of({StoreEvent::Kind::put, entry})) events.push_back(*std::move(event));
  {
    // In front of what the watch has posted meanwhile, which is newer.
    std::lock_guard lock(mutex_);
    inbox_.insert(inbox_.begin(), events.begin(), events.end());
  }
  try_write_record();
}

void Member::propose(const RosterMachine::Propose& action) {
  const std::string key = roster_key(), value = sealed(options_.secret, key, to_text(action.roster));
  Store& store = *options_.store;
  try {
    const auto made =
        action.revision == 0 ? store.create(key, value) : store.replace(key, value, action.revision);
    if (made) return post(RosterMachine::RosterSeen{action.roster, *made});
    // The watch shows what is in its way, after the records of its members.
  } catch (const Error&) {  // it may have been made
  }
  post(RosterMachine::ProposalLost{});
}

void Member::fail_with(const std::string& why) {
  std::lock_guard lock(mutex_);
  failure_ = why;
  changed_.notify_all();
}

std::optional<Member::Formation> Member::next_generation(const std::function<void()>& waited) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return formation_ || failure_ || ended_ || stopping_; };
  while (!changed_.wait_for(lock, kLook, there)) {
    if (!waited) continue;
    lock.unlock();
    waited();
    lock.lock();
  }
  if (failure_) throw Error(ErrorKind::peer, *failure_);
  if (ended_ || !formation_) return std::nullopt;
  return std::exchange(formation_, std::nullopt);
}

void Member::opened(int64_t generation) {
  fresh_ = false;
  RosterMachine::Time not_yet{};
  with_others_since_.compare_exchange_strong(not_yet, Clock::now());
  post(RosterMachine::Opened{generation});
}
void Member::broken(int64_t generation, const std::string& why) {
  post(RosterMachine::Broken{generation, why});
}
void Member::ask_change(int64_t generation, const std::string& reason) {
  post(RosterMachine::ChangeAsked{generation, reason});
}
void Member::hurry() { post(RosterMachine::Hurry{}); }
void Member::end_run(const std::string& why) {
  constexpr milliseconds kStoreKnows{2000};
  post(RosterMachine::RunEnded{why});
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kStoreKnows, [&] { return ended_ || failure_; });
}

void Member::peer_lost(int64_t generation, int rank) {
  std::string id;
  {
    std::lock_guard lock(mutex_);
    const auto& roster = machine_->roster();
    if (!roster || roster->number != generation || rank >= static_cast<int>(roster->members.size())) return;
    id = roster->members[static_cast<size_t>(rank)];
  }
  post(RosterMachine::PeerLost{generation, id});
}

size_t Member::waiting() const {
  std::lock_guard lock(mutex_);
  return waiting_;
}
std::vector<MemberRecord> Member::spares() const {
  std::lock_guard lock(mutex_);
  return spares_;
}
std::optional<Roster> Member::roster() const {
  std::lock_guard lock(mutex_);
  return roster_;
}

void Member::on_abort(int64_t generation, std::function<void(const std::string&)> abort) {
  std::lock_guard aborting(aborting_);
  abort_of_ = generation;
  abort_ = std::move(abort);
  if (abort_ && aborted_ >= generation) abort_(aborted_why_);
}

void Member::leave() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(left_, true)) return;
    stopping_ = true;
    watch_->close();
  }
  changed_.notify_all();
  watcher_.join();
  protocol_.join();
  lease_->revoke();
}

}  // namespace het
