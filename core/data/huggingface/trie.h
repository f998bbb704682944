// Texts by their bytes, to find all that a place of a longer text begins with.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace het::huggingface {

class Trie {
 public:
  // Of equal texts the last one counts. `value` is not negative.
  void add(std::string_view text, int64_t value) {
    size_t node = 0;
    for (const char c : text) {
      const auto [next, fresh] = next_.try_emplace(key(node, c), values_.size());
      if (fresh) values_.push_back(-1);
      node = next->second;
    }
    values_[node] = value;
    if (!text.empty()) begins_[static_cast<unsigned char>(text[0])] = true;
  }

  // Calls found(end, value) for each text that stands at `at`, the shortest first.
  template <typename Found>
  void visit(std::string_view text, size_t at, const Found& found) const {
    if (at >= text.size() || !begins_[static_cast<unsigned char>(text[at])]) return;
    for (size_t node = 0; at < text.size();) {
      const auto next = next_.find(key(node, text[at]));
      if (next == next_.end()) return;
      node = next->second;
      ++at;
      if (values_[node] >= 0) found(at, values_[node]);
    }
  }

 private:
  static size_t key(size_t node, char c) { return node << 8 | static_cast<unsigned char>(c); }

  std::unordered_map<size_t, size_t> next_;  // node and byte to node
  std::vector<int64_t> values_ = {-1};       // by node: of the text that ends there; -1: none does
  bool begins_[256] = {};                    // by first byte
};

}  // namespace het::huggingface
