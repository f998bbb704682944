#include "planner/migrate/rounds.h"

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>

#include "core/base/error.h"

namespace het::planner {
namespace {

void check(const Inventory& inventory, const StatePart& need, int rank) {
  const auto known = inventory.tensors().find(need.name);
  if (known != inventory.tensors().end() && known->second.type != need.tensor.type)
    fail_usage(
        "'{}' is {} in the state to go on from and {} in the recipe's model (rank {}): another model's state",
        need.name, to_string(known->second.type), to_string(need.tensor.type), rank);
}

// Memory that each rank takes for moves of a tensor.
std::vector<int64_t> taken_by(std::span<const SliceMove> moves, size_t ranks) {
  std::vector<int64_t> bytes(ranks);
  for (const SliceMove& move : moves) {
    if (move.from != move.to) bytes[static_cast<size_t>(move.from)] += move.bytes;
    bytes[static_cast<size_t>(move.to)] += move.bytes;
  }
  return bytes;
}

// The places of `changed`, by what part of its bytes a pair of ranks has moved until half of a tensor is. Of
// a tensor that several pairs move, that which moves most counts.
std::vector<size_t> balanced_order(std::span<const ChangedTensor> changed, const MovesByTensor& moves) {
  struct Moved {
    int from = -1, to = -1;
    Tier tier = Tier::live;
    auto operator<=>(const Moved&) const = default;  // NOLINT(modernize-use-nullptr): there is none
  };
  std::map<Moved, int64_t> total, before;
  std::vector<std::pair<Moved, int64_t>> most(changed.size());
  for (size_t i = 0; i < changed.size(); ++i) {
    if (const auto own = moves.find(changed[i].name); own != moves.end())
      for (const SliceMove& move : own->second)
        if (move.bytes > most[i].second) most[i] = {{move.from, move.to, move.tier}, move.bytes};
    total[most[i].first] += most[i].second;
  }
  std::vector<double> part(changed.size());
  for (size_t i = 0; i < changed.size(); ++i) {
    const auto& [pair, bytes] = most[i];
    int64_t& moved = before[pair];
    if (bytes > 0) part[i] = (static_cast<double>(moved) + bytes / 2.0) / static_cast<double>(total[pair]);
    moved += bytes;
  }
  std::vector<size_t> order(changed.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return part[a] < part[b]; });
  return order;
}

}  // namespace

std::vector<ChangedTensor> changed_tensors(const Inventory& inventory, Version version,
                                           std::span<const std::vector<StatePart>> needs,
                                           std::span<const int> holders) {
  HET_REQUIRE(holders.size() == needs.size(), holders.size(), needs.size());
  std::map<std::string, std::map<int, const StatePart*>> needed;
  for (const auto& [name, tensor] : inventory.tensors()) needed[name];
  for (size_t r = 0; r < needs.size(); ++r)
    for (const StatePart& need : needs[r]) {
      check(inventory, need, static_cast<int>(r));
      needed[need.name].emplace(static_cast<int>(r), &need);
    }
  std::vector<ChangedTensor> changed;
  for (const auto& [name, ranks] : needed) {
    ChangedTensor tensor{name, {}, {}};
    const auto held_by = [&](int rank) {
      const int holder = holders[static_cast<size_t>(rank)];
      return holder < 0 ? std::vector<TensorSlice>{} : inventory.held_by(holder, name, version);
    };
    bool changes = false;
    for (const auto& [rank, need] : ranks) {
      tensor.type = need->tensor.type;
      const auto held = held_by(rank);
      if (held.size() == 1 && held[0] == need->slice) continue;
      changes = true;
      tensor.needs.push_back({rank, need->slice});
    }
    for (int rank = 0; !changes && rank < static_cast<int>(needs.size()); ++rank)
      changes = !ranks.contains(rank) && !held_by(rank).empty();
    if (changes) changed.push_back(std::move(tensor));
  }
  return changed;
}

std::vector<MigrationPlan::Round> in_rounds(std::span<const ChangedTensor> changed, MovesByTensor moves,
                                            size_t ranks, int64_t round_bytes) {
  std::vector<MigrationPlan::Round> rounds;
  std::vector<int64_t> taken;  // by each rank in this round
  for (const size_t index : balanced_order(changed, moves)) {
    const ChangedTensor& tensor = changed[index];
    std::vector<SliceMove>& own = moves[tensor.name];
    const std::vector<int64_t> bytes = taken_by(own, ranks);
    const bool fits = !taken.empty() && [&] {
      for (size_t r = 0; r < taken.size(); ++r)
        if (bytes[r] > 0 && taken[r] + bytes[r] > round_bytes) return false;
      return true;
    }();
    if (!fits) {
      rounds.emplace_back();
      taken.assign(ranks, 0);
    }
    for (size_t r = 0; r < taken.size(); ++r) taken[r] += bytes[r];
    MigrationPlan::Round& round = rounds.back();
    round.tensors.push_back(tensor.name);
    for (SliceMove& move : own) round.moves.push_back(std::move(move));
  }
  return rounds;
}

}  // namespace het::planner
