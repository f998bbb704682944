#include "core/plan/inventory.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"

namespace het {

void Inventory::add(const std::string& name, const Tensor& tensor, int holder, const TensorSlice& slice,
                    Version version) {
  const Tensor& known = tensors_.emplace(name, tensor).first->second;
  if (known.type != tensor.type || known.trained != tensor.trained)
    fail_usage("'{}' is {} at one holder and {} at another", name, to_string(known.type),
               to_string(tensor.type));
  HET_REQUIRE(slice.whole_shape() == tensor.type.shape, name, to_string(tensor.type));
  if (slice.is_empty()) return;
  auto& holdings = holdings_[{name, version}];
  auto found = std::find_if(holdings.begin(), holdings.end(),
                            [&](const Holding& each) { return each.slice == slice; });
  if (found == holdings.end()) found = holdings.insert(holdings.end(), {slice, {}});
  std::vector<int>& holders = found->holders;
  const auto place = std::lower_bound(holders.begin(), holders.end(), holder);
  if (place == holders.end() || *place != holder) holders.insert(place, holder);
}

std::vector<Inventory::Piece> Inventory::find(const std::string& name, const TensorSlice& need,
                                              Version version) const {
  if (need.is_empty()) return {};
  const auto found = holdings_.find({name, version});
  std::vector<TensorSlice> parts{need};
  if (found != holdings_.end())
    for (const Holding& holding : found->second)
      if (auto part = intersection(need, holding.slice)) parts.push_back(*std::move(part));
  std::vector<Piece> pieces;
  for (TensorSlice& part : refine(parts)) {
    std::set<int> holders;
    if (found != holdings_.end())
      for (const Holding& holding : found->second)
        if (shared_elements(part, holding.slice) == part.elements())
          holders.insert(holding.holders.begin(), holding.holders.end());
    pieces.push_back({std::move(part), {holders.begin(), holders.end()}});
  }
  return pieces;
}

std::optional<std::vector<Inventory::Source>> Inventory::sources(const std::string& name,
                                                                 const TensorSlice& need, int receiver,
                                                                 Version version) const {
  std::vector<Source> chosen;
  for (Piece& piece : find(name, need, version)) {
    if (piece.holders.empty()) return std::nullopt;
    const auto next = std::lower_bound(piece.holders.begin(), piece.holders.end(), receiver);
    chosen.push_back({std::move(piece.slice), next == piece.holders.end() ? piece.holders[0] : *next});
  }
  return chosen;
}

std::vector<TensorSlice> Inventory::held_by(int holder, const std::string& name, Version version) const {
  std::vector<TensorSlice> slices;
  const auto found = holdings_.find({name, version});
  if (found == holdings_.end()) return slices;
  for (const Holding& holding : found->second)
    if (std::binary_search(holding.holders.begin(), holding.holders.end(), holder))
      slices.push_back(holding.slice);
  return slices;
}

std::vector<Version> Inventory::versions() const {
  std::set<Version> found;
  for (const auto& [key, holdings] : holdings_) found.insert(key.second);
  return {found.rbegin(), found.rend()};
}

std::optional<Version> Inventory::newest_with(std::span<const Need> needs) const {
  for (const Version& version : versions())
    if (std::all_of(needs.begin(), needs.end(), [&](const Need& need) {
          const auto pieces = find(need.name, need.slice, version);
          return std::none_of(pieces.begin(), pieces.end(),
                              [](const Piece& piece) { return piece.holders.empty(); });
        }))
      return version;
  return std::nullopt;
}

}  // namespace het
