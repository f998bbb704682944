// What changing plans moves. A device holds state (weights and optimizer state) by layer and range: its
// tensor-parallel part of the layer, and of that part's optimizer state its share. What a new plan has it
// hold and the old one had not must come from elsewhere. Devices are known by their names; those that the
// cluster has no more hold nothing. A parameter that several layers use counts in each of them; a sharded
// optimizer is counted by shares, though runs place it by whole parameters.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "planner/layout.h"
#include "planner/model.h"

namespace het::planner {

struct DeviceMove {
  std::string device;
  double weight_bytes = 0, optimizer_bytes = 0;  // that it needs and does not hold
  double bytes() const { return weight_bytes + optimizer_bytes; }
  bool operator==(const DeviceMove&) const = default;
};

struct Move {
  std::vector<DeviceMove> devices;  // that lack something, in the order of the plan
  double bytes = 0;                 // of all of them
  double lost_bytes = 0;            // of these, what no device of the cluster holds: a snapshot must have it
  double seconds = 0;               // of the others, over the links, each from where that is soonest done
  bool operator==(const Move&) const = default;
};

// From one old plan to any new one. `cluster` and `model` must outlive it; one thread.
class Relocation {
 public:
  // `old` is a valid plan of as many layers as the model's.
  Relocation(const Plan& old, const Cluster& cluster, const Model& model);

  // The layout with names: of all ways to name devices and hosts that are alike, one that moves least. Where
  // a node has very many hosts, the nearest that naming them one after the other finds.
  Plan place(const Layout& layout);
  double bytes(const Layout& layout);  // that place(layout) moves
  // Its pipelines in the order of the old plan's that were at the same places: the order decides who keeps
  // which part of a sharded optimizer, and nothing else.
  Layout ordered(Layout layout) const;
  Move move(const Plan& plan) const;

 private:
  // Of one layer: [begin, end) of what tensor parallelism cuts, and [first, last) of its optimizer state.
  struct Part {
    int layer = 0;
    double begin = 0, end = 1, first = 0, last = 1;
    auto operator<=>(const Part&) const = default;  // NOLINT(modernize-use-nullptr): there is none
  };
  using Held = std::vector<Part>;  // by layer
  struct Slot {                    // one device of a layout
    int pipeline = 0, group = 0, rank = 0, held = 0;
  };
  struct Match {
    double bytes = 0;
    std::vector<int> device_of;  // of each slot
  };

  static std::map<std::string, Held> holdings(const Plan& plan, int layers);
  int number(const Held& held);
  // {weights, optimizer state} that `need` has and `have` has not, in bytes.
  std::pair<double, double> missing(const Held& need, const Held& have) const;
  double lacks(int need, int have);
  const Match& match(const std::vector<int>& need, const std::vector<int>& have);
  // Of each node and layout host: the slots; and the host that takes its place. Returns the bytes.
  double arrange(const Layout& layout, std::vector<std::vector<std::vector<Slot>>>& slots,
                 std::vector<std::vector<int>>& hosts);
  double seconds_of(const Plan& plan, double& lost_bytes) const;

  const Cluster& cluster_;
  const Model& model_;
  double weight_bytes_ = 0;          // of one parameter, that a run could not make anew
  std::map<std::string, Held> old_;  // of the devices that the cluster has
  std::vector<Held> known_;          // by number; 0: nothing
  std::map<Held, int> numbers_;
  std::vector<std::vector<std::vector<int>>> have_;  // [node][host][device] number of what it holds
  std::vector<std::vector<double>>
      pipeline_at_;  // [node][host] mean number of the old plan's pipelines there
  std::map<std::pair<int, int>, double> lacks_;
  std::map<std::pair<std::vector<int>, std::vector<int>>, Match> matches_;
};

// Who does what at the least cost: [row][column], at most as many rows as columns; returns each row's column.
std::vector<int> assign(const std::vector<std::vector<double>>& cost);

}  // namespace het::planner
