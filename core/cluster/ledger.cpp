#include "core/cluster/ledger.h"

#include <algorithm>

#include "core/base/error.h"

namespace het {
namespace {

size_t bytes_of(const StoreEntry& entry) { return entry.key.size() + entry.value.size(); }

}  // namespace

Ledger::Holder& Ledger::holder(int64_t lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) fail(ErrorKind::peer, "lease {:x} has lapsed, or never was", lease);
  return found->second;
}

StoreLease Ledger::grant(std::chrono::milliseconds ttl, Time now) {
  constexpr std::chrono::milliseconds kShortest{1}, kLongest = std::chrono::hours(24 * 365);
  if (ttl < kShortest || ttl > kLongest)
    fail_usage("a lease lives from 1 ms to a year; {} ms asked", ttl.count());
  leases_[++last_lease_] = {ttl, now + ttl, {}};
  return {last_lease_, ttl, ttl / 3};
}

void Ledger::keep_alive(int64_t lease, Time now) {
  Holder& held = holder(lease);
  held.lapses = now + held.ttl;
}

void Ledger::revoke(int64_t lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  const std::set<std::string> keys = std::move(found->second.keys);
  leases_.erase(found);
  for (const std::string& key : keys) remove(key);
}

void Ledger::hasten(int64_t lease, Time lapse) {
  const auto found = leases_.find(lease);
  if (found != leases_.end()) found->second.lapses = std::min(found->second.lapses, lapse);
}

std::optional<StoreEntry> Ledger::get(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::optional(found->second);
}

StoreListing Ledger::list(const std::string& prefix) const {
  StoreListing listing;
  listing.revision = revision_;
  for (auto at = entries_.lower_bound(prefix); at != entries_.end() && at->first.starts_with(prefix); ++at)
    listing.entries.push_back(at->second);
  return listing;
}

int64_t Ledger::put(const std::string& key, const std::string& value, int64_t lease) {
  check_store_key(key);
  check_store_value(key, value);
  if (lease) holder(lease);
  const auto found = entries_.find(key);
  const size_t before = found == entries_.end() ? 0 : bytes_of(found->second);
  if (content_bytes_ - before + key.size() + value.size() > limits_.content_bytes)
    fail(ErrorKind::peer, "the store is full: it holds {} of at most {} bytes", content_bytes_,
         limits_.content_bytes);
  content_bytes_ += key.size() + value.size() - before;

  StoreEntry& entry = entries_[key];
  if (entry.lease) leases_.at(entry.lease).keys.erase(key);
  if (lease) leases_.at(lease).keys.insert(key);
  ++revision_;
  entry = {key, value, before ? entry.created : revision_, revision_, lease};
  record({StoreEvent::Kind::put, entry});
  return revision_;
}

std::optional<int64_t> Ledger::create(const std::string& key, const std::string& value, int64_t lease) {
  if (entries_.contains(key)) return std::nullopt;
  return put(key, value, lease);
}

std::optional<int64_t> Ledger::replace(const std::string& key, const std::string& value, int64_t revision,
                                       int64_t lease) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.revision != revision) return std::nullopt;
  return put(key, value, lease);
}

bool Ledger::remove(const std::string& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  const auto held = leases_.find(found->second.lease);
  if (held != leases_.end()) held->second.keys.erase(key);
  content_bytes_ -= bytes_of(found->second);
  entries_.erase(found);
  StoreEvent event{StoreEvent::Kind::removed, {}};
  event.entry.key = key;
  event.entry.revision = ++revision_;
  record(std::move(event));
  return true;
}

void Ledger::lapse(Time now) {
  std::vector<int64_t> lapsed;
  for (const auto& [id, held] : leases_)
    if (held.lapses <= now) lapsed.push_back(id);
  for (const int64_t id : lapsed) revoke(id);
}

std::optional<Ledger::Time> Ledger::next_lapse() const {
  std::optional<Time> next;
  for (const auto& [id, held] : leases_) next = next ? std::min(*next, held.lapses) : held.lapses;
  return next;
}

void Ledger::postpone_lapses(Duration by) {
  for (auto& [id, held] : leases_) held.lapses += by;
}

void Ledger::record(StoreEvent event) {
  history_bytes_ += bytes_of(event.entry);
  history_.push_back(std::move(event));
  while (history_.size() > limits_.history_events ||
         (history_bytes_ > limits_.history_bytes && history_.size() > 1)) {
    history_bytes_ -= bytes_of(history_.front().entry);
    history_.pop_front();
  }
}

}  // namespace het
