// A bounded cache: values by key; those used last are kept.
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

namespace het {

// Used from one thread. Values move in; pointers to one are valid until the next add().
template <typename Value>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(size_t most) : most_(most) {}  // one or more

  size_t size() const { return kept_.size(); }

  // The value under this key, which is now the one used last; null: it is not kept.
  Value* find(const std::string& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, found->second);
    return &found->second->second;
  }

  // A value for a key that find() does not know. Drops the one that was not used for longest.
  Value& add(std::string key, Value value) {
    kept_.emplace_front(std::move(key), std::move(value));
    places_.emplace(kept_.front().first, kept_.begin());
    if (kept_.size() > most_) {
      places_.erase(kept_.back().first);
      kept_.pop_back();
    }
    return kept_.front().second;
  }

 private:
  using Kept = std::list<std::pair<std::string, Value>>;
  size_t most_;
  Kept kept_;  // the one used last first
  std::unordered_map<std::string, typename Kept::iterator> places_;
};

}  // namespace het
