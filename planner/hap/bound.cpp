#include "planner/hap/bound.h"

#include <algorithm>
#include <queue>

namespace het::planner::hap {
namespace {

struct Leaf {
  Ticks bound;
  int number;
  ShareRange range;
  bool operator<(const Leaf& other) const {  // the lowest bound is looked at first
    return bound != other.bound ? bound > other.bound : number > other.number;
  }
};

class Splitter {
 public:
  Splitter(ShardingCosts& costs, Ticks known, const BoundOptions& options)
      : costs_(costs), group_(costs.group()), options_(options) {
    enough_ = known - static_cast<Ticks>(static_cast<double>(known) * options.gap);
  }

  Bound run() {
    add(group_.all_shares());
    Bound result;
    for (;;) {
      if (leaves_.empty()) return result;  // no shares are left in the parts of the last range
      const Leaf lowest = leaves_.top();
      result = {lowest.bound, lowest.range, searches_};
      if (lowest.bound >= enough_ || searches_ + 2 > options_.most_searches || costs_.is_wide())
        return result;
      auto parts = halves(lowest.range);
      if (parts.empty()) return result;
      leaves_.pop();
      for (ShareRange& part : parts) add(std::move(part));
    }
  }

 private:
  // Two ranges that cover one; none: it is as narrow as can be.
  std::vector<ShareRange> halves(const ShareRange& range) const {
    constexpr double kNarrow = 1e-3;
    double least_port = 0, most_port = 0;
    size_t largest = 0, widest = 0;
    for (size_t k = 0; k < range.port.size(); ++k) {
      least_port = std::max(least_port, range.port[k].least);
      if (range.port[k].most > range.port[largest].most) largest = k;
      if (width(range.total[k]) > width(range.total[widest])) widest = k;
    }
    most_port = range.port[largest].most;
    // A port that has nearly everything exchanges next to nothing: such shares are looked at apart.
    if (most_port > 1 - least_port && width(range.port[largest]) > kNarrow) {
      const double cut = 1 - least_port;
      const Interval& port = range.port[largest];
      return cut_at(
          range, &ShareRange::port, largest,
          cut - port.least > kNarrow && port.most - cut > kNarrow ? cut : (port.least + port.most) / 2);
    }
    if (width(range.total[widest]) > kNarrow)
      return cut_at(range, &ShareRange::total, widest,
                    (range.total[widest].least + range.total[widest].most) / 2);
    return {};
  }

  static double width(const Interval& interval) { return interval.most - interval.least; }

  static std::vector<ShareRange> cut_at(const ShareRange& range, std::vector<Interval> ShareRange::*of,
                                        size_t kind, double at) {
    ShareRange low = range, high = range;
    (low.*of)[kind].most = at;
    (high.*of)[kind].least = at;
    return {std::move(low), std::move(high)};
  }

  void add(ShareRange range) {
    if (!group_.tighten(range)) return;
    costs_.set_range(range);
    SearchOptions options;
    options.limit = enough_;
    ++searches_;
    const Ticks bound = search(costs_, std::nullopt, options).bound;
    leaves_.push({bound, searches_, std::move(range)});
  }

  ShardingCosts& costs_;
  const DeviceGroup& group_;
  const BoundOptions& options_;
  Ticks enough_;
  int searches_ = 0;
  std::priority_queue<Leaf> leaves_;
};

}  // namespace

Bound bound_of_all_shares(ShardingCosts& costs, Ticks known, const BoundOptions& options) {
  return Splitter(costs, known, options).run();
}

}  // namespace het::planner::hap
