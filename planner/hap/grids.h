// Sharding programs along the two axes of a mesh. Devices stand in a grid; a program is synthesised for the
// rows, each of them one device as far as it knows, and then one for what a row has of the graph, among the
// devices of a row. Collectives of the first program go between devices at the same place of each row: the
// second takes into account that what it cuts makes them shorter. No bound is proven for both together.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "planner/hap/hap.h"

namespace het::planner::hap {

// Devices of a group by number; all rows are equally long.
struct Grid {
  std::vector<std::vector<int>> rows;
  std::string name;  // "2 machines x 4 devices"
};

// Rows within a machine, as long as all machines allow, or two rows of like devices where machines have one
// device; and the same with rows and columns exchanged. None for fewer than 4 devices, and where devices
// cannot stand in equal rows.
std::vector<Grid> grids_of(const DeviceGroup& group);

// The graph of the first row, for the program among its devices.
struct RowGraph {
  Graph graph;
  std::unique_ptr<const PlacementTable> table;
  std::unique_ptr<const DeviceGroup> rows, devices;  // rows as devices, the devices of the first row
};

struct GridProgram {
  const Grid* grid = nullptr;
  Synthesised between, within;  // rows, devices of a row; `within` costs as much as both
  std::shared_ptr<const RowGraph> row;
  Plan plan;
};

// Those that cost least first, both programs together. `overlapping`: also some that may be faster when
// gradients are summed beside the backward pass, by three times as many searches. None of graphs of more than
// 1,000 nodes, where a search would take half a minute. Keeps the request's table and the grids by reference.
std::vector<GridProgram> programs_for(const Request& request, const std::vector<Grid>& grids,
                                      bool overlapping);

}  // namespace het::planner::hap
