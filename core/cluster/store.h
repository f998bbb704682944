// The authority on who is a member of a run: names with small values; some vanish with the lease of
// whoever wrote them. Not a place for tensors. Two forms with one behaviour: embedded (embedded_store.h) and
// etcd (etcd_store.h). A Store is thread-safe; a StoreWatch is used from one thread, but for close().
//
// Every change gets the next revision of the store. Every call ends within the timeout that its store was
// made with, or a little after, and throws Error(peer) when the store did not answer by then: what was asked
// for may or may not have been done. Error(usage): a key, value or secret that is not what it should be.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace het {

inline constexpr size_t kStoreKeyBytes = 1024, kStoreValueBytes = 1 << 20;

struct StoreEntry {
  std::string key, value;  // any bytes
  int64_t created = 0;     // the revision at which the key came to be
  int64_t revision = 0;    // the revision of the last change
  int64_t lease = 0;       // with which it vanishes; 0: stays

  bool operator==(const StoreEntry&) const = default;
};

struct StoreEvent {
  enum class Kind : uint8_t { put, removed } kind = Kind::put;
  StoreEntry entry;  // removed: key and revision (of the removal) only

  bool operator==(const StoreEvent&) const = default;
};

struct StoreListing {
  std::vector<StoreEntry> entries;  // by key
  int64_t revision = 0;             // of the store: a watch from revision + 1 misses nothing
};

struct StoreLease {
  int64_t id = 0;
  std::chrono::milliseconds ttl{0};    // as granted: at least what was asked for
  std::chrono::milliseconds every{0};  // how often it should be kept alive
};

class StoreWatch {
 public:
  virtual ~StoreWatch() = default;
  // The events that came since the last call, in the order of their revisions; waits up to `timeout` for one.
  // Empty: none came, or close() was called. Reconnects where nothing is lost by it. Throws Error(peer) when
  // the store is gone, or has forgotten events that were not delivered.
  virtual std::vector<StoreEvent> next(std::chrono::milliseconds timeout) = 0;
  // End a next() that waits, and all later ones at once. From any thread.
  virtual void close() = 0;
};

class Store {
 public:
  virtual ~Store() = default;
  virtual std::string describe() const = 0;  // "the embedded store at 127.0.0.1:4711"
  // An embedded store that was started again is empty. From this call on it is talked to all the same;
  // without it every call throws Error(peer) from then on. A watch throws in either case. No revision and no
  // lease of the one before is one of the new one.
  virtual void follow_restarts() {}

  // A lease lapses unless it is kept alive within its time to live; then its keys are removed. In the
  // embedded store it lapses moments after its holder's connection has ended, too.
  virtual StoreLease grant(std::chrono::milliseconds ttl) = 0;
  virtual void keep_alive(int64_t lease) = 0;  // throws Error(peer) when it has lapsed
  virtual void revoke(int64_t lease) = 0;      // one that has lapsed is no error

  virtual std::optional<StoreEntry> get(const std::string& key) = 0;
  virtual StoreListing list(const std::string& prefix) = 0;
  // The revision of the change. `lease` that has lapsed: Error(peer).
  virtual int64_t put(const std::string& key, const std::string& value, int64_t lease = 0) = 0;
  // Compare and set: nothing when the key exists already, or is not at `revision` (any more).
  virtual std::optional<int64_t> create(const std::string& key, const std::string& value,
                                        int64_t lease = 0) = 0;
  virtual std::optional<int64_t> replace(const std::string& key, const std::string& value, int64_t revision,
                                         int64_t lease = 0) = 0;
  virtual bool remove(const std::string& key) = 0;  // whether there was one

  // Events of keys that begin with `prefix`, from revision `from` on; 0: those after this call.
  virtual std::unique_ptr<StoreWatch> watch(const std::string& prefix, int64_t from = 0) = 0;
};

// Throw Error(usage) for a key, prefix or value that no store takes.
void check_store_key(std::string_view key);
void check_store_prefix(std::string_view prefix);
void check_store_value(std::string_view key, std::string_view value);

}  // namespace het
