#include "planner/autohet/group.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "planner/autohet/limits.h"
#include "planner/milp.h"

namespace het::planner {
namespace {

std::vector<size_t> strongest_first(const Pool& pool) {
  std::vector<size_t> order(pool.groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pool.power[a] > pool.power[b]; });
  return order;
}

double power_of(const Pool& pool, const Composition& composition) {
  double power = 0;
  for (size_t n = 0; n < composition.size(); ++n) power += composition[n] * pool.power[n];
  return power;
}

bool empty(const Composition& composition) {
  return std::all_of(composition.begin(), composition.end(), [](int n) { return n == 0; });
}

// Pipelines while they get their groups; equal ones are one entry.
class Heap {
 public:
  Heap(const Pool& pool, const Composition& start, int pipelines) : pool_(pool) {
    parts_.insert({power_of(pool, start), start, pipelines});
  }
  void give_weakest(size_t node) {
    Part weakest = *parts_.begin();
    parts_.erase(parts_.begin());
    Part grown{weakest.power + pool_.power[node], weakest.composition, 1};
    ++grown.composition[node];
    if (--weakest.copies > 0) parts_.insert(weakest);
    const auto same = parts_.find(grown);
    if (same != parts_.end()) {
      grown.copies += same->copies;
      parts_.erase(same);
    }
    parts_.insert(std::move(grown));
  }
  Grouping take() const {
    Grouping grouping;
    for (const Part& part : parts_)
      if (!empty(part.composition)) grouping.add(part.composition, part.copies);
    return grouping;
  }

 private:
  struct Part {
    double power;
    Composition composition;
    int copies;
    bool operator<(const Part& other) const {
      return power != other.power ? power < other.power : composition < other.composition;
    }
  };
  const Pool& pool_;
  std::set<Part> parts_;
};

}  // namespace

int Grouping::pipelines() const {
  int total = 0;
  for (const auto& [composition, copies] : parts) total += copies;
  return total;
}

void Grouping::add(const Composition& composition, int copies) {
  for (auto& [known, count] : parts)
    if (known == composition) {
      count += copies;
      return;
    }
  parts.emplace_back(composition, copies);
}

Grouping spread_evenly(const Pool& pool, int pipelines) {
  Composition base(pool.groups.size());
  for (size_t n = 0; n < base.size(); ++n) base[n] = pool.groups[n] / pipelines;
  Heap heap(pool, base, pipelines);
  for (const size_t n : strongest_first(pool))
    for (int i = 0; i < pool.groups[n] % pipelines; ++i) heap.give_weakest(n);
  return heap.take();
}

Grouping level_power(const Pool& pool, int pipelines) {
  Heap heap(pool, Composition(pool.groups.size(), 0), pipelines);
  for (const size_t n : strongest_first(pool))
    for (int i = 0; i < pool.groups[n]; ++i) heap.give_weakest(n);
  return heap.take();
}

Grouping keep_apart(const Pool& pool, int pipelines, const std::vector<int>& least) {
  const size_t nodes = pool.groups.size();
  std::vector<int> count(nodes, 0);
  double power = 0;
  for (size_t n = 0; n < nodes; ++n)
    if (least[n] > 0 && least[n] <= pool.groups[n]) power += pool.groups[n] * pool.power[n];
  if (power == 0) return {};
  Grouping grouping;
  std::vector<size_t> joining;
  for (size_t n = 0; n < nodes; ++n) {
    if (pool.groups[n] == 0) continue;
    if (least[n] <= 0 || least[n] > pool.groups[n]) {
      joining.push_back(n);
      continue;
    }
    const int wanted = static_cast<int>(std::lround(pipelines * pool.groups[n] * pool.power[n] / power));
    count[n] = std::clamp(wanted, 1, pool.groups[n] / least[n]);
    for (int i = 0; i < 2; ++i) {
      const int extra = pool.groups[n] % count[n], copies = i == 0 ? extra : count[n] - extra;
      Composition composition(nodes, 0);
      composition[n] = pool.groups[n] / count[n] + (i == 0 ? 1 : 0);
      if (copies > 0) grouping.add(composition, copies);
    }
  }
  // Each node that cannot hold the model alone is divided over all pipelines.
  for (const size_t n : joining) {
    const int all = grouping.pipelines(), each = pool.groups[n] / all;
    int extra = pool.groups[n] % all;
    Grouping joined;
    for (const auto& [composition, copies] : grouping.parts) {
      Composition more = composition;
      const int with = std::min(extra, copies);
      more[n] += each + 1;
      if (with > 0) joined.add(more, with);
      --more[n];
      if (copies > with) joined.add(more, copies - with);
      extra -= with;
    }
    grouping = std::move(joined);
  }
  return grouping;
}

std::vector<Grouping> all_groupings(const Pool& pool, int pipelines, size_t limit) {
  std::vector<Composition> columns;
  Composition composition(pool.groups.size(), 0);
  const std::function<void(size_t)> enumerate = [&](size_t node) {
    if (node == composition.size()) {
      if (!empty(composition)) columns.push_back(composition);
      return;
    }
    for (composition[node] = 0; composition[node] <= pool.groups[node]; ++composition[node])
      enumerate(node + 1);
    composition[node] = 0;
  };
  enumerate(0);
  std::vector<Grouping> found;
  std::vector<int> left = pool.groups;
  Grouping grouping;
  // Compositions in non-decreasing order, so that each multiset comes once.
  const std::function<void(size_t, int)> choose = [&](size_t from, int more) {
    if (found.size() >= limit) return;
    if (more == 0) {
      found.push_back(grouping);
      return;
    }
    for (size_t c = from; c < columns.size(); ++c) {
      bool fits = true;
      for (size_t n = 0; n < left.size(); ++n) fits = fits && columns[c][n] <= left[n];
      if (!fits) continue;
      for (size_t n = 0; n < left.size(); ++n) left[n] -= columns[c][n];
      const Grouping before = grouping;
      grouping.add(columns[c], 1);
      choose(c, more - 1);
      grouping = before;
      for (size_t n = 0; n < left.size(); ++n) left[n] += columns[c][n];
    }
  };
  choose(0, pipelines);
  return found;
}

Grouping choose_columns(const Pool& pool, const std::vector<Composition>& columns,
                        const std::vector<double>& worth, int exactly) {
  LinearProgram program;
  Row number;
  number.lower = number.upper = exactly;
  std::vector<Row> rows(pool.groups.size());
  double most = 0;
  for (const double value : worth) most = std::max(most, value);
  if (most <= 0) return {};
  for (size_t c = 0; c < columns.size(); ++c) {
    int copies = 1 << 30;
    for (size_t n = 0; n < columns[c].size(); ++n)
      if (columns[c][n] > 0) copies = std::min(copies, pool.groups[n] / columns[c][n]);
    const int y = program.add(Variable{0, static_cast<double>(copies), -worth[c] / most, true});
    for (size_t n = 0; n < columns[c].size(); ++n)
      if (columns[c][n] > 0) rows[n].terms.emplace_back(y, columns[c][n]);
    number.terms.emplace_back(y, 1);
  }
  for (size_t n = 0; n < rows.size(); ++n) {
    rows[n].upper = pool.groups[n];
    if (!rows[n].terms.empty()) program.add(std::move(rows[n]));
  }
  if (exactly > 0) program.add(std::move(number));
  SolveOptions options;
  options.nodes = limits::group::kNodes;
  options.gap = limits::group::kGap;
  const LinearSolution solution = solve(program, options);
  Grouping grouping;
  if (!solution.feasible) return grouping;
  for (size_t c = 0; c < columns.size(); ++c)
    if (solution.values[c] > 0.5) grouping.add(columns[c], static_cast<int>(solution.values[c]));
  return grouping;
}

Places place(const std::vector<Composition>& pipelines, const std::vector<int>& hosts,
             const std::vector<int>& per_host, bool packed) {
  const size_t nodes = hosts.size();
  Places places(pipelines.size(), std::vector<std::vector<int>>(nodes));
  for (size_t n = 0; n < nodes; ++n) {
    if (per_host[n] == 0) continue;
    // Hosts by how many groups they have left.
    std::vector<std::set<int>> left(static_cast<size_t>(per_host[n]) + 1);
    for (int h = 0; h < hosts[n]; ++h) left.back().insert(h);
    const auto take = [&](size_t room, std::vector<int>& into) {
      const int host = *left[room].begin();
      left[room].erase(left[room].begin());
      left[room - 1].insert(host);
      into.push_back(host);
      return host;
    };
    if (packed) {
      // Larger needs first, so that they find whole hosts.
      std::vector<size_t> order(pipelines.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return pipelines[a][n] > pipelines[b][n]; });
      for (const size_t p : order) {
        int need = pipelines[p][n];
        while (need > 0) {
          // The host with just enough, else the one with most.
          size_t room = static_cast<size_t>(std::min(need, per_host[n]));
          while (room < left.size() && left[room].empty()) ++room;
          if (room == left.size())
            for (room = static_cast<size_t>(std::min(need, per_host[n])); room > 0 && left[room].empty();)
              --room;
          HET_REQUIRE(room > 0, n, need);
          const int host = *left[room].begin();
          left[room].erase(left[room].begin());
          const int taken = std::min(need, static_cast<int>(room));
          left[room - static_cast<size_t>(taken)].insert(host);
          places[p][n].insert(places[p][n].end(), static_cast<size_t>(taken), host);
          need -= taken;
        }
      }
      continue;
    }
    // Spread: the i-th group of every pipeline before the next, host after host.
    int most = 0;
    for (const Composition& composition : pipelines) most = std::max(most, composition[n]);
    for (int i = 0; i < most; ++i)
      for (size_t p = 0; p < pipelines.size(); ++p) {
        if (pipelines[p][n] <= i) continue;
        size_t room = 1;
        while (room < left.size() && left[room].empty()) ++room;
        HET_REQUIRE(room < left.size(), n, i);
        take(room, places[p][n]);
      }
  }
  return places;
}

}  // namespace het::planner
