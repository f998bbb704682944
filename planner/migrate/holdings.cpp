#include "planner/migrate/holdings.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace het::planner {
namespace {

size_t hash_of(const TensorSlice& slice) {
  size_t hash = 0;
  const auto add = [&](int64_t value) {
    hash ^= static_cast<size_t>(value) + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  };
  for (size_t d = 0; d < slice.whole_shape().size(); ++d) {
    add(slice.whole_shape()[d]);
    for (const Range& range : slice.ranges(static_cast<int64_t>(d))) {
      add(range.begin);
      add(range.end);
    }
  }
  return hash;
}

// The shares of the owners of a layer's optimizer state; without a common divisor, so that equal ones are
// equal.
Shares simplest(Shares shares) {
  int64_t common = 0;
  for (const int64_t share : shares) common = std::gcd(common, share);
  for (int64_t& share : shares) share /= std::max<int64_t>(common, 1);
  return shares;
}

}  // namespace

Holdings::Holdings(ModelState state) : state_(std::move(state)) {}

int Holdings::number_of(TensorSlice slice) {
  const size_t hash = hash_of(slice);
  const auto [first, last] = slice_numbers_.equal_range(hash);
  for (auto known = first; known != last; ++known)
    if (slices_[static_cast<size_t>(known->second)].slice == slice) return known->second;
  const int number = static_cast<int>(slices_.size());
  slice_numbers_.emplace(hash, number);
  const int64_t elements = slice.elements();
  slices_.push_back({std::move(slice), elements});
  return number;
}

int Holdings::number_of(int kind, std::vector<int> slices) {
  const auto [entry, fresh] = part_numbers_.try_emplace({kind, slices}, static_cast<int>(parts_.size()));
  if (!fresh) return entry->second;
  Part& part = parts_.emplace_back();
  part.kind = kind;
  const auto& tensors = state_.kinds[static_cast<size_t>(kind)];
  HET_REQUIRE(slices.size() == tensors.size(), slices.size(), tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const auto elements = static_cast<double>(slices_[static_cast<size_t>(slices[t])].elements);
    (tensors[t].trained ? part.bytes.weights : part.bytes.optimizer) += elements * tensors[t].element_bytes;
  }
  part.slices = std::move(slices);
  return entry->second;
}

int Holdings::number_of(Shares owners) {
  const auto [entry, fresh] =
      owner_numbers_.try_emplace(simplest(std::move(owners)), static_cast<int>(owners_.size()));
  if (fresh) owners_.push_back(entry->first);
  return entry->second;
}

const std::vector<int>& Holdings::parts_of(const StageCut& cut, int number, int layer) {
  std::vector<int>& parts = cut_parts_[static_cast<size_t>(number)][static_cast<size_t>(layer)];
  if (!parts.empty()) return parts;
  for (std::vector<TensorSlice>& slices : state_.slices(layer, cut)) {
    std::vector<int> numbers;
    for (TensorSlice& slice : slices) numbers.push_back(number_of(std::move(slice)));
    parts.push_back(number_of(state_.layers[static_cast<size_t>(layer)], std::move(numbers)));
  }
  return parts;
}

std::vector<int> Holdings::owners_of(const Plan& plan) {
  std::vector<Shares> shares(static_cast<size_t>(state_.count()));
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (int layer = stage.first_layer; layer < stage.first_layer + stage.layers; ++layer)
        shares[static_cast<size_t>(layer)].push_back(stage.optimizer_share);
  std::vector<int> numbers;
  for (size_t layer = 0; layer < shares.size(); ++layer)  // neighbours are alike as a rule
    numbers.push_back(layer > 0 && shares[layer] == shares[layer - 1] ? numbers.back()
                                                                      : number_of(shares[layer]));
  return numbers;
}

int Holdings::divided(int part, int owners, size_t place) {
  const Shares& shares = owners_[static_cast<size_t>(owners)];
  std::vector<int>& parts = divided_.try_emplace({part, owners}, shares.size(), -1).first->second;
  if (parts[place] >= 0) return parts[place];
  const int kind = parts_[static_cast<size_t>(part)].kind;
  std::vector<int> slices = parts_[static_cast<size_t>(part)].slices;
  const auto& tensors = state_.kinds[static_cast<size_t>(kind)];
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorSlice held = slice(slices[t]);
    const Shape shape = held.shape();
    if (!tensors[t].sharded || shape.empty()) continue;
    std::vector<int64_t>& points = points_[{shape[0], owners}];
    if (points.empty()) {
      const bool owned = std::any_of(shares.begin(), shares.end(), [](int64_t share) { return share > 0; });
      points = owned ? cut_points(shape[0], shares) : std::vector<int64_t>(shares.size() + 1, 0);
    }
    const TensorSlice own = TensorSlice::whole(shape).narrowed(0, Range{points[place], points[place + 1]});
    slices[t] = number_of(nested(held, own));
  }
  return parts[place] = number_of(kind, std::move(slices));
}

std::map<std::string, Held> Holdings::of(const Plan& plan) {
  const std::vector<int> owners = plan.sharded_optimizer ? owners_of(plan) : std::vector<int>{};
  std::vector<size_t> place(static_cast<size_t>(state_.count()), 0);  // stages of a layer that were passed
  std::map<std::string, Held> held;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const StageCut cut = cut_of(plan, stage);
      const int number = cut_numbers_.try_emplace(cut, static_cast<int>(cut_parts_.size())).first->second;
      if (number == static_cast<int>(cut_parts_.size()))
        cut_parts_.emplace_back(static_cast<size_t>(state_.count()));
      const int end = stage.first_layer + stage.layers;
      for (size_t t = 0; t < stage.devices.size(); ++t) {
        Held& own = held[stage.devices[t]];
        for (int layer = stage.first_layer; layer < end; ++layer) {
          const auto l = static_cast<size_t>(layer);
          const int part = parts_of(cut, number, layer)[t];
          own.push_back({layer, plan.sharded_optimizer ? divided(part, owners[l], place[l]) : part});
        }
      }
      for (int layer = stage.first_layer; layer < end; ++layer) ++place[static_cast<size_t>(layer)];
    }
  for (auto& [device, parts] : held) std::sort(parts.begin(), parts.end());
  return held;
}

Holdings::Bytes Holdings::missing_of(int need, int have) const {
  const Part &wanted = parts_[static_cast<size_t>(need)], &there = parts_[static_cast<size_t>(have)];
  const auto& tensors = state_.kinds[static_cast<size_t>(wanted.kind)];
  Bytes bytes;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (wanted.slices[t] == there.slices[t]) continue;
    const Slice& own = slices_[static_cast<size_t>(wanted.slices[t])];
    // The elements of missing(own, {there}), which would make slices of them.
    const auto elements =
        static_cast<double>(own.elements - shared_elements(own.slice, slice(there.slices[t])));
    (tensors[t].trained ? bytes.weights : bytes.optimizer) += elements * tensors[t].element_bytes;
  }
  return bytes;
}

Holdings::Bytes Holdings::missing(const Held& need, const Held& have) const {
  constexpr int kNothing = -1;
  Bytes bytes, last;
  int last_need = kNothing, last_have = kNothing;  // layers that follow each other are alike as a rule
  auto there = have.begin();
  for (const HeldPart& wanted : need) {
    while (there != have.end() && there->layer < wanted.layer) ++there;
    const int part = there != have.end() && there->layer == wanted.layer ? there->part : kNothing;
    if (part == wanted.part) continue;
    if (wanted.part != last_need || part != last_have)
      last =
          part == kNothing ? parts_[static_cast<size_t>(wanted.part)].bytes : missing_of(wanted.part, part);
    last_need = wanted.part;
    last_have = part;
    bytes.weights += last.weights;
    bytes.optimizer += last.optimizer;
  }
  return bytes;
}

}  // namespace het::planner
