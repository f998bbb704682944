#include "planner/hap/grids.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/plan/partition.h"
#include "core/plan/sharding_spec.h"

namespace het::planner::hap {
namespace {

using Rows = std::vector<std::vector<int>>;

// Of the first program: those that are tried.
constexpr size_t kMostBetween = 3;
// Of a search among the devices of a row, whose graph has many ways that hardly differ.
constexpr size_t kMostStates = 120;
// A row's graph has at most so many times the nodes of the whole one: those of programs that gather and cut
// much take long to search.
constexpr size_t kMostGrowth = 2;
// Of the whole graph, however many devices; and times the devices, whose programs are lowered and simulated:
// beyond both it takes a minute.
constexpr size_t kMostNodes = 1000, kMostOnDevices = 64'000;

Rows rows_of(const std::vector<int>& order, int length) {
  Rows rows;
  for (size_t d = 0; d < order.size(); d += static_cast<size_t>(length))
    rows.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(d),
                      order.begin() + static_cast<std::ptrdiff_t>(d) + length);
  return rows;
}

Rows columns_of(const Rows& rows) {
  Rows columns(rows[0].size());
  for (const std::vector<int>& row : rows)
    for (size_t place = 0; place < row.size(); ++place) columns[place].push_back(row[place]);
  return columns;
}

// The two axes of a plan's mesh.
Plan plan_of(const Request& request, const Grid& grid, const PlacementTable& row_table,
             const ShardingProgram& between, const ShardingProgram& within) {
  Plan plan;
  Stage stage;
  for (const std::vector<int>& row : grid.rows)
    for (const int d : row) stage.devices.push_back(request.group->devices()[static_cast<size_t>(d)].name);
  stage.layers = static_cast<int>(request.table->graph().layers.size());
  plan.microbatch = request.microbatch;
  plan.sharding = StageSharding{{{"rows", between.shares, sharding_of(*request.table, between)},
                                 {"columns", within.shares, sharding_of(row_table, within)}}};
  plan.pipelines = {{request.microbatches, {std::move(stage)}}};
  plan.unlike_devices = request.group->has_unlike_types();
  return plan;
}

// Nodes of a part's graph that bring parts together or apart by blocks of one dimension, with what flattens
// and joins these blocks: those around values that the whole graph does not have, except for what stands in
// place of one operator and sums over parts. Along another axis they could be cut in few ways, of which there
// are very many.
std::vector<bool> nodes_of_blocks(const RankGraph& part) {
  const Graph& graph = part.graph;
  std::vector<size_t> leader(graph.values.size());  // of the values that nodes connect
  std::iota(leader.begin(), leader.end(), size_t{0});
  const auto find = [&](ValueId id) {
    auto at = static_cast<size_t>(id);
    while (leader[at] != at) at = leader[at] = leader[leader[at]];
    return at;
  };
  const auto each_between = [&](const Node& node, const auto& visit) {
    for (const auto* ids : {&node.inputs, &node.outputs})
      for (const ValueId id : *ids)
        if (id != kAbsent && part.origins[static_cast<size_t>(id)].value == kAbsent) visit(id);
  };
  std::vector<ValueId> between(graph.nodes.size(), kAbsent);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    each_between(graph.nodes[n], [&](ValueId id) {
      if (between[n] == kAbsent) between[n] = id;
      leader[find(id)] = find(between[n]);
    });
  std::vector<bool> sums(graph.values.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto kind = graph.nodes[n].op->collective;
    if (between[n] != kAbsent && (kind == CollectiveKind::all_reduce || kind == CollectiveKind::broadcast))
      sums[find(between[n])] = true;
  }
  std::vector<bool> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    nodes.push_back(between[n] != kAbsent && !sums[find(between[n])]);
  return nodes;
}

class Search {
 public:
  Search(const Request& request, const Grid& grid, bool overlapping)
      : request_(request), grid_(grid), overlapping_(overlapping), rows_(request.group->merged(grid.rows)) {}

  void run(std::vector<GridProgram>& found) {
    Request between = request_;
    between.group = &rows_;
    between.starts.clear();
    std::vector<Synthesised> programs = programs_to_try(between, false);
    std::string problem;
    for (const Baseline each : {Baseline::proportional_data, Baseline::zero})
      if (Synthesised other = baseline(between, each, problem); other.found())
        programs.push_back(std::move(other));
    std::vector<const ShardingProgram*> tried;
    for (const Synthesised& each : programs) {
      const auto is_it = [&](const ShardingProgram* other) { return *other == each.program; };
      if (tried.size() == kMostBetween || std::any_of(tried.begin(), tried.end(), is_it)) continue;
      tried.push_back(&each.program);
      add(each, found);
    }
  }

 private:
  // The cheapest programs among the devices of a row; nothing where parts are too small to be cut again.
  void add(const Synthesised& between, std::vector<GridProgram>& found) {
    auto row = std::make_shared<RowGraph>();
    RankGraph part = partition(*request_.table, between.program, 0);
    if (part.graph.nodes.size() > kMostGrowth * request_.table->graph().nodes.size()) return;
    const std::vector<bool> whole = nodes_of_blocks(part);
    row->graph = std::move(part.graph);
    row->table = std::make_unique<PlacementTable>(row->graph);
    row->rows = std::make_unique<DeviceGroup>(rows_);
    row->devices = std::make_unique<DeviceGroup>(request_.group->subgroup(grid_.rows[0]));
    Request within = request_;
    within.table = row->table.get();
    within.group = row->devices.get();
    within.starts.clear();
    within.outer = row->rows.get();
    within.options.most_states = kMostStates;
    within.options.allows_node = [&](NodeId n, const NodeSharding& way) {
      return way.axis < 0 || !whole[static_cast<size_t>(n)];
    };
    for (Synthesised& each : programs_to_try(within, overlapping_)) {
      Plan plan = plan_of(request_, grid_, *row->table, between.program, each.program);
      found.push_back({&grid_, between, std::move(each), row, std::move(plan)});
    }
  }

  const Request& request_;
  const Grid& grid_;
  const bool overlapping_;
  const DeviceGroup rows_;
};

}  // namespace

std::vector<Grid> grids_of(const DeviceGroup& group) {
  std::map<std::pair<int, int>, int> machines;
  for (const Device& device : group.devices()) ++machines[{device.node, device.host}];
  int common = 0;
  for (const auto& [machine, devices] : machines) common = std::gcd(common, devices);
  const bool by_machine = machines.size() > 1 && common > 1;
  std::vector<int> order(static_cast<size_t>(group.size()));
  std::iota(order.begin(), order.end(), 0);
  if (!by_machine)
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return group.kind_of(a) < group.kind_of(b); });
  const int length = by_machine ? common : group.size() / 2;
  if (length < 2 || group.size() % length != 0) return {};
  Rows rows = rows_of(order, length);
  const std::string name = fmt::format("mesh of {} x {}", rows.size(), length);
  std::vector<Grid> grids{{rows, name}};
  grids.push_back({columns_of(rows), name + ", columns first"});
  return grids;
}

std::vector<GridProgram> programs_for(const Request& request, const std::vector<Grid>& grids,
                                      bool overlapping) {
  std::vector<GridProgram> found;
  const size_t nodes = request.table->graph().nodes.size(),
               devices = static_cast<size_t>(request.group->size());
  if (nodes > kMostNodes && nodes * devices > kMostOnDevices) return found;
  for (const Grid& grid : grids) Search(request, grid, overlapping).run(found);
  std::stable_sort(found.begin(), found.end(),
                   [](const GridProgram& a, const GridProgram& b) { return a.within.cost < b.within.cost; });
  return found;
}

}  // namespace het::planner::hap
