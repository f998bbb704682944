// The ranks of a run, connected: what they do together that is part of no program. Of a run of fixed ranks,
// or of one generation of a run that outlives its members (run_member.h).
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cluster/membership.h"
#include "core/comm/groups.h"
#include "core/mesh/agreement.h"
#include "core/run/generation.h"
#include "core/run/joining.h"
#include "core/run/member_watch.h"

namespace het {

// Used from one thread. After close() or leave() every method that reaches other ranks throws Error(usage).
class Cluster {
 public:
  // Joins a run of fixed ranks, and connects them in the background. Throws what membership.h's join()
  // throws.
  static std::shared_ptr<Cluster> join(JoinSettings settings);
  // `store`: that of the run.
  Cluster(std::shared_ptr<Store> store, std::shared_ptr<Generation> generation, JoinSettings settings);
  ~Cluster();  // others see this rank as lost, unless it left
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Generation* generation() const { return generation_.get(); }  // null: of fixed ranks, or closed

  const std::shared_ptr<Store>& store() const { return store_; }  // of the run

  // The communicators of some of the ranks, made on first use; waits until all are connected.
  std::shared_ptr<Groups> groups();
  // From here on ranks of a plan are not those of the run: by rank of the plan, the rank of the run that
  // computes this part. Every rank has one. All ranks call it.
  void arrange(std::vector<int> by_plan);
  // The communicators of programs: their ranks are those of the plan.
  std::shared_ptr<Groups> groups_of_plan();
  // Others of the same ranks, over links as slow as these: by rank from and then rank to.
  std::shared_ptr<Groups> paced_groups(std::vector<Link> links);
  Communicator& world();  // of all ranks
  // So many more of all ranks, each over separate connections; made on first use. All ranks call it.
  std::vector<Communicator*> lanes(int count);
  // By which ranks that run the same lines check that they do.
  std::shared_ptr<Agreement> agreement();
  // How what GPUs send each other travels: a sentence for each of this rank's groups that has one.
  std::vector<std::string> ways();

  // All ranks call these at the same place.
  std::vector<std::string> all_gather(const std::string& text);  // the texts of all ranks, in their order
  bool any(bool own);                                            // whether any rank says so

  // Lines of a prompt that rank 0 gives to the others, numbered from 1. A rank waits for one as long as
  // `timeout`; nullopt: it has not come yet. Throws Error(peer) when a rank is lost.
  void give_line(int64_t number, const std::string& text);
  std::optional<std::string> take_line(int64_t number, std::chrono::milliseconds timeout);

  // Ends the traffic of a generation: every wait fails, here and at the others. `agreed`: all ranks end it
  // after the same step.
  void close(const std::string& why, bool agreed = false);
  void leave();  // a run of fixed ranks, in good order

 private:
  explicit Cluster(JoinSettings settings) : settings_(std::move(settings)) {}
  void require_open() const;
  std::string lines_prefix() const;
  std::string line_key(int64_t number) const;

  const JoinSettings settings_;
  int rank_ = 0, size_ = 1;
  // Destroyed in reverse: traffic first, the store last.
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<Membership> membership_;  // of a run of fixed ranks
  std::shared_ptr<Generation> generation_;  // of a run that outlives its members
  std::shared_ptr<Fabric> fabric_;
  std::unique_ptr<MemberWatch> watch_;
  std::shared_ptr<Groups> groups_;
  std::shared_ptr<Groups> arranged_;  // null: ranks of plans are those of the run
  std::future<void> connecting_;      // all ranks; of the groups until it is done
  std::unique_ptr<Collective> any_;
  std::shared_ptr<Agreement> agreement_;
  std::unique_ptr<StoreWatch> lines_;
  int paced_ = 0, arrangements_ = 0;   // groups over slowed links, and of arranged ranks, that were made
  std::optional<std::string> closed_;  // why it is
  bool left_ = false;
};

}  // namespace het
