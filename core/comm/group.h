// The Communicator over any Connections: queues with a thread each, waiting with a timeout, the sentence that
// says who is missing, and the end of a communicator. Internal to core/comm.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/channel.h"
#include "core/comm/communicator.h"
#include "core/comm/status_board.h"

namespace het {

struct GroupOptions {
  std::string name;
  std::vector<int> ranks;  // of the fabric, by rank of the group
  int rank = 0;            // this one's, in the group
  Timeouts timeouts;
  // By what a rank says there before it cuts its connections a peer knows that it left and did not die.
  std::shared_ptr<StatusBoard> board;
  std::shared_ptr<Pacer> pacer;          // absent: operations are done when they are done
  std::function<void(int rank)> silent;  // of the fabric: it was waited for in vain; absent: no call
};

std::shared_ptr<Communicator> make_group(GroupOptions options, std::unique_ptr<Connections> connections);

// This rank's place in a new group; Error(bug) unless the ranks are distinct, in [0, size) and include it.
int place_in_group(const std::vector<int>& ranks, int rank, int size);
// "lost rank 2 on host-b (did not join within 1.5 s) while forming group 'g'"
std::string did_not_join(const std::string& group, const std::vector<PendingPeer>& missing,
                         std::chrono::milliseconds waited);

// The communicators a fabric has made, to abort them together. Thread-safe.
class GroupList {
 public:
  void require_alive() const;                            // throws Error(peer) once aborted
  void add(const std::shared_ptr<Communicator>& group);  // aborted at once if the list already is
  void abort(std::string_view why);

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Communicator>> groups_;
  bool aborted_ = false;
  std::string why_;
};

}  // namespace het
