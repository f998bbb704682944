// A generation of a run: the members of one roster, connected. It ends when one of them is lost or the
// cluster changes; what it made, groups and threads, is then given back, and the next one begins.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/comm/groups.h"
#include "core/run/member.h"

namespace het {

class Generation {
 public:
  // The connection to a rank was closed by the other end; `goodbye`: by one that lives, and gave up.
  using Ended = std::function<void(int rank, bool goodbye)>;
  // Makes the fabric of a roster's members for this one; connects nothing yet.
  using FabricOf = std::function<std::shared_ptr<Fabric>(const Member::Formation& formation, Ended ended)>;

  // Connects all members. Throws Error(peer) when one of them is lost meanwhile.
  Generation(std::shared_ptr<Member> member, Member::Formation formation, const FabricOf& fabric_of);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  const Member::Formation& formation() const { return formation_; }
  int64_t number() const { return formation_.roster.number; }
  int rank() const { return formation_.rank; }
  const std::shared_ptr<Fabric>& fabric() const { return fabric_; }
  const std::shared_ptr<Groups>& groups() const { return groups_; }
  Communicator& world() const { return *world_; }  // of all members

  // Ends its traffic: every wait fails, here and at the others. `agreed`: all members end it after the same
  // step, and none waits any more. From the thread that made it.
  void close(const std::string& why, bool agreed = false);

 private:
  const std::shared_ptr<Member> member_;
  const Member::Formation formation_;
  struct Listener;                      // called by the fabric's threads
  std::shared_ptr<Listener> listener_;  // deaf once this is closed
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Groups> groups_;
  std::shared_ptr<Communicator> world_;
  bool closed_ = false;
};

// Joins generation after generation until one is formed. Null: the run has ended. Throws what
// Member::next_generation throws.
std::unique_ptr<Generation> next_generation(const std::shared_ptr<Member>& member,
                                            const Generation::FabricOf& fabric_of,
                                            const std::function<void()>& waited = {});

}  // namespace het
