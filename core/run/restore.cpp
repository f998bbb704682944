#include "core/run/restore.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/base/median.h"

namespace het {
namespace {

constexpr const char* kChanged = "a part of the state was changed on its way to another rank";

std::string who(size_t rank) { return fmt::format("rank {}", rank); }

// All slices that some rank needs, each once.
std::vector<Inventory::Need> all_of(std::span<const std::vector<StatePart>> needs) {
  std::vector<Inventory::Need> all;
  std::unordered_map<std::string_view, std::vector<const TensorSlice*>> slices;  // of each tensor, in `all`
  for (const std::vector<StatePart>& of_rank : needs)
    for (const StatePart& part : of_rank) {
      std::vector<const TensorSlice*>& had = slices[part.name];
      const auto is_same = [&](const TensorSlice* slice) { return *slice == part.slice; };
      if (std::any_of(had.begin(), had.end(), is_same)) continue;
      had.push_back(&part.slice);
      all.push_back({part.name, part.slice});
    }
  return all;
}

// Generations of one run begin with one; `run:restore` begins another run.
bool is_of_one_run(const History& a, const History& b) {
  return a.empty() || b.empty() ? a.empty() == b.empty() : a.front() == b.front();
}

// What all members report when a generation has begun, by rank.
struct Reports {
  std::vector<MemberState> members;
  std::vector<std::vector<StatePart>> needs;
  double step_seconds = 0;  // the longest that one knows

  bool any_live() const {
    return std::any_of(members.begin(), members.end(),
                       [](const MemberState& member) { return member.version.has_value(); });
  }
  // Some are further behind than one step: a recovery ended half-way.
  bool is_scattered() const {
    std::optional<int64_t> least, most;
    for (const MemberState& member : members)
      if (member.version) {
        least = std::min(least.value_or(member.version->step), member.version->step);
        most = std::max(most.value_or(member.version->step), member.version->step);
      }
    return least && *most - *least > 1;
  }
  bool any_tier() const {
    return std::any_of(members.begin(), members.end(),
                       [](const MemberState& member) { return !member.tiers.empty(); });
  }
  template <typename Use>
  void for_each_tier(Use use) const {
    for (size_t m = 0; m < members.size(); ++m)
      for (const TierState& tier : members[m].tiers) use(static_cast<int>(m), tier);
  }

  MemberLinks links() const {
    MemberLinks links;
    for (const MemberState& member : members) {
      const auto first = std::find_if(members.begin(), members.end(),
                                      [&](const MemberState& other) { return other.host == member.host; });
      links.host_of.push_back(static_cast<int>(first - members.begin()));
      links.bytes_per_second.push_back(first->link_bytes_per_second);
    }
    return links;
  }

  // The history of the run: that of the newest state of a member, else of the newest snapshot of the run that
  // wrote the last one, by the generation that decided it and then by its step. Machines may hold what other
  // runs left there.
  const History& history() const {
    static const History kNone;
    const History* newest = &kNone;
    std::optional<Version> version;
    for (const MemberState& member : members)
      if (member.version && (!version || *member.version > *version)) {
        version = member.version;
        newest = &member.history;
      }
    if (version) return *newest;
    const TierState* last = nullptr;
    for_each_tier([&](int, const TierState& tier) {
      if (last == nullptr || tier.modified > last->modified) last = &tier;
    });
    std::pair<int64_t, int64_t> most{-1, -1};
    for_each_tier([&](int, const TierState& tier) {
      const std::pair key{tier.version.generation, tier.version.step};
      if (key <= most || !is_of_one_run(tier.history, last->history)) return;
      most = key;
      newest = &tier.history;
    });
    return *newest;
  }

  // Snapshots on disk and in stores of other runs than that of `history`, in words.
  std::vector<std::string> of_other_runs(const History& history) const {
    std::map<std::pair<int, Tier>, int64_t> newest;  // steps
    for_each_tier([&](int rank, const TierState& tier) {
      if (tier.tier == Tier::memory || tier.history.empty() || history.empty() ||
          is_of_one_run(tier.history, history))
        return;
      int64_t& step = newest[{tier.tier == Tier::store ? 0 : rank, tier.tier}];
      step = std::max(step, tier.version.step);
    });
    std::vector<std::string> sentences;
    for (const auto& [place, step] : newest)
      sentences.push_back(fmt::format(
          "the {} of {} holds snapshots of another run, up to step {}: they are left out",
          place.second == Tier::store ? "store" : "disk", who(static_cast<size_t>(place.first)), step));
    return sentences;
  }

  // Above every generation that decided a step of what anyone has.
  int64_t next_generation(int64_t begun) const {
    int64_t highest = -1;
    const auto see = [&](const History& history) {
      for (const Era& era : history) highest = std::max(highest, era.generation);
    };
    for (const MemberState& member : members) {
      see(member.history);
      for (const TierState& tier : member.tiers) see(tier.history);
    }
    return std::max(begun, highest + 1);
  }

  std::string about_of(Version version) const {
    const History led = up_to(history(), version);
    for (const MemberState& member : members)
      for (const TierState& tier : member.tiers)
        if (tier.version == version && tier.history == led && !tier.about.empty()) return tier.about;
    return {};
  }
};

Reports exchange_reports(Communicator& group, const StateStore& state, const Executor* executor,
                         const std::vector<StatePart>& needs, const RestoreOptions& options, bool far) {
  MemberState own = member_state_of(state, executor);
  if (options.tiers != nullptr) own.tiers = options.tiers->states(far);
  own.host = options.host;
  own.link_bytes_per_second = options.link_bytes_per_second;
  own.step_seconds = options.step_seconds;
  const auto states = all_gather_text(group, to_text(own), "what members have of the state");
  const auto needed = all_gather_text(group, to_text(needs), "what members need of the state");
  Reports reports;
  for (size_t r = 0; r < states.size(); ++r) {
    reports.members.push_back(parse_member_state(states[r], who(r)));
    reports.needs.push_back(parse_parts(needed[r], who(r)));
    reports.step_seconds = std::max(reports.step_seconds, reports.members.back().step_seconds);
  }
  return reports;
}

void require_all(const StateStore& state, const std::vector<StatePart>& needs) {
  for (const StatePart& need : needs)  // none may have initial values now
    HET_REQUIRE(state.has(need.name), need.name);
}

// A store is asked what it has when no member has live state, when nearer places have nothing whole, or when
// so much is repeated with theirs.
constexpr double kAskStoreSeconds = 2;

// For so many bytes further connections are worth the time that they take.
constexpr int64_t kMuch = int64_t{16} << 20;

std::vector<Communicator*> lanes_for(const MigrationPlan& moves, const RestoreOptions& options) {
  int64_t travel = 0;  // what ranks read from tiers of their own does not
  for (const MigrationPlan::Round& round : moves.rounds)
    for (const SliceMove& move : round.moves) travel += move.from != move.to ? move.bytes : 0;
  return options.connect_lanes && travel >= kMuch ? options.connect_lanes() : std::vector<Communicator*>();
}

// The members have all of the state: those behind make their update, and it moves to the new layout.
Restored go_on(Communicator& group, StateStore& state, Executor* executor,
               const std::vector<StatePart>& needs, const Reports& reports, const Settlement& settled,
               const RestoreOptions& options) {
  Restored restored;
  restored.version = settled.version;
  restored.finished =
      std::binary_search(settled.finish.begin(), settled.finish.end(), group.rank()) && executor != nullptr;
  if (restored.finished) {
    const int64_t begun = state.generation();
    state.begin_generation(settled.version.generation);  // that decided it
    executor->finish(*settled.decision);
    HET_REQUIRE(state.version() == settled.version, state.version().step, settled.version.step);
    state.begin_generation(begun);
  }
  const MigrationPlan moves =
      options.plan_moves(settled.inventory, settled.version, reports.needs, reports.links());
  restored.moved_bytes = moved_bytes(moves);
  History history = up_to(reports.history(), settled.version);
  // Its ranks have decided a first step, and none has finished it until now.
  if (!is_on(history, settled.version)) append(history, settled.version, state.nonce());
  const MigrationResult moved =
      migrate(group, moves, needs, state, {&history, nullptr, false, lanes_for(moves, options)});
  if (!moved.whole) fail(ErrorKind::peer, "{}", moved.damage.empty() ? kChanged : moved.damage);
  require_all(state, needs);
  return restored;
}

// Where a member has not read its tier yet, it counts as the others' do that have.
void know_rates(std::vector<StateSource>& sources) {
  std::map<Tier, std::vector<double>> known;
  for (const StateSource& source : sources)
    if (source.bytes_per_second > 0) known[source.tier].push_back(source.bytes_per_second);
  for (StateSource& source : sources)
    if (const auto of_tier = known.find(source.tier); source.bytes_per_second <= 0 && of_tier != known.end())
      source.bytes_per_second = median(of_tier->second);
}

// All that any tier has, of versions on the run's history.
RecoveryRequest request_of(const Reports& reports) {
  RecoveryRequest request;
  const History& history = reports.history();
  std::map<std::pair<int, Tier>, int> numbers;
  const auto source = [&](int member, Tier tier, double bytes_per_second) {
    const auto [found, is_new] =
        numbers.emplace(std::pair(member, tier), static_cast<int>(request.sources.size()));
    if (is_new) request.sources.push_back({member, tier, bytes_per_second});
    return found->second;
  };
  const auto add = [&](int holder, const std::vector<StatePart>& parts, Version version) {
    for (const StatePart& part : parts)
      request.inventory.add(part.name, part.tensor, holder, part.slice, version);
  };
  for (size_t m = 0; m < reports.members.size(); ++m) {
    const MemberState& member = reports.members[m];
    const int rank = static_cast<int>(m);
    if (member.version) {
      add(source(rank, Tier::live, 0), member.parts, *member.version);
      request.newest_step = std::max(request.newest_step, member.version->step);
    }
    for (const TierState& tier : member.tiers)
      if (tier.history == up_to(history, tier.version)) {
        add(source(rank, tier.tier, tier.bytes_per_second), tier.parts, tier.version);
        request.newest_step = std::max(request.newest_step, tier.version.step);
      }
  }
  know_rates(request.sources);
  request.needs = reports.needs;
  request.step_seconds = reports.step_seconds;
  request.links = reports.links();
  return request;
}

// Some member has state of another version, which counts until all of a newly chosen one has come.
bool any_other(const Reports& reports, Version version) {
  return std::any_of(reports.members.begin(), reports.members.end(),
                     [&](const MemberState& member) { return member.version && *member.version != version; });
}

}  // namespace

std::optional<Restored> restore(Communicator& group, StateStore& state, Executor* executor,
                                const std::vector<StatePart>& needs, const RestoreOptions& options) {
  std::vector<std::string> damaged;
  std::set<std::pair<size_t, std::string>> left_out;  // by rank: several may see one file
  for (bool far = false;;) {
    const Reports reports = exchange_reports(group, state, executor, needs, options, far);
    state.begin_generation(reports.next_generation(options.generation));
    if (reports.any_live() && !(reports.any_tier() && reports.is_scattered())) {
      const Settlement settled = settle(reports.members, all_of(reports.needs));
      if (settled.missing.empty()) return go_on(group, state, executor, needs, reports, settled, options);
      if (far && !reports.any_tier())
        throw StateLost(fmt::format(
            "no member of the run has {} of the state after step {}, and there is no snapshot to go back to",
            show(settled.missing), settled.version.step));
    } else if (!reports.any_live() && !far) {
      far = true;  // the run has not begun: the newest snapshot of all places is taken
      continue;
    } else if (!reports.any_live() && !reports.any_tier()) {
      return std::nullopt;
    }
    const RecoveryRequest request = request_of(reports);
    Restored found;
    try {
      found.recovery = options.plan_recovery(request);
    } catch (const Error& error) {  // on all ranks
      if (error.kind() != ErrorKind::environment) throw;
      if (far) throw StateLost(error.sentence());
      far = true;
      continue;
    }
    found.version = found.recovery->moves.version;
    if (const auto repeated = static_cast<double>(request.newest_step - found.version.step);
        !far && repeated * request.step_seconds > kAskStoreSeconds) {
      far = true;
      continue;
    }
    found.moved_bytes = moved_bytes(found.recovery->moves);
    found.about = reports.about_of(found.version);
    const History history = up_to(reports.history(), found.version);
    if (options.tiers != nullptr) options.tiers->follow(history);
    const MigrationResult moved = migrate(group, found.recovery->moves, needs, state,
                                          {&history, options.tiers, any_other(reports, found.version),
                                           lanes_for(found.recovery->moves, options)});
    executor = nullptr;  // its state may have changed
    if (!moved.whole) {  // all choose again without what is damaged
      const auto sentences = all_gather_text(group, moved.damage, "what is damaged");
      if (std::all_of(sentences.begin(), sentences.end(), [](const auto& each) { return each.empty(); }))
        fail(ErrorKind::peer, "{}", kChanged);
      for (size_t r = 0; r < sentences.size(); ++r) {
        if (sentences[r].empty()) continue;
        // What a rank has found damaged it leaves out, and does not find again.
        if (!left_out.emplace(r, sentences[r]).second) throw StateLost(sentences[r]);
        if (std::find(damaged.begin(), damaged.end(), sentences[r]) == damaged.end())
          damaged.push_back(sentences[r]);
      }
      continue;
    }
    found.damaged = std::move(damaged);
    found.other_runs = reports.of_other_runs(history);
    if (options.tiers != nullptr) options.tiers->release();
    require_all(state, needs);
    return found;
  }
}

std::shared_ptr<StateStore> gather_state(Communicator& group, const std::shared_ptr<StateStore>& state,
                                         const std::shared_ptr<Device>& host, const MovePlanner& plan_moves) {
  Inventory inventory;
  const auto texts = all_gather_text(group, to_text(parts_of(*state)), "the names of the state");
  std::set<std::string> whole;  // tensors that rank 0 has whole, in one piece
  for (size_t r = 0; r < texts.size(); ++r)
    for (const StatePart& part : parse_parts(texts[r], who(r))) {
      inventory.add(part.name, part.tensor, static_cast<int>(r), part.slice);
      if (r == 0 && part.slice == TensorSlice::whole(part.tensor.type.shape)) whole.insert(part.name);
    }
  std::vector<std::vector<StatePart>> needs(texts.size());
  for (const auto& [name, tensor] : inventory.tensors())
    needs[0].push_back({name, tensor, TensorSlice::whole(tensor.type.shape)});
  const bool receives = group.rank() == 0;
  if (whole.size() == inventory.tensors().size()) return receives ? state : nullptr;
  const MigrationPlan moves = plan_moves(inventory, {}, needs, {});
  const auto gathered = receives ? std::make_shared<StateStore>(host, 0) : nullptr;
  gather(group, moves, needs[static_cast<size_t>(group.rank())], *state, gathered.get());
  return gathered;
}

}  // namespace het
