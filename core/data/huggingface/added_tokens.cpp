#include "core/data/huggingface/added_tokens.h"

#include "core/data/unicode.h"
#include "core/io/utf8.h"

namespace het::huggingface {
namespace {

// A character of a word by Unicode Technical Standard 18, with the letters in circles and squares and the
// joiners.
bool is_word(char32_t c) {
  const Category category = category_of(c);
  return category <= Category::Me || category == Category::Nd || category == Category::Nl ||
         category == Category::Pc || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

size_t start_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}
bool is_space_before(std::string_view text, size_t at) {
  return is_space(decode_utf8(text, start_before(text, at)).code_point);
}
bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(decode_utf8(text, start_before(text, begin)).code_point)) ||
         (end < text.size() && is_word(decode_utf8(text, end).code_point));
}

}  // namespace

void AddedTokens::cut(std::string_view text, const std::function<void(std::string_view, bool)>& on_text,
                      const std::function<void(int32_t)>& on_token) const {
  if (tokens_.empty()) {
    if (!text.empty()) on_text(text, true);
    return;
  }
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = nullptr;
    found_.visit(text, at, [&](size_t, int64_t value) { token = &tokens_[static_cast<size_t>(value)]; });
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (begin < done || (token->single_word && touches_word(text, begin, end))) continue;
    if (token->left)
      while (begin > done && is_space_before(text, begin)) begin = start_before(text, begin);
    if (token->right)
      while (end < text.size() && is_space(decode_utf8(text, end).code_point) &&
             decode_utf8(text, end).bytes > 0)
        end += static_cast<size_t>(decode_utf8(text, end).bytes);
    if (begin > done) on_text(text.substr(done, begin - done), done == 0);
    on_token(token->id);
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done), done == 0);
}

}  // namespace het::huggingface
