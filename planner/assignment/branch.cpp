#include "planner/assignment/branch.h"

#include <algorithm>
#include <numeric>

namespace het::planner::assignment {
namespace {

class Walk {
 public:
  Walk(Branching branching, const Clock& clock, const std::function<double(const std::vector<int>&)>& offer)
      : branching_(std::move(branching)),
        elimination_(*branching_.elimination),
        clock_(clock),
        offer_(offer),
        best_(branching_.best),
        choice_(branching_.choice),
        room_(std::move(branching_.room)),
        levels_(elimination_.variables()) {}

  bool run() {
    if (levels_.empty()) return true;
    open(0, branching_.bound);
    for (size_t depth = 0;;) {
      Level& level = levels_[depth];
      const int v = elimination_.variable(depth);
      if (level.taken) {
        occupy(v, -1);
        level.taken = false;
      }
      bool deeper = false;
      while (level.next < level.order.size()) {
        const int s = level.order[level.next++];
        const double lower = level.bound + level.values[static_cast<size_t>(s)] - level.least;
        if (is_blocked(level.values[static_cast<size_t>(s)]) ||
            lower > best_ - wanted_gain(best_, branching_.least_gain, branching_.gap)) {
          level.next = level.order.size();
          break;
        }
        choice_[static_cast<size_t>(v)] = s;
        if (!occupy(v, 1)) continue;
        if ((++nodes_ & 255) == 0 && clock_.passed()) return false;
        if (nodes_ > branching_.most_nodes) return false;
        level.taken = true;
        if (depth + 1 == levels_.size()) {
          best_ = std::min(best_, offer_(choice_));
          occupy(v, -1);
          level.taken = false;
          continue;
        }
        open(depth + 1, lower);
        deeper = true;
        break;
      }
      if (deeper) {
        ++depth;
      } else if (depth-- == 0) {
        return true;
      }
    }
  }

 private:
  struct Level {
    std::vector<double> values;
    std::vector<int> order;
    size_t next = 0;
    double bound = 0, least = 0;
    bool taken = false;
  };

  void open(size_t depth, double bound) {
    Level& level = levels_[depth];
    elimination_.values(depth, choice_, level.values);
    level.order.resize(level.values.size());
    std::iota(level.order.begin(), level.order.end(), 0);
    std::stable_sort(level.order.begin(), level.order.end(), [&](int a, int b) {
      return level.values[static_cast<size_t>(a)] < level.values[static_cast<size_t>(b)];
    });
    level.least = level.values[static_cast<size_t>(level.order[0])];
    level.bound = bound;
    level.next = 0;
    level.taken = false;
  }

  // Take room for the chosen strategy of v (sign 1), or give it back (-1). False: there is none, and nothing
  // is taken.
  bool occupy(int v, int sign) {
    const auto s = static_cast<size_t>(choice_[static_cast<size_t>(v)]);
    const std::vector<UsageItem>& items = *branching_.items[static_cast<size_t>(v)];
    bool fitting = true;
    for (const UsageItem& item : items) {
      const int64_t use = sign * item.use[s];
      if (use == 0) continue;
      const auto first = static_cast<size_t>(item.first);
      const auto last = static_cast<size_t>(item.last);
      int64_t least = 0;
      for (size_t row = first; row < last; ++row) {
        room_[row] -= use;
        least = std::min(least, room_[row]);
      }
      fitting = fitting && least >= 0;
    }
    if (fitting || sign < 0) return true;
    occupy(v, -1);
    return false;
  }

  Branching branching_;
  const Elimination& elimination_;
  const Clock& clock_;
  const std::function<double(const std::vector<int>&)>& offer_;
  double best_;
  std::vector<int> choice_;
  std::vector<int64_t> room_;
  std::vector<Level> levels_;
  int64_t nodes_ = 0;
};

}  // namespace

bool branch_and_bound(Branching branching, const Clock& clock,
                      const std::function<double(const std::vector<int>& choice)>& offer) {
  return Walk(std::move(branching), clock, offer).run();
}

}  // namespace het::planner::assignment
