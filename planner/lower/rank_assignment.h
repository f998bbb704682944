// What one rank of a plan does, found before anything is lowered: the nodes it runs, in which units, the
// values it exchanges with other stages, and the ranks with which it sums each gradient. Plain data.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/plan/plan.h"
#include "core/plan/runtime.h"
#include "core/program/program.h"
#include "planner/lower/schedule.h"
#include "planner/lower/sharded_update.h"

namespace het {

class StageGraphs;

inline constexpr int kAllStages = -1;  // instead of a stage: every stage that needs the node computes it

struct RankAssignment {
  int rank = 0;
  Runtime runtime = {};
  ScheduleShape shape = {};  // its pipeline's
  int microbatches = 1;
  int first_microbatch = 0;       // its pipeline's first, of the step's
  bool first_tensor_rank = true;  // reports a value that its whole tensor-parallel group has
  std::vector<int> axis_groups;   // of `groups`: the devices that share its layers, along each axis of their
                                  // mesh; none: it has them alone

  // Of each node: its stage, whether a split backward defers it, whether this rank runs it.
  std::vector<int> stage;
  std::vector<bool> deferred, assigned;
  std::vector<bool> recompute;  // of each stage
  std::vector<WorkUnit> units;
  std::vector<Group> groups;  // groups[0]: all ranks, when there are several

  // A value that passes from one stage to another, once for each micro-batch.
  struct Message {
    ValueId value;
    int stage;  // of this rank: that sends, or that receives
    int peer;   // the other rank
    int tag;
    Phase phase;  // sends: in which it is made; receives: in which it arrives
    Layout part;  // which elements of the value; all of it where both ranks have the same of it
    // Where the value is divided: how many elements each device of the sending stage sends; the receivers
    // all-gather them. Empty: the whole is sent.
    std::vector<int64_t> gathered = {};
  };
  std::vector<Message> sends, receives;
  std::set<ValueId> passed_on;  // that this rank or another of its tensor-parallel group sends

  // The gradient of a parameter that this rank holds.
  struct Gradient {
    int group = -1;  // that sums it; -1: this rank alone
    int32_t layer = -1;
    bool counted = true;  // in the global norm: by one of its holders
    ValueId parameter = kAbsent;
    // With Plan::unlike_devices: devices of a stage compute all of it alone, each for itself, which differs
    // in the last bits. `gathered`: nothing is summed over others; each gives a part of its copy. Otherwise
    // one copy is added, and the others `give_none`.
    bool gathered = false, gives_none = false;
    // Of a sharded optimizer: the rows of this rank's part of the parameter whose optimizer state it keeps;
    // absent: all. And who of the group keeps which; empty: each keeps all, or `pieces` have their owners.
    std::optional<Ranges> rows = {};
    int64_t row_dim = 0;
    std::vector<KeptRows> kept_by = {};
    bool keeps_none() const { return rows && rows->empty(); }
  };
  std::map<ValueId, Gradient> gradients;
  std::map<ValueId, RowUpdate> row_updates;  // of a sharded optimizer, by gradient; others keep whole tensors

  // A part of a gradient whose parameter other stages cut otherwise: all ranks that have this part sum it,
  // packed.
  struct Piece {
    ValueId gradient = kAbsent;
    int group = -1;
    int32_t layer = -1;
    std::vector<Layout> places;  // boxes of the gradient, whose elements follow one another in the piece
    int64_t elements = 0;
    bool counts = true;  // false: another rank gives the same, and this one gives zeros
    int owner = -1;      // of a sharded optimizer: the rank that updates it; -1: every one
  };
  std::vector<Piece> pieces;  // in an order that the members of a group share
  // Gradients that are summands on the devices of a stage: the axes of its mesh over which their bucket or
  // pieces sum them.
  std::map<ValueId, std::vector<bool>> summed;
  bool shares_coefficient = false;  // the first rank's clipping coefficient holds for all
  bool is_summed(ValueId gradient, size_t axis) const {
    const auto found = summed.find(gradient);
    return found != summed.end() && found->second[axis];
  }
  std::map<ValueId, ValueId>
      part_of;                // a summand of a gradient, and the gradient: added to it where it is made
  std::vector<ValueId> sums;  // the values that are sums over micro-batches, all ranks' together
};

// Ranks are numbered as their devices first appear in the plan: by pipeline, stage, tensor-parallel rank.
std::vector<std::string> devices_of(const Plan& plan);

// Which of the devices that share a stage's layers a rank is, from 0. Throws Error(usage) for a rank that the
// plan has not.
int tensor_rank_of(const Plan& plan, int rank);

// `graph`: of the rank itself (core/plan/partition.h). `graphs`: where stages have several devices; `graph`
// is then one of them. Throws Error(usage) for a rank that the plan has not.
RankAssignment assignment_of(const Graph& graph, const Plan& plan, int rank, StageGraphs* graphs = nullptr);

// How the stages that a rank runs are cut.
StageCut cut_of(const Plan& plan, int rank);

}  // namespace het
