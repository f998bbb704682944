// The states of a search at one step, and which of them dominate others.
#pragma once

#include <bitset>
#include <unordered_map>
#include <vector>

#include "planner/hap/steps.h"

namespace het::planner::hap {

using State = std::vector<Slot>;

struct Origin {
  uint32_t state = 0;  // of the step before
  int32_t way = 0;
};

// What a slot holds when two states are compared.
struct SlotContext {
  const ValueCosts* costs = nullptr;  // null: no value
  bool is_state = false;
  std::bitset<kPhases> left = {};  // phases that are still to read it
};

Needs united(const Needs& a, const Needs& b);
// Forgets what makes no difference to whatever follows, which still reads the value in the phases `left`.
void forget(Slot& slot, std::bitset<kPhases> left);

// States that were made, then those that are kept.
class Frontier {
 public:
  explicit Frontier(size_t slots) : slots_(slots) {}

  size_t size() const { return costs_.size(); }
  const Slot* state(size_t i) const { return pool_.data() + i * slots_; }
  Ticks cost(size_t i) const { return costs_[i]; }
  const std::vector<Origin>& origins() const { return origins_; }

  // Of equal states the cheapest counts.
  void add(const State& state, Ticks cost, Origin origin);
  void add_cost(Ticks more);
  // Keeps the states that are not dominated, at most so many, the cheapest first; what goes on may then cost
  // up to `slack` more than it could. Returns the cost of the cheapest that was dropped for their number
  // alone; kNever: there is none.
  Ticks reduce(const std::vector<SlotContext>& contexts, size_t most, Ticks slack = 0);
  // Equal but for a constant in the costs.
  bool is_like(const Frontier& other) const;

 private:
  uint64_t hash_of(const Slot* state) const;
  bool less(const Slot* a, const Slot* b) const;
  bool is_dominated(size_t i, const std::vector<size_t>& kept, const std::vector<SlotContext>& contexts,
                    Ticks slack) const;
  bool dominates(size_t a, size_t b, const std::vector<SlotContext>& contexts, Ticks slack) const;

  size_t slots_;
  std::vector<Slot> pool_;
  std::vector<Ticks> costs_;
  std::vector<Origin> origins_;
  std::unordered_map<uint64_t, size_t> known_;
};

}  // namespace het::planner::hap
