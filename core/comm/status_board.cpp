#include "core/comm/status_board.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace het {

std::string to_string(const PendingPeer& awaited) {
  return awaited.host.empty() ? fmt::format("rank {}", awaited.rank)
                              : fmt::format("rank {} on {}", awaited.rank, awaited.host);
}

std::string to_string(const std::vector<PendingPeer>& all) {
  std::string text;
  for (const PendingPeer& one : all) {
    text += (text.empty() ? "" : ", ") + to_string(one);
    if (one.by >= 0) text += fmt::format(", which rank {} waits for", one.by);
  }
  return text;
}

StatusBoard::StatusBoard(std::shared_ptr<KeyValue> words, std::string prefix, int rank,
                         std::string store_host)
    : words_(std::move(words)), prefix_(std::move(prefix)), rank_(rank), store_host_(std::move(store_host)) {}

void StatusBoard::post_reason(std::string_view group, std::string_view sentence) {
  note_cause(sentence);
  post(fmt::format("group/{}/why/{}", group, rank_), std::string(sentence));
}

void StatusBoard::note_cause(std::string_view sentence) {
  std::lock_guard lock(mutex_);
  if (cause_.empty()) cause_ = sentence;
}

std::optional<std::string> StatusBoard::reason_of(std::string_view group, int rank) {
  return read(fmt::format("group/{}/why/{}", group, rank));
}

std::string StatusBoard::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

std::string StatusBoard::describe_loss(const std::string& who, std::string_view how) const {
  if (!is_silent()) return fmt::format("lost {} ({})", who, how);
  if (store_host_.empty()) return fmt::format("lost {} ({}; the store does not answer)", who, how);
  if (store_host_ == who) return fmt::format("lost {}, which serves the store ({})", who, how);
  // It may have given up over the other.
  return fmt::format("lost {}, which serves the store (it does not answer; {}: {})", store_host_, who, how);
}

// A line for each: its rank and host.
void StatusBoard::post_waiting(const std::vector<PendingPeer>& awaited) {
  std::string text;
  for (const PendingPeer& one : awaited) text += fmt::format("{} {}\n", one.rank, one.host);
  post(fmt::format("waits/{}", rank_), text);
}

std::vector<PendingPeer> StatusBoard::suspects(const std::vector<PendingPeer>& missing) {
  std::vector<PendingPeer> found, asked = missing;
  std::set<int> seen{rank_};
  for (const PendingPeer& one : missing) seen.insert(one.rank);
  for (size_t i = 0; i < asked.size(); ++i) {
    const PendingPeer one = asked[i];
    const std::string lines = read(fmt::format("waits/{}", one.rank)).value_or("");
    if (lines.empty()) found.push_back(one);
    for (size_t begin = 0, end; (end = lines.find('\n', begin)) != lines.npos; begin = end + 1) {
      const std::string line = lines.substr(begin, end - begin);
      const int rank = std::atoi(line.c_str());
      if (seen.insert(rank).second) asked.push_back({rank, line.substr(line.find(' ') + 1), one.rank});
    }
  }
  // What the others wait for cannot be known any more.
  if (is_silent())
    for (const PendingPeer& one : missing)
      if (to_string(one) == store_host_) return {one};
  return found.empty() ? missing : found;
}

void StatusBoard::post_position(const std::string& group, int64_t sequence) {
  post(fmt::format("group/{}/at/{}", group, rank_), std::to_string(sequence));
}

std::optional<int64_t> StatusBoard::position_of(const std::string& group, int rank) {
  const auto text = read(fmt::format("group/{}/at/{}", group, rank));
  return text ? std::optional<int64_t>(std::atoll(text->c_str())) : std::nullopt;
}

void StatusBoard::post(const std::string& key, const std::string& text) {
  if (is_silent()) return;
  try {
    words_->set(fmt::format("{}/{}", prefix_, key), text);
  } catch (const Error&) {
    std::lock_guard lock(mutex_);
    silent_since_ = std::chrono::steady_clock::now();
  }
}

std::optional<std::string> StatusBoard::read(const std::string& key) {
  if (is_silent()) return std::nullopt;
  try {
    return words_->get(fmt::format("{}/{}", prefix_, key));
  } catch (const Error&) {
    std::lock_guard lock(mutex_);
    silent_since_ = std::chrono::steady_clock::now();
    return std::nullopt;
  }
}

bool StatusBoard::is_silent() const {
  constexpr std::chrono::seconds kAskAgain{3};
  std::lock_guard lock(mutex_);
  return silent_since_ && std::chrono::steady_clock::now() - *silent_since_ < kAskAgain;
}

bool is_late(std::chrono::steady_clock::time_point since, std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() - since >= timeout * 9 / 10;
}

std::chrono::milliseconds post_waiting_after(std::chrono::milliseconds warn_after,
                                             std::chrono::milliseconds timeout) {
  return std::min(warn_after, timeout) / 4;
}

}  // namespace het
