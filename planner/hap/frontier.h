// The states of a search at one step, and which of them dominate others.
#pragma once

#include <unordered_map>
#include <vector>

#include "planner/hap/steps.h"

namespace het::planner::hap {

using State = std::vector<Slot>;

struct Origin {
  uint32_t state = 0;  // of the step before
  int32_t way = 0;
};

// The slots of many states at one place, as numbers of the different ones.
struct SlotColumn {
  std::vector<Slot> slots;
  std::vector<uint32_t> numbers;  // by state
  void add(const Slot& slot);

 private:
  std::unordered_map<uint64_t, uint32_t> known_;
};

// What a slot holds when two states are compared.
struct SlotContext {
  const ValueCosts* costs = nullptr;  // null: no value
  bool is_state = false;
  Needs left{};  // how it may still be needed
};

// What one slot has to pay, at most, to go on as well as another one of the same value. Keeps what it found.
class Replacements {
 public:
  // kNever: `a` may not be able to.
  Ticks cost(const Slot& a, const Slot& b, const SlotContext& of);

 private:
  struct Key {
    const ValueCosts* costs;
    uint64_t a, b, left;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  std::unordered_map<Key, Ticks, Hash> known_;
};

// Forgets what makes no difference to whatever follows, which may still need the value as `of` says.
void forget(Slot& slot, const ValueCosts& costs, const Needs& left);

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
  // Keeps the states that are not dominated, at most so many, the cheapest first. Returns the cost of the
  // cheapest that was dropped for their number
  // alone; kNever: there is none.
  Ticks reduce(const std::vector<SlotContext>& contexts, Replacements& replacements, size_t most);
  // Equal but for a constant in the costs.
  bool is_like(const Frontier& other) const;

 private:
  uint64_t hash_of(const Slot* state) const;
  bool less(const Slot* a, const Slot* b) const;

  size_t slots_;
  std::vector<Slot> pool_;
  std::vector<Ticks> costs_;
  std::vector<Origin> origins_;
  std::unordered_map<uint64_t, size_t> known_;
};

}  // namespace het::planner::hap
