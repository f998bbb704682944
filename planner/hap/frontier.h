// The states of a search at one step, and which of them dominate others.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/hap/steps.h"

namespace het::planner::hap {

// Numbers keys from 0, in the order in which they come first: a hash table with open addressing, since a
// search makes many small ones.
template <typename Key, typename Hash>
class Numbering {
 public:
  // The number of a key, and whether it is new.
  std::pair<size_t, bool> add(const Key& key) {
    if (cells_.empty() && keys_.size() < kFew) {
      const auto found = std::find(keys_.begin(), keys_.end(), key);
      if (found != keys_.end()) return {static_cast<size_t>(found - keys_.begin()), false};
      keys_.push_back(key);
      return {keys_.size() - 1, true};
    }
    if (2 * keys_.size() >= cells_.size()) grow();
    uint32_t& cell = cell_of(key);
    if (cell != 0) return {cell - 1, false};
    keys_.push_back(key);
    cell = static_cast<uint32_t>(keys_.size());
    return {keys_.size() - 1, true};
  }
  size_t size() const { return keys_.size(); }

 private:
  // That of the key, or the free one where it belongs.
  uint32_t& cell_of(const Key& key) {
    size_t at = Hash()(key) & (cells_.size() - 1);
    while (cells_[at] != 0 && !(keys_[cells_[at] - 1] == key)) at = (at + 1) & (cells_.size() - 1);
    return cells_[at];
  }
  void grow() {
    constexpr size_t kLeast = 16;
    cells_.assign(std::max(kLeast, 2 * cells_.size()), 0);
    for (size_t i = 0; i < keys_.size(); ++i) cell_of(keys_[i]) = static_cast<uint32_t>(i + 1);
  }

  static constexpr size_t kFew = 8;  // these are looked through

  std::vector<Key> keys_;
  std::vector<uint32_t> cells_;  // a number and one more; 0: free; none: there are few keys
};

// One round of a hash: `hash` with one more part.
inline uint64_t mixed(uint64_t hash, uint64_t part) {
  hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}
struct Mixed {
  size_t operator()(uint64_t key) const { return mixed(0, key); }
};

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
  Numbering<uint64_t, Mixed> known_;
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
  Numbering<Key, Hash> known_;
  std::vector<Ticks> costs_;  // by number
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
  Numbering<uint64_t, Mixed> known_;  // hashes
  std::vector<size_t> with_hash_;     // by number: the first state
};

}  // namespace het::planner::hap
