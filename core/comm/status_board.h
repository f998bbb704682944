// What each rank of a fabric publishes in a store beside its connections: why it gave up, and which ranks it
// waits for. It only improves messages. The lost rank may be the one that serves the store, so no group asks
// a silent store again for a while. Internal to core/comm.
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

// A rank of the fabric that another one waits for.
struct PendingPeer {
  int rank = -1;
  std::string host;  // empty: not known
  int by = -1;       // the rank that waits for it; -1: this one

  bool operator==(const PendingPeer&) const = default;
};
// "rank 2 on host-b", "rank 2".
std::string to_string(const PendingPeer& awaited);
// "rank 0 on host-a", of all with commas; those that another rank waits for say so: "rank 2, which rank 1
// waits for".
std::string to_string(const std::vector<PendingPeer>& all);

// In place of a group's name: every group of this rank.
inline constexpr std::string_view kAnyGroup = "";

// Thread-safe.
class StatusBoard {
 public:
  // `rank`: this one. `store_host`: "rank 0 on host-a", when a rank serves the words; empty: none does.
  StatusBoard(std::shared_ptr<KeyValue> words, std::string prefix, int rank, std::string store_host = {});

  // Why this rank gave up a group; ranks are those of the fabric.
  void post_reason(std::string_view group, std::string_view sentence);
  std::optional<std::string> reason_of(std::string_view group, int rank);
  void note_cause(std::string_view sentence);  // for cause() alone
  std::string cause() const;                   // the first that was said or noted here; empty: none was
  // "lost rank 2 on host-c (connection closed)", of a rank that posted no reason. Names the host of the
  // store when that does not answer.
  std::string describe_loss(const std::string& who, std::string_view how) const;

  // This rank waits for these, for long; none: it does not any more.
  void post_waiting(const std::vector<PendingPeer>& awaited);
  // The ranks that hold this one up: of those that it waits for, those that do not wait themselves, and
  // likewise of those that they wait for. When all of them wait: `missing`. The host of the store alone when
  // it is missing and the board is silent.
  std::vector<PendingPeer> suspects(const std::vector<PendingPeer>& missing);

  // This rank has waited long for operation number `sequence` of the group; and which one a rank waits for.
  void post_position(const std::string& group, int64_t sequence);
  std::optional<int64_t> position_of(const std::string& group, int rank);

  bool is_silent() const;  // it did not answer a moment ago

 private:
  void post(const std::string& key, const std::string& text);
  std::optional<std::string> read(const std::string& key);

  const std::shared_ptr<KeyValue> words_;
  const std::string prefix_;
  const int rank_;
  const std::string store_host_;
  mutable std::mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> silent_since_;
  std::string cause_;
};

// Whether nearly all of a wait's time is over: a peer that goes then has most likely ended its wait for
// another rank.
bool is_late(std::chrono::steady_clock::time_point since, std::chrono::milliseconds timeout);
// After how long this rank posts what it waits for: well before others read it.
std::chrono::milliseconds post_waiting_after(std::chrono::milliseconds warn_after,
                                             std::chrono::milliseconds timeout);

}  // namespace het
