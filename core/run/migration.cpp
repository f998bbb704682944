#include "core/run/migration.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>

#include "core/base/error.h"
#include "core/run/moving_round.h"

namespace het {
namespace {

using Spares = std::vector<StateStore::Spare>;
using Needs = std::map<std::string, const StatePart*>;

Needs by_name(const std::vector<StatePart>& needs) {
  Needs named;
  for (const StatePart& need : needs) named.emplace(need.name, &need);
  return named;
}

// All rounds of a plan: the next ones are read and sent while the oldest is on its way.
class Rounds {
 public:
  // `done` is called for each round that is sound on all ranks, in order, with what came here.
  using Done = std::function<void(const MigrationPlan::Round& round, Spares arrived)>;

  Rounds(const MovingState& common, const MigrationPlan& plan, Done done)
      : common_(common), plan_(plan), done_(std::move(done)), end_(plan.rounds.size()) {}

  MigrationResult run() {
    MigrationResult result;
    for (size_t first = 0; first < end_; ++first) {
      begin_more();
      MovingRound& round = under_way_.front();
      round.finish();
      if (result.damage.empty()) result.damage = round.damage();
      Spares arrived = round.take_arrived();
      try {
        if (is_sound_everywhere(round.is_sound()))
          done_(plan_.rounds[first], std::move(arrived));
        else
          result.whole = false;
      } catch (const Error&) {
        arrived_ = std::move(arrived);
        throw;
      }
      bytes_ -= round.bytes();
      under_way_.pop_front();
    }
    return result;
  }

  // When run() has thrown: what came of the round that was not known to be sound on all ranks. Who sent it
  // may have known, and dropped it.
  Spares take_arrived() { return std::move(arrived_); }

 private:
  void begin_more() {
    while (begun_ < end_) {
      MovingRound next(common_, plan_.rounds[begun_]);
      if (!under_way_.empty() && bytes_ + next.bytes() > kMovingBytes) return;
      bytes_ += next.bytes();
      under_way_.push_back(std::move(next));
      ++begun_;
      under_way_.back().begin();
    }
  }

  // Every rank says whether its part of the oldest round is sound, and how many rounds it has begun: where
  // one is not, those that any rank has begun are ended on all, and no more begin.
  bool is_sound_everywhere(bool sound) {
    const auto ranks = static_cast<size_t>(common_.group.size());
    const std::array<int64_t, 2> own{sound ? 1 : 0, static_cast<int64_t>(begun_)};
    std::vector<int64_t> all(own.size() * ranks);
    CollectiveRequest request;
    request.kind = CollectiveKind::all_gather;
    request.dtype = DType::i64;
    request.counts.assign(ranks, static_cast<int64_t>(own.size()));
    request.label = "the end of a round of moving the state";
    run_once(common_.group, request, own.data(), all.data());
    bool all_sound = true;
    int64_t furthest = 0;
    for (size_t r = 0; r < ranks; ++r) {
      all_sound = all_sound && all[2 * r] == 1;
      furthest = std::max(furthest, all[2 * r + 1]);
    }
    if (!all_sound) end_ = static_cast<size_t>(furthest);
    return all_sound;
  }

  const MovingState& common_;
  const MigrationPlan& plan_;
  const Done done_;
  size_t begun_ = 0, end_;
  int64_t bytes_ = 0;  // of the rounds under way
  Spares arrived_;
  std::deque<MovingRound> under_way_;
};

void give_version(StateStore& state, const MigrationPlan& plan, const MigrationSetting& setting) {
  if (state.version() != plan.version) state.clear();
  state.set_version(plan.version);
  if (setting.history != nullptr) state.set_history(*setting.history);
}

void drop_unneeded(StateStore& state, const MigrationPlan::Round& round, const Needs& needs) {
  for (const std::string& name : round.tensors)
    if (needs.count(name) == 0) state.drop(name);
}

// What an earlier move, which was cut off, has left beside the state: where that is all that is needed of a
// tensor, nothing of it moves.
void install_spares(StateStore& state, const Needs& needs) {
  for (const StateStore::Spare& spare : state.spares()) {
    const auto need = needs.find(spare.name);
    if (need != needs.end() && need->second->slice == spare.slice && !state.has(spare.name))
      state.install(spare);
  }
}

}  // namespace

int64_t moved_bytes(const MigrationPlan& plan) {
  int64_t bytes = 0;
  for (const MigrationPlan::Round& round : plan.rounds)
    for (const SliceMove& move : round.moves) bytes += move.bytes;
  return bytes;
}

MigrationResult migrate(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
                        StateStore& state, const MigrationSetting& setting) {
  const Needs named = by_name(needs);
  const bool has_version = state.version() == plan.version;
  if (!setting.keep_other) give_version(state, plan, setting);
  StoreReads store(plan, group.rank(), setting.tiers);
  std::vector<Communicator*> lanes{&group};
  lanes.insert(lanes.end(), setting.lanes.begin(), setting.lanes.end());
  const MovingState common{group, std::move(lanes), named,         state, has_version,
                           false, plan.version,     setting.tiers, store};
  Spares kept;  // with keep_other: all that has come
  Rounds rounds(common, plan, [&](const MigrationPlan::Round& round, Spares arrived) {
    if (setting.keep_other) {
      std::move(arrived.begin(), arrived.end(), std::back_inserter(kept));
      return;
    }
    for (const StateStore::Spare& part : arrived) state.install(part);
    drop_unneeded(state, round, named);
  });
  const auto install_kept = [&] {
    give_version(state, plan, setting);
    for (const StateStore::Spare& part : kept) state.install(part);
  };
  try {
    const MigrationResult result = rounds.run();
    if (!result.whole) return result;
  } catch (const Error&) {
    Spares last = rounds.take_arrived();
    if (setting.keep_other && !(kept.empty() && last.empty())) install_kept();
    for (StateStore::Spare& part : last) state.keep_spare(std::move(part));
    throw;
  }
  if (setting.keep_other) {
    install_kept();
    for (const MigrationPlan::Round& round : plan.rounds) drop_unneeded(state, round, named);
  }
  install_spares(state, named);
  state.drop_spares();
  return {};
}

void gather(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
            const StateStore& state, StateStore* into) {
  HET_REQUIRE(into != nullptr || needs.empty(), needs.size());
  const Needs named = by_name(needs);
  StoreReads store(plan, group.rank(), nullptr);
  const MovingState common{group, {&group}, named, state, true, true, plan.version, nullptr, store};
  const auto put = [&](const MigrationPlan::Round&, const Spares& arrived) {
    for (const StateStore::Spare& part : arrived)
      into->install(part.name, part.slice.is_whole() ? std::nullopt : std::optional(part.slice), part.trained,
                    part.part);
  };
  const MigrationResult result = Rounds(common, plan, put).run();
  if (!result.whole)
    fail(
        ErrorKind::peer, "{}",
        result.damage.empty() ? "a part of the state was changed on its way to another rank" : result.damage);
  for (const StatePart& need : needs)  // no rank has them otherwise
    if (!into->has(need.name)) into->install(need.name, {}, need.tensor.trained, state.read(need.name));
}

}  // namespace het
