#include "core/run/migration.h"

#include <algorithm>
#include <map>
#include <memory>

#include "core/base/error.h"

namespace het {
namespace {

constexpr int kTag = 1000;  // no program's messages have it

// A part of a tensor in the host's memory.
struct Piece {
  TensorSlice slice;
  Tensor elements;
};

// One round as one rank sees it.
class Round {
 public:
  Round(Communicator& group, const MigrationPlan::Round& round,
        const std::map<std::string, const StatePart*>& needs, const StateStore& state, bool into_another,
        Version version, TierReader* tiers)
      : group_(group),
        round_(round),
        needs_(needs),
        state_(state),
        into_another_(into_another),
        version_(version),
        tiers_(tiers) {}

  // What this rank needs of the round's tensors and has otherwise (for another store: also what it has): all
  // of it, when this returns.
  std::vector<StateStore::Spare> run() {
    for (const std::string& name : round_.tensors) read_own(name);
    for (const SliceMove& move : round_.moves) begin(move);
    for (const auto& collective : running_) collective->wait();
    for (auto& [name, piece] : received_)
      copy(arrived_.at(name).part, needed(name), piece.elements, piece.slice);
    std::vector<StateStore::Spare> result;
    for (auto& [name, spare] : arrived_) result.push_back(std::move(spare));
    return result;
  }

 private:
  const TensorSlice& needed(const std::string& name) const { return needs_.at(name)->slice; }

  // What this rank has of a tensor: to send, and as its own part of what it needs.
  void read_own(const std::string& name) {
    const auto entry = state_.entries().find(name);
    const bool has_entry = entry != state_.entries().end();
    const auto need = needs_.find(name);
    const bool stays = !into_another_ && has_entry && need != needs_.end() && !entry->second.current &&
                       slice_of(entry->second) == need->second->slice;
    const bool sends = std::any_of(round_.moves.begin(), round_.moves.end(), [&](const SliceMove& move) {
      return move.tensor == name && move.from == group_.rank() && move.tier == Tier::live;
    });
    std::vector<Piece>& own = own_[name];
    if (has_entry && (sends || !stays)) {
      const Tensor all = state_.read(name);
      const TensorSlice slice = slice_of(entry->second), current = current_slice_of(entry->second);
      own.push_back({current, current == slice ? all : part_of(all, slice, current)});
    }
    for (const StateStore::Spare& spare : state_.spares())
      if (spare.name == name) own.push_back({spare.slice, spare.part});
    if (need == needs_.end() || stays) return;
    const StatePart& wanted = *need->second;
    Tensor part(TensorType{wanted.tensor.type.dtype, wanted.slice.shape()});
    for (const Piece& piece : own)
      if (shared_elements(wanted.slice, piece.slice) > 0)
        copy(part, wanted.slice, piece.elements, piece.slice);
    arrived_.emplace(name, StateStore::Spare{name, wanted.slice, wanted.tensor.trained, std::move(part)});
  }

  static Tensor part_of(const Tensor& held, const TensorSlice& slice, const TensorSlice& part) {
    Tensor result(TensorType{held.dtype(), part.shape()});
    copy(result, part, held, slice);
    return result;
  }

  void begin(const SliceMove& move) {
    const bool sends = move.from == group_.rank(), receives = move.to == group_.rank();
    if (!sends && !receives) return;
    if (sends && receives) {
      copy(arrived_.at(move.tensor).part, needed(move.tensor), packed(move), move.slice);
      return;
    }
    CollectiveRequest request;
    request.kind = sends ? CollectiveKind::send : CollectiveKind::receive;
    request.counts = {move.slice.elements()};
    request.peer = sends ? move.to : move.from;
    request.tag = kTag;
    request.label = move.tensor;
    Tensor elements;
    if (sends) {
      elements = packed(move);
    } else {
      elements = Tensor(TensorType{arrived_.at(move.tensor).part.dtype(), move.slice.shape()});
      received_.emplace_back(move.tensor, Piece{move.slice, elements});
    }
    request.dtype = elements.dtype();
    running_.push_back(group_.prepare(request));
    running_.back()->start(sends ? elements.bytes() : nullptr, sends ? nullptr : elements.bytes());
    if (sends) sent_.push_back(std::move(elements));
  }

  Tensor packed(const SliceMove& move) const {
    if (move.tier != Tier::live) {
      HET_REQUIRE(tiers_ != nullptr, move.tensor);
      return tiers_->read(move.tier, version_, move.tensor, move.slice).contiguous();
    }
    for (const Piece& piece : own_.at(move.tensor)) {
      if (shared_elements(move.slice, piece.slice) < move.slice.elements()) continue;
      return piece.slice == move.slice ? piece.elements : part_of(piece.elements, piece.slice, move.slice);
    }
    fail(ErrorKind::bug, "rank {} is to send {} of '{}', which it has not", group_.rank(),
         to_string(move.slice), move.tensor);
  }

  Communicator& group_;
  const MigrationPlan::Round& round_;
  const std::map<std::string, const StatePart*>& needs_;
  const StateStore& state_;
  const bool into_another_;
  const Version version_;
  TierReader* const tiers_;
  std::map<std::string, std::vector<Piece>> own_;
  std::map<std::string, StateStore::Spare> arrived_;
  std::vector<std::pair<std::string, Piece>> received_;
  std::vector<Tensor> sent_;
  std::vector<std::unique_ptr<Collective>> running_;  // goes before the memory that it uses
};

std::map<std::string, const StatePart*> by_name(const std::vector<StatePart>& needs) {
  std::map<std::string, const StatePart*> named;
  for (const StatePart& need : needs) named.emplace(need.name, &need);
  return named;
}

void install(StateStore& state, const StateStore::Spare& part) {
  state.install(part.name, part.slice.is_whole() ? std::nullopt : std::optional<TensorSlice>(part.slice),
                part.trained, part.part);
}

void await_all(Communicator& group) {
  CollectiveRequest barrier;
  barrier.label = "the end of a round of moving the state";
  run_once(group, barrier, nullptr, nullptr);
}

}  // namespace

int64_t moved_bytes(const MigrationPlan& plan) {
  int64_t bytes = 0;
  for (const MigrationPlan::Round& round : plan.rounds)
    for (const SliceMove& move : round.moves) bytes += move.bytes;
  return bytes;
}

void migrate(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
             StateStore& state, TierReader* tiers) {
  if (state.version() != plan.version) state.clear();
  state.set_version(plan.version);
  const auto named = by_name(needs);
  for (const MigrationPlan::Round& round : plan.rounds) {
    auto arrived = Round(group, round, named, state, false, plan.version, tiers).run();
    try {
      await_all(group);
    } catch (const Error&) {
      // Who sent it may have passed the barrier, and dropped it.
      for (StateStore::Spare& part : arrived) state.keep_spare(std::move(part));
      throw;
    }
    for (const StateStore::Spare& part : arrived) install(state, part);
    for (const std::string& name : round.tensors)
      if (named.count(name) == 0) state.drop(name);
  }
  state.drop_spares();
}

void gather(Communicator& group, const MigrationPlan& plan, const std::vector<StatePart>& needs,
            const StateStore& state, StateStore* into) {
  HET_REQUIRE(into != nullptr || needs.empty(), needs.size());
  const auto named = by_name(needs);
  for (const MigrationPlan::Round& round : plan.rounds)
    for (const StateStore::Spare& part : Round(group, round, named, state, true, plan.version, nullptr).run())
      install(*into, part);
  for (const StatePart& need : needs)  // no rank has them otherwise
    if (!into->has(need.name)) into->install(need.name, {}, need.tensor.trained, state.read(need.name));
}

}  // namespace het
