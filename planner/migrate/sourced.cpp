#include "planner/migrate/sourced.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace het::planner {
namespace {

constexpr size_t kSources = 64;  // that one group may take from

using Box = std::vector<Ranges>;  // the indices of each dimension

Box box_of(const TensorSlice& slice) {
  Box box;
  for (size_t d = 0; d < slice.whole_shape().size(); ++d)
    box.push_back(slice.ranges(static_cast<int64_t>(d)));
  return box;
}

// The elements that are in some of `boxes`, from dimension `dim` on, in the one form that the set has:
// indices of the first dimension with equal cross-sections go together, and these have the form, too.
std::vector<Box> joined(const std::vector<const Box*>& boxes, size_t dim, size_t dims) {
  if (boxes.empty()) return {};
  if (dim == dims) return {Box{}};
  std::vector<int64_t> points;
  for (const Box* box : boxes)
    for (const Range& range : (*box)[dim]) points.insert(points.end(), {range.begin, range.end});
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  std::vector<std::pair<std::vector<Box>, Ranges>> sections;
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    const Range here{points[i], points[i + 1]};
    std::vector<const Box*> with;
    for (const Box* box : boxes)
      if (shared_size((*box)[dim], {here}) > 0) with.push_back(box);
    if (with.empty()) continue;
    std::vector<Box> section = joined(with, dim + 1, dims);
    auto same = std::find_if(sections.begin(), sections.end(),
                             [&](const auto& each) { return each.first == section; });
    if (same == sections.end()) same = sections.insert(sections.end(), {std::move(section), {}});
    if (Ranges& ranges = same->second; !ranges.empty() && ranges.back().end == here.begin)
      ranges.back().end = here.end;
    else
      ranges.push_back(here);
  }
  std::vector<Box> result;
  for (auto& [section, ranges] : sections)
    for (Box& rest : section) {
      rest.insert(rest.begin(), ranges);
      result.push_back(std::move(rest));
    }
  return result;
}

// The elements of the slices, which may overlap, as disjoint slices that depend on the elements alone.
std::vector<TensorSlice> joined(const std::vector<TensorSlice>& slices) {
  if (slices.size() == 1) return slices;
  std::vector<Box> boxes;
  for (const TensorSlice& slice : slices) boxes.push_back(box_of(slice));
  std::vector<const Box*> pointers;
  for (const Box& box : boxes) pointers.push_back(&box);
  std::vector<TensorSlice> result;
  const Shape& whole = slices.front().whole_shape();
  for (const Box& box : joined(pointers, 0, whole.size())) {
    TensorSlice& slice = result.emplace_back(TensorSlice::whole(whole));
    for (size_t d = 0; d < box.size(); ++d) slice = slice.narrowed(static_cast<int64_t>(d), box[d]);
  }
  return result;
}

int64_t rows_of(const TensorSlice& slice) {
  const Shape shape = slice.shape();
  return shape.empty() ? 1 : shape[static_cast<size_t>(row_dimension(slice))];
}

class Finder {
 public:
  Finder(const SourceTable& sources, const Inventory& inventory, Version version, bool store_may_help)
      : sources_(sources), inventory_(inventory), version_(version), store_may_help_(store_may_help) {}

  SourcedVersion find(std::span<const std::vector<StatePart>> needs) {
    found_.changed = changed_tensors(inventory_, version_, needs, sources_.live());
    for (size_t t = 0; t < found_.changed.size(); ++t) {
      const ChangedTensor& tensor = found_.changed[t];
      std::vector<std::pair<TensorSlice, std::vector<Part>>> known;  // of each slice that some rank needs
      std::vector<TensorSlice> missing;
      for (const ChangedTensor::Need& need : tensor.needs) {
        auto same = std::find_if(known.begin(), known.end(),
                                 [&](const auto& each) { return each.first == need.slice; });
        if (same == known.end()) same = known.insert(known.end(), {need.slice, parts_of(tensor, need.slice)});
        for (const Part& part : same->second) add(t, need.rank, part, missing);
      }
      if (missing.empty()) continue;
      for (TensorSlice& slice : joined(missing)) {
        found_.missing_bytes += slice.elements() * bytes_of(tensor.type.dtype);
        found_.missing.push_back({tensor.name, std::move(slice)});
      }
    }
    return std::move(found_);
  }

 private:
  // What the same holders have.
  struct Part {
    std::vector<int> holders;
    int sources = 0;  // number of what is left of them to read from
    std::vector<TensorSlice> slices;
  };

  std::vector<Part> parts_of(const ChangedTensor& tensor, const TensorSlice& need) {
    std::map<std::vector<int>, std::vector<TensorSlice>> by_holders;
    for (Inventory::Piece& piece : inventory_.find(tensor.name, need, version_))
      by_holders[std::move(piece.holders)].push_back(std::move(piece.slice));
    std::vector<Part> parts;
    for (auto& [holders, slices] : by_holders)
      parts.push_back({holders, number_of(readable(holders)), joined(slices)});
    return parts;
  }

  // Of holders those to read from. kStore stands for all of the store.
  static constexpr int kStore = -1;
  std::vector<int> readable(const std::vector<int>& holders) const {
    std::vector<int> sources;
    bool stored = false;
    for (const int holder : holders)
      if (sources_.at(holder).tier == Tier::store)
        stored = true;
      else
        sources.push_back(holder);
    if (stored && (sources.empty() || store_may_help_)) sources.push_back(kStore);
    return sources;
  }

  int number_of(const std::vector<int>& readable) {
    const auto [found, is_new] = numbers_.emplace(readable, static_cast<int>(readable_.size()));
    if (is_new) readable_.push_back(readable);
    return found->second;
  }

  void add(size_t tensor, int rank, const Part& part, std::vector<TensorSlice>& missing) {
    const int live = sources_.live()[static_cast<size_t>(rank)];
    if (live >= 0 && std::binary_search(part.holders.begin(), part.holders.end(), live)) return;
    const auto [found, is_new] = group_of_.emplace(std::pair{rank, part.sources}, found_.groups.size());
    if (is_new) found_.groups.push_back({rank, sources_for(rank, part.sources), {}, 0});
    SourcedGroup& group = found_.groups[found->second];
    if (group.sources.empty()) {
      missing.insert(missing.end(), part.slices.begin(), part.slices.end());
      return;
    }
    for (const TensorSlice& slice : part.slices) {
      const int64_t bytes = slice.elements() * bytes_of(found_.changed[tensor].type.dtype);
      group.slices.push_back({tensor, slice, bytes, rows_of(slice)});
      group.bytes += bytes;
    }
  }

  // Of very many sources the rank's host's own and a few others, different ones for each rank.
  std::vector<int> sources_for(int rank, int number) const {
    std::vector<int> near, far;
    for (const int source : readable_[static_cast<size_t>(number)])
      if (source == kStore) {
        if (sources_.store(rank) >= 0) near.push_back(sources_.store(rank));
      } else {
        (sources_.over_network(source, rank) ? far : near).push_back(source);
      }
    const size_t count = std::min(far.size(), std::max(near.size(), kSources) - near.size());
    for (size_t i = 0; i < count; ++i)
      near.push_back(far[(static_cast<size_t>(rank) + i * far.size() / count) % far.size()]);
    std::sort(near.begin(), near.end());
    return near;
  }

  const SourceTable& sources_;
  const Inventory& inventory_;
  const Version version_;
  const bool store_may_help_;
  SourcedVersion found_;
  std::map<std::vector<int>, int> numbers_;
  std::vector<std::vector<int>> readable_;          // by number
  std::map<std::pair<int, int>, size_t> group_of_;  // by rank and number
};

}  // namespace

SourceTable::SourceTable(std::span<const StateSource> sources, size_t members, std::span<const int> host_of)
    : sources_(sources), host_of_(host_of.begin(), host_of.end()), live_(members, -1), store_(members, -1) {
  HET_REQUIRE(host_of.empty() || host_of.size() == members, host_of.size(), members);
  for (size_t m = 0; host_of.empty() && m < members; ++m) host_of_.push_back(static_cast<int>(m));
  for (const int host : host_of_) hosts_ = std::max(hosts_, host + 1);
  for (size_t s = 0; s < sources.size(); ++s) {
    const int member = sources[s].member;
    HET_REQUIRE(member >= 0 && static_cast<size_t>(member) < members, member, members);
    if (sources[s].tier != Tier::live && sources[s].tier != Tier::store) continue;
    int& one = (sources[s].tier == Tier::live ? live_ : store_)[static_cast<size_t>(member)];
    HET_REQUIRE(one < 0, s, one, member);
    one = static_cast<int>(s);
  }
}

const StateSource& SourceTable::at(int source) const {
  HET_REQUIRE(source >= 0 && static_cast<size_t>(source) < sources_.size(), source, sources_.size());
  return sources_[static_cast<size_t>(source)];
}

double SourceTable::distance(int source, int member) const {
  const StateSource& from = at(source);
  const double peer = from.member == member ? 0 : over_network(source, member) ? 1.25 : 1;
  switch (from.tier) {
    case Tier::live: return peer > 1 ? 0.25 : 0;
    case Tier::memory: return 1 + peer;
    case Tier::disk: return 3 + peer;
    case Tier::store: return 5.5;
  }
  return 0;
}

bool SourceTable::over_network(int source, int member) const {
  const StateSource& from = at(source);
  return from.tier != Tier::store && host_of(from.member) != host_of(member);
}

int64_t row_dimension(const TensorSlice& slice) {
  const Shape shape = slice.shape();
  const auto found = std::find_if(shape.begin(), shape.end(), [](int64_t size) { return size > 1; });
  return found == shape.end() ? 0 : found - shape.begin();
}

SourcedVersion sourced_version(const SourceTable& sources, const Inventory& inventory, Version version,
                               std::span<const std::vector<StatePart>> needs, bool store_may_help) {
  return Finder(sources, inventory, version, store_may_help).find(needs);
}

}  // namespace het::planner
