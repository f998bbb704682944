#include "planner/assignment/presolve.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>

namespace het::planner::assignment {

class Presolve {
 public:
  Presolve(Network network, const Clock& clock, Reduction& result)
      : net_(std::move(network)), clock_(clock), result_(result) {}

  void run() {
    result_.variables_ = net_.variables.size();
    connect();
    // Usage is compared only after rows are known that matter: more is dominated then.
    exhaust(false);
    constexpr int kRounds = 6;
    for (int round = 0; round < kRounds && !result_.infeasible_; ++round) {
      const bool tightened = tighten_rows();
      if (round > 0 && !tightened) break;
      push_all();
      exhaust(true);
    }
    if (!result_.infeasible_) tighten_rows();
    compact();
  }

 private:
  using Step = Reduction::Step;

  NetworkVariable& at(int v) { return net_.variables[static_cast<size_t>(v)]; }
  PairCost& pair(int e) { return net_.pairs[static_cast<size_t>(e)]; }
  std::vector<int>& pairs_of(int v) { return incident_[static_cast<size_t>(v)]; }
  int other(int e, int v) { return pair(e).a == v ? pair(e).b : pair(e).a; }
  // Costs of pair e as (strategy of v, of its neighbour).
  double cost(int e, int v, int s, int t) {
    const PairCost& p = pair(e);
    return p.a == v ? p.cost[static_cast<size_t>(s * net_.size(p.b) + t)]
                    : p.cost[static_cast<size_t>(t * net_.size(p.b) + s)];
  }

  void connect() {
    incident_.resize(net_.variables.size());
    alive_.assign(net_.variables.size(), true);
    queued_.assign(net_.variables.size(), false);
    std::vector<PairCost> pairs = std::move(net_.pairs);
    net_.pairs.clear();
    for (PairCost& p : pairs) add_pair(std::move(p));
    push_all();
  }

  void push(int v) {
    if (!alive_[static_cast<size_t>(v)] || queued_[static_cast<size_t>(v)]) return;
    queued_[static_cast<size_t>(v)] = true;
    queue_.push_back(v);
  }
  void push_all() {
    for (size_t v = 0; v < net_.variables.size(); ++v) push(static_cast<int>(v));
  }
  void push_around(int v) {
    push(v);
    for (const int e : pairs_of(v)) push(other(e, v));
  }

  std::optional<int> pair_between(int a, int b) {
    if (pairs_of(a).size() > pairs_of(b).size()) std::swap(a, b);
    for (const int e : pairs_of(a))
      if (other(e, a) == b) return e;
    return std::nullopt;
  }

  // Pairs of the same two variables are one.
  void add_pair(PairCost p) {
    if (const std::optional<int> e = pair_between(p.a, p.b)) {
      PairCost& old = pair(*e);
      const int rows = net_.size(old.a), columns = net_.size(old.b);
      const bool same = old.a == p.a;
      for (int i = 0; i < rows; ++i)
        for (int k = 0; k < columns; ++k) {
          double& sum = old.cost[static_cast<size_t>(i * columns + k)];
          sum = std::min(sum + p.cost[static_cast<size_t>(same ? i * columns + k : k * rows + i)], kBlocked);
        }
      return;
    }
    const int e = static_cast<int>(net_.pairs.size());
    pairs_of(p.a).push_back(e);
    pairs_of(p.b).push_back(e);
    net_.pairs.push_back(std::move(p));
  }
  void detach(int e, int from) { std::erase(pairs_of(from), e); }
  void remove_pair(int e) {
    detach(e, pair(e).a);
    detach(e, pair(e).b);
    std::vector<double>().swap(pair(e).cost);
  }

  void exhaust(bool all) {
    while (!queue_.empty() && !result_.infeasible_) {
      const int v = queue_.front();
      queue_.pop_front();
      queued_[static_cast<size_t>(v)] = false;
      if (!alive_[static_cast<size_t>(v)]) continue;
      if ((++visits_ & 63) == 0 && clock_.passed()) {
        for (const int rest : queue_) queued_[static_cast<size_t>(rest)] = false;
        queue_.clear();
        return;
      }
      visit(v, all);
    }
  }

  void visit(int v, bool all) {
    drop_unsupported(v);
    if (result_.infeasible_) return;
    if (net_.size(v) == 1) return absorb(v);
    if (merge_neighbour(v)) return push(v);
    if (!all) return;
    if (drop_dominated(v)) {
      push_around(v);
      if (net_.size(v) == 1) return absorb(v);
    }
    if (at(v).items.empty() && pairs_of(v).size() <= 2) eliminate(v);
  }

  // Keep these strategies of v, in this order.
  void restrict_to(int v, const std::vector<int>& kept) {
    const int before = net_.size(v);
    for (const int e : pairs_of(v)) {
      PairCost& p = pair(e);
      std::vector<double> smaller;
      const int n = net_.size(other(e, v));
      smaller.reserve(kept.size() * static_cast<size_t>(n));
      if (p.a == v) {
        for (const int s : kept)
          smaller.insert(smaller.end(), p.cost.begin() + std::ptrdiff_t{s} * n,
                         p.cost.begin() + std::ptrdiff_t{s + 1} * n);
      } else {
        for (int t = 0; t < n; ++t)
          for (const int s : kept) smaller.push_back(p.cost[static_cast<size_t>(t * before + s)]);
      }
      p.cost = std::move(smaller);
    }
    const auto pick = [&](auto& values) {
      std::remove_reference_t<decltype(values)> smaller;
      for (const int s : kept) smaller.push_back(values[static_cast<size_t>(s)]);
      values = std::move(smaller);
    };
    pick(at(v).cost);
    for (UsageItem& item : at(v).items) pick(item.use);
    result_.steps_.push_back({Step::Kind::restrict, v, kept});
  }

  void drop_unsupported(int v) {
    std::vector<int> kept;
    for (int s = 0; s < net_.size(v); ++s) {
      bool allowed = !is_blocked(at(v).cost[static_cast<size_t>(s)]);
      for (size_t k = 0; allowed && k < pairs_of(v).size(); ++k) {
        const int e = pairs_of(v)[k], n = net_.size(other(e, v));
        bool supported = false;
        for (int t = 0; t < n && !supported; ++t) supported = !is_blocked(cost(e, v, s, t));
        allowed = supported;
      }
      if (allowed) kept.push_back(s);
    }
    if (kept.empty()) {
      result_.infeasible_ = true;
    } else if (static_cast<int>(kept.size()) < net_.size(v)) {
      restrict_to(v, kept);
      push_around(v);
    }
  }

  // v has one strategy: its pairs are costs of its neighbours.
  void absorb(int v) {
    while (!pairs_of(v).empty()) {
      const int e = pairs_of(v).back(), u = other(e, v);
      for (int t = 0; t < net_.size(u); ++t) {
        double& sum = at(u).cost[static_cast<size_t>(t)];
        sum = std::min(sum + cost(e, v, 0, t), kBlocked);
      }
      remove_pair(e);
      push_around(u);
    }
  }

  // The strategy of u by that of v, where each allows one only.
  std::optional<std::vector<int>> determines(int e, int v) {
    const int n = net_.size(other(e, v));
    std::vector<int> map(static_cast<size_t>(net_.size(v)), -1);
    for (int s = 0; s < net_.size(v); ++s)
      for (int t = 0; t < n; ++t) {
        if (is_blocked(cost(e, v, s, t))) continue;
        if (map[static_cast<size_t>(s)] >= 0) return std::nullopt;
        map[static_cast<size_t>(s)] = t;
      }
    if (std::find(map.begin(), map.end(), -1) != map.end()) return std::nullopt;
    return map;
  }

  // A neighbour that v determines becomes part of v.
  bool merge_neighbour(int v) {
    for (const int e : pairs_of(v)) {
      const int u = other(e, v);
      const std::optional<std::vector<int>> map = determines(e, v);
      if (!map) continue;
      // Costs of pairs grow when v has many more strategies; a variable of many neighbours then stays.
      size_t before = 0, after = 0;
      for (const int f : pairs_of(u)) {
        const auto n = static_cast<size_t>(net_.size(other(f, u)));
        before += n * static_cast<size_t>(net_.size(u));
        if (f != e && !pair_between(v, other(f, u))) after += n * static_cast<size_t>(net_.size(v));
      }
      constexpr size_t kSmall = 20'000;
      if (after > 2 * before + kSmall) continue;
      merge(v, u, e, *map);
      return true;
    }
    return false;
  }
  void merge(int v, int u, int e, const std::vector<int>& map) {
    const int size = net_.size(v);
    for (int s = 0; s < size; ++s) {
      double& sum = at(v).cost[static_cast<size_t>(s)];
      const int t = map[static_cast<size_t>(s)];
      sum = std::min(sum + at(u).cost[static_cast<size_t>(t)] + cost(e, v, s, t), kBlocked);
    }
    for (const UsageItem& item : at(u).items) {
      UsageItem moved{item.first, item.last, {}};
      for (const int t : map) moved.use.push_back(item.use[static_cast<size_t>(t)]);
      at(v).items.push_back(std::move(moved));
    }
    remove_pair(e);
    while (!pairs_of(u).empty()) {
      const int f = pairs_of(u).back(), w = other(f, u), n = net_.size(w);
      PairCost moved{v, w, std::vector<double>(static_cast<size_t>(size * n))};
      for (int s = 0; s < size; ++s)
        for (int t = 0; t < n; ++t)
          moved.cost[static_cast<size_t>(s * n + t)] = cost(f, u, map[static_cast<size_t>(s)], t);
      remove_pair(f);
      add_pair(std::move(moved));
      push(w);
    }
    result_.steps_.push_back({Step::Kind::merge, u, map, v});
    alive_[static_cast<size_t>(u)] = false;
    push(v);
  }

  // Is s never better than `by`, whatever the neighbours choose?
  bool dominates(int v, int by, int s) {
    for (const UsageItem& item : at(v).items)
      if (item.use[static_cast<size_t>(by)] > item.use[static_cast<size_t>(s)]) return false;
    double excess = at(v).cost[static_cast<size_t>(by)] - at(v).cost[static_cast<size_t>(s)];
    // Where the neighbours like s best: most pairs of strategies are distinguished there.
    double there = excess;
    const size_t degree = pairs_of(v).size();
    for (size_t k = 0; k < degree; ++k) {
      const int t = favourite_[static_cast<size_t>(s) * degree + k];
      there += cost(pairs_of(v)[k], v, by, t) - cost(pairs_of(v)[k], v, s, t);
    }
    if (there > 0) return false;
    for (const int e : pairs_of(v)) {
      const PairCost& p = pair(e);
      const int n = net_.size(other(e, v));
      const std::ptrdiff_t step = p.a == v ? 1 : net_.size(v);
      const double* one = p.cost.data() + (p.a == v ? std::ptrdiff_t{by} * n : by);
      const double* two = p.cost.data() + (p.a == v ? std::ptrdiff_t{s} * n : s);
      double most = -kBlocked;
      for (std::ptrdiff_t t = 0; t < n; ++t) {
        if (is_blocked(two[t * step])) continue;
        if (is_blocked(one[t * step])) return false;
        most = std::max(most, one[t * step] - two[t * step]);
      }
      excess += most;
    }
    return excess <= 0;
  }
  bool drop_dominated(int v) {
    double work = 0;
    for (const int e : pairs_of(v)) work += net_.size(other(e, v));
    work *= static_cast<double>(net_.size(v)) * net_.size(v);
    constexpr double kMostWork = 5e7;
    if (work > kMostWork) return false;
    favourite_.clear();
    for (int s = 0; s < net_.size(v); ++s)
      for (const int e : pairs_of(v)) {
        int best = 0;
        for (int t = 1; t < net_.size(other(e, v)); ++t)
          if (cost(e, v, s, t) < cost(e, v, s, best)) best = t;
        favourite_.push_back(best);
      }
    std::vector<int> kept(static_cast<size_t>(net_.size(v)));
    std::iota(kept.begin(), kept.end(), 0);
    const size_t before = kept.size();
    for (size_t i = kept.size(); i-- > 0;) {
      const int s = kept[i];
      const bool dominated =
          std::any_of(kept.begin(), kept.end(), [&](int by) { return by != s && dominates(v, by, s); });
      if (dominated) kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (kept.size() == before) return false;
    restrict_to(v, kept);
    return true;
  }

  // v has no usage and at most two neighbours: it chooses what is cheapest for theirs.
  void eliminate(int v) {
    std::vector<int> pairs = pairs_of(v);
    const int one = pairs.empty() ? -1 : other(pairs[0], v), two = pairs.size() < 2 ? -1 : other(pairs[1], v);
    const int rows = one < 0 ? 1 : net_.size(one), columns = two < 0 ? 1 : net_.size(two),
              size = net_.size(v);
    const int64_t held = (int64_t{rows} + columns) * size;
    constexpr int64_t kSmall = 4096;
    if (two >= 0 && int64_t{rows} * columns > std::max(held, kSmall) && !pair_between(one, two)) return;
    Step step{
        Step::Kind::eliminate, v, std::vector<int>(static_cast<size_t>(rows * columns)), one, two, columns};
    std::vector<double> least(step.table.size());
    for (int i = 0; i < rows; ++i)
      for (int k = 0; k < columns; ++k) {
        double best = std::numeric_limits<double>::infinity();
        for (int s = 0; s < size; ++s) {
          double sum = at(v).cost[static_cast<size_t>(s)];
          if (one >= 0) sum += cost(pairs[0], v, s, i);
          if (two >= 0) sum += cost(pairs[1], v, s, k);
          if (sum >= best) continue;
          best = sum;
          step.table[static_cast<size_t>(i * columns + k)] = s;
        }
        least[static_cast<size_t>(i * columns + k)] = std::min(best, kBlocked);
      }
    for (const int e : pairs) remove_pair(e);
    alive_[static_cast<size_t>(v)] = false;
    result_.steps_.push_back(std::move(step));
    if (one < 0) {
      net_.constant += least[0];
      return;
    }
    if (two < 0) {
      for (int i = 0; i < rows; ++i) {
        double& sum = at(one).cost[static_cast<size_t>(i)];
        sum = std::min(sum + least[static_cast<size_t>(i)], kBlocked);
      }
    } else {
      add_pair({one, two, std::move(least)});
      push_around(two);
    }
    push_around(one);
  }

  // Rows that can be exceeded, without what every choice uses. True when strategies or usage went.
  bool tighten_rows() {
    bool changed = take_least_usage();
    const size_t rows = net_.capacity.size();
    for (const int64_t capacity : net_.capacity)
      if (capacity < 0) result_.infeasible_ = true;
    if (result_.infeasible_ || rows == 0) return changed;
    changed |= drop_excessive();
    if (result_.infeasible_) return changed;
    take_least_usage();
    std::vector<int64_t> most(rows + 1, 0);
    std::vector<int> begins(rows + 2, 0),
        ends(rows + 2, 0);  // items that begin (end) at rows before this one
    each_item([&](const UsageItem& item) {
      const int64_t largest = *std::max_element(item.use.begin(), item.use.end());
      most[static_cast<size_t>(item.first)] += largest;
      most[static_cast<size_t>(item.last)] -= largest;
      ++begins[static_cast<size_t>(item.first) + 1];
      ++ends[static_cast<size_t>(item.last) + 1];
    });
    std::partial_sum(most.begin(), most.end(), most.begin());
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    std::vector<size_t> kept;
    for (size_t row = 0; row < rows; ++row) {
      if (most[row] <= net_.capacity[row]) continue;
      bool redundant = false;
      while (!kept.empty() && !redundant) {
        const size_t last = kept.back();
        // Between them no item begins, or none ends: one row's items are among the other's.
        const bool none_begins = begins[row + 1] == begins[last + 1],
                   none_ends = ends[row + 1] == ends[last + 1];
        if (none_begins && net_.capacity[row] >= net_.capacity[last])
          redundant = true;
        else if (none_ends && net_.capacity[last] >= net_.capacity[row])
          kept.pop_back();
        else
          break;
      }
      if (!redundant) kept.push_back(row);
    }
    if (kept.size() < rows) keep_rows(kept);
    return changed || kept.size() < rows;
  }

  template <typename Visit>
  void each_item(const Visit& visit) {
    for (size_t v = 0; v < net_.variables.size(); ++v)
      if (alive_[v])
        for (UsageItem& item : net_.variables[v].items) visit(item);
  }

  // What every strategy uses is taken off the capacity; items of the same rows are one.
  bool take_least_usage() {
    bool changed = false;
    std::vector<int64_t> taken(net_.capacity.size() + 1, 0);
    each_item([&](UsageItem& item) {
      const int64_t least = *std::min_element(item.use.begin(), item.use.end());
      taken[static_cast<size_t>(item.first)] += least;
      taken[static_cast<size_t>(item.last)] -= least;
      for (int64_t& use : item.use) use -= least;
    });
    int64_t sum = 0;
    for (size_t row = 0; row < net_.capacity.size(); ++row) net_.capacity[row] -= sum += taken[row];
    for (size_t v = 0; v < net_.variables.size(); ++v) {
      if (!alive_[v]) continue;
      std::vector<UsageItem>& items = net_.variables[v].items;
      std::sort(items.begin(), items.end(), [](const UsageItem& a, const UsageItem& b) {
        return std::pair(a.first, a.last) < std::pair(b.first, b.last);
      });
      std::vector<UsageItem> merged;
      for (UsageItem& item : items) {
        if (item.first >= item.last ||
            std::all_of(item.use.begin(), item.use.end(), [](int64_t u) { return u == 0; }))
          continue;
        if (!merged.empty() && merged.back().first == item.first && merged.back().last == item.last)
          for (size_t s = 0; s < item.use.size(); ++s) merged.back().use[s] += item.use[s];
        else
          merged.push_back(std::move(item));
      }
      changed |= merged.size() != items.size();
      items = std::move(merged);
    }
    return changed;
  }

  // Strategies that exceed a row even where everyone else uses least.
  bool drop_excessive() {
    std::vector<std::vector<int64_t>> least{net_.capacity};  // [k][row]: of rows row, ..., row + 2^k - 1
    for (size_t width = 1; 2 * width <= net_.capacity.size(); width *= 2) {
      const std::vector<int64_t>& narrow = least.back();
      std::vector<int64_t> wide(narrow.size() - width);
      for (size_t row = 0; row < wide.size(); ++row) wide[row] = std::min(narrow[row], narrow[row + width]);
      least.push_back(std::move(wide));
    }
    const auto least_of = [&](int first, int last) {
      size_t k = 0;
      while ((2 << k) <= last - first) ++k;
      return std::min(least[k][static_cast<size_t>(first)],
                      least[k][static_cast<size_t>(last) - (size_t{1} << k)]);
    };
    bool changed = false;
    for (int v = 0; v < static_cast<int>(net_.variables.size()); ++v) {
      if (!alive_[static_cast<size_t>(v)] || at(v).items.empty()) continue;
      std::vector<bool> too_much(at(v).cost.size(), false);
      for (const UsageItem& item : at(v).items) {
        const int64_t capacity = least_of(item.first, item.last);
        for (size_t s = 0; s < item.use.size(); ++s) too_much[s] = too_much[s] || item.use[s] > capacity;
      }
      std::vector<int> kept;
      for (int s = 0; s < net_.size(v); ++s)
        if (!too_much[static_cast<size_t>(s)]) kept.push_back(s);
      if (kept.empty()) {
        result_.infeasible_ = true;
        return true;
      }
      if (static_cast<int>(kept.size()) == net_.size(v)) continue;
      restrict_to(v, kept);
      push_around(v);
      changed = true;
    }
    return changed;
  }

  void keep_rows(const std::vector<size_t>& kept) {
    std::vector<int> number(net_.capacity.size() + 1, 0);  // kept rows before this one
    for (const size_t row : kept) ++number[row + 1];
    std::partial_sum(number.begin(), number.end(), number.begin());
    each_item([&](UsageItem& item) {
      item.first = number[static_cast<size_t>(item.first)];
      item.last = number[static_cast<size_t>(item.last)];
    });
    std::vector<int64_t> capacity;
    for (const size_t row : kept) capacity.push_back(net_.capacity[row]);
    net_.capacity = std::move(capacity);
    take_least_usage();
  }

  void compact() {
    if (result_.infeasible_) return;
    std::vector<int> number(net_.variables.size(), -1);
    Network& reduced = result_.reduced_;
    reduced.constant = net_.constant;
    reduced.capacity = std::move(net_.capacity);
    for (size_t v = 0; v < net_.variables.size(); ++v) {
      if (!alive_[v]) continue;
      const NetworkVariable& variable = net_.variables[v];
      if (variable.cost.size() == 1 && variable.items.empty() && incident_[v].empty()) {
        reduced.constant += variable.cost[0];
        continue;
      }
      number[v] = static_cast<int>(reduced.variables.size());
      result_.kept_.push_back(static_cast<int>(v));
      reduced.variables.push_back(std::move(net_.variables[v]));
    }
    for (PairCost& p : net_.pairs) {
      if (p.cost.empty()) continue;
      reduced.pairs.push_back(
          {number[static_cast<size_t>(p.a)], number[static_cast<size_t>(p.b)], std::move(p.cost)});
    }
  }

  Network net_;
  const Clock& clock_;
  Reduction& result_;
  std::vector<std::vector<int>> incident_;
  std::vector<char> alive_, queued_;
  std::deque<int> queue_;
  std::vector<int> favourite_;  // of v's strategies: its neighbours' strategies that cost least with it
  int64_t visits_ = 0;
};

Reduction::Reduction(Network network, const Clock& clock) {
  Presolve(std::move(network), clock, *this).run();
}

std::vector<int> Reduction::expand(const std::vector<int>& choice) const {
  std::vector<int> whole(variables_, 0);
  for (size_t v = 0; v < kept_.size(); ++v) whole[static_cast<size_t>(kept_[v])] = choice[v];
  for (size_t i = steps_.size(); i-- > 0;) {
    const Step& step = steps_[i];
    int& strategy = whole[static_cast<size_t>(step.variable)];
    const auto chosen = [&](int variable) { return variable < 0 ? 0 : whole[static_cast<size_t>(variable)]; };
    switch (step.kind) {
      case Step::Kind::restrict: strategy = step.table[static_cast<size_t>(strategy)]; break;
      case Step::Kind::merge: strategy = step.table[static_cast<size_t>(chosen(step.first))]; break;
      case Step::Kind::eliminate:
        strategy =
            step.table[static_cast<size_t>(chosen(step.first) * step.second_size + chosen(step.second))];
        break;
    }
  }
  return whole;
}

}  // namespace het::planner::assignment
