// The claim of a run on a bucket that it sends snapshots to: another run that would write there, and remove
// what it does not know, is refused. (A store that is a folder has a FolderClaim.)
//
// Buckets have no locks. Each run has an object, claims/RUN, which a thread of its first rank writes again
// every few seconds. Who comes writes one, too, and looks at those that are there: one that is written again
// is of a run that lives; one that is not, for longer than any run leaves it, or whose process was of this
// machine and has ended, is removed. No clocks are compared. Of several that come at once the one with the
// least number goes on. A run whose object was not written for too long, as while the store did not answer,
// may meet another one there: foreign() says so.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "snapshot/store/store.h"

namespace het {

struct StoreClaimTimes {
  std::chrono::milliseconds look{2'000}, renew{10'000};  // between two looks at others; between two writes
  std::chrono::milliseconds expire{35'000};              // without a write: that run does not live any more
};

// Thread-safe.
class StoreClaim {
 public:
  enum class State {
    looking,  // whether others live
    held,
    refused,
    failed,  // the store did not answer, and is asked again: until it does, there is no claim
  };

  // `run`: a number that the ranks of a run have in common and no other run has. `takes_over`: another rank
  // of the run had the claim, so that it is held from the start.
  StoreClaim(std::shared_ptr<ObjectStore> store, int64_t run, bool takes_over, StoreClaimTimes times = {});
  ~StoreClaim();  // as stop()
  StoreClaim(const StoreClaim&) = delete;
  StoreClaim& operator=(const StoreClaim&) = delete;

  // Waits while it is looking, at most so long.
  State wait(std::chrono::milliseconds timeout) const;
  // Whom it looks at or is refused by, or why it failed; empty when it is held.
  std::string sentence() const;
  // Another run that was met in the store since the claim is held; empty: none.
  std::string foreign() const;
  // The run goes on, and another rank takes over: the object is written no more, and stays.
  void stop();
  // The run has ended: removes the object.
  void leave();

 private:
  struct Owner;
  struct Seen;
  void work();
  void look();
  void write(bool held);
  std::map<std::string, Owner> others();
  void remove_unchanged(const std::string& key, const std::string& text);
  void finish(State state, std::string sentence);

  const std::shared_ptr<ObjectStore> store_;
  const int64_t run_;
  const StoreClaimTimes times_;
  const std::string key_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  State state_;
  std::string sentence_, foreign_;
  bool stopping_ = false, leaves_ = false;
  // Of the thread.
  std::map<std::string, Seen> seen_;
  int64_t writes_ = 0;
  std::thread thread_;
};

}  // namespace het
