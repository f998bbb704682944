// What every candidate plan of one tensor-parallel degree and micro-batch size is costed from: prefix sums
// over layers for each node of the cluster, so that a stage of any length costs the same to evaluate.
#pragma once

#include <vector>

#include "planner/cluster/cluster.h"
#include "planner/model/model.h"
#include "planner/profile/profile.h"

namespace het::planner {

// Of a device's memory, what plans may use; the rest is the driver's, the library's, and fragmentation's.
inline constexpr double kUsableMemory = 0.94;

struct NodeCosts {
  // [layers + 1], seconds of one micro-batch in the layers before
  std::vector<double> forward, input, weight, update;
  std::vector<double> recompute;  // the same, of forward again
  double memory_bytes = 0;        // usable, of one device
  double memory_bytes_per_second = 0;
  Link inside;
  // How a blocking group of another framework brings together what came divided over its devices; all zero:
  // as hetrun's does.
  Link gather;
  int groups = 0;  // tensor-parallel groups in one host
  // Layers by their figures' Source.
  int measured = 0, interpolated = 0, extrapolated = 0, calibrated = 0, estimated = 0;
};

struct CostTable {
  int tensor = 1, microbatch = 1, layers = 0;
  std::vector<NodeCosts> nodes;  // as Cluster::nodes
  std::vector<Link> between;     // [node * nodes + node]
  bool mesh = false;             // Cluster::mesh
  // [layers + 1] elements on one device, in the layers before, without those that several layers share; and
  // of these, what tensor parallelism does not divide.
  std::vector<double> parameters, whole_parameters;
  std::vector<SharedParameter> shared;         // Model::shared, elements on one device
  std::vector<double> activation, checkpoint;  // the same, bytes of one micro-batch on one device
  std::vector<double> workspace;               // [layers] bytes of one micro-batch on one device
  std::vector<double> boundary;                // [layers] bytes of one micro-batch's output, whole
  // [layers] all-reduces of the tensor-parallel group in one forward, and in a forward that is run again
  std::vector<int> reductions, reductions_again;
  double weight_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  // Of weights, what a rank sends to others that updates them for all; the others make copies themselves.
  double gathered_bytes = 0;
  // Model's: `gradient_bytes` and `gathered_bytes` of all parameters are those of this part.
  double trained_share = 1;

  // Bytes that pass to a layer from the one before it, of a micro-batch.
  double boundary_before(int layer) const { return boundary[static_cast<size_t>(layer) - 1]; }
  const Link& link(int a, int b) const {
    return between[static_cast<size_t>(a) * nodes.size() + static_cast<size_t>(b)];
  }
  // Elements on one device that holds layers [first, last); what several of them share, once.
  double parameters_in(int first, int last) const;
  // Seconds of one micro-batch, forward and backward, in layers [first, last).
  double forward_seconds(int node, int first, int last) const;
  double backward_seconds(int node, int first, int last, bool recompute) const;
  double input_seconds(int node, int first, int last) const;  // of the backward, gradients of inputs alone
  // Bytes on one device: `optimizer_share` is the part of its layers' optimizer state that it holds. A stage
  // that recomputes keeps of each micro-batch in flight what its layers begin with, and of those whose weight
  // gradients are `waiting` all.
  double stage_bytes(int first, int last, int in_flight, bool recompute, double optimizer_share,
                     int waiting = 0) const;
  // Of these: what each micro-batch in flight keeps, and what is held only while the stage runs (a layer's
  // workspace, what it computed again, or the output that is sent on): several stages of one device take
  // turns.
  double held_bytes(int first, int last, bool recompute) const;
  double running_bytes(int first, int last, bool recompute) const;
};

CostTable make_costs(const Cluster& cluster, const Model& model, const Profile& profile, int tensor,
                     int microbatch);
// The same with links that take no time inside hosts: what devices compute. (Times that were measured with
// the collectives of a group keep them.)
CostTable make_compute_costs(const Cluster& cluster, const Model& model, const Profile& profile, int tensor,
                             int microbatch);

}  // namespace het::planner
