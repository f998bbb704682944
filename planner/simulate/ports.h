// Transfers between stages at the network interfaces of hosts. A transfer takes at both its ends what earlier
// ones leave of the interfaces, as far as its link goes: one that cannot fill an interface leaves the rest to
// others, and none holds an interface that it does not use. Pure.
//
// Why in the order in which they come and not each at an equal part: of transfers that begin at the same
// time, one that is ahead by a little finishes earlier by more (with n senders by up to n times as much), so
// that equal pipelines drift apart until their transfers no longer meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace het::planner {

// Which of two transfers that come at the same time goes first: the one whose pipeline has more to do; then
// by interfaces, so that the order of pipelines in a plan decides nothing but among equals.
struct LaneOrder {
  int microbatches = 0, out = 0, in = 0, edge = 0, index = 0;
  auto key() const { return std::tuple(-microbatches, out, in, edge, index); }
};

class Ports {
 public:
  // What a byte per second takes of a resource: the share of one direction of an interface, or of a link that
  // goes through it.
  struct Use {
    int resource = 0;
    double weight = 0;
  };
  // A transfer that ends at another time than was known; stale where its lane has another version by then.
  struct Change {
    int lane = 0, version = 0;
    double end = 0;
  };

  void reset(size_t resources);
  void grow(size_t resources);
  // From one stage to its neighbour: one transfer at a time. Returns its number, from 0.
  int add_lane(std::vector<Use> uses, const LaneOrder& order);
  // A transfer that came at `came` is next in its lane, which is free.
  void begin(int lane, double came, double bytes, double now);
  // The lane's transfer has ended; the second, which came at `came`, follows it.
  void end(int lane, double now);
  void follow(int lane, double came, double bytes, double now);
  bool is_busy(int lane) const { return lanes_[static_cast<size_t>(lane)].busy; }
  int version(int lane) const { return lanes_[static_cast<size_t>(lane)].version; }
  // When the bytes of the lane's transfer began to move.
  double started(int lane) const { return lanes_[static_cast<size_t>(lane)].started; }
  // Since they were forgotten.
  const std::vector<Change>& changes() const { return changes_; }
  void forget_changes() { changes_.clear(); }

 private:
  struct Lane {
    std::vector<Use> uses;
    LaneOrder order;
    bool busy = false, is_known = false;  // it has a transfer; its rate is known
    int64_t came = 0;                     // picoseconds: times that differ by rounding are the same
    double left = 0, rate = 0, since = 0, started = -1;
    int version = 0, stamp = 0;
  };
  bool is_before(const Lane& a, const Lane& b) const {
    return a.came != b.came ? a.came < b.came : a.order.key() < b.order.key();
  }
  bool comes_later(int a, int b) const {
    return is_before(lanes_[static_cast<size_t>(b)], lanes_[static_cast<size_t>(a)]);
  }
  void put(int lane, double came, double bytes, double now);
  void insert(int lane);
  void erase(int lane);
  void find(int lane);
  void find_later(const Lane& lane);
  double rate_of(int lane) const;
  bool set_rate(Lane& lane, int number, double rate, double now);
  void share(double now);

  std::vector<Lane> lanes_;
  struct Taker {
    int lane = 0;
    double weight = 0;
  };
  std::vector<std::vector<Taker>> busy_;  // by resource: lanes with a transfer, in their order
  std::vector<int> found_;                // a heap, the first in order on top
  std::vector<Change> changes_;
  int stamp_ = 0;
};

}  // namespace het::planner
