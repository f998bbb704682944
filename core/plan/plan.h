// Who computes what: pipelines, stages, layer ranges, micro-batches. Plain data that every planner writes,
// lowering reads, snapshots carry, and people paste into recipes.
#pragma once

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

struct Stage {
  std::vector<std::string> devices;  // one for each tensor-parallel rank: "here:0", "a:1"
  int first_layer = 0;               // range [first_layer, first_layer + layers) of Graph::layers
  int layers = 0;
  bool recompute = false;   // forward activations are computed again in the backward pass
  int optimizer_share = 1;  // with Plan::sharded_optimizer: how much optimizer state of a layer lives here,
                            // relative to the other stages that hold the layer; 0: none
  Shares shares = {};       // of its tensor-parallel ranks; empty: the plan's
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
  bool sharded_optimizer = false;  // state divided over the replicas of a layer by Stage::optimizer_share
  bool operator==(const Plan&) const = default;
};

// The shares of the tensor-parallel ranks of a stage, or of every stage that has none of its own: one each.
Shares tensor_shares(const Plan& plan);
Shares tensor_shares(const Plan& plan, const Stage& stage);
// "4", or of shares that are not all 1 "{ 3, 1 }".
std::string show_shares(const Shares& shares);
// Whether all stages have the same.
bool has_uniform_shares(const Plan& plan);

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
