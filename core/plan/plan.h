// Who computes what: pipelines, stages, layer ranges, micro-batches. Plain data that every planner writes,
// lowering reads, snapshots carry, and people paste into recipes.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/range.h"

namespace het {

// In what order a stage runs the forwards and backwards of its micro-batches.
enum class Schedule {
  one_f_one_b,     // one forward, one backward, in turn (1F1B)
  gpipe,           // all forwards, then all backwards
  interleaved,     // 1F1B over several stages of each device (Plan::chunks)
  split_backward,  // 1F1B, weight gradients put off into the bubbles
};
std::string_view name_of(Schedule schedule);  // "1f1b", "gpipe", "interleaved", "split_backward"

// How layers are cut along one axis of the mesh of a stage's devices, by names: a sharding program
// (sharding_spec.h) as plans carry it. In a pattern * stands for any characters; of several that match the
// one with the most other characters counts. State and inputs without an entry are replicated; nodes without
// one run in the way that moves the fewest bytes.
struct AxisSharding {
  struct Cut {
    std::string pattern;
    int64_t dim = 0;                     // -1: replicated
    std::vector<int64_t> segments = {};  // along dim, each cut in the same proportion; empty: the usual ones
    auto operator<=>(const Cut&) const = default;
  };
  struct Rule {
    std::string pattern;  // of "scope operator": "blocks.*.mlp.down linear"
    std::string rule;     // "x dim 1, weight dim 1 -> y partial", "replicated"
    auto operator<=>(const Rule&) const = default;
  };
  std::vector<Cut> state, inputs;  // in the order of patterns, as the rules
  std::vector<Rule> nodes;
  auto operator<=>(const AxisSharding&) const = default;
  bool is_empty() const { return state.empty() && inputs.empty() && nodes.empty(); }
};

// The axis of the devices of a stage that has no mesh.
inline constexpr std::string_view kModelAxis = "model";

struct StageAxis {
  std::string name = std::string(kModelAxis);
  Shares shares = {};                         // one for each part; empty: those of the stage
  std::optional<AxisSharding> sharding = {};  // absent: Megatron's
  auto operator<=>(const StageAxis&) const = default;
};

// How the layers of a stage are cut among its devices, which lie over the axes row-major: the last axis is
// the fastest. Layers are cut along the first axis, and what each part then has along the next.
struct StageSharding {
  std::vector<StageAxis> axes;
  auto operator<=>(const StageSharding&) const = default;
  bool has_mesh() const { return !axes.empty() && !axes[0].shares.empty(); }  // says the shares itself
};
// Of devices without a mesh.
StageSharding along_one_axis(AxisSharding sharding);

struct Stage {
  std::vector<std::string> devices;  // one for each tensor-parallel rank: "here:0", "a:1"
  int first_layer = 0;               // range [first_layer, first_layer + layers) of Graph::layers
  int layers = 0;
  bool recompute = false;   // forward activations are computed again in the backward pass
  int optimizer_share = 1;  // with Plan::sharded_optimizer: how much optimizer state of a layer lives here,
                            // relative to the other stages that hold the layer; 0: none
  Shares shares = {};       // of its tensor-parallel ranks; empty: the plan's
  std::optional<StageSharding> sharding = {};  // absent: the plan's
  bool operator==(const Stage&) const = default;
};

struct Pipeline {
  int microbatches = 1;
  std::vector<Stage> stages;
  bool operator==(const Pipeline&) const = default;
};

struct Plan {
  int tensor = 1;         // tensor-parallel degree of the stages that have no shares of their own
  Shares shares;          // of their tensor-parallel ranks, relative to one another; empty: equal
  bool sequence = false;  // norms, dropout and residuals divided by tokens over a tensor-parallel group
  int microbatch = 1;     // samples in one micro-batch
  std::vector<Pipeline> pipelines;
  Schedule schedule = Schedule::one_f_one_b;
  int chunks = 1;  // interleaved: stages on each device; stage s and s + stages / chunks share it
  int warmup = 0;  // 1F1B, split backward: extra forwards in flight for each later stage, to hide slow links
  std::optional<StageSharding> sharding = {};  // of stages that have none of their own; absent: Megatron's
  bool sharded_optimizer = false;  // state divided over the replicas of a layer by Stage::optimizer_share
  // Devices that share a stage differ in type, and so in the last bits of what they compute: where each would
  // compute all of a gradient alone, all take the same one from the others.
  bool unlike_devices = false;
  bool operator==(const Plan&) const = default;
};

// The shares of the tensor-parallel ranks of a stage, or of every stage that has no others: one each.
Shares tensor_shares(const Plan& plan);
Shares tensor_shares(const Plan& plan, const Stage& stage);
// What decides how a stage's layers are cut: stages with equal ones have equal graphs.
struct StageCut {
  std::vector<StageAxis> axes;  // at least one, each with shares; of one device: an axis of one part
  auto operator<=>(const StageCut&) const = default;
  int parts() const;
  int coordinate(int part, size_t axis) const;  // of a device of the stage
  bool is_megatron() const;                     // one axis, cut as Megatron-LM does
};
StageCut cut_of(const Plan& plan, const Stage& stage);
// "4", or of shares that are not all 1 "{ 3, 1 }".
std::string show_shares(const Shares& shares);
// Whether all stages are cut alike.
bool has_uniform_cut(const Plan& plan);

// What a plan is checked against.
struct PlanSubject {
  int layers = 0;                       // of the model
  int batch = 0;                        // samples in one step
  std::vector<std::string> names = {};  // of the layers, for messages: "embedding", "blocks.0", ..., "head"
};

// Every rule the plan breaks, each a sentence with the value and what would work; empty when it is valid.
std::vector<std::string> validate(const Plan& plan, const PlanSubject& subject);

// As a Lua expression that `het.plan` reads back.
std::string to_lua(const Plan& plan);

}  // namespace het
