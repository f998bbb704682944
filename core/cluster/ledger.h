// The content of the embedded store: entries, leases, and the history of changes that watches read. Plain
// memory, no clock, no network: every call is given the time. Used from one thread.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "core/cluster/store.h"

namespace het {

struct LedgerLimits {
  size_t history_events = 1 << 16;
  size_t history_bytes = 64 << 20;
  size_t content_bytes = 256 << 20;
};

class Ledger {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  // Its revisions and leases are the numbers after `before`.
  explicit Ledger(LedgerLimits limits = {}, int64_t before = 0)
      : limits_(limits), revision_(before), last_lease_(before) {}

  // As in Store; errors are thrown.
  StoreLease grant(std::chrono::milliseconds ttl, Time now);
  void keep_alive(int64_t lease, Time now);
  void revoke(int64_t lease);
  void hasten(int64_t lease, Time lapse);  // it lapses then, if not before; no lease of that number: nothing
  std::optional<StoreEntry> get(const std::string& key) const;
  StoreListing list(const std::string& prefix) const;
  int64_t put(const std::string& key, const std::string& value, int64_t lease);
  std::optional<int64_t> create(const std::string& key, const std::string& value, int64_t lease);
  std::optional<int64_t> replace(const std::string& key, const std::string& value, int64_t revision,
                                 int64_t lease);
  bool remove(const std::string& key);

  void lapse(Time now);  // remove what lapsed by `now`
  std::optional<Time> next_lapse() const;
  void postpone_lapses(Duration by);  // no member could be heard for that long: the server itself was stopped

  int64_t revision() const { return revision_; }
  int64_t oldest() const {
    return revision_ - static_cast<int64_t>(history_.size()) + 1;
  }  // event still known
  // The event of a revision in [oldest(), revision()]: every revision has one.
  const StoreEvent& event(int64_t revision) const {
    return history_[static_cast<size_t>(revision - oldest())];
  }

 private:
  struct Holder {
    std::chrono::milliseconds ttl;
    Time lapses;
    std::set<std::string> keys;
  };
  Holder& holder(int64_t lease);
  void record(StoreEvent event);

  LedgerLimits limits_;
  int64_t revision_, last_lease_;
  size_t content_bytes_ = 0, history_bytes_ = 0;
  std::map<std::string, StoreEntry> entries_;
  std::map<int64_t, Holder> leases_;
  std::deque<StoreEvent> history_;
};

}  // namespace het
