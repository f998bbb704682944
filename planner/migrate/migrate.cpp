#include "planner/migrate/migrate.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "planner/migrate/rounds.h"

namespace het::planner {
namespace {

constexpr double kLinkRate = 1e9, kRateInside = 4e9;  // bytes a second

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

  int host_of(int rank) const {
    const std::vector<int>& hosts = options_.links.host_of;
    return hosts.empty() ? rank : hosts[static_cast<size_t>(rank)];
  }
  bool over_network(const MissingSlice& missing, int from) const {
    return host_of(from) != host_of(missing.to);
  }
  double seconds(const MissingSlice& missing, int from) const {
    return static_cast<double>(missing.bytes) / link_rate(options_.links, from, missing.to);
  }
  // By whether it is a host's to the network, and the host or rank.
  using Port = std::pair<bool, int>;
  Port port(const MissingSlice& missing, int from, int rank) const {
    return over_network(missing, from) ? Port(true, host_of(rank)) : Port(false, rank);
  }

  void choose_senders() {
    std::vector<size_t> order(missing_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return missing_[a].bytes > missing_[b].bytes; });
    std::map<Port, double> busy;  // seconds
    for (const MissingSlice& missing : missing_) {
      const auto quickest =
          std::min_element(missing.piece.holders.begin(), missing.piece.holders.end(),
                           [&](int a, int b) { return seconds(missing, a) < seconds(missing, b); });
      busy[port(missing, *quickest, missing.to)] += seconds(missing, *quickest);
    }
    for (const size_t i : order) {
      MissingSlice& missing = missing_[i];
      const auto busy_with = [&](int from) {
        return busy[port(missing, from, from)] + seconds(missing, from);
      };
      const int from = *std::min_element(missing.piece.holders.begin(), missing.piece.holders.end(),
                                         [&](int a, int b) { return busy_with(a) < busy_with(b); });
      busy[port(missing, from, from)] += seconds(missing, from);
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

double link_rate(const MemberLinks& links, int from, int to) {
  const auto a = static_cast<size_t>(from), b = static_cast<size_t>(to);
  if (!links.host_of.empty() && links.host_of[a] == links.host_of[b]) return kRateInside;
  if (links.bytes_per_second.empty()) return kLinkRate;
  const double rate = std::min(links.bytes_per_second[a], links.bytes_per_second[b]);
  return rate > 0 ? rate : kLinkRate;
}

MigrationPlan plan_migration(const Inventory& inventory, Version version,
                             std::span<const std::vector<StatePart>> needs, const MigrationOptions& options) {
  return Migration(inventory, version, needs, options).plan();
}

MovePlanner plan_moves(MigrationOptions options) {
  return [options = std::move(options)](const Inventory& inventory, Version version,
                                        std::span<const std::vector<StatePart>> needs,
                                        const MemberLinks& links) {
    MigrationOptions own = options;
    own.links = links;
    return plan_migration(inventory, version, needs, own);
  };
}

}  // namespace het::planner
