// What changing plans moves. A device holds slices of the state of its layers (holdings.h): its
// tensor-parallel part of weights and optimizer state, of the latter its share where that is sharded. What a
// new plan has it hold and the old one had not must come from elsewhere. Devices are known by their names;
// those that the cluster has no more hold nothing. A parameter that several layers use counts in each of
// them; a sharded optimizer is counted by shares of each layer, though runs cut it at rows.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/migrate/transfers.h"
#include "planner/model/model.h"
#include "planner/plan_layout.h"

namespace het::planner {

class Holdings;
struct HeldPart;
using Held = std::vector<HeldPart>;
struct ModelState;

struct DeviceMove {
  std::string device;
  double weight_bytes = 0, optimizer_bytes = 0;  // that it needs and does not hold
  double bytes() const { return weight_bytes + optimizer_bytes; }
  bool operator==(const DeviceMove&) const = default;
};

struct Move {
  std::vector<DeviceMove> devices;  // that lack something, in the order of the plan
  double bytes = 0;                 // of all of them
  double unavailable_bytes = 0;     // of these, what no device of the cluster holds: a snapshot must have it
  double seconds = 0;               // of the others, over the links, each from its fastest sender
  bool operator==(const Move&) const = default;
};

// From one old plan to any new one. `cluster` must outlive it; one thread.
class StateMigration {
 public:
  // `old` is a valid plan of as many layers as the model's. Throws Error(usage) where what its devices hold
  // is not known: a stage with `sharding` and a model of numbers (state_of), or cuts that the graph does not
  // allow.
  StateMigration(Plan old, const Cluster& cluster, ModelState state);
  StateMigration(Plan old, const Cluster& cluster, const Model& model);
  ~StateMigration();

  // The layout with names: of all ways to name devices and hosts that are alike, one that moves least. Where
  // a node has very many hosts, the nearest that naming them one after the other finds.
  Plan place(const PlanLayout& layout);
  double bytes(const PlanLayout& layout);  // that place(layout) moves
  // Its pipelines in the order of the old plan's that were at the same places: the order decides who keeps
  // which part of a sharded optimizer, and nothing else.
  PlanLayout ordered(PlanLayout layout) const;
  Move move(const Plan& plan) const;

 private:
  struct Slot {  // one device of a layout
    int pipeline = 0, group = 0, rank = 0;
    int held = 0;  // what it needs, by number
  };
  using Slots = std::vector<std::vector<std::vector<Slot>>>;  // [node][host of the layout]
  struct Match {
    double bytes = 0;
    std::vector<int> device_of;  // of each slot
  };

  void read_old();
  int number(const Held& held);
  double missing_bytes(int need, int have) const;  // of what devices hold, by numbers
  const Match& match(const std::vector<int>& need, const std::vector<int>& have);
  Slots slots_of(const PlanLayout& layout);
  // Of each host of a layout's node the host that takes its place.
  std::vector<int> choose_hosts(const std::vector<std::vector<int>>& need,
                                const std::vector<std::vector<int>>& have);
  // Chooses for all nodes: [node][host of the layout]. Returns the bytes.
  double arrange(const Slots& slots, std::vector<std::vector<int>>& hosts);
  // What the devices of a plan need and do not hold. Adds to `unavailable_bytes` what no device holds.
  Demands demands_of(const std::map<std::string, Held>& wanted, double& unavailable_bytes) const;

  const Plan plan_;  // the old one
  const Cluster& cluster_;
  std::unique_ptr<Holdings> holdings_;  // numbers slices as they are met
  std::map<std::string, Held> old_;     // of the devices that the cluster has
  std::vector<Held> known_;             // by number; 0: nothing
  std::vector<double> known_bytes_;     // of each of these, all of it
  std::map<Held, int> numbers_;
  std::vector<std::vector<std::vector<int>>> have_;  // [node][host][device] number of what it holds
  std::vector<std::vector<double>>
      pipeline_at_;  // [node][host] mean number of the old plan's pipelines there
  std::map<std::pair<std::vector<int>, std::vector<int>>, Match> matches_;
};

// Who does what at the least cost: [row][column], at most as many rows as columns; returns each row's column.
std::vector<int> assign(const std::vector<std::vector<double>>& cost);

}  // namespace het::planner
