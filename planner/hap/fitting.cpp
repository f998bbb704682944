#include "planner/hap/fitting.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "planner/hap/ratios.h"

namespace het::planner::hap {
namespace {

class Fitter {
 public:
  Fitter(const Request& request, std::optional<double> known_seconds)
      : request_(request),
        costs_(*request.table, *request.group, request.microbatches, true),
        known_seconds_(known_seconds) {
    if (request.is_wide) costs_.set_wide();
  }

  std::optional<Fitting> run(const ShardingProgram& start, const ProgramsTime& time) {
    begin(time);
    const Shares roomier = roomy(start, time);
    find_price(start.shares);
    if (roomier != start.shares) find_price(roomier);
    return std::move(best_);
  }

  // The program for the highest price; with more kinds that have one, and shares that leave room, as long as
  // that lacks less.
  Fitting least_lacking(const ShardingProgram& start, const ProgramsTime& time) {
    begin(time);
    Fitting best{synthesised(costs_, start), time, to_plan(request_, start)};
    Shares shares = roomy(start, time);
    constexpr int kMostTurns = 3;
    for (int turn = 0; turn < kMostTurns; ++turn) {
      auto next = cheapest(kMostPrice * second_per_byte_, shares);
      if (!next || lack_of(next->time) >= lack_of(best.time)) break;
      shares = roomy(next->made.program, next->time);
      next->made = synthesised(costs_, std::move(next->made.program));
      best = *std::move(next);
      if (best.time.fits()) break;
    }
    return best;
  }

 private:
  static constexpr double kMostPrice = 1e4;  // of all that a device has, in steps

  // What lacks memory where the fastest program runs so, and what a price is a part of.
  void begin(const ProgramsTime& time) {
    price_where_short(time);
    double most_bytes = 1;
    for (const ProgramUse& rank : time.ranks) most_bytes = std::max(most_bytes, rank.memory_bytes);
    second_per_byte_ = std::max(time.seconds, 1e-9) / most_bytes;
  }

  // A byte costs what makes all that a device has cost a part of the step: more and more of it, until
  // programs fit or are too slow, which they are more with every price; then less again.
  void find_price(const Shares& shares) {
    constexpr double kFirst = 1.0 / 64;
    constexpr int kBisections = 3;
    double too_low = 0, enough = 0;
    for (double part = kFirst; part <= kMostPrice && enough == 0; part *= 4)
      (try_from(part * second_per_byte_, shares) ? enough : too_low) = part;
    for (int i = 0; i < kBisections && enough > 0; ++i) {
      const double middle = too_low == 0 ? enough / 4 : (too_low + enough) / 2;
      (try_from(middle * second_per_byte_, shares) ? enough : too_low) = middle;
    }
  }

  // Devices of a kind that lacks memory once have a price from then on.
  void price_where_short(const ProgramsTime& time) {
    is_short_.resize(static_cast<size_t>(request_.group->kinds()), false);
    for (size_t d = 0; d < time.ranks.size(); ++d)
      if (time.ranks[d].memory_bytes > time.ranks[d].limit_bytes)
        is_short_[static_cast<size_t>(request_.group->kind_of(static_cast<int>(d)))] = true;
  }

  // With the program for these shares and prices; also with shares that leave room for that program. Whether
  // the first fits, or is too slow.
  bool try_from(double price, const Shares& shares) {
    auto next = cheapest(price, shares);
    if (!next) return is_slow_;
    const Shares roomier = roomy(next->made.program, next->time);
    const bool fits = keep(*std::move(next));
    if (auto other = roomier == shares ? std::nullopt : cheapest(price, roomier)) keep(*std::move(other));
    return fits;
  }

  // Its plan, and what that takes; each program once. nullopt: there is none, or is_slow_.
  std::optional<Fitting> cheapest(double price, const Shares& shares) {
    is_slow_ = false;
    std::vector<double> prices;
    for (const bool is_short : is_short_) prices.push_back(is_short ? price * kPicoseconds : 0);
    costs_.set_memory_prices(std::move(prices));
    const SearchResult found = search(costs_, shares, {});
    costs_.set_memory_prices({});
    if (!found.found) return std::nullopt;
    Fitting next;
    next.made.program = propagate(*request_.table, shares, hints_of(costs_, shares, found));
    if (const auto best = best_seconds(); best) {
      is_slow_ = seconds_of(costs_.program(next.made.program)) > 2 * *best;
      if (is_slow_) return std::nullopt;
    }
    next.plan = to_plan(request_, next.made.program);
    const auto [entry, fresh] = known_.emplace(to_lua(next.plan), ProgramsTime());
    if (fresh) {
      entry->second = simulate_plan(*request_.table, next.plan, *request_.group, true);
      price_where_short(entry->second);
    }
    next.time = entry->second;
    return next;
  }

  // Of a step of the fastest plan that fits, so far.
  std::optional<double> best_seconds() const {
    if (!best_) return known_seconds_;
    return known_seconds_ ? std::min(*known_seconds_, best_->time.seconds) : best_->time.seconds;
  }

  // Whether it fits; the fastest that does is kept.
  bool keep(Fitting next) {
    if (!next.time.fits()) return false;
    if (best_ && best_->time.seconds <= next.time.seconds) return true;
    next.made = synthesised(costs_, std::move(next.made.program));
    best_ = std::move(next);
    return true;
  }

  // The best shares for a program that give no device more than it has room for: what it has by parts now,
  // and as much more or less as its memory has room.
  Shares roomy(const ShardingProgram& program, const ProgramsTime& time) {
    const DeviceGroup& group = *request_.group;
    const double cut = costs_.cut_bytes(program);
    double all = 0;
    for (const int64_t share : program.shares) all += static_cast<double>(share);
    std::vector<double> most(static_cast<size_t>(group.kinds()), 1);
    for (int d = 0; d < group.size() && cut > 0; ++d) {
      const auto at = static_cast<size_t>(d);
      const ProgramUse& rank = time.ranks[at];
      constexpr double kUsed = 0.99;  // units are whole
      const double part = static_cast<double>(program.shares[at]) / all +
                          (kUsed * rank.limit_bytes - rank.memory_bytes) / cut;
      double& least = most[static_cast<size_t>(group.kind_of(d))];
      least = std::clamp(part, 1e-3, least);
    }
    return best_shares(costs_, program, most);
  }

  const Request& request_;
  ShardingCosts costs_;
  const std::optional<double> known_seconds_;
  bool is_slow_ = false;                       // what cheapest() found last
  std::vector<bool> is_short_;                 // by kind
  double second_per_byte_ = 0;                 // the step over what the fullest device has
  std::map<std::string, ProgramsTime> known_;  // by plan
  std::optional<Fitting> best_;
  static constexpr double kPicoseconds = 1e12;  // of a second
};

}  // namespace

std::optional<Fitting> fit(const Request& request, const ShardingProgram& start, const ProgramsTime& time,
                           std::optional<double> known_seconds) {
  return Fitter(request, known_seconds).run(start, time);
}

Fitting frugal(const Request& request, const ShardingProgram& start, const ProgramsTime& time) {
  return Fitter(request, std::nullopt).least_lacking(start, time);
}

double lack_of(const ProgramsTime& time) {
  double most = 0;
  for (const ProgramUse& rank : time.ranks)
    most = std::max(most, (rank.memory_bytes - rank.limit_bytes) / std::max(1.0, rank.limit_bytes));
  return most;
}

double state_bytes(const Graph& graph) {
  double bytes = 0;
  for (const Value& value : graph.values)
    if (is_state(value)) bytes += static_cast<double>(value.type.bytes());
  return bytes;
}

}  // namespace het::planner::hap
