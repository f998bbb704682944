#include "planner/migrate/migrate.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/error.h"

namespace het::planner {
namespace {

// A slice that a rank lacks, and who has it.
struct MissingSlice {
  std::string tensor;
  Inventory::Piece piece;
  int to = 0;
  int64_t bytes = 0;
};

class Migration {
 public:
  Migration(const Inventory& inventory, Version version, std::span<const std::vector<StatePart>> needs,
            const MigrationOptions& options)
      : inventory_(inventory), version_(version), needs_(needs), options_(options) {}

  MigrationPlan plan() {
    find_changes();
    choose_senders();
    MigrationPlan plan{version_, {}};
    std::vector<int64_t> taken;  // by each rank in this round
    for (const std::string& name : changed_) {
      const std::vector<int64_t> bytes = taken_by(name);
      const bool fits = !taken.empty() && [&] {
        for (size_t r = 0; r < taken.size(); ++r)
          if (bytes[r] > 0 && taken[r] + bytes[r] > options_.round_bytes) return false;
        return true;
      }();
      if (!fits) {
        plan.rounds.emplace_back();
        taken.assign(needs_.size(), 0);
      }
      for (size_t r = 0; r < taken.size(); ++r) taken[r] += bytes[r];
      MigrationPlan::Round& round = plan.rounds.back();
      round.tensors.push_back(name);
      for (SliceMove& move : moves_[name]) round.moves.push_back(std::move(move));
    }
    return plan;
  }

 private:
  // Tensors that a rank does not have exactly as it needs them.
  void find_changes() {
    std::map<std::string, std::map<int, TensorSlice>> needed;
    for (size_t r = 0; r < needs_.size(); ++r)
      for (const StatePart& need : needs_[r]) {
        check(need, static_cast<int>(r));
        needed[need.name].emplace(static_cast<int>(r), need.slice);
      }
    std::set<std::string> names;
    for (const auto& [name, tensor] : inventory_.tensors()) names.insert(name);
    for (const auto& [name, ranks] : needed) names.insert(name);
    for (const std::string& name : names) {
      bool changes = false;
      for (int r = 0; r < static_cast<int>(needs_.size()); ++r) {
        const auto held = inventory_.held_by(r, name, version_);
        const auto need = needed[name].find(r);
        if (need == needed[name].end()) {
          changes = changes || !held.empty();
          continue;
        }
        if (held.size() == 1 && held[0] == need->second) continue;
        changes = true;
        find_missing(name, r, need->second);
      }
      if (changes) changed_.push_back(name);
    }
  }

  void check(const StatePart& need, int rank) const {
    const auto known = inventory_.tensors().find(need.name);
    if (known != inventory_.tensors().end() && known->second.type != need.tensor.type)
      fail_usage("rank {} needs '{}' as {}, the run's state has {}", rank, need.name,
                 to_string(need.tensor.type), to_string(known->second.type));
  }

  void find_missing(const std::string& name, int rank, const TensorSlice& need) {
    const DType dtype = type_of(name, rank).dtype;
    for (Inventory::Piece& piece : inventory_.find(name, need, version_)) {
      if (piece.holders.empty())
        fail(ErrorKind::peer, "no member of the run has {} {}, which rank {} needs", name,
             to_string(piece.slice), rank);
      if (std::binary_search(piece.holders.begin(), piece.holders.end(), rank)) continue;
      const int64_t bytes = piece.slice.elements() * bytes_of(dtype);
      missing_.push_back({name, std::move(piece), rank, bytes});
    }
  }

  const TensorType& type_of(const std::string& name, int rank) const {
    for (const StatePart& need : needs_[static_cast<size_t>(rank)])
      if (need.name == name) return need.tensor.type;
    return inventory_.tensors().at(name).type;
  }

  void choose_senders() {
    std::vector<size_t> order(missing_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return missing_[a].bytes > missing_[b].bytes; });
    std::map<int, double> busy;  // seconds of each sender
    for (const size_t i : order) {
      MissingSlice& missing = missing_[i];
      const auto seconds = [&](int from) {
        return options_.seconds ? options_.seconds(from, missing.to, missing.bytes)
                                : static_cast<double>(missing.bytes);
      };
      const int from =
          *std::min_element(missing.piece.holders.begin(), missing.piece.holders.end(),
                            [&](int a, int b) { return busy[a] + seconds(a) < busy[b] + seconds(b); });
      busy[from] += seconds(from);
      moves_[missing.tensor].push_back(
          {missing.tensor, std::move(missing.piece.slice), from, missing.to, missing.bytes});
    }
  }

  // Memory that each rank takes for what it needs of a tensor.
  std::vector<int64_t> taken_by(const std::string& name) const {
    std::vector<int64_t> bytes(needs_.size());
    const auto found = moves_.find(name);
    if (found != moves_.end())
      for (const SliceMove& move : found->second) {
        bytes[static_cast<size_t>(move.from)] += move.bytes;
        bytes[static_cast<size_t>(move.to)] += move.bytes;
      }
    return bytes;
  }

  const Inventory& inventory_;
  const Version version_;
  const std::span<const std::vector<StatePart>> needs_;
  const MigrationOptions& options_;
  std::vector<std::string> changed_;
  std::vector<MissingSlice> missing_;
  std::map<std::string, std::vector<SliceMove>> moves_;
};

}  // namespace

MigrationPlan plan_migration(const Inventory& inventory, Version version,
                             std::span<const std::vector<StatePart>> needs, const MigrationOptions& options) {
  return Migration(inventory, version, needs, options).plan();
}

MovePlanner plan_moves(MigrationOptions options) {
  return [options = std::move(options)](const Inventory& inventory, Version version,
                                        std::span<const std::vector<StatePart>> needs) {
    return plan_migration(inventory, version, needs, options);
  };
}

}  // namespace het::planner
