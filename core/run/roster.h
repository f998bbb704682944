// Who is in a run, as a protocol without threads, clock or network: events in, actions out. One key of the
// store, changed by compare-and-set alone, holds the roster of the newest generation; a roster with a higher
// number always wins. Each member keeps a record under its lease. What members find out by themselves, that a
// key is gone or a connection has closed, only leads to the next roster.
//
// A member is dead when its key is gone and its connection has ended: it closed, or was silent for as long as
// the transport waits. It is unreachable when a connection to it ended while its key stands: who sees that
// says so in its record. On either all members give up the generation. The first member left waits a moment,
// for losses come in groups, and proposes the next roster; the others do the same, each a little later, so
// that a proposer who dies delays and never blocks. Fewer members than a run needs wait for others first.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace het {

// What a member writes of itself, under its lease.
struct MemberRecord {
  std::string id;  // random; a new one after it was evicted
  std::string host, address;
  std::string version, recipe_digest, data_digest;
  int order = -1;  // as it was launched: the first roster is in this order; -1: it joins a run that began
  int64_t generation = 0;                // in which it does not reach
  std::vector<std::string> unreachable;  // these members
  std::string about =
      {};  // what it says of itself to members that plan for it; the protocol does not read it
  bool operator==(const MemberRecord&) const = default;
};

// Why the last roster of a run has no members, where it has done all its steps.
inline constexpr std::string_view kRunEnded = "the run has ended";

struct Roster {
  int64_t number = 0;                // of the generation
  std::vector<std::string> members;  // by rank; empty: the run has ended, for `reason`
  std::string reason;                // of the change, in words
  std::vector<std::string> lost, joined;
  std::vector<std::string> gone;  // lost before, the newest last: their keys may stand a while
  // Members in any roster of the run, as given to the member that made the first one. A roster has fewer than
  // `least` where no others came in time after a loss: its members save what they have, and end the run.
  int least = 1, most = 1;
  int64_t first = 1;  // number of the first generation of the run; an ended run of its name had those before
  bool operator==(const Roster&) const = default;
};

// Where a launcher that serves the store says which of its processes have ended: their orders, with blanks.
inline constexpr const char* kLaunchesLost = "launcher/lost";

std::string to_text(const MemberRecord& record);
std::string to_text(const Roster& roster);
std::optional<MemberRecord> parse_record(const std::string& text);  // nothing: it is none
std::optional<Roster> parse_roster(const std::string& text);

struct RosterOptions {
  std::string id;                             // of this member
  bool joins = false;                         // a run that others have begun
  bool begins = true;                         // an ended run of its name was another one
  int launched = 1;                           // members that the first roster waits for
  int least = 1, most = 1;                    // in any roster, until there is one that says so
  std::chrono::milliseconds timeout{60'000};  // of waiting for `least` members
  std::chrono::milliseconds settle{5};        // for more losses, and for the key of a closed connection to go
  std::chrono::milliseconds stagger{20};      // between those who would propose
  std::chrono::milliseconds confirm{50};      // before one member's word alone drops another with a key
  std::chrono::milliseconds grace{5'000};     // for a key to come back that a store lacks after its silence
};

class RosterMachine {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // --- events
  struct MemberSeen {  // its record was put
    MemberRecord record;
    int64_t created = 0;  // revision at which its key came to be
  };
  struct MemberGone {  // its key was removed, or lapsed
    std::string id;
  };
  struct Listed {  // all that the store holds, after its watch broke; what it holds follows
    std::set<std::string> members;
    bool roster = false;
  };
  struct RosterSeen {  // the key holds it
    Roster roster;
    int64_t revision = 0;
    bool listed = false;  // after the watch broke
  };
  struct LaunchLost {  // a process that was launched has ended before the first roster
    int order = 0;     // MemberRecord::order
  };
  struct ProposalLost {
  };  // it was not made, or the store did not answer; the watch shows a roster that is in its way
  struct PeerLost {  // its connection closed without a goodbye, or it does not answer
    int64_t generation = 0;
    std::string id;
  };
  struct Broken {  // it cannot go on, whoever is at fault: a member gave it up, or it was not formed
    int64_t generation = 0;
    std::string why;
  };
  struct Opened {  // every member of the generation is connected
    int64_t generation = 0;
  };
  struct ChangeAsked {  // at a step that all ended together: who waits may come
    int64_t generation = 0;
    std::string reason;
  };
  struct RunEnded {
    std::string why;
  };
  struct Hurry {};  // after a loss others are waited for no longer
  struct Tick {};
  using Event = std::variant<MemberSeen, MemberGone, Listed, RosterSeen, LaunchLost, ProposalLost, PeerLost,
                             Broken, Opened, ChangeAsked, RunEnded, Hurry, Tick>;

  // --- actions
  struct Propose {  // by compare-and-set; then RosterSeen when it is made, else ProposalLost
    Roster roster;
    int64_t revision = 0;  // of the roster that it replaces; 0: there is none
  };
  struct Report {  // write the own record with these
    int64_t generation = 0;
    std::vector<std::string> unreachable;
  };
  struct Abort {  // the generation cannot go on
    int64_t generation = 0;
    std::string why;
  };
  struct Form {  // connect with these: the record of each is known, unless its key has gone
    Roster roster;
  };
  struct Evicted {  // the others go on without this member
    Roster roster;
  };
  struct GiveUp {
    std::string why;
  };
  struct Ended {};  // the run has
  struct Wake {     // with a Tick, then
    Time at;
  };
  using Action = std::variant<Propose, Report, Abort, Form, Evicted, GiveUp, Ended, Wake>;

  RosterMachine(RosterOptions options, Time now) : options_(std::move(options)), began_(now) {}

  std::vector<Action> on(const Event& event, Time now);

  const std::optional<Roster>& roster() const { return roster_; }
  int64_t revision() const { return revision_; }  // of the roster's key
  // Members that have a key and were in no roster, in the order in which they came.
  std::vector<std::string> waiting() const;
  // Of those that wait, as many as the next roster has room for.
  size_t joinable() const;
  // The records of all that wait, in that order; none while this member is in no roster.
  std::vector<MemberRecord> spares() const;
  const MemberRecord* record(const std::string& id) const;

 private:
  struct Known {
    MemberRecord record;
    int64_t created = 0;
    std::optional<Time> missing;  // since then, and its member may live; no id: it was never seen
  };
  using Edge = std::pair<std::string, std::string>;  // {a, b}: a does not reach b

  void note(const Event& event, Time now);
  void adopt(const RosterSeen& seen, Time now);
  void compare(const Listed& listed, Time now);
  void forget_missing(Time now);
  void give_up_silent_store(Time now);
  bool knows_members() const;
  int64_t next_number() const;
  void decide(Time now);
  void decide_first(Time now);
  void decide_next(Time now);
  void decide_as_joiner(Time now);
  std::string why_broken() const;
  bool is_in_roster(const std::string& id) const;
  bool is_dead(const std::string& id) const;
  std::set<Edge> edges() const;
  bool report_losses(Time now);
  std::vector<std::string> without_edges(std::vector<std::string> members, std::set<Edge> edges) const;
  Roster next_roster(const std::vector<std::string>& left) const;
  int least() const { return roster_ ? roster_->least : options_.least; }
  int most() const { return roster_ ? roster_->most : options_.most; }
  void propose_at(Time at, Roster roster, int64_t revision, Time now);
  bool give_up_waiting(Time now);
  void wait_for_members(size_t count, Time since, Time now);
  std::string too_few(size_t count) const;  // in words
  std::string name_of(const std::string& id) const;

  RosterOptions options_;
  Time began_;
  std::map<std::string, Known> members_;
  std::set<std::string> removed_;  // their keys were there, and have gone
  std::optional<Roster> roster_;
  int64_t revision_ = 0, ended_before_ = 0;  // the last number of a run of this name that has ended
  bool opened_ = false, aborted_ = false, proposed_ = false, ended_ = false;
  std::string run_ended_;  // why; empty: it has not
  bool evicted_ = false, hurries_ = false;
  bool forms_ = false;         // as soon as it knows the members
  bool store_forgot_ = false;  // it may have held newer rosters than this member has seen
  int64_t lost_proposals_ = 0;
  // Of what the store holds, to be replaced by the newest roster; 0: it holds none.
  std::optional<int64_t> outdated_;
  Time restore_at_{};
  std::map<std::string, Time> losses_;  // connections that ended in this generation, and when
  std::optional<std::string> change_;   // asked for, and why
  std::string why_;                     // it cannot go on; empty: it can, as far as this member knows
  // What speaks against the roster, and since when it has been the same.
  std::set<std::string> dead_;
  std::set<Edge> edges_;
  Time settled_since_{}, edges_since_{}, short_since_{}, broken_since_{}, aborted_since_{};
  std::set<int> launches_lost_;             // by order
  std::optional<Time> store_silent_since_;  // it did not answer a proposal
  std::vector<Action> actions_;
};

}  // namespace het
