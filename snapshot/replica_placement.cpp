#include "snapshot/replica_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/base/error.h"
#include "core/base/random.h"

namespace het {
namespace {

// Exponentially distributed with the rate `weight`: the least of several is that of each in proportion to its
// weight.
double distance(const ReplicaMember& of, const ReplicaMember& keeper) {
  const auto words = philox(philox_key(hash_of(of.id), hash_of(keeper.id)), 0);
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 12;  // 52, so that the sum below is exact
  const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-52;
  return -std::log(uniform) / static_cast<double>(keeper.free_bytes);
}

class ReplicaPlacer {
 public:
  ReplicaPlacer(const std::vector<ReplicaMember>& members, int replicas)
      : members_(members), replicas_(replicas), load_(members.size()), limit_(members.size()) {
    double bytes = 0;
    for (const ReplicaMember& member : members)
      bytes += static_cast<double>(std::max<int64_t>(member.free_bytes, 0));
    const double all = static_cast<double>(members.size()) * replicas;
    for (size_t i = 0; i < members.size() && bytes > 0; ++i)
      limit_[i] = static_cast<int64_t>(
          std::ceil(2 * all * static_cast<double>(std::max<int64_t>(members[i].free_bytes, 0)) / bytes));
  }

  std::vector<std::vector<int>> place() {
    std::vector<size_t> order(members_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return members_[a].id < members_[b].id; });
    std::vector<std::vector<int>> placed(members_.size());
    for (int copy = 0; copy < replicas_; ++copy)
      for (const size_t of : order)
        if (const auto keeper = choose(of, placed[of])) {
          placed[of].push_back(*keeper);
          ++load_[static_cast<size_t>(*keeper)];
        }
    return placed;
  }

 private:
  std::optional<int> choose(size_t of, const std::vector<int>& chosen) const {
    using Rank = std::tuple<bool, bool, bool, bool, bool, double>;  // the least is best
    std::optional<std::pair<Rank, int>> best;
    const auto shares = [&](const std::string& value, std::string ReplicaMember::*field) {
      return std::any_of(chosen.begin(), chosen.end(),
                         [&](int keeper) { return members_[static_cast<size_t>(keeper)].*field == value; });
    };
    for (size_t i = 0; i < members_.size(); ++i) {
      const ReplicaMember &own = members_[of], &keeper = members_[i];
      if (i == of || keeper.free_bytes <= 0 ||
          std::find(chosen.begin(), chosen.end(), static_cast<int>(i)) != chosen.end())
        continue;
      const Rank rank{keeper.host == own.host,
                      keeper.zone == own.zone,
                      shares(keeper.host, &ReplicaMember::host),
                      load_[i] >= limit_[i],
                      shares(keeper.zone, &ReplicaMember::zone),
                      distance(own, keeper)};
      if (!best || rank < best->first) best = {rank, static_cast<int>(i)};
    }
    if (!best) return std::nullopt;
    return best->second;
  }

  const std::vector<ReplicaMember>& members_;
  const int replicas_;
  std::vector<int64_t> load_, limit_;  // replicas that a member keeps, and those from which on it is full
};

}  // namespace

std::vector<std::vector<int>> place_replicas(const std::vector<ReplicaMember>& members, int replicas) {
  HET_REQUIRE(replicas >= 0, replicas);
  return ReplicaPlacer(members, replicas).place();
}

}  // namespace het
