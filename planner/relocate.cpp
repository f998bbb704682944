#include "planner/relocate.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "planner/milp.h"

namespace het::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kMatched = 96;   // hosts of one node: up to here they are matched exactly
constexpr size_t kSolved = 3000;  // demands x sources: up to here sources are chosen by a linear program
constexpr size_t kSources = 8;    // hosts that one demand may take from

struct Range {
  double from = 0, to = 0;
  double length() const { return std::max(0.0, to - from); }
};
double overlap(Range a, Range b) { return std::max(0.0, std::min(a.to, b.to) - std::max(a.from, b.from)); }

// A layer's state is four lines from 0 to 1: the parameters that tensor parallelism divides and those that
// it does not, and the optimizer state of each.
enum Line { divided_weights, whole_weights, divided_state, whole_state, kLines };

template <typename Part>
Range range_of(const Part& part, Line line) {
  const bool divided = line == divided_weights || line == divided_state;
  const double start = divided ? part.begin : 0, width = divided ? part.end - part.begin : 1;
  if (line == divided_weights || line == whole_weights) return {start, start + width};
  return {start + part.first * width, start + part.last * width};
}

double bytes_of(const LayerKind& kind, Line line, double weight_bytes, double optimizer_bytes) {
  const bool divided = line == divided_weights || line == divided_state;
  const double parameters = divided ? kind.parameters - kind.whole_parameters : kind.whole_parameters;
  return parameters * (line == divided_weights || line == whole_weights ? weight_bytes : optimizer_bytes);
}

}  // namespace

// Kuhn and Munkres, with potentials: each row in turn along a shortest augmenting path.
std::vector<int> assign(const std::vector<std::vector<double>>& cost) {
  const size_t rows = cost.size(), columns = rows == 0 ? 0 : cost[0].size();
  HET_REQUIRE(rows <= columns || rows == 0, rows, columns);
  std::vector<double> u(rows + 1, 0), v(columns + 1, 0);
  std::vector<size_t> row_of(columns + 1, 0), way(columns + 1, 0);
  for (size_t row = 1; row <= rows; ++row) {
    row_of[0] = row;
    size_t column = 0;
    std::vector<double> least(columns + 1, kInfinity);
    std::vector<bool> used(columns + 1, false);
    do {
      used[column] = true;
      const size_t at = row_of[column];
      double delta = kInfinity;
      size_t next = 0;
      for (size_t c = 1; c <= columns; ++c) {
        if (used[c]) continue;
        const double reduced = cost[at - 1][c - 1] - u[at] - v[c];
        if (reduced < least[c]) {
          least[c] = reduced;
          way[c] = column;
        }
        if (least[c] < delta) {
          delta = least[c];
          next = c;
        }
      }
      for (size_t c = 0; c <= columns; ++c) {
        if (used[c]) {
          u[row_of[c]] += delta;
          v[c] -= delta;
        } else {
          least[c] -= delta;
        }
      }
      column = next;
    } while (row_of[column] != 0);
    for (; column != 0; column = way[column]) row_of[column] = row_of[way[column]];
  }
  std::vector<int> column_of(rows, -1);
  for (size_t c = 1; c <= columns; ++c)
    if (row_of[c] != 0) column_of[row_of[c] - 1] = static_cast<int>(c) - 1;
  return column_of;
}

std::map<std::string, Relocation::Held> Relocation::holdings(const Plan& plan, int layers) {
  std::vector<double> shares(static_cast<size_t>(layers), 0), before(static_cast<size_t>(layers), 0);
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (int l = stage.first_layer; l < stage.first_layer + stage.layers; ++l)
        shares[static_cast<size_t>(l)] += stage.optimizer_share;
  std::map<std::string, Held> held;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (int layer = stage.first_layer; layer < stage.first_layer + stage.layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        Part part{layer};
        const Shares tensor = tensor_shares(plan, stage);
        const int64_t all = std::accumulate(tensor.begin(), tensor.end(), int64_t{0});
        if (plan.sharded_optimizer) {
          part.first = before[l] / std::max(shares[l], 1.0);
          before[l] += stage.optimizer_share;
          part.last = before[l] / std::max(shares[l], 1.0);
        }
        int64_t given = 0;
        for (size_t t = 0; t < stage.devices.size(); ++t) {
          part.begin = static_cast<double>(given) / static_cast<double>(all);
          given += tensor[t];
          part.end = static_cast<double>(given) / static_cast<double>(all);
          held[stage.devices[t]].push_back(part);
        }
      }
  for (auto& [device, parts] : held) std::sort(parts.begin(), parts.end());
  return held;
}

Relocation::Relocation(const Plan& old, const Cluster& cluster, const Model& model)
    : cluster_(cluster), model_(model), weight_bytes_(model.weight_bytes - model.made_bytes) {
  const auto held = holdings(old, model.count());
  std::map<std::string, int> pipeline_of;
  for (size_t p = 0; p < old.pipelines.size(); ++p)
    for (const Stage& stage : old.pipelines[p].stages)
      for (const std::string& device : stage.devices) pipeline_of[device] = static_cast<int>(p);
  number({});
  for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n) {
    const Node& node = cluster.nodes[static_cast<size_t>(n)];
    auto& hosts = have_.emplace_back();
    auto& pipelines = pipeline_at_.emplace_back();
    for (int h = 0; h < static_cast<int>(node.hosts.size()); ++h) {
      auto& devices = hosts.emplace_back();
      double sum = 0;
      int used = 0;
      for (int d = 0; d < node.devices; ++d) {
        const auto known = held.find(device_name(cluster, n, h, d));
        devices.push_back(known == held.end() ? 0 : number(known->second));
        if (known == held.end()) continue;
        old_.insert(*known);
        sum += pipeline_of.at(known->first);
        ++used;
      }
      pipelines.push_back(used > 0 ? sum / used : static_cast<double>(old.pipelines.size()));
    }
  }
}

Layout Relocation::ordered(Layout layout) const {
  const auto place = [&](const PipelineLayout& pipeline) {
    double sum = 0;
    for (const StageLayout& stage : pipeline.stages)
      sum += pipeline_at_[static_cast<size_t>(stage.node)][static_cast<size_t>(stage.host)];
    return sum / static_cast<double>(pipeline.stages.size());
  };
  std::stable_sort(layout.pipelines.begin(), layout.pipelines.end(),
                   [&](const PipelineLayout& a, const PipelineLayout& b) { return place(a) < place(b); });
  return layout;
}

int Relocation::number(const Held& held) {
  const auto [entry, fresh] = numbers_.emplace(held, static_cast<int>(known_.size()));
  if (fresh) known_.push_back(held);
  return entry->second;
}

std::pair<double, double> Relocation::missing(const Held& need, const Held& have) const {
  std::pair<double, double> bytes;
  size_t at = 0;
  for (const Part& part : need) {
    while (at < have.size() && have[at].layer < part.layer) ++at;
    const bool there = at < have.size() && have[at].layer == part.layer;
    const LayerKind& kind = model_.layer(part.layer);
    for (int l = 0; l < kLines; ++l) {
      const auto line = static_cast<Line>(l);
      const Range wanted = range_of(part, line);
      const double part_missing = wanted.length() - (there ? overlap(wanted, range_of(have[at], line)) : 0);
      if (part_missing <= 1e-12) continue;
      (line == divided_weights || line == whole_weights ? bytes.first : bytes.second) +=
          part_missing * bytes_of(kind, line, weight_bytes_, model_.optimizer_bytes);
    }
  }
  return bytes;
}

double Relocation::lacks(int need, int have) {
  if (need == have || need == 0) return 0;
  const auto [entry, fresh] = lacks_.try_emplace({need, have});
  if (fresh) {
    const auto [weights, state] =
        missing(known_[static_cast<size_t>(need)], known_[static_cast<size_t>(have)]);
    entry->second = weights + state;
  }
  return entry->second;
}

const Relocation::Match& Relocation::match(const std::vector<int>& need, const std::vector<int>& have) {
  const auto [entry, fresh] = matches_.try_emplace({need, have});
  Match& match = entry->second;
  if (!fresh) return match;
  std::vector<std::vector<double>> cost;
  for (const int n : need) {
    cost.emplace_back();
    for (const int h : have) cost.back().push_back(lacks(n, h));
  }
  match.device_of = assign(cost);
  for (size_t s = 0; s < need.size(); ++s) match.bytes += cost[s][static_cast<size_t>(match.device_of[s])];
  return match;
}

double Relocation::arrange(const Layout& layout, std::vector<std::vector<std::vector<Slot>>>& slots,
                           std::vector<std::vector<int>>& hosts) {
  // What each device of the layout holds does not depend on its name: any names will do to find it.
  Plan named = to_plan(layout, cluster_);
  const auto held = holdings(named, model_.count());
  slots.clear();
  for (const Node& node : cluster_.nodes) slots.emplace_back(node.hosts.size());
  for (size_t p = 0; p < layout.pipelines.size(); ++p) {
    const auto& stages = layout.pipelines[p].stages;
    const size_t groups = stages.size() / static_cast<size_t>(layout.chunks);
    for (size_t g = 0; g < groups; ++g) {
      const std::vector<DevicePlace> places = places_of(layout, stages[g]);
      for (size_t t = 0; t < places.size(); ++t) {
        const Held& own = held.at(named.pipelines[p].stages[g].devices[t]);
        slots[static_cast<size_t>(places[t].node)][static_cast<size_t>(places[t].host)].push_back(
            {static_cast<int>(p), static_cast<int>(g), static_cast<int>(t), number(own)});
      }
    }
  }
  double bytes = 0;
  hosts.clear();
  for (size_t n = 0; n < slots.size(); ++n) {
    const size_t count = slots[n].size();
    std::vector<std::vector<int>> need(count);
    for (size_t h = 0; h < count; ++h)
      for (const Slot& slot : slots[n][h]) need[h].push_back(slot.held);
    std::vector<int> taken;
    if (count <= kMatched) {
      std::vector<std::vector<double>> cost(count);
      for (size_t h = 0; h < count; ++h)
        for (size_t to = 0; to < count; ++to) cost[h].push_back(match(need[h], have_[n][to]).bytes);
      taken = assign(cost);
    } else {
      taken.assign(count, -1);
      std::vector<bool> used(count, false);
      // Those that lack nothing somewhere first.
      for (const bool perfect : {true, false})
        for (size_t h = 0; h < count; ++h) {
          if (taken[h] >= 0) continue;
          double least = kInfinity;
          for (size_t to = 0; to < count && least > 0; ++to) {
            if (used[to]) continue;
            const double here = match(need[h], have_[n][to]).bytes;
            if (here >= least || (perfect && here > 0)) continue;
            least = here;
            taken[h] = static_cast<int>(to);
          }
          if (taken[h] >= 0) used[static_cast<size_t>(taken[h])] = true;
        }
    }
    for (size_t h = 0; h < count; ++h) bytes += match(need[h], have_[n][static_cast<size_t>(taken[h])]).bytes;
    hosts.push_back(std::move(taken));
  }
  return bytes;
}

double Relocation::bytes(const Layout& layout) {
  std::vector<std::vector<std::vector<Slot>>> slots;
  std::vector<std::vector<int>> hosts;
  return arrange(layout, slots, hosts);
}

Plan Relocation::place(const Layout& layout) {
  std::vector<std::vector<std::vector<Slot>>> slots;
  std::vector<std::vector<int>> hosts;
  arrange(layout, slots, hosts);
  Plan plan = to_plan(layout, cluster_);
  for (size_t n = 0; n < slots.size(); ++n)
    for (size_t h = 0; h < slots[n].size(); ++h) {
      std::vector<int> need;
      for (const Slot& slot : slots[n][h]) need.push_back(slot.held);
      const int host = hosts[n][h];
      const Match& found = match(need, have_[n][static_cast<size_t>(host)]);
      for (size_t s = 0; s < need.size(); ++s) {
        const Slot& slot = slots[n][h][s];
        auto& stages = plan.pipelines[static_cast<size_t>(slot.pipeline)].stages;
        const std::string name = device_name(cluster_, static_cast<int>(n), host, found.device_of[s]);
        const size_t groups = stages.size() / static_cast<size_t>(layout.chunks);
        for (size_t stage = static_cast<size_t>(slot.group); stage < stages.size(); stage += groups)
          stages[stage].devices[static_cast<size_t>(slot.rank)] = name;
      }
    }
  return plan;
}

Move Relocation::move(const Plan& plan) const {
  Move move;
  const auto held = holdings(plan, model_.count());
  std::set<std::string> told;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const std::string& device : stage.devices) {
        if (!told.insert(device).second) continue;
        const auto old = old_.find(device);
        const auto [weights, state] = missing(held.at(device), old == old_.end() ? Held{} : old->second);
        if (weights + state <= 0) continue;
        move.devices.push_back({device, weights, state});
        move.bytes += weights + state;
      }
  if (!move.devices.empty()) move.seconds = seconds_of(plan, move.lost_bytes);
  return move;
}

// A transfer takes in at one host's port and hands out at another's, or stays inside a host; what is taken
// from where is a linear program that ends soonest.
double Relocation::seconds_of(const Plan& plan, double& lost_bytes) const {
  struct Place {
    int node = 0, host = 0;
  };
  std::map<std::string, int> host_of;  // device -> position in `hosts`
  std::vector<Place> hosts;
  for (int n = 0; n < static_cast<int>(cluster_.nodes.size()); ++n)
    for (int h = 0; h < static_cast<int>(cluster_.nodes[static_cast<size_t>(n)].hosts.size()); ++h) {
      for (int d = 0; d < cluster_.nodes[static_cast<size_t>(n)].devices; ++d)
        host_of[device_name(cluster_, n, h, d)] = static_cast<int>(hosts.size());
      hosts.push_back({n, h});
    }
  struct Entry {
    Part part;
    int host = 0;
    const Held* old = nullptr;
  };
  std::vector<std::vector<Entry>> holders(static_cast<size_t>(model_.count())),
      needers(static_cast<size_t>(model_.count()));
  for (const auto& [device, held] : old_)
    for (const Part& part : held)
      holders[static_cast<size_t>(part.layer)].push_back({part, host_of.at(device), nullptr});
  const auto wanted = holdings(plan, model_.count());
  for (const auto& [device, held] : wanted) {
    const auto old = old_.find(device);
    for (const Part& part : held)
      needers[static_cast<size_t>(part.layer)].push_back(
          {part, host_of.at(device), old == old_.end() ? nullptr : &old->second});
  }

  std::map<std::pair<int, std::vector<int>>, double> demands;  // (host, hosts that have it) -> bytes
  lost_bytes = 0;
  for (int layer = 0; layer < model_.count(); ++layer) {
    const auto at = static_cast<size_t>(layer);
    const auto own_part = [&](const Entry& entry) -> const Part* {
      if (entry.old == nullptr) return nullptr;
      for (const Part& part : *entry.old)
        if (part.layer == layer) return &part;
      return nullptr;
    };
    for (int l = 0; l < kLines; ++l) {
      const auto line = static_cast<Line>(l);
      const double bytes = bytes_of(model_.layer(layer), line, weight_bytes_, model_.optimizer_bytes);
      if (bytes <= 0) continue;
      std::set<double> cuts;
      for (const auto* list : {&holders[at], &needers[at]})
        for (const Entry& entry : *list) {
          const Range range = range_of(entry.part, line);
          cuts.insert({range.from, range.to});
        }
      double from = 0;
      for (const double to : cuts) {
        const Range segment{from, to};
        from = to;
        if (segment.length() <= 1e-12) continue;
        const auto covers = [&](const Part& part) {
          return overlap(range_of(part, line), segment) > 0.5 * segment.length();
        };
        std::vector<int> sources;
        for (const Entry& entry : holders[at])
          if (covers(entry.part)) sources.push_back(entry.host);
        std::sort(sources.begin(), sources.end());
        sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
        for (const Entry& entry : needers[at]) {
          const Part* own = own_part(entry);
          if (!covers(entry.part) || (own != nullptr && covers(*own))) continue;
          const double amount = bytes * segment.length();
          if (sources.empty())
            lost_bytes += amount;
          else
            demands[{entry.host, sources}] += amount;
        }
      }
    }
  }
  if (demands.empty()) return 0;

  struct Flow {
    int to = 0, from = 0, demand = 0;
    double seconds = 0;  // of all of the demand
  };
  std::vector<Flow> flows;
  double latency = 0;
  int number = 0;
  for (const auto& [key, bytes] : demands) {
    const auto& [to, sources] = key;
    // Of very many sources a few, others for each demand.
    const size_t count = std::min(sources.size(), kSources);
    for (size_t i = 0; i < count; ++i) {
      const int from = sources[(static_cast<size_t>(number) + i * sources.size() / count) % sources.size()];
      const Place &a = hosts[static_cast<size_t>(from)], &b = hosts[static_cast<size_t>(to)];
      const Link link = from == to ? inside_link(cluster_, a.node) : between_link(cluster_, a.node, b.node);
      flows.push_back({to, from, number, bytes / link.bytes_per_second});
      latency = std::max(latency, link.latency_seconds);
    }
    ++number;
  }
  // What limits a flow: the port it leaves, the port it enters; inside a host the link.
  const auto limits = [&](const Flow& flow) {
    const int count = static_cast<int>(hosts.size());
    return flow.from == flow.to ? std::vector<int>{2 * count + flow.from}
                                : std::vector<int>{flow.from, count + flow.to};
  };
  std::map<int, Row> busy;
  if (flows.size() > kSolved) {  // evenly from all
    std::vector<int> ways(static_cast<size_t>(number), 0);
    for (const Flow& flow : flows) ++ways[static_cast<size_t>(flow.demand)];
    std::map<int, double> seconds;
    double longest = 0;
    for (const Flow& flow : flows)
      for (const int limit : limits(flow))
        longest = std::max(longest, seconds[limit] += flow.seconds / ways[static_cast<size_t>(flow.demand)]);
    return longest + latency;
  }
  double unit = 0;
  for (const Flow& flow : flows) unit = std::max(unit, flow.seconds);
  LinearProgram program;
  const int time = program.add(Variable{0, kNoBound, 1});
  std::vector<Row> all(static_cast<size_t>(number));
  for (const Flow& flow : flows) {
    const int share = program.add(Variable{0, 1, 0});
    all[static_cast<size_t>(flow.demand)].terms.emplace_back(share, 1);
    for (const int limit : limits(flow)) busy[limit].terms.emplace_back(share, flow.seconds / unit);
  }
  for (Row& row : all) {
    row.lower = row.upper = 1;
    program.add(std::move(row));
  }
  for (auto& [limit, row] : busy) {
    row.terms.emplace_back(time, -1);
    row.upper = 0;
    program.add(std::move(row));
  }
  const LinearSolution solution = solve(program);
  HET_REQUIRE(solution.feasible);
  return solution.objective * unit + latency;
}

}  // namespace het::planner
