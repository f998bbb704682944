// Flows that pass network interfaces at the same time share them: each goes at one pace over all its
// interfaces, paces are max-min fair, as of as many connections of TCP, or of queue pairs of InfiniBand.
// Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace het::planner {

// What is to go over interfaces; one of these at a time in each of its streams, in the order of the list.
struct SharedFlow {
  double earliest = 0;           // second before which it does not start
  double fixed = 0, wire = 0;    // seconds before it passes interfaces, and while it does when alone
  const int* streams = nullptr;  // of `count`
  size_t count = 0;
  const std::vector<int>* interfaces = nullptr;  // each once; empty: it passes none
  double start = 0, end = 0;                     // when it did
};

// Fills start and end. Holds buffers that are used again; one thread.
class Sharing {
 public:
  void run(std::vector<SharedFlow>& flows, size_t streams, size_t interfaces);
  // The order in which the last run's flows ended.
  const std::vector<size_t>& ended() const { return ended_; }

 private:
  struct Active {
    size_t flow = 0;
    double fixed = 0, wire = 0;  // left
    double pace = 0;
  };
  bool is_next(const SharedFlow& flow, size_t index) const;
  void find_paces(const std::vector<SharedFlow>& flows);

  std::vector<std::vector<size_t>> queues_;  // by stream: flows in order
  std::vector<size_t> heads_;                // by stream: which of its queue is next
  std::vector<size_t> waiting_;              // next in all their streams, not started
  std::vector<Active> active_;
  std::vector<size_t> ended_;
  std::vector<double> room_;  // by interface
  std::vector<int> users_;    // by interface: flows whose pace is not known yet
  std::vector<int> used_;     // interfaces with users
};

}  // namespace het::planner
