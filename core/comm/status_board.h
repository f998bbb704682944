// What each rank of a fabric publishes in a store beside its connections: why it gave up, and for whom it
// waits. It only improves messages. The lost rank may be the one that serves the store, so no group asks a
// silent store again for a while. Internal to core/comm.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/key_value.h"

namespace het {

// A rank of the fabric that somebody waits for.
struct PendingPeer {
  int rank = -1;
  std::string host;  // empty: not known
  int by = -1;       // who waits for it; -1: this rank itself

  bool operator==(const PendingPeer&) const = default;
};
// "rank 2 (host-b)", "rank 2".
std::string call(const PendingPeer& awaited);
// "rank 0 (host-a) has not arrived, for which rank 1 waits"; `what`: "has not arrived".
std::string tell(const PendingPeer& awaited, std::string_view what);
// The same of all, with commas.
std::string tell(const std::vector<PendingPeer>& all, std::string_view what);
// "rank 1 (host-b) gave up, because <why>"
std::string gave_up_text(std::string_view who, std::string_view why);

// In place of a group's name: every group of this rank.
inline constexpr std::string_view kAnyGroup = "";

// Thread-safe.
class StatusBoard {
 public:
  // `rank`: this one. `store_host`: "rank 0 (host-a)", when a rank serves the words; empty: none does.
  StatusBoard(std::shared_ptr<KeyValue> words, std::string prefix, int rank, std::string store_host = {});

  // Why this rank gave up a group; ranks are those of the fabric.
  void say_why(std::string_view group, std::string_view sentence);
  std::optional<std::string> why(std::string_view group, int rank);
  void note_cause(std::string_view sentence);  // for cause() alone
  std::string cause() const;                   // the first that was said or noted here; empty: none was
  // "rank 2 (host-c) is gone (its connection closed)", of a rank without a word; who serves the board and is
  // silent, too, is named.
  std::string gone(const std::string& who, std::string_view how) const;

  // This rank waits for these, for long; none: it does not any more.
  void say_waiting(const std::vector<PendingPeer>& awaited);
  // Who holds this rank up: of those that it waits for, those that do not wait themselves, and likewise of
  // those for whom they wait. When all of them wait: `missing`. The host of the store alone when it is
  // missing and the board is silent.
  std::vector<PendingPeer> suspects(const std::vector<PendingPeer>& missing);

  // Operation number `sequence` of the group is being waited for here, for long; and who says so.
  void say_at(const std::string& group, int64_t sequence);
  std::optional<int64_t> at(const std::string& group, int rank);

 private:
  void say(const std::string& key, const std::string& text);
  std::optional<std::string> heard(const std::string& key);
  bool is_silent() const;

  const std::shared_ptr<KeyValue> words_;
  const std::string prefix_;
  const int rank_;
  const std::string store_host_;
  mutable std::mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> silent_since_;
  std::string cause_;
};

// Whether nearly all of a wait's time is over: a peer that goes then was most likely only the first to end a
// wait for somebody else.
bool is_late(std::chrono::steady_clock::time_point since, std::chrono::milliseconds timeout);
// After how long this rank says for whom it waits: well before anybody asks.
std::chrono::milliseconds say_waiting_after(std::chrono::milliseconds warn_after,
                                            std::chrono::milliseconds timeout);

}  // namespace het
