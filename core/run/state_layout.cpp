#include "core/run/state_layout.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "core/base/error.h"
#include "core/plan/inventory.h"

namespace het {
namespace {

// A part that the same ranks have whole.
struct Shared {
  StatePart part;
  std::vector<int> ranks;  // ascending
  int64_t bytes = 0;
};

// The state in disjoint parts, the largest first.
std::vector<Shared> shared_parts(const StateLayout& layout) {
  Inventory inventory;
  for (size_t rank = 0; rank < layout.parts.size(); ++rank)
    for (const StatePart& part : layout.parts[rank])
      inventory.add(part.name, part.tensor, static_cast<int>(rank), part.slice);
  std::vector<Shared> shared;
  for (const auto& [name, tensor] : layout.tensors)
    for (Inventory::Piece& piece : inventory.find(name, TensorSlice::whole(tensor.type.shape)))
      if (!piece.holders.empty()) {
        const int64_t bytes = piece.slice.elements() * bytes_of(tensor.type.dtype);
        shared.push_back({{name, tensor, std::move(piece.slice)}, std::move(piece.holders), bytes});
      }
  std::stable_sort(shared.begin(), shared.end(),
                   [](const Shared& a, const Shared& b) { return a.bytes > b.bytes; });
  return shared;
}

class Writers {
 public:
  explicit Writers(size_t ranks) : written_(ranks), bytes_(ranks) {}

  // By one of these ranks.
  void write(const Shared& each, const std::vector<int>& ranks, int hosts, int zones = 1) {
    const auto writer = static_cast<size_t>(*std::min_element(ranks.begin(), ranks.end(), [&](int a, int b) {
      return bytes_[static_cast<size_t>(a)] < bytes_[static_cast<size_t>(b)];
    }));
    bytes_[writer] += each.bytes;
    written_[writer].push_back({each.part, hosts, zones});
  }
  std::vector<std::vector<WrittenPart>> take() { return std::move(written_); }

 private:
  std::vector<std::vector<WrittenPart>> written_;
  std::vector<int64_t> bytes_;
};

// Its ranks by a name that each rank has: of its host, or its zone.
std::map<std::string, std::vector<int>> by_name(const Shared& each, std::span<const std::string> names) {
  std::map<std::string, std::vector<int>> ranks;
  for (const int rank : each.ranks) ranks[names[static_cast<size_t>(rank)]].push_back(rank);
  return ranks;
}

}  // namespace

StateLayout layout_of(Communicator* group, const std::vector<StatePart>& needs) {
  StateLayout layout;
  if (group == nullptr) {
    layout.parts.push_back(needs);
  } else {
    const auto texts = all_gather_text(*group, to_text(needs), "which rank has what of the state");
    for (size_t rank = 0; rank < texts.size(); ++rank)
      layout.parts.push_back(parse_parts(texts[rank], fmt::format("rank {}", rank)));
  }
  for (const std::vector<StatePart>& parts : layout.parts)
    for (const StatePart& part : parts) layout.tensors.emplace(part.name, part.tensor);
  return layout;
}

std::vector<std::vector<WrittenPart>> assign_writers(const StateLayout& layout,
                                                     std::span<const std::string> hosts) {
  HET_REQUIRE(hosts.size() == layout.parts.size(), hosts.size(), layout.parts.size());
  Writers writers(layout.parts.size());
  for (const Shared& each : shared_parts(layout))
    writers.write(each, each.ranks, static_cast<int>(by_name(each, hosts).size()));
  return writers.take();
}

std::vector<std::vector<WrittenPart>> assign_writers_of_hosts(const StateLayout& layout,
                                                              std::span<const std::string> hosts,
                                                              std::span<const std::string> zones) {
  HET_REQUIRE(hosts.size() == layout.parts.size(), hosts.size(), layout.parts.size());
  HET_REQUIRE(zones.empty() || zones.size() == hosts.size(), zones.size(), hosts.size());
  Writers writers(layout.parts.size());
  for (const Shared& each : shared_parts(layout)) {
    const auto ranks_of = by_name(each, hosts);
    const int in_zones = zones.empty() ? 1 : static_cast<int>(by_name(each, zones).size());
    for (const auto& [host, ranks] : ranks_of)
      writers.write(each, ranks, static_cast<int>(ranks_of.size()), in_zones);
  }
  return writers.take();
}

}  // namespace het
