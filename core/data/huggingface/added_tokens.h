// Tokens that are cut out of a text wherever they stand, such as "<|im_end|>".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/huggingface/trie.h"

namespace het::huggingface {

struct AddedToken {
  int32_t id = 0;
  std::string content = {};
  bool single_word = false, left = false, right = false, normalized = false;
};

// Finds added tokens: the leftmost, of those that begin together the longest.
class AddedTokens {
 public:
  void add(const AddedToken& token) {
    if (token.content.empty()) return;
    found_.add(token.content, static_cast<int64_t>(tokens_.size()));
    tokens_.push_back(token);
  }

  // Calls on_text(piece, begins at 0) and on_token(id) in their order.
  void cut(std::string_view text, const std::function<void(std::string_view, bool)>& on_text,
           const std::function<void(int32_t)>& on_token) const;

 private:
  std::vector<AddedToken> tokens_;
  Trie found_;
};

}  // namespace het::huggingface
