#include "planner/migrate/migrate.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "planner/infinity.h"
#include "planner/migrate/rounds.h"

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
    std::vector<int> holders(needs_.size());  // every rank is one
    std::iota(holders.begin(), holders.end(), 0);
    const std::vector<ChangedTensor> changed = changed_tensors(inventory_, version_, needs_, holders);
    for (const ChangedTensor& tensor : changed)
      for (const ChangedTensor::Need& need : tensor.needs) find_missing(tensor, need);
    choose_senders();
    return {version_, in_rounds(changed, std::move(moves_), needs_.size(), options_.round_bytes)};
  }

 private:
  void find_missing(const ChangedTensor& tensor, const ChangedTensor::Need& need) {
    for (Inventory::Piece& piece : inventory_.find(tensor.name, need.slice, version_)) {
      if (piece.holders.empty())
        fail(ErrorKind::peer, "no member of the run has {} {}, which rank {} needs", tensor.name,
             to_string(piece.slice), need.rank);
      if (std::binary_search(piece.holders.begin(), piece.holders.end(), need.rank)) continue;
      const int64_t bytes = piece.slice.elements() * bytes_of(tensor.type.dtype);
      missing_.push_back({tensor.name, std::move(piece), need.rank, bytes});
    }
  }

  double seconds(const MissingSlice& missing, int from) const {
    return options_.seconds ? options_.seconds(from, missing.to, missing.bytes)
                            : static_cast<double>(missing.bytes);
  }

  void choose_senders() {
    std::vector<size_t> order(missing_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return missing_[a].bytes > missing_[b].bytes; });
    std::map<int, double> busy;  // seconds of each rank
    for (const MissingSlice& missing : missing_) {
      double least = kInfinity;
      for (const int from : missing.piece.holders) least = std::min(least, seconds(missing, from));
      busy[missing.to] += least;
    }
    for (const size_t i : order) {
      MissingSlice& missing = missing_[i];
      const int from = *std::min_element(
          missing.piece.holders.begin(), missing.piece.holders.end(),
          [&](int a, int b) { return busy[a] + seconds(missing, a) < busy[b] + seconds(missing, b); });
      busy[from] += seconds(missing, from);
      moves_[missing.tensor].push_back(
          {missing.tensor, std::move(missing.piece.slice), from, missing.to, missing.bytes});
    }
  }

  const Inventory& inventory_;
  const Version version_;
  const std::span<const std::vector<StatePart>> needs_;
  const MigrationOptions& options_;
  std::vector<MissingSlice> missing_;
  MovesByTensor moves_;
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
