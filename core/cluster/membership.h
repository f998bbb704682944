// Who takes part in a generation of a run: members find each other in the store, agree on ranks, and learn
// when one of them goes. It decides nothing about what to do then: a policy does, and opens the next
// generation. Every member writes what it is under its lease, sealed with the run's secret.
//
// Keys, below "RUN/": generation; GENERATION/member/ID for each member; GENERATION/refusal for a moment, when
// members cannot go together; GENERATION/roster, written once by whoever first sees all members, with their
// ranks. The roster closes the generation: no member joins it later.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/cluster/store.h"

namespace het {

struct MemberInfo {
  int rank = -1;              // -1: to be assigned
  std::string host;           // for messages
  std::string device;         // "cpu", "NVIDIA H200"
  int64_t device_memory = 0;  // bytes
  std::string address;        // of the NIC that its traffic is bound to
  std::string version;        // of hetrun
  std::string recipe_digest, data_digest;

  bool operator==(const MemberInfo&) const = default;
};
std::string show(const MemberInfo& member);  // "rank 2 on host-b", "a member on host-b"

struct JoinOptions {
  std::string run;  // its name in the store, without '/'
  int world_size = 1;
  int64_t generation = 0;  // 0: the one that is open, or the next when all of its members have gone
  std::string secret;
  std::chrono::milliseconds timeout{300'000};   // of joining
  std::chrono::milliseconds lease_ttl{10'000};  // a member that dies is noticed within it
  std::shared_ptr<Store>
      lease_store;  // the store with a shorter timeout, to keep the lease by; absent: the store
  std::chrono::milliseconds warn_after{10'000};  // of waiting: then, and as often, `warn` says who is missing
  std::function<void(const std::string& sentence)> warn;  // on the joining thread; absent: not reported
  std::function<std::vector<std::string>()> rejected;     // by the store, for their secret; absent: not known
};

struct MemberChange {
  enum class Kind : uint8_t {
    left,        // in good order
    lost,        // its lease lapsed, or it gave up and said why
    cut_off,     // this process could not reach the store for so long that others may take it for dead
    generation,  // another generation was opened
  } kind = Kind::lost;
  int rank = -1;           // of left, lost and cut_off
  bool lapsed = false;     // of lost: without a word
  int64_t generation = 0;  // the one this membership is of; for `generation`: the new one
  std::string sentence;
};

// A place in one generation. Used from one thread; close_watch() comes from any.
class Membership {
 public:
  virtual ~Membership() = default;  // gives the lease back: others see it as lost, unless leave() came first
  virtual int rank() const = 0;
  virtual int64_t generation() const = 0;
  virtual const std::vector<MemberInfo>& members() const = 0;  // by rank
  // What changed since the last call, in order; waits up to `timeout` for it. Throws Error(peer) when the
  // store cannot be reached.
  virtual std::vector<MemberChange> watch_members(std::chrono::milliseconds timeout) = 0;
  virtual void close_watch() = 0;  // end a watch_members() that waits, and all later ones
  virtual void leave() = 0;        // others see it as left
  // Go because of `why`: others see it as lost, and hear why. Its other keys, which may say more, stay until
  // its lease lapses.
  virtual void give_up(const std::string& why) = 0;
  // For keys that shall vanish with this member, and their prefix: of this run and generation.
  virtual int64_t lease() const = 0;
  virtual std::string prefix() const = 0;
};

// Wait until all members are there. Throws Error(usage), with the same sentence on every member, when
// members differ in version, recipe, data or world size, or claim one rank; Error(peer) when some are missing
// at the timeout, naming them, in the words of the first to give up; or when the generation is closed
// already.
std::unique_ptr<Membership> join(const std::shared_ptr<Store>& store, MemberInfo member,
                                 const JoinOptions& options);

// Open the generation after `from`, unless a member has done so. The one that is open then.
int64_t open_generation(Store& store, const std::string& run, int64_t from);

}  // namespace het
