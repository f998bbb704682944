#include "planner/migrate/state_migration.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/plan/inventory.h"
#include "planner/infinity.h"
#include "planner/migrate/holdings.h"

namespace het::planner {
namespace {

constexpr size_t kMatched = 96;          // hosts of one node: up to here they are matched exactly
constexpr size_t kMostSlices = 500'000;  // that are kept from layout to layout

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

StateMigration::StateMigration(Plan old, const Cluster& cluster, ModelState state)
    : plan_(std::move(old)), cluster_(cluster), holdings_(std::make_unique<Holdings>(std::move(state))) {
  read_old();
}

StateMigration::StateMigration(Plan old, const Cluster& cluster, const Model& model)
    : StateMigration(std::move(old), cluster, state_of(model)) {}

StateMigration::~StateMigration() = default;

// Everything that is known by number begins here: called again, it forgets what layouts have added.
void StateMigration::read_old() {
  holdings_ = std::make_unique<Holdings>(ModelState(holdings_->state()));
  old_.clear();
  known_.clear();
  known_bytes_.clear();
  numbers_.clear();
  have_.clear();
  pipeline_at_.clear();
  matches_.clear();
  const auto held = holdings_->of(plan_);
  std::map<std::string, int> pipeline_of;
  for (size_t p = 0; p < plan_.pipelines.size(); ++p)
    for (const Stage& stage : plan_.pipelines[p].stages)
      for (const std::string& device : stage.devices) pipeline_of[device] = static_cast<int>(p);
  number({});
  for (int n = 0; n < static_cast<int>(cluster_.nodes.size()); ++n) {
    const Machine& node = cluster_.nodes[static_cast<size_t>(n)];
    auto& hosts = have_.emplace_back();
    auto& pipelines = pipeline_at_.emplace_back();
    for (int h = 0; h < static_cast<int>(node.hosts.size()); ++h) {
      auto& devices = hosts.emplace_back();
      double sum = 0;
      int used = 0;
      for (int d = 0; d < node.devices; ++d) {
        const auto known = held.find(device_name(cluster_, n, h, d));
        devices.push_back(known == held.end() ? 0 : number(known->second));
        if (known == held.end()) continue;
        old_.insert(*known);
        sum += pipeline_of.at(known->first);
        ++used;
      }
      pipelines.push_back(used > 0 ? sum / used : static_cast<double>(plan_.pipelines.size()));
    }
  }
}

PlanLayout StateMigration::ordered(PlanLayout layout) const {
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

int StateMigration::number(const Held& held) {
  const auto [entry, fresh] = numbers_.emplace(held, static_cast<int>(known_.size()));
  if (fresh) {
    known_.push_back(held);
    known_bytes_.push_back(holdings_->missing(held, {}).total());
  }
  return entry->second;
}

double StateMigration::missing_bytes(int need, int have) const {
  if (need == have || need == 0) return 0;
  const Held &wanted = known_[static_cast<size_t>(need)], &there = known_[static_cast<size_t>(have)];
  const bool apart =
      there.empty() || there.back().layer < wanted.front().layer || wanted.back().layer < there.front().layer;
  return apart ? known_bytes_[static_cast<size_t>(need)] : holdings_->missing(wanted, there).total();
}

const StateMigration::Match& StateMigration::match(const std::vector<int>& need,
                                                   const std::vector<int>& have) {
  const auto [entry, fresh] = matches_.try_emplace({need, have});
  Match& match = entry->second;
  if (!fresh) return match;
  std::vector<std::vector<double>> cost;
  for (const int n : need) {
    cost.emplace_back();
    for (const int h : have) cost.back().push_back(missing_bytes(n, h));
  }
  match.device_of = assign(cost);
  for (size_t s = 0; s < need.size(); ++s) match.bytes += cost[s][static_cast<size_t>(match.device_of[s])];
  return match;
}

StateMigration::Slots StateMigration::slots_of(const PlanLayout& layout) {
  if (holdings_->count() > kMostSlices) read_old();
  // What each device of the layout holds does not depend on its name: any names will do to find it.
  const Plan named = to_plan(layout, cluster_);
  const auto held = holdings_->of(named);
  Slots slots;
  for (const Machine& node : cluster_.nodes) slots.emplace_back(node.hosts.size());
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
  return slots;
}

std::vector<int> StateMigration::choose_hosts(const std::vector<std::vector<int>>& need,
                                              const std::vector<std::vector<int>>& have) {
  const size_t count = need.size();
  if (count <= kMatched) {
    std::vector<std::vector<double>> cost(count);
    for (size_t h = 0; h < count; ++h)
      for (size_t to = 0; to < count; ++to) cost[h].push_back(match(need[h], have[to]).bytes);
    return assign(cost);
  }
  std::vector<int> taken(count, -1);
  std::vector<bool> used(count, false);
  for (const bool perfect : {true, false})  // those that miss nothing somewhere first
    for (size_t h = 0; h < count; ++h) {
      if (taken[h] >= 0) continue;
      double least = kInfinity;
      for (size_t to = 0; to < count && least > 0; ++to) {
        if (used[to]) continue;
        const double here = match(need[h], have[to]).bytes;
        if (here >= least || (perfect && here > 0)) continue;
        least = here;
        taken[h] = static_cast<int>(to);
      }
      if (taken[h] >= 0) used[static_cast<size_t>(taken[h])] = true;
    }
  return taken;
}

double StateMigration::arrange(const Slots& slots, std::vector<std::vector<int>>& hosts) {
  double bytes = 0;
  hosts.clear();
  for (size_t n = 0; n < slots.size(); ++n) {
    std::vector<std::vector<int>> need(slots[n].size());
    for (size_t h = 0; h < need.size(); ++h)
      for (const Slot& slot : slots[n][h]) need[h].push_back(slot.held);
    const std::vector<int>& taken = hosts.emplace_back(choose_hosts(need, have_[n]));
    for (size_t h = 0; h < need.size(); ++h)
      bytes += match(need[h], have_[n][static_cast<size_t>(taken[h])]).bytes;
  }
  return bytes;
}

double StateMigration::bytes(const PlanLayout& layout) {
  std::vector<std::vector<int>> hosts;
  return arrange(slots_of(layout), hosts);
}

Plan StateMigration::place(const PlanLayout& layout) {
  const Slots slots = slots_of(layout);
  std::vector<std::vector<int>> hosts;
  arrange(slots, hosts);
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

Move StateMigration::move(const Plan& plan) const {
  Move move;
  const auto wanted = holdings_->of(plan);
  std::set<std::string> seen;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const std::string& device : stage.devices) {
        if (!seen.insert(device).second) continue;
        const auto old = old_.find(device);
        const auto bytes = holdings_->missing(wanted.at(device), old == old_.end() ? Held{} : old->second);
        if (bytes.total() <= 0) continue;
        move.devices.push_back({device, bytes.weights, bytes.optimizer});
        move.bytes += bytes.total();
      }
  if (!move.devices.empty())
    move.seconds = transfer_seconds(demands_of(wanted, move.unavailable_bytes), cluster_);
  return move;
}

namespace {

// Who has which part of a layer: {device, part}, devices by number.
using Parts = std::vector<std::pair<int, int>>;

// Items with equal keys together, in the order of the first of each: sums over them are the same whatever was
// numbered before.
template <typename Key, typename Item>
class Groups {
 public:
  void add(Key key, Item item) {
    const auto [entry, fresh] = index_.try_emplace(std::move(key), groups_.size());
    if (fresh) groups_.emplace_back(&entry->first, std::vector<Item>{});
    groups_[entry->second].second.push_back(std::move(item));
  }
  const std::vector<std::pair<const Key*, std::vector<Item>>>& all() const { return groups_; }

 private:
  std::map<Key, size_t> index_;
  std::vector<std::pair<const Key*, std::vector<Item>>> groups_;
};

std::vector<int> hosts_of(const std::vector<int>& devices, const std::vector<int>& host_of) {
  std::vector<int> hosts;
  for (const int device : devices) hosts.push_back(host_of[static_cast<size_t>(device)]);
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

}  // namespace

Demands StateMigration::demands_of(const std::map<std::string, Held>& wanted,
                                   double& unavailable_bytes) const {
  std::map<std::string, int> number_of;
  std::vector<int> host_of;  // by device
  int host = 0;
  for (int n = 0; n < static_cast<int>(cluster_.nodes.size()); ++n)
    for (int h = 0; h < static_cast<int>(cluster_.nodes[static_cast<size_t>(n)].hosts.size()); ++h, ++host)
      for (int d = 0; d < cluster_.nodes[static_cast<size_t>(n)].devices; ++d) {
        number_of[device_name(cluster_, n, h, d)] = static_cast<int>(host_of.size());
        host_of.push_back(host);
      }
  const auto by_layer = [&](const std::map<std::string, Held>& held) {
    std::vector<Parts> parts(static_cast<size_t>(holdings_->state().count()));
    for (const auto& [device, own] : held)
      for (const HeldPart& part : own)
        parts[static_cast<size_t>(part.layer)].emplace_back(number_of.at(device), part.part);
    return parts;
  };

  // Layers whose parts the same devices held and need have the same demands: they are found once.
  Groups<std::pair<Parts, Parts>, int> alike;
  std::vector<Parts> had = by_layer(old_), needed = by_layer(wanted);
  for (size_t layer = 0; layer < had.size(); ++layer)
    alike.add({std::move(had[layer]), std::move(needed[layer])}, static_cast<int>(layer));
  Demands demands;
  for (const auto& [parts, layers] : alike.all()) {
    const std::vector<StateTensor>& tensors = holdings_->state().tensors(layers[0]);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const std::string name = std::to_string(t);
      Inventory inventory;
      for (const auto& [device, part] : parts->first)
        inventory.add(name, {{DType::none, tensors[t].shape}, tensors[t].trained}, device,
                      holdings_->slice(holdings_->slice_number(part, t)));
      Groups<int, int> needers;  // devices by slice
      for (const auto& [device, part] : parts->second) needers.add(holdings_->slice_number(part, t), device);
      const double element_bytes = tensors[t].element_bytes * static_cast<double>(layers.size());
      for (const auto& [slice, devices] : needers.all())
        for (const Inventory::Piece& piece : inventory.find(name, holdings_->slice(*slice))) {
          const std::vector<int> hosts = hosts_of(piece.holders, host_of);
          const double bytes = static_cast<double>(piece.slice.elements()) * element_bytes;
          for (const int device : devices) {
            if (std::binary_search(piece.holders.begin(), piece.holders.end(), device)) continue;
            if (hosts.empty())
              unavailable_bytes += bytes;
            else
              demands[{host_of[static_cast<size_t>(device)], hosts}] += bytes;
          }
        }
    }
  }
  return demands;
}

}  // namespace het::planner
