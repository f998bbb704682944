// Flows that pass network interfaces at the same time share them: each goes at one rate over all its
// interfaces, rates are max-min fair, as of as many connections of TCP, or of queue pairs of InfiniBand. A
// flow that its link keeps below its part of an interface leaves the rest to others. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace het::planner {

// What is to go over interfaces; one of these at a time in each of its streams, in the order of the list.
struct SharedFlow {
  double earliest = 0;           // second before which it does not start
  double fixed = 0, wire = 0;    // seconds before it passes interfaces, and while it does when alone
  const int* streams = nullptr;  // of `count`
  size_t count = 0;
  const std::vector<int>* interfaces = nullptr;  // each once; empty: it passes none
  // Bytes per second that it puts through each of its interfaces when alone, and that all flows over links
  // like its slowest one may put through one.
  double rate = 1, link = 1;
  double start = 0, end = 0;  // when it did
};

// Fills start and end. Holds buffers that are used again; one thread.
class Sharing {
 public:
  // `capacity`: of each interface, bytes per second.
  void run(std::vector<SharedFlow>& flows, size_t streams, const std::vector<double>& capacity);
  // The order in which the last run's flows ended.
  const std::vector<size_t>& ended() const { return ended_; }

 private:
  struct Active {
    size_t flow = 0;
    double fixed = 0, wire = 0;  // left
    double pace = 0;             // of its rate when alone
    bool is_open = false;        // its pace is not known yet
  };
  bool is_next(const SharedFlow& flow, size_t index) const;
  void find_resources(const std::vector<SharedFlow>& flows, const std::vector<double>& capacity);
  void find_paces(const std::vector<SharedFlow>& flows);

  std::vector<std::vector<size_t>> queues_;  // by stream: flows in order
  std::vector<size_t> heads_;                // by stream: which of its queue is next
  std::vector<size_t> waiting_;              // next in all their streams, not started
  std::vector<Active> active_;
  std::vector<size_t> ended_;
  // Interfaces, and links that do not fill theirs: what they carry, and have left; flows whose pace is not
  // known yet; those with such flows.
  std::vector<double> capacity_, room_;
  std::vector<int> users_, used_, tight_;
  // Of flows, by their interfaces and link.
  std::map<std::pair<const std::vector<int>*, double>, std::vector<int>> resources_;
  std::vector<const std::vector<int>*> resources_of_;  // by flow
};

}  // namespace het::planner
