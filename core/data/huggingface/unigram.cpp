// Unigram language models (Kudo 2018): of all ways to write a word the one whose tokens' scores, logarithms
// of their probabilities, have the greatest sum (Viterbi).
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/data/huggingface/model.h"
#include "core/data/huggingface/trie.h"
#include "core/data/merges.h"
#include "core/io/utf8.h"

namespace het::huggingface {
namespace {

constexpr double kUnknownPenalty = 10;  // of an unknown character, below the lowest score

class Unigram final : public Model {
 public:
  Unigram(const Part& model, Shown& shown) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const Part& entry : model["vocab"].list()) {
      const std::vector<Part> pair = entry.list();
      if (pair.size() != 2 || !pair[1].json->is_number())
        fail_usage("{}: a token and its score are wanted", entry.name);
      const std::string token = pair[0].text();
      const auto id = static_cast<int32_t>(scores_.size());
      scores_.push_back(pair[1].json->get<double>());
      if (!std::isfinite(scores_.back())) fail_usage("{}: its score is no number", entry.name);
      lowest = std::min(lowest, scores_.back());
      shown.set(id, token);
      if (!token.empty()) tokens_.add(token, id);
      ids_.insert_or_assign(token, id);
    }
    if (scores_.empty()) fail_usage("{}: there are no tokens", model["vocab"].name);
    if (model["unk_id"].present()) {
      unknown_ = model["unk_id"].id();
      if (static_cast<size_t>(unknown_) >= scores_.size())
        fail_usage("{}: there is no token {}", model["unk_id"].name, unknown_);
    }
    unknown_score_ = lowest - kUnknownPenalty;
    falls_back_ = model["byte_fallback"].flag(false);
    for (int b = 0; b < 256; ++b) {
      const auto found = ids_.find(byte_token(b));
      byte_ids_[b] = found == ids_.end() ? -1 : found->second;
    }
  }

  void encode(std::string_view word, Words& words, std::vector<int32_t>& ids) const override {
    if (word.size() > kMostWord)
      fail_usage("a word of the text has {} bytes; {} are the most", word.size(), kMostWord);
    encode_once(
        word, words, [&](std::string_view all) { return best_of(all); },
        [&](const std::vector<int32_t>& made) { ids.insert(ids.end(), made.begin(), made.end()); });
  }

 private:
  struct Best {  // way to write the text up to here
    double score = -std::numeric_limits<double>::infinity();
    size_t begin = 0;  // of its last token
    int32_t id = -1;   // of it; -1: unknown
  };

  std::vector<int32_t> best_of(std::string_view word) const {
    std::vector<Best> best(word.size() + 1);
    best[0].score = 0;
    for (size_t at = 0; at < word.size();) {
      const size_t next =
          std::min(word.size(), at + static_cast<size_t>(std::max(decode_utf8(word, at).bytes, 1)));
      const double score = best[at].score;
      bool single = false;
      tokens_.visit(word, at, [&](size_t end, int64_t id) {
        const double with = score + scores_[static_cast<size_t>(id)];
        if (with > best[end].score) best[end] = {with, at, static_cast<int32_t>(id)};
        single = single || end == next;
      });
      if (!single && score + unknown_score_ > best[next].score) best[next] = {score + unknown_score_, at, -1};
      at = next;
    }
    std::vector<std::pair<size_t, size_t>> pieces;  // from the end
    bool after_unknown = false;
    for (size_t end = word.size(); end > 0; end = best[end].begin) {
      const bool is_unknown = best[end].id < 0 || best[end].id == unknown_;
      if (is_unknown && after_unknown)
        pieces.back().first = best[end].begin;  // unknown ones side by side are one
      else
        pieces.emplace_back(best[end].begin, end);
      after_unknown = is_unknown;
    }
    std::vector<int32_t> ids;
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece)
      add(word.substr(piece->first, piece->second - piece->first), ids);
    return ids;
  }

  void add(std::string_view piece, std::vector<int32_t>& ids) const {
    if (const auto found = ids_.find(std::string(piece)); found != ids_.end())
      return ids.push_back(found->second);
    const auto has_byte = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
    if (falls_back_ && std::all_of(piece.begin(), piece.end(), has_byte))
      for (const char c : piece) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    else if (unknown_ >= 0)
      ids.push_back(unknown_);
    else
      fail_usage("the vocabulary lacks '{}', and has no token for what is unknown", piece);
  }

  std::vector<double> scores_;  // by id
  std::unordered_map<std::string, int32_t> ids_;
  Trie tokens_;
  int32_t byte_ids_[256] = {};
  int32_t unknown_ = -1;
  double unknown_score_ = 0;
  bool falls_back_ = false;
};

}  // namespace

std::unique_ptr<Model> make_unigram(const Part& model, Shown& shown) {
  return std::make_unique<Unigram>(model, shown);
}

}  // namespace het::huggingface
