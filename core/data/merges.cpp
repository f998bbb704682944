#include "core/data/merges.h"

#include <queue>
#include <tuple>

namespace het {
namespace {

uint64_t pair_of(int32_t a, int32_t b) { return static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b); }

}  // namespace

void Merges::add(int32_t first, int32_t second, int32_t result) {
  pairs_.emplace(pair_of(first, second), Merge{static_cast<int32_t>(pairs_.size()), result});
}

const Merges::Merge* Merges::find(int32_t first, int32_t second) const {
  const auto found = pairs_.find(pair_of(first, second));
  return found == pairs_.end() ? nullptr : &found->second;
}

// Looks at all pairs for each merge: of few symbols this is the fastest.
void Merges::apply_short(std::vector<int32_t>& symbols) const {
  while (true) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      if (const Merge* merge = find(symbols[i], symbols[i + 1]);
          merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        at = i;
      }
    if (best == nullptr) return;
    symbols[at] = best->result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// The symbols are a linked list; candidate pairs wait in a queue by rank, then position. A candidate whose
// symbols have changed since is stale and dropped.
void Merges::apply(std::vector<int32_t>& ids) const {
  constexpr size_t kShort = 16;
  if (ids.size() <= kShort) return apply_short(ids);
  struct Symbol {
    int32_t id;
    int64_t before, after;
  };
  struct Candidate {
    int32_t rank;
    int64_t at;
    uint64_t pair;
    int32_t result;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  const auto count = static_cast<int64_t>(ids.size());
  std::vector<Symbol> symbols;
  for (int64_t i = 0; i < count; ++i)
    symbols.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](int64_t at) {
    if (at < 0 || symbols[at].after < 0) return;
    const int32_t first = symbols[at].id, second = symbols[symbols[at].after].id;
    if (const Merge* merge = find(first, second))
      queue.push({merge->rank, at, pair_of(first, second), merge->result});
  };
  for (int64_t i = 0; i < count; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (left.id < 0 || left.after < 0 || pair_of(left.id, symbols[left.after].id) != best.pair) continue;
    Symbol& right = symbols[left.after];
    left.id = best.result;
    right.id = -1;
    left.after = right.after;
    if (left.after >= 0) symbols[left.after].before = best.at;
    propose(left.before);
    propose(best.at);
  }
  ids.clear();
  for (int64_t at = 0; at >= 0; at = symbols[at].after) ids.push_back(symbols[at].id);
}

}  // namespace het
