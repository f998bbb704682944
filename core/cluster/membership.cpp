#include "core/cluster/membership.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/cluster/digest.h"
#include "core/cluster/lease.h"
#include "core/cluster/seal.h"
#include "core/cluster/secret.h"
#include "core/comm/operations.h"
#include "core/io/json.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What a member writes: itself, and what it takes the run to be.
struct Record {
  MemberInfo member;
  int world_size = 0;
  bool leaving = false;
  std::string gave_up;  // why it goes without leaving
};

Json to_json(const Record& record) {
  const MemberInfo& m = record.member;
  return Json::object_t{{"rank", m.rank},
                        {"host", m.host},
                        {"device", m.device},
                        {"device_memory", m.device_memory},
                        {"address", m.address},
                        {"version", m.version},
                        {"recipe", m.recipe_digest},
                        {"data", m.data_digest},
                        {"world_size", record.world_size},
                        {"leaving", record.leaving},
                        {"gave_up", record.gave_up}};
}

std::optional<Record> record_of(const Json& json) {
  const auto text = [&](const char* name) { return as_string(find_member(json, name)); };
  const auto number = [&](const char* name) { return as_integer(find_member(json, name)); };
  const std::string *host = text("host"), *device = text("device"), *address = text("address"),
                    *version = text("version"), *recipe = text("recipe"), *data = text("data");
  const int64_t *rank = number("rank"), *memory = number("device_memory"), *world = number("world_size");
  const bool* leaving = as_bool(find_member(json, "leaving"));
  if (!host || !device || !address || !version || !recipe || !data || !rank || !memory || !world || !leaving)
    return std::nullopt;
  constexpr int64_t kLargestWorld = 1 << 20;
  if (*world < 1 || *world > kLargestWorld || *rank < -1 || *rank >= *world) return std::nullopt;
  Record record;
  record.member = {static_cast<int>(*rank), *host, *device, *memory, *address, *version, *recipe, *data};
  record.world_size = static_cast<int>(*world);
  record.leaving = *leaving;
  if (const std::string* gave_up = text("gave_up")) record.gave_up = *gave_up;
  return record;
}

std::optional<Json> unseal(std::string_view secret, const std::string& key, const std::string& value) {
  const auto text = unsealed(secret, key, value);
  if (!text) return std::nullopt;
  try {
    return parse_json(*text, key);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string generation_key(const std::string& run) { return run + "/generation"; }

int64_t number_of(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t open_now(Store& store, const std::string& run) {
  store.create(generation_key(run), "1");
  const auto entry = store.get(generation_key(run));
  return entry ? number_of(entry->value) : 1;
}

struct Present {
  std::string id;
  Record record;
  int64_t created = 0, revision = 0;
};

// Members and roster of one generation, as far as the store has reported.
struct RosterView {
  std::string prefix;  // "RUN/GENERATION/"
  std::string secret;
  std::map<std::string, Present> members;                  // by id
  std::vector<std::pair<std::string, MemberInfo>> roster;  // ids and members, by rank; empty: none yet
  bool closed = false;                                     // there is a roster, be it one that is not ours
  std::map<std::string, int64_t> unauthenticated;          // keys without our seal, and when they came
  std::vector<MemberInfo> departed;                        // those that left while others joined
  std::string refusal;                                     // why members that were there were refused,
  ErrorKind refused_as = ErrorKind::usage;                 // of what kind that is,
  int64_t refused = 0;                                     // and the revision at which they were

  std::string key_of(const std::string& id) const { return prefix + "member/" + id; }
  std::string refusal_key() const { return prefix + "refusal"; }

  void apply(const StoreEvent& event) {
    const std::string& key = event.entry.key;
    const std::string members_at = prefix + "member/";
    if (key == prefix + "roster" && event.kind == StoreEvent::Kind::put)
      return read_roster(event.entry.value);
    if (key == refusal_key() && event.kind == StoreEvent::Kind::put) {
      const auto json = unseal(secret, key, event.entry.value);
      const Json* missing = json ? find_member(*json, "missing") : nullptr;
      if (json)
        if (const std::string* sentence = as_string(missing ? *missing : *json)) refusal = *sentence;
      refused_as = missing ? ErrorKind::peer : ErrorKind::usage;
      refused = event.entry.revision;
      return;
    }
    if (!key.starts_with(members_at)) return;
    const std::string id = key.substr(members_at.size());
    if (event.kind == StoreEvent::Kind::removed) {
      if (const auto gone = members.find(id); gone != members.end()) {
        departed.push_back(gone->second.record.member);
        members.erase(gone);
      }
      unauthenticated.erase(key);
      return;
    }
    const auto json = unseal(secret, key, event.entry.value);
    auto record = json ? record_of(*json) : std::nullopt;
    if (record)
      members[id] = {id, std::move(*record), event.entry.created, event.entry.revision};
    else
      unauthenticated[key] = event.entry.created;
  }

  void read_roster(const std::string& value) {
    closed = true;
    const auto json = unseal(secret, prefix + "roster", value);
    if (!json || !json->is_array()) return;
    for (const Json& item : *json) {
      const std::string* id = as_string(find_member(item, "id"));
      const Json* member = find_member(item, "member");
      auto record = member ? record_of(*member) : std::nullopt;
      if (!id || !record) continue;
      roster.emplace_back(*id, std::move(record->member));
    }
  }

  // Whose secret counts: that of the first to come. One that comes later keeps no member out.
  bool began_unauthenticated() const {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const auto& [id, present] : members) first = std::min(first, present.created);
    return std::any_of(unauthenticated.begin(), unauthenticated.end(),
                       [&](const auto& entry) { return entry.second < first; });
  }

  // In the order in which they came.
  std::vector<const Present*> by_coming() const {
    std::vector<const Present*> order;
    for (const auto& [id, present] : members) order.push_back(&present);
    std::sort(order.begin(), order.end(),
              [](const Present* a, const Present* b) { return a->created < b->created; });
    return order;
  }
};

// Two members that cannot both be right. `confirmed`: both are known to have lived at one time. One that was
// killed and started again meets its old entry, which lasts until the lease lapses: that is no mistake. The
// older one, if it lives, writes its entry again when it sees the newer one.
struct Problem {
  const Present *older, *newer;
  std::string sentence;
  bool confirmed() const { return older->revision > newer->created; }
};

std::optional<Problem> problem_of(const RosterView& view) {
  const std::vector<const Present*> order = view.by_coming();
  if (order.empty()) return std::nullopt;
  const Present& first = *order[0];
  const auto differs = [&](const Present& other, const std::string& verb, const std::string& theirs,
                           const std::string& ours, const char* same) {
    return Problem{
        &first, &other,
        fmt::format("{} {} {}, but {}, which came first, {} {}; all members need the same {}",
                    show(other.record.member), verb, theirs, show(first.record.member), verb, ours, same)};
  };
  const auto has_other = [&](const Present& other, const char* what, const std::string& theirs,
                             const std::string& ours) {
    const DigestDifference unlike = difference_of(theirs, ours);
    return differs(other, fmt::format("has the {} with", what), unlike.first, unlike.second, what);
  };
  for (const Present* other : order) {
    const MemberInfo &a = first.record.member, &b = other->record.member;
    if (a.version != b.version) return differs(*other, "runs hetrun", b.version, a.version, "version");
    if (!same_digest(a.recipe_digest, b.recipe_digest))
      return has_other(*other, "recipe", b.recipe_digest, a.recipe_digest);
    if (!same_digest(a.data_digest, b.data_digest))
      return has_other(*other, "data", b.data_digest, a.data_digest);
    if (first.record.world_size != other->record.world_size)
      return differs(*other, "expects a world of", std::to_string(other->record.world_size),
                     std::to_string(first.record.world_size), "world size");
  }
  std::map<int, const Present*> ranks;
  for (const Present* other : order) {
    if (other->record.member.rank < 0) continue;
    const auto [taken, fresh] = ranks.emplace(other->record.member.rank, other);
    if (!fresh)
      return Problem{
          taken->second, other,
          fmt::format("rank {} is taken twice: by a process on {}, and by one on {}; give every process "
                      "a separate rank",
                      taken->first, taken->second->record.member.host, other->record.member.host)};
  }
  return std::nullopt;
}

// Ids by rank: as the members say, and those that say none fill what is free, host by host, in the order in
// which they came.
std::vector<const Present*> ranks_of(const RosterView& view, int world_size) {
  std::vector<const Present*> ranks(world_size), rest;
  for (const Present* present : view.by_coming()) {
    const int rank = present->record.member.rank;
    if (rank >= 0 && rank < world_size)
      ranks[rank] = present;
    else
      rest.push_back(present);
  }
  std::stable_sort(rest.begin(), rest.end(), [](const Present* a, const Present* b) {
    return a->record.member.host < b->record.member.host;
  });
  size_t next = 0;
  for (const Present*& place : ranks)
    if (!place && next < rest.size()) place = rest[next++];
  return ranks;
}

std::string who_is_missing(const RosterView& view, const JoinOptions& options, milliseconds waited) {
  std::vector<bool> here(options.world_size);
  std::vector<std::string> came, missing;
  int unranked = 0;
  for (const Present* present : view.by_coming()) {
    came.push_back(show(present->record.member));
    const int rank = present->record.member.rank;
    if (rank < 0)
      ++unranked;
    else if (rank < options.world_size)
      here[rank] = true;
  }
  const int left = options.world_size - static_cast<int>(came.size());
  const auto has_been_here = [&](int rank) {
    return std::any_of(view.departed.begin(), view.departed.end(),
                       [&](const MemberInfo& member) { return member.rank == rank; });
  };
  if (unranked) {
    missing.push_back(fmt::format("{} more", left));
  } else {
    for (int rank = 0; rank < options.world_size; ++rank)
      if (!here[rank])
        missing.push_back(
            fmt::format("rank {}{}", rank, has_been_here(rank) ? ", which came and was lost" : ""));
  }
  constexpr size_t kNamed = 8;
  const auto named = [](std::vector<std::string> names) {
    const size_t count = names.size();
    if (count > kNamed) {
      names.resize(kNamed);
      names.push_back(fmt::format("and {} others", count - kNamed));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  };
  std::string sentence =
      fmt::format("{} of {} members of run '{}' came within {} ms: {}; missing: {}", came.size(),
                  options.world_size, options.run, waited.count(), named(came), named(missing));
  if (!view.unauthenticated.empty())
    sentence += fmt::format("; {} came without the run's secret", view.unauthenticated.size());
  if (const auto away = options.rejected ? options.rejected() : std::vector<std::string>(); !away.empty())
    sentence +=
        fmt::format("; the store turned away who came from {} with another secret", fmt::join(away, ", "));
  return sentence;
}

std::string run_prefix(const std::string& run, int64_t generation) {
  return fmt::format("{}/{}/", run, generation);
}

[[noreturn]] void refuse_secret(const std::string& run) {
  fail_usage("the members of run '{}' that came before this one have another shared secret", run);
}

RosterView view_of(const StoreListing& listing, std::string prefix, std::string secret) {
  RosterView view;
  view.prefix = std::move(prefix);
  view.secret = std::move(secret);
  for (const StoreEntry& entry : listing.entries) view.apply({StoreEvent::Kind::put, entry});
  return view;
}

class MembershipImpl final : public Membership {
 public:
  MembershipImpl(std::shared_ptr<Store> store, const JoinOptions& options, int64_t generation, std::string id,
                 Record record)
      : store_(std::move(store)),
        options_(options),
        generation_(generation),
        id_(std::move(id)),
        record_(std::move(record)) {
    view_.prefix = run_prefix(options_.run, generation_);
    view_.secret = options_.secret;
    lease_ = std::make_unique<HeldLease>(store_, options_.lease_ttl, options_.lease_store);
    write(*store_);
  }

  int rank() const override { return rank_; }
  int64_t generation() const override { return generation_; }
  const std::vector<MemberInfo>& members() const override { return members_; }
  int64_t lease() const override { return lease_->id(); }
  std::string prefix() const override { return view_.prefix; }
  void close_watch() override {
    closed_ = true;
    watch_->close();
  }

  void leave() override {
    record_.leaving = true;
    try {
      // It may have lapsed while this process was stopped.
      if (lease_->lost())
        lease_ = std::make_unique<HeldLease>(store_, options_.lease_ttl, options_.lease_store);
      write(*store_);
    } catch (const Error&) {  // a member that the store does not hear is lost
    }
    lease_->revoke();
  }

  void give_up(const std::string& why) override {
    record_.gave_up = why;
    // By the lease's own connection: the store may have gone with the rank that served it.
    Store& store = options_.lease_store ? *options_.lease_store : *store_;
    try {
      if (!lease_->lost()) {
        write(store);
        store.remove(view_.key_of(id_));
      }
    } catch (const Error&) {  // then they learn that it departed when its lease lapses
    }
    lease_->abandon();
  }

  std::vector<MemberChange> watch_members(milliseconds timeout) override {
    std::vector<MemberChange> changes = std::move(pending_);
    pending_.clear();
    const auto deadline = Clock::now() + timeout;
    while (changes.empty() && !closed_) {
      // A lease that cannot be kept alive is lost to the others too, though no event says so here.
      constexpr milliseconds kLook{200};
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      const auto events = watch_->next(std::clamp(left, milliseconds(0), kLook));
      for (const StoreEvent& event : events) change(event, changes);
      if (changes.empty() && lease_->lost() && !std::exchange(cut_off_, true))
        changes.push_back(
            {MemberChange::Kind::cut_off, rank_, false, generation_,
             fmt::format(
                 "rank {} could not keep its lease alive for {} ms, and may count as dead: {} is silent",
                 rank_, lease_->ttl().count(), store_->describe())});
      if (Clock::now() >= deadline) break;
    }
    return changes;
  }

  void wait_for_all() {
    const auto start = Clock::now(), deadline = start + options_.timeout;
    const StoreListing listing = store_->list(view_.prefix);
    watch_ = store_->watch(options_.run + "/", listing.revision + 1);
    for (const StoreEntry& entry : listing.entries) view_.apply({StoreEvent::Kind::put, entry});
    check();
    auto warn_at = start + options_.warn_after;
    while (view_.roster.empty()) {
      if (complete()) write_roster();
      const auto now = Clock::now();
      if (now >= deadline) refuse(ErrorKind::peer, who_is_missing(view_, options_, options_.timeout));
      if (now >= warn_at && options_.warn) {
        options_.warn(who_is_missing(view_, options_, std::chrono::round<milliseconds>(now - start)));
        warn_at = now + options_.warn_after;
      }
      const auto until = options_.warn ? std::min(deadline, warn_at) : deadline;
      for (const StoreEvent& event :
           watch_->next(std::max(std::chrono::ceil<milliseconds>(until - now), milliseconds(1)))) {
        if (event.entry.revision <= listing.revision) continue;
        if (view_.roster.empty()) {
          view_.apply(event);
          check();
          stay(event);
        } else {
          later_.push_back(event);
        }
      }
      if (lease_->lost())
        fail(ErrorKind::peer, "this process could not keep its lease at {} alive while it joined run '{}'",
             store_->describe(), options_.run);
    }
    take_place();
  }

 private:
  void write(Store& store) {
    const std::string key = view_.key_of(id_);
    store.put(key, sealed(options_.secret, key, dump(to_json(record_))), lease_->id());
  }

  // Refuse, once it is sure, what cannot go together; be the one who makes it sure.
  void check() {
    const auto self = view_.members.find(id_);
    if (self != view_.members.end() && view_.began_unauthenticated()) refuse_secret(options_.run);
    // Not one from before this member came: it may be corrected since.
    if (!view_.refusal.empty() && self != view_.members.end() && self->second.created < view_.refused)
      fail(view_.refused_as, "{}", view_.refusal);
    if (!view_.roster.empty()) return;
    if (view_.closed) refuse_secret(options_.run);
    const auto problem = problem_of(view_);
    if (!problem) return;
    if (problem->confirmed()) refuse(ErrorKind::usage, problem->sentence);
    if (problem->older->id == id_ && confirmed_.insert(problem->newer->id).second) write(*store_);
  }

  // Leave word for members that look only after this one has gone: all shall say the same.
  [[noreturn]] void refuse(ErrorKind kind, const std::string& sentence) {
    constexpr milliseconds kHeard{5000};
    const std::string key = view_.refusal_key();
    const Json word = kind == ErrorKind::peer ? Json(Json::object_t{{"missing", sentence}}) : Json(sentence);
    try {
      store_->put(key, sealed(options_.secret, key, dump(word)), store_->grant(kHeard).id);
    } catch (const Error&) {  // the others find out themselves, or wait in vain
    }
    fail(kind, "{}", sentence);
  }

  void stay(const StoreEvent& event) const {
    if (event.entry.key == generation_key(options_.run) && event.kind == StoreEvent::Kind::put &&
        number_of(event.entry.value) > generation_)
      fail(ErrorKind::peer, "generation {} of run '{}' was opened while this process joined generation {}",
           event.entry.value, options_.run, generation_);
  }

  bool complete() const {
    return static_cast<int>(view_.members.size()) >= options_.world_size && !problem_of(view_);
  }

  void write_roster() {
    if (std::exchange(roster_written_, true)) return;
    Json::array_t roster;
    for (const Present* present : ranks_of(view_, options_.world_size)) {
      if (!present) {  // more came than there is room for, and not all ranks are among them
        roster_written_ = false;
        return;
      }
      roster.push_back(Json::object_t{{"id", present->id}, {"member", to_json(present->record)}});
    }
    const std::string key = view_.prefix + "roster";
    try {
      store_->create(key, sealed(options_.secret, key, dump(Json(roster))));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer) throw;
      roster_written_ = false;  // it may be there or not: the watch shows it, or it is tried again
    }
  }

  void take_place() {
    for (size_t rank = 0; rank < view_.roster.size(); ++rank) {
      auto& [id, member] = view_.roster[rank];
      member.rank = static_cast<int>(rank);
      ranks_[id] = member.rank;
      members_.push_back(member);
    }
    const auto self = ranks_.find(id_);
    if (self == ranks_.end())
      fail(ErrorKind::peer, "generation {} of run '{}' has its {} members already; {} came too late",
           generation_, options_.run, members_.size(), show(record_.member));
    rank_ = self->second;
    for (const auto& [id, rank] : ranks_)
      if (!view_.members.contains(id)) note_departure(rank, nullptr, pending_);
    for (const StoreEvent& event : later_) change(event, pending_);
  }

  void change(const StoreEvent& event, std::vector<MemberChange>& changes) {
    const std::string members_at = view_.prefix + "member/";
    if (event.entry.key == generation_key(options_.run) && event.kind == StoreEvent::Kind::put) {
      const int64_t opened = number_of(event.entry.value);
      if (opened > generation_)
        changes.push_back({MemberChange::Kind::generation, -1, false, opened,
                           fmt::format("generation {} of run '{}' was opened", opened, options_.run)});
      return;
    }
    if (!event.entry.key.starts_with(members_at)) return;
    const std::string id = event.entry.key.substr(members_at.size());
    const auto ranked = ranks_.find(id);
    if (ranked == ranks_.end()) return;
    const auto before = view_.members.find(id);
    std::optional<Record> last;
    if (before != view_.members.end()) last = before->second.record;
    view_.apply(event);
    if (event.kind == StoreEvent::Kind::removed)
      note_departure(ranked->second, last ? &*last : nullptr, changes);
  }

  // `last`: what it wrote before it went.
  void note_departure(int rank, const Record* last, std::vector<MemberChange>& changes) {
    // One that counted as lost, because it was stopped for long, may still leave.
    const bool leaves = last != nullptr && last->leaving;
    if (!gone_.insert(rank).second && !leaves) return;
    const std::string who = show(members_[rank]);
    MemberChange change{MemberChange::Kind::lost, rank, false, generation_, {}};
    if (leaves) {
      change.kind = MemberChange::Kind::left;
      change.sentence = who + " has left";
    } else if (last != nullptr && !last->gave_up.empty()) {
      change.sentence = lost_text(who, last->gave_up);
    } else {
      change.lapsed = true;
      change.sentence = lost_text(who, "its lease has lapsed");
    }
    changes.push_back(std::move(change));
  }

  std::shared_ptr<Store> store_;
  JoinOptions options_;
  int64_t generation_;
  std::string id_;
  Record record_;
  std::unique_ptr<HeldLease> lease_;
  std::unique_ptr<StoreWatch> watch_;
  RosterView view_;
  std::set<std::string> confirmed_;  // newer members that this one has shown to be alive with
  bool roster_written_ = false;
  std::vector<StoreEvent> later_;  // that came behind the roster
  std::map<std::string, int> ranks_;
  int rank_ = -1;
  std::vector<MemberInfo> members_;
  std::set<int> gone_;
  bool cut_off_ = false;  // was reported
  std::atomic<bool> closed_ = false;
  std::vector<MemberChange> pending_;
};

// The generation to join: the open one; when it is closed, and all of its members have gone, the next.
int64_t generation_to_join(Store& store, const JoinOptions& options, Clock::time_point deadline) {
  while (true) {
    const int64_t generation = open_now(store, options.run);
    const std::string prefix = run_prefix(options.run, generation);
    const StoreListing listing = store.list(prefix);
    const RosterView view = view_of(listing, prefix, options.secret);
    if (!view.closed) return generation;
    if (view.members.empty() && !view.unauthenticated.empty()) refuse_secret(options.run);
    if (view.members.empty()) {
      open_generation(store, options.run, generation);
      continue;
    }
    if (Clock::now() >= deadline)
      fail(ErrorKind::peer, "generation {} of run '{}' has its {} members already, among them {}", generation,
           options.run, view.roster.size(), show(view.by_coming()[0]->record.member));
    const auto watch = store.watch(options.run + "/", listing.revision + 1);
    watch->next(std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1)));
  }
}

}  // namespace

std::string show(const MemberInfo& member) {
  return member.rank < 0 ? "a member on " + member.host
                         : fmt::format("rank {} on {}", member.rank, member.host);
}

int64_t open_generation(Store& store, const std::string& run, int64_t from) {
  open_now(store, run);
  const auto entry = store.get(generation_key(run));
  if (entry && number_of(entry->value) == from)
    store.replace(generation_key(run), std::to_string(from + 1), entry->revision);
  return open_now(store, run);
}

std::unique_ptr<Membership> join(const std::shared_ptr<Store>& store, MemberInfo member,
                                 const JoinOptions& options) {
  if (options.run.empty() || options.run.find('/') != options.run.npos)
    fail_usage("'{}' is no name of a run; a name has at least one character, and no '/'", options.run);
  if (options.world_size < 1) fail_usage("a world of {} members cannot be joined", options.world_size);
  if (member.rank >= options.world_size || member.rank < -1)
    fail_usage("rank {} is not among the ranks 0 to {}", member.rank, options.world_size - 1);
  if (options.secret.size() < kSecretBytes)
    fail_usage("the secret of run '{}' has {} bytes; it needs {} or more", options.run, options.secret.size(),
               kSecretBytes);
  const auto deadline = Clock::now() + options.timeout;
  const int64_t generation =
      options.generation > 0 ? options.generation : generation_to_join(*store, options, deadline);
  auto place = std::make_unique<MembershipImpl>(store, options, generation, hex_of(random_bytes(8)),
                                                Record{std::move(member), options.world_size, false, {}});
  place->wait_for_all();
  return place;
}

}  // namespace het
