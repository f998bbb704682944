// Who exchanges the gradients of a layer, and what that takes when nothing else passes their interfaces.
//
// Where all holders of a layer share it by PlanLayout::tensor, rank t of each exchanges its part with rank t
// of the others. Where they share it otherwise, but alike, too, parts differ in size. Where they share it
// differently, the executor exchanges pieces (planner/lower/rank_gradients.cpp, gradient_buckets.cpp): the
// ranges between all holders' cuts, each among the ranks that have it, and what is not divided among all
// ranks of all holders. A rank still exchanges its gradient once, 2 (k - 1) / k of its bytes, but pays a
// latency for each piece.
#pragma once

#include <vector>

#include "planner/simulate/ring.h"
#include "planner/simulate/state.h"

namespace het::planner {

// The stage of a pipeline that holds a layer.
struct LayerHolder {
  size_t pipeline, stage;
};

// What is exchanged at once, on one device; and of it what tensor parallelism does not divide.
struct ExchangeElements {
  double all = 0, whole = 0;
};

// What an exchange takes: before its bytes pass interfaces (latencies, packing, and all that stays inside
// hosts), and while they do, when nothing else does.
struct ExchangeSeconds {
  double fixed = 0, wire = 0;
  bool crosses = false;  // it passes interfaces
  // SharedFlow's; in a mesh an interface goes by the clock.
  double rate = 1, link = 1;
};

// What the holders of a layer exchange where one of them has a TensorGroup.
struct ExchangeParts {
  struct Part {
    double divided = 0, whole = 0;  // of the layer's divided and of its other parameters: a share
    std::vector<size_t> ranks;      // of `places`
    RingGroup group;
  };
  std::vector<DevicePlace> places;     // all ranks of all holders, by pipeline
  std::vector<Interfaces> interfaces;  // of each
  std::vector<Part> parts;
  std::vector<double> divided, whole;  // of each rank: what it has
  bool alike = true;
};

// One rank of a communicator, and how many devices of its stage are in others like it.
struct ExchangeMember {
  DevicePlace place;
  Interfaces interfaces;
  int devices = 1;
};

// Holds buffers that are used again; one thread.
class Exchanges {
 public:
  explicit Exchanges(SimulatorState& state) : state_(state), costs_(state.costs) {}

  RingGroup group_of(const std::vector<ExchangeMember>& members);
  // Of holders where one has a TensorGroup.
  ExchangeParts parts_of(const std::vector<LayerHolder>& holders);
  // `communicators` of a group at once, each with a tensor of `bytes`.
  ExchangeSeconds group_seconds(const RingGroup& group, CollectiveKind collective, int communicators,
                                double bytes) const;
  // All parts: a rank takes part in one after the other; at an interface their bytes follow each other, too.
  ExchangeSeconds seconds_of(const ExchangeParts& parts, CollectiveKind collective,
                             const ExchangeElements& elements, double parameter_bytes) const;

 private:
  Link mesh_of(const std::vector<ExchangeMember>& members);
  void cut_unlike(ExchangeParts& parts, const std::vector<std::vector<double>>& cuts);

  SimulatorState& state_;
  const CostTable& costs_;
  std::vector<ExchangeMember> members_;
  std::vector<int> at_node_;
};

}  // namespace het::planner
