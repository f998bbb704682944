// What a stage costs whose devices share its layers otherwise than evenly over one host's: with other shares,
// another degree, or devices of several types. A device's seconds in a layer are f0 + f1 x share, the line
// through what is known of all of the layer (degree 1) and of one n-th of it (degree n); bytes likewise. The
// devices meet in every layer's all-reduces, so the slowest of them sets the pace of each layer.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "planner/plan_layout.h"
#include "planner/simulate/costs.h"

namespace het::planner {

// Where tables of other degrees come from. References live as long as the provider.
struct CostProvider {
  std::function<const CostTable&(int tensor)> with_links;  // as make_costs
  std::function<const CostTable&(int tensor)> compute;     // as make_compute_costs
};

// Tables of one request and micro-batch size, each made when it is first used.
class CostTables {
 public:
  // The arguments must outlive it.
  CostTables(const Cluster& cluster, const Model& model, const Profile& profile, int microbatch);
  const CostTable& with_links(int tensor);
  const CostTable& compute(int tensor);
  CostProvider provider();

 private:
  const Cluster& cluster_;
  const Model& model_;
  const Profile& profile_;
  int microbatch_;
  std::map<int, CostTable> with_links_, compute_;
};

struct GroupCosts {
  // Of one device: bytes and parameters in the table, its own seconds (with the group's all-reduces) in the
  // table's only node.
  std::vector<CostTable> kinds;
  std::vector<int> kind_of;  // of each device
  NodeCosts pace;            // of the group; memory and links are those of its first device
  const CostTable& of(size_t rank) const { return kinds[static_cast<size_t>(kind_of[rank])]; }
};

// The groups of several hosts take the link between them.
GroupCosts make_group_costs(const TensorGroup& group, const CostProvider& tables);

// The link that the collectives of these devices go over: the slowest between any two of them, by bandwidth
// and by latency; where the cluster goes by the mesh, the mean pace at which the slowest device reaches the
// others. A group of one device has a link that takes no time.
Link link_of(const CostTable& costs, const std::vector<DevicePlace>& places);

}  // namespace het::planner
