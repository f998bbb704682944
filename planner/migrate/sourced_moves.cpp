#include "planner/migrate/sourced_moves.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/base/error.h"
#include "planner/migrate/migrate.h"

namespace het::planner {
namespace {

constexpr double kGrain = 1 << 20;     // bytes; smaller cuts are not worth a message
constexpr double kLeastShare = 1e-6;   // of a group: less is the solver's rounding
constexpr double kEven = 1.01;         // times the bound: moves this good are not made better
constexpr int64_t kTries = 5'000'000;  // of other sources in all

// What takes time, by number: reading each source; the store in all; of each host the port out and the port
// in; of each member what it sends and receives inside its host.
class Limits {
 public:
  Limits(const SourceTable& sources, const RecoveryOptions& options) : sources_(sources), options_(options) {}

  // Of a byte from a source to a member.
  std::vector<FlowUse> uses(int source, int to) const {
    const StateSource& from = sources_.at(source);
    std::vector<FlowUse> uses;
    const auto add = [&](int limit, double rate) {
      if (rate > 0 && std::isfinite(rate)) uses.push_back({limit, 1 / rate});
    };
    add(source, from.bytes_per_second);
    if (from.tier == Tier::store) add(store(), options_.store_bytes_per_second);
    const bool network = sources_.over_network(source, to);
    if (!network && (from.tier != Tier::live || from.member == to)) return uses;
    const double rate = options_.bytes_per_second ? options_.bytes_per_second(from.member, to)
                                                  : link_rate({}, from.member, to);
    HET_REQUIRE(rate > 0, from.member, to, rate);
    add(network ? port(sources_.host_of(from.member)) : inside(from.member), rate);
    add(network ? port(sources_.host_of(to)) + 1 : inside(to) + 1, rate);
    return uses;
  }

  std::string words(int limit) const {
    if (limit < store()) {
      const StateSource& source = sources_.at(limit);
      constexpr const char* kTiers[]{"live state", "memory", "disk", "store"};
      return fmt::format("reading the {} of rank {}", kTiers[static_cast<int>(source.tier)], source.member);
    }
    if (limit == store()) return "the store";
    const bool is_port = limit < inside(0);
    const int place = limit - (is_port ? port(0) : inside(0));
    return fmt::format("what {} {} {}", is_port ? "host" : "rank", place / 2,
                       place % 2 == 0 ? "sends" : "receives");
  }

 private:
  int store() const { return static_cast<int>(sources_.size()); }
  int port(int host) const { return store() + 1 + 2 * host; }
  int inside(int member) const { return port(sources_.hosts()) + 2 * member; }

  const SourceTable& sources_;
  const RecoveryOptions& options_;
};

// Rows of a slice that one source sends.
struct Part {
  size_t group = 0, slice = 0;  // of the group
  size_t choice = 0;            // of the group's sources
  int64_t begin = 0, end = 0;
};

class Chooser {
 public:
  Chooser(const SourceTable& sources, const SourcedVersion& needed, const RecoveryOptions& options)
      : sources_(sources), needed_(needed), options_(options), limits_(sources, options) {}

  SourcedMoves choose() {
    std::vector<FlowDemand> demands;  // [group]
    for (const SourcedGroup& group : needed_.groups) {
      const auto bytes = static_cast<double>(group.bytes);
      FlowDemand& demand = demands.emplace_back();
      for (const int source : group.sources) {
        FlowChoice& choice = demand.emplace_back();
        choice.uses = limits_.uses(source, group.to);
        uses_.push_back(choice.uses);
        for (FlowUse& use : choice.uses) use.seconds *= bytes;
        choice.cost = sources_.distance(source, group.to) * bytes;
      }
      first_use_.push_back(uses_.size() - demand.size());
    }
    const Flow flow = least_time_flow(demands, options_.exact_choices);
    for (size_t g = 0; g < demands.size(); ++g) cut(g, flow.shares[g]);
    add_up();
    even_out(flow.bound_seconds * kEven);
    SourcedMoves result;
    result.bound_seconds = flow.bound_seconds;
    if (const auto busiest = std::max_element(seconds_.begin(), seconds_.end());
        busiest != seconds_.end() && *busiest > 0) {
      result.seconds = *busiest;
      result.busiest = limits_.words(static_cast<int>(busiest - seconds_.begin()));
    }
    result.bound_seconds = std::min(result.bound_seconds, result.seconds);  // without the solver's rounding
    write(result.moves);
    return result;
  }

 private:
  const SourcedGroup::Slice& slice_of(const Part& part) const {
    return needed_.groups[part.group].slices[part.slice];
  }
  double row_bytes(const Part& part) const {
    const SourcedGroup::Slice& slice = slice_of(part);
    return static_cast<double>(slice.bytes) / static_cast<double>(slice.rows);
  }
  const std::vector<FlowUse>& uses(size_t group, size_t choice) const {
    return uses_[first_use_[group] + choice];
  }

  // Slice by slice: each source is owed its share of what came, and gets rows of what it is owed where that
  // is more than a grain; the rest goes to whom most is owed.
  void cut(size_t g, const std::vector<double>& shares) {
    const SourcedGroup& group = needed_.groups[g];
    const double grain = std::min(kGrain, static_cast<double>(group.bytes) / 64);
    std::vector<double> owed(shares.size());  // bytes
    for (size_t s = 0; s < group.slices.size(); ++s) {
      const auto bytes = static_cast<double>(group.slices[s].bytes);
      const int64_t rows = group.slices[s].rows;
      std::vector<size_t> order;
      for (size_t c = 0; c < shares.size(); ++c) {
        owed[c] += shares[c] * bytes;
        if (shares[c] > kLeastShare) order.push_back(c);
      }
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return owed[a] > owed[b]; });
      const double row = bytes / static_cast<double>(rows);
      int64_t begin = 0;
      const auto give = [&](size_t choice, int64_t count) {
        if (count == 0) return;
        parts_.push_back({g, s, choice, begin, begin + count});
        owed[choice] -= row * static_cast<double>(count);
        begin += count;
      };
      if (bytes > grain)
        for (const size_t c : order)
          if (owed[c] >= grain) give(c, std::min<int64_t>(rows - begin, std::llround(owed[c] / row)));
      give(*std::max_element(
               order.begin(), order.end(),
               [&](size_t a, size_t b) { return owed[a] < owed[b] || (owed[a] == owed[b] && a > b); }),
           rows - begin);
    }
  }

  void add_up() {
    int most = -1;
    for (const std::vector<FlowUse>& each : uses_)
      for (const FlowUse& use : each) most = std::max(most, use.limit);
    seconds_.assign(static_cast<size_t>(most + 1), 0);
    parts_at_.assign(seconds_.size(), {});
    for (size_t p = 0; p < parts_.size(); ++p) count(p, parts_[p].end - parts_[p].begin);
  }
  // Adds rows of a part to what its limits have to do, and the part to theirs.
  void count(size_t p, int64_t rows) {
    const Part& part = parts_[p];
    for (const FlowUse& use : uses(part.group, part.choice)) {
      seconds_[static_cast<size_t>(use.limit)] += use.seconds * row_bytes(part) * static_cast<double>(rows);
      if (rows > 0) parts_at_[static_cast<size_t>(use.limit)].push_back(p);
    }
  }

  struct Change {
    double seconds = 0;  // of the busiest limit that it changes
    size_t part = 0, choice = 0;
    int64_t rows = 0;  // the last ones of the part
  };

  // Rows from the busiest limit elsewhere, until it is no busier than `enough` or nothing helps.
  void even_out(double enough) {
    int64_t tries = 0;
    while (tries < kTries && !seconds_.empty()) {
      const auto busiest = std::max_element(seconds_.begin(), seconds_.end());
      if (*busiest <= enough) return;
      const auto limit = static_cast<size_t>(busiest - seconds_.begin());
      Change best{*busiest * (1 - 1e-9), 0, 0, 0};
      std::vector<size_t>& here = parts_at_[limit];
      std::erase_if(here, [&](size_t p) { return seconds_per_row(p, parts_[p].choice, limit) == 0; });
      for (const size_t p : here) {
        const size_t choices = needed_.groups[parts_[p].group].sources.size();
        tries += static_cast<int64_t>(choices);
        for (size_t c = 0; c < choices; ++c)
          if (c != parts_[p].choice) consider(p, c, limit, best);
      }
      if (best.rows == 0) return;
      apply(best);
    }
  }

  double seconds_per_row(size_t p, size_t choice, size_t limit) const {
    for (const FlowUse& use : uses(parts_[p].group, choice))
      if (static_cast<size_t>(use.limit) == limit) return use.seconds * row_bytes(parts_[p]);
    return 0;
  }

  void consider(size_t p, size_t choice, size_t limit, Change& best) const {
    const Part& part = parts_[p];
    const double less = seconds_per_row(p, part.choice, limit) - seconds_per_row(p, choice, limit);
    if (less <= 0) return;
    const auto after = [&](int64_t rows) {
      double longest = seconds_[limit] - less * static_cast<double>(rows);
      for (const FlowUse& use : uses(part.group, choice)) {
        const auto l = static_cast<size_t>(use.limit);
        if (l == limit) continue;
        const double more = use.seconds * row_bytes(part) - seconds_per_row(p, part.choice, l);
        longest = std::max(longest, seconds_[l] + more * static_cast<double>(rows));
      }
      return longest;
    };
    // The most rows until another limit is as busy as this one.
    double rows = static_cast<double>(part.end - part.begin);
    for (const FlowUse& use : uses(part.group, choice)) {
      const auto l = static_cast<size_t>(use.limit);
      if (l == limit) continue;
      const double more = use.seconds * row_bytes(part) - seconds_per_row(p, part.choice, l);
      if (more + less > 0)
        rows = std::min(rows, std::max(0.0, (seconds_[limit] - seconds_[l]) / (more + less)));
    }
    for (const int64_t count : {static_cast<int64_t>(rows), static_cast<int64_t>(rows) + 1}) {
      if (count < 1 || count > part.end - part.begin) continue;
      if (const double seconds = after(count); seconds < best.seconds) best = {seconds, p, choice, count};
    }
  }

  void apply(const Change& change) {
    count(change.part, -change.rows);
    Part moved = parts_[change.part];
    parts_[change.part].end -= change.rows;
    moved.begin = moved.end - change.rows;
    moved.choice = change.choice;
    if (parts_[change.part].begin == parts_[change.part].end) {
      parts_[change.part] = moved;
      count(change.part, change.rows);
    } else {
      parts_.push_back(moved);
      count(parts_.size() - 1, change.rows);
    }
  }

  void write(MovesByTensor& moves) {
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
      return std::tuple(a.group, a.slice, a.begin) < std::tuple(b.group, b.slice, b.begin);
    });
    for (size_t p = 0; p < parts_.size(); ++p) {
      Part part = parts_[p];
      const SourcedGroup& group = needed_.groups[part.group];
      while (p + 1 < parts_.size() && parts_[p + 1].group == part.group &&
             parts_[p + 1].slice == part.slice && parts_[p + 1].choice == part.choice)
        part.end = parts_[++p].end;
      const SourcedGroup::Slice& slice = slice_of(part);
      const int64_t rows = slice.rows;
      const StateSource& source = sources_.at(group.sources[part.choice]);
      SliceMove move{needed_.changed[slice.tensor].name,           slice.slice, source.member, group.to,
                     slice.bytes / rows * (part.end - part.begin), source.tier};
      if (part.end - part.begin < rows)
        move.slice =
            nested(slice.slice, TensorSlice::whole(slice.slice.shape())
                                    .narrowed(row_dimension(slice.slice), Range{part.begin, part.end}));
      moves[move.tensor].push_back(std::move(move));
    }
  }

  const SourceTable& sources_;
  const SourcedVersion& needed_;
  const RecoveryOptions& options_;
  const Limits limits_;
  std::vector<std::vector<FlowUse>> uses_;  // of a byte: of all choices of all groups
  std::vector<size_t> first_use_;           // of each group
  std::vector<Part> parts_;
  std::vector<double> seconds_;                // by limit
  std::vector<std::vector<size_t>> parts_at_;  // by limit: those that use it, and some that no longer do
};

}  // namespace

SourcedMoves choose_sources(const SourceTable& sources, const SourcedVersion& needed,
                            const RecoveryOptions& options) {
  return Chooser(sources, needed, options).choose();
}

}  // namespace het::planner
