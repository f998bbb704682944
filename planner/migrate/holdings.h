// What the devices of plans hold of a model's state: a part of each of their layers, which is a slice of each
// of the layer's tensors. Slices and parts are kept once and called by number: plans of 1,024 devices have
// few that differ, and two devices that hold the same part are alike at a glance.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/migrate/model_state.h"

namespace het::planner {

// A part of a layer: its slices by Holdings::slice.
struct HeldPart {
  int layer = 0, part = 0;
  auto operator<=>(const HeldPart&) const = default;  // NOLINT(modernize-use-nullptr): there is none
};
using Held = std::vector<HeldPart>;  // by layer, ascending

// Keeps every slice that it has made. One thread.
class Holdings {
 public:
  explicit Holdings(ModelState state);

  // Of each device of a valid plan with as many layers as the model. Throws Error(usage) for cuts that the
  // model does not allow.
  std::map<std::string, Held> of(const Plan& plan);

  struct Bytes {
    double weights = 0, optimizer = 0;  // optimizer: all state beside the weights
    double total() const { return weights + optimizer; }
  };
  // What `need` has and `have` has not.
  Bytes missing(const Held& need, const Held& have) const;

  const ModelState& state() const { return state_; }
  // The slice that a part has of a tensor of its layer, by number; equal slices have equal numbers.
  int slice_number(int part, size_t tensor) const { return parts_[static_cast<size_t>(part)].slices[tensor]; }
  const TensorSlice& slice(int number) const { return slices_[static_cast<size_t>(number)].slice; }
  size_t count() const { return slices_.size(); }  // of different slices

 private:
  struct Slice {
    TensorSlice slice;
    int64_t elements = 0;
  };
  struct Part {
    int kind = 0;
    std::vector<int> slices;
    Bytes bytes;  // of all of it
  };

  int number_of(TensorSlice slice);
  int number_of(int kind, std::vector<int> slices);
  int number_of(Shares owners);
  // Of each device of a stage that is cut so.
  const std::vector<int>& parts_of(const StageCut& cut, int number, int layer);
  // Of each layer who has how much of its optimizer state: a share for each stage that holds the layer, in
  // the order of the plan. By number.
  std::vector<int> owners_of(const Plan& plan);
  // What is left of a part when its optimizer state is divided among owners: what the one at `place` has.
  int divided(int part, int owners, size_t place);
  Bytes missing_of(int need, int have) const;  // of parts of one layer

  ModelState state_;
  std::vector<Slice> slices_;
  std::unordered_multimap<size_t, int> slice_numbers_;  // by hash
  std::vector<Part> parts_;
  std::map<std::pair<int, std::vector<int>>, int> part_numbers_;  // by kind and slices
  std::map<StageCut, int> cut_numbers_;
  std::vector<std::vector<std::vector<int>>> cut_parts_;  // [cut][layer][device]; empty until it is used
  std::vector<Shares> owners_;
  std::map<Shares, int> owner_numbers_;
  std::map<std::pair<int, int>, std::vector<int>> divided_;         // by part and owners; -1 until it is used
  std::map<std::pair<int64_t, int>, std::vector<int64_t>> points_;  // by rows and owners
};

}  // namespace het::planner
