// A process of a run that outlives its members, with what connects it to the others: one listening socket for
// all generations, and the cluster of each.
#pragma once

#include <memory>
#include <vector>

#include "core/cluster/store_key_value.h"
#include "core/run/cluster.h"
#include "core/run/joining.h"
#include "core/run/member.h"

namespace het {

class RunMember {
 public:
  // Throws Error(usage) where a rank would serve the store, which would go with it; what Member throws.
  explicit RunMember(JoinSettings settings);

  // The next generation that this process is in, connected. Null: the run has ended. Throws Error(peer) when
  // too few members come, or none while it is interrupted.
  std::shared_ptr<Cluster> open();

  Member& member() { return *member_; }

 private:
  std::unique_ptr<Generation> next();

  Joining joining_;
  std::shared_ptr<Acceptor> acceptor_;
  std::shared_ptr<Member> member_;
  // What this process left in the store in its last generation, for others to read until the next one opens.
  std::vector<std::shared_ptr<StoreKeyValue>> words_;
  bool opened_ = false;  // it was in a generation
};

}  // namespace het
