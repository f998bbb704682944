// A process in a run, for life: its record and lease in the store, and the rosters of the generations that it
// takes part in (roster.h). Two threads of its own: one watches the store, one runs the protocol.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/cluster/lease.h"
#include "core/cluster/store.h"
#include "core/run/roster.h"

namespace het {

struct MemberOptions {
  std::shared_ptr<Store> store;        // for the roster and the watch
  std::shared_ptr<Store> lease_store;  // the same with a shorter timeout, for the lease; absent: the store
  std::string run, secret;
  MemberRecord record;  // without an id
  int launched = 1, least = 1, most = 1;
  bool by_launcher = false;  // which serves the store, and says there which of its processes have ended
  bool begins = true;        // a run of this name that has ended was another one; false: it was this one
  std::chrono::milliseconds timeout{60'000};   // of waiting for members
  std::chrono::milliseconds lease_ttl{5'000};  // the key of a member that is silent for so long goes
  // After so long among the others, earlier evictions no longer count: a member that costs them a generation,
  // some seconds, in five minutes is worth more than it costs.
  std::chrono::milliseconds steady{300'000};
};

// Thread-safe.
class Member {
 public:
  // Throws Error(usage) when another member has another version, recipe or data; Error(peer) without a store.
  explicit Member(MemberOptions options);
  ~Member();  // leaves, if leave() was not called
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  struct Formation {
    Roster roster;
    int rank = -1;                      // of this member
    bool joined = false;                // it was not in the generation before: what state it has is of none
    std::vector<MemberRecord> members;  // by rank
  };
  // The next generation that this member is in: waits for it. Nothing: the run has ended. Throws Error(peer)
  // when too few members come to begin, or when the others went on without this one too often: the first
  // times it joins again by another id. `waited` is called now and then and may throw, to wait no longer.
  std::optional<Formation> next_generation(const std::function<void()>& waited = {});

  // What became of the generation.
  void opened(int64_t generation);
  void broken(int64_t generation, const std::string& why);
  void peer_lost(int64_t generation, int rank);
  // At a step that all members ended together: who waits may come in.
  void ask_change(int64_t generation, const std::string& reason);
  size_t waiting() const;  // members that wait to come in, and that the next roster has room for
  // All that wait, in the order in which rosters take them: those beyond its room take the places of lost
  // members. Empty while this member waits itself.
  std::vector<MemberRecord> spares() const;
  // The newest roster that this member knows of.
  std::optional<Roster> roster() const;
  // `abort` is called when this generation cannot go on: from a thread of the member, or at once when it
  // already cannot. It replaces the last one, and does not call this member. An empty one waits for a call
  // under way.
  void on_abort(int64_t generation, std::function<void(const std::string& why)> abort);

  // After a loss this member waits for others no longer, though too few are left: those save what they have.
  void hurry();
  // For all members, which have ended their last step together, or cannot go on: none waits for another
  // generation any more. Returns when the store knows, or does not answer.
  void end_run(const std::string& why = std::string(kRunEnded));
  void leave();  // its key goes, now

  std::string id() const;
  int64_t lease() const;

 private:
  void watch();
  void look_for_lost_launches();
  void run();
  void sync();
  void post(RosterMachine::Event event);
  std::optional<RosterMachine::Event> event_of(const StoreEvent& event, bool listed = false);
  void feed(const StoreEvent& event, bool listed = false);
  void feed(const StoreListing& listing);
  void act(const RosterMachine::Action& action);
  Formation formation_of(const Roster& roster) const;
  void take(Formation formation);
  void leave_and_come_back(const std::string& why);
  void propose(const RosterMachine::Propose& action);
  void write_record();
  void try_write_record();
  void join_again();
  void check_alike(const MemberRecord& other) const;
  std::string member_key(const std::string& id) const;
  std::string roster_key() const;
  void fail_with(const std::string& why);

  MemberOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RosterMachine::Event> inbox_;
  std::optional<Formation> formation_;  // not taken yet
  std::optional<std::string> failure_;
  bool ended_ = false, stopping_ = false, left_ = false;
  size_t waiting_ = 0;
  std::vector<MemberRecord> spares_;
  std::optional<Roster> roster_;
  std::mutex aborting_;  // held while `abort_` is called
  int64_t abort_of_ = 0;
  std::function<void(const std::string&)> abort_;
  int64_t aborted_ = 0;  // the newest generation that cannot go on, and why
  std::string aborted_why_;
  // Of the protocol's thread, and of the constructor before it.
  MemberRecord record_;
  std::unique_ptr<HeldLease> lease_;
  std::unique_ptr<RosterMachine> machine_;
  std::optional<RosterMachine::Time> wake_;
  std::optional<RosterMachine::Time> join_again_at_;
  bool unwritten_ = false;                                // its record, as it is now
  int evictions_ = 0;                                     // since it was with the others for `steady`
  std::atomic<RosterMachine::Time> with_others_since_{};  // by this id; zero: it is not yet
  std::atomic<bool> fresh_ = false;  // it joins, and no generation that it is in was opened yet
  std::unique_ptr<StoreWatch> watch_;
  std::thread watcher_, protocol_;
};

}  // namespace het
