// How the assignments of all ranks of a plan are found (rank_assignment.h); for the files of this folder that
// define its members: rank_assigner.cpp (stages of nodes, holders of parameters, groups), rank_messages.cpp,
// rank_gradients.cpp and rank_optimizer.cpp.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/lower/rank_assignment.h"
#include "planner/lower/stage_graphs.h"

namespace het {

// What each rank runs. Everything that holds for all ranks is found once, in the constructor.
class RankAssigner {
 public:
  // `graph`: of the stages that are cut as `cut`. `graphs`: null where every stage has one device; `values`
  // are otherwise what the graph's are.
  RankAssigner(const Graph& graph, const Plan& plan, StageCut cut, StageGraphs* graphs,
               const std::vector<StageValue>* values);

  RankAssignment assign(int rank) const;

 private:
  struct Place {
    int pipeline, stage, tensor;
  };

  // A part of a gradient that the ranks of a list have, and where it is in this rank's gradient.
  struct SharedPart {
    ValueId gradient;
    std::vector<int> ranks;
    std::vector<Layout> places;
    int64_t elements;
    bool counts, is_partial;
    int owner;  // of its optimizer state; -1: every rank
  };

  Place place_of(int rank) const;

  int cut_number(int pipeline, int stage) const { return cut_numbers_[pipeline][stage]; }
  const StageCut& cut_at(int pipeline, int stage) const { return cuts_[cut_number(pipeline, stage)]; }
  int degree_at(int pipeline, int stage) const { return cut_at(pipeline, stage).parts(); }

  int rank_at(int pipeline, int stage, int tensor) const;

  bool in_step(NodeId n) const { return graph_.nodes[n].phase != Phase::update && !invariant_[n]; }

  void find_cuts();

  // Nodes that depend on state and numbers of the step alone belong to no stage: every stage that needs them
  // computes them.
  void find_invariant();

  // Sums over micro-batches; and summands of those among them that only add, which are added where they are
  // made.
  void find_sums();

  std::vector<int> stages_in(const Pipeline& pipeline) const;

  // Calls goes_on(id) once for each of these values, and where it returns true for those that the value is
  // computed from; the global norm's own operands are no reason.
  template <typename GoesOn>
  void look_behind(std::vector<ValueId> values, const GoesOn& goes_on) const;
  static std::vector<ValueId> operands_of(const Node& node);

  // The parameters that a node reads, also through nodes that are computed anywhere.
  std::set<ValueId> parameters_of(const Node& node, const std::vector<int>& stages) const;

  // The stages that read a parameter or make a gradient of it. (An operand that counts once is read by the
  // first tensor-parallel rank alone; all of them keep and update it.)
  void find_holders();

  // Whether all stages that hold a parameter cut it alike.
  bool is_cut_alike(ValueId parameter) const;

  // Whether they all cut it as this graph's stages do.
  bool is_cut_as_here(ValueId parameter) const;

  // The ranks that have what a tensor-parallel rank has of a parameter that is cut alike, in order.
  std::set<int> holders_of(ValueId parameter, int tensor) const;

  // Axes of the mesh, by number.
  using Axes = std::vector<bool>;

  bool lies_so(ValueId id, size_t axis, Placement::Kind kind) const;

  // The axes along which the ranks of a stage have summands of a gradient, as where the batch or its tokens
  // are cut, and all of its parameter.
  Axes summed_axes(ValueId parameter, ValueId gradient) const;
  bool is_partial(ValueId parameter, ValueId gradient) const;

  // The axes along which the ranks of a stage have all of a gradient and of its parameter, and must take the
  // same: with Plan::unlike_devices.
  Axes copied_axes(ValueId parameter, ValueId gradient) const;
  // Those along which a gradient is exchanged: summed or copied.
  Axes exchanged_axes(ValueId parameter, ValueId gradient) const;

  // Whether two devices of a stage have the same coordinates along these axes.
  static bool agree(const StageCut& cut, int a, int b, const Axes& along);
  static Axes all_but(Axes axes);

  // The ranks that add up a gradient of a parameter that is cut as here: those that have what a
  // tensor-parallel rank has of it, with all that have a summand, or a copy that has to be equal.
  std::set<int> summers_of(ValueId parameter, ValueId gradient, int tensor) const;

  // Whether a rank is the first of its stage with this part of a parameter; ranks along `but` are not
  // compared.
  bool speaks_for(ValueId parameter, int tensor, const Axes& but) const;

  // The nodes that make a sum over micro-batches, or the summands that are added where they are made.
  std::vector<NodeId> makers_of(ValueId sum) const;

  // The ranks of a stage that differ from one of them along an axis of the mesh alone.
  std::vector<int> axis_group(int pipeline, int stage, int tensor, size_t axis) const;

  static int index_of(const std::vector<Group>& groups, const Group& group);

  // Every group that the rank is in, all ranks first, then in the order that all its members use.
  std::vector<Group> groups_with(int rank, const std::vector<SharedPart>& parts) const;

  // Values that pass from one stage of a pipeline to another, by value and receiving stage.
  std::set<std::pair<ValueId, int>> passed_in(int pipeline) const;

  // The channel between two devices, in which messages keep their order: one for each pair of their stages,
  // and of values made in forward and backward passes.
  int tag_of(int pipeline, int from, int to, Phase made) const;

  // The pass in which a stage receives a value: all that earlier stages make in a forward pass in its own
  // forward pass, also what only its backward pass reads, so that a channel's order is that of its sender.
  static Phase received_in(int from, int to, Phase made);

  void find_messages(RankAssignment& assignment, int pipeline, int tensor, const std::set<int>& own) const;

  // Messages between stages that share their layers differently: who has what of the values that pass, in the
  // order of the receiver's.
  void find_messages_between(RankAssignment& assignment, int pipeline, int from, int to, bool sends) const;

  // How many elements of a value each of the devices that share a stage sends, where it goes to another host
  // (Message::gathered); empty: each sends what it has.
  std::vector<int64_t> divided(int pipeline, int from, int to, ValueId id) const;
  bool on_one_host(int pipeline, int stage) const;

  // What the devices of a stage have of a value, and which of them have it.
  std::vector<std::pair<TensorSlice, std::vector<int>>> holders_by_slice(const StageCut& cut,
                                                                         ValueId value) const;

  // The same for stages with another cut. All parts of a stage have the same values and nodes.
  const RankAssigner& other(const StageCut& cut) const;

  // What a stage can send of a value of the single device's graph: what it makes first, of the same pass all
  // of it rather than parts.
  ValueId offer_of(ValueId value, int pipeline, int stage) const;

  [[noreturn]] void refuse_exchange(int pipeline, int from, int to, const Graph& graph, ValueId id) const;
  // Whether a node makes a value still: of what was joined or dropped, the producer is stale.
  bool makes(NodeId producer, ValueId id) const;

  // A slice as products of one range for each dimension.
  static std::vector<TensorSlice> boxes_of(const TensorSlice& slice);

  bool is_gathered(const Node& node) const;

  // Of a split backward: the nodes that no earlier stage waits for.
  void find_deferred(RankAssignment& assignment) const;

  // The sums that an update of a parameter is computed from.
  std::set<ValueId> sums_behind(const Node& update) const;

  // The parameters that a node of the update writes; of one that writes other state alone, those that are
  // updated from its gradients.
  std::vector<ValueId> parameters_behind(const Node& update) const;
  // The trained parameters that a node's operands are computed from without gradients, as an average of
  // parameters is.
  std::set<ValueId> parameters_read(const Node& node) const;
  // Whether a rank runs a node that writes state in place: it holds the parameters that this belongs to.
  bool updates_here(const Node& update, const RankAssignment& assignment, int tensor) const;

  void find_gradients(RankAssignment& assignment, int pipeline, int tensor,
                      const std::set<int>& own_stages) const;

  // --- gradients of parameters that stages cut differently

  ValueId only_sum_of(ValueId parameter) const;

  // The parts of this rank's gradients, by parameter. Every rank has all of a part, or nothing of it.
  std::vector<SharedPart> parts_of(int rank) const;

  // Whether a device is the first of those of its stage that have the same of a value.
  bool is_first_of_copies(const StageValue& value, int device) const;

  void find_pieces(RankAssignment& assignment, const std::vector<SharedPart>& parts) const;

  static bool kept_elsewhere(const RankAssignment& assignment, ValueId parameter);

  // --- the sharded optimizer: who keeps the state behind which rows of each gradient

  void find_row_updates();

  // What each rank keeps of a parameter that stages cut differently; nothing: all of what it has, because its
  // update is not made row by row in every stage.
  std::map<int, TensorSlice> kept_slices(ValueId parameter) const;

  [[noreturn]] static void refuse_shares(const std::string& name);

  // Which rows this rank keeps of a gradient; of one that is divided with others, divide_buckets() says.
  void find_rows(RankAssignment& assignment, RankAssignment::Gradient& gradient, ValueId id, int tensor,
                 bool counts) const;

  // The gradients that are summed together, one after the other, are divided by the shares of their ranks.
  void divide_buckets(RankAssignment& assignment) const;

  // The share of optimizer state that a rank's stages ask for.
  int share_of_rank(int rank) const;

  // Of gradients that only whole tensors can be updated of: the largest first, each to the holder that then
  // has the least for its share. Ranks of a stage that differ along axes over which a gradient is not summed
  // choose alike, so that they run the same updates: first those are placed that are summed over most axes.
  // Sizes are those of whole parameters.
  void find_owners();

  // In stages cut as here: the mean over the ranks of a stage that agree along these axes.
  void level(const Axes& axes, std::map<int, double>& kept) const;

  // Gradients that are summed over these axes. `kept`: elements of each rank.
  void place_whole(const Axes& axes, std::vector<std::pair<ValueId, ValueId>>& gradients,
                   std::map<int, double>& kept);

  // Who keeps a whole tensor: of the ranks of the owner's stage, the one that sums it with this rank.
  int owner_of(ValueId gradient, const Axes& summed, int tensor) const;

  void find_assigned(RankAssignment& assignment, int pipeline, int tensor, const std::set<int>& own) const;

  const Graph& graph_;
  const Plan& plan_;
  StageCut cut_;
  StageGraphs* graphs_;
  const std::vector<StageValue>* values_;  // null: every value is that of the single device's graph
  std::vector<StageCut> cuts_;  // of the stages, each once; plans of many nodes are long to compare
  std::vector<std::vector<int>> cut_numbers_;  // [pipeline][stage]
  bool uniform_;                               // all stages are cut alike
  bool sharded_optimizer_;                     // the plan's; or unlike devices would update differently
  std::vector<std::string> devices_;
  std::vector<bool> invariant_;  // of nodes
  std::set<ValueId> sums_;
  std::map<ValueId, ValueId> part_of_;
  std::vector<std::vector<int>> stages_;    // [pipeline][node]
  std::map<std::string, ValueId> updated_;  // parameters by name
  mutable std::map<StageCut, std::shared_ptr<const RankAssigner>> others_;
  std::map<ValueId, std::set<ValueId>> sums_of_;  // of parameters: what their updates are made from
  std::map<ValueId, ValueId> parameter_of_;       // of such sums: a parameter that is updated from it
  std::map<ValueId, std::set<std::pair<int, int>>> holders_;  // of parameters: pipeline and stage
  std::map<ValueId, RowUpdate> row_updates_;                  // by gradient
  std::map<ValueId, int> owners_;  // of whole tensors, by gradient: of the ranks that sum it with device 0
};

}  // namespace het
