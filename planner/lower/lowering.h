// Writes the Program of one rank, by walking its units; for the files of this folder that define its members:
// lowering.cpp (buffers, instructions), lowering_update.cpp (the update), lowering_exchange.cpp (messages and
// collectives). lower.h is what others call.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/program/program.h"
#include "planner/lower/analysis.h"
#include "planner/lower/gradient_buckets.h"
#include "planner/lower/program_writer.h"
#include "planner/lower/rank_assignment.h"

namespace het {

class Lowering {
 public:
  Lowering(const Graph& graph, const RankAssignment& assignment);

  Program run();

 private:
  // Of several ranks the norm of all gradients decides the step. Where there is none, a gathering does before
  // the first change of state, behind all that may need other ranks.
  void emit_update_phase();

  bool changes_state(const Node& node) const;
  bool changes_state() const;

  // The nodes that change state, and all that need what these make.
  std::vector<bool> behind_changes() const;

  // Each rank gives a number when it has all its gradients.
  void decide();

  // What decides the step: when it is there, every rank is known to have its gradients.
  void gather_numbers(const Operand& own, const Operand& all, std::string label);

  // Updates that follow each other and differ only in what JoinedCalls allows are made in one pass.
  void emit_update(const Node& node);

  // --- the rows of a parameter that this rank updates, of a sharded optimizer

  // Rows of the tensors of one update: [begin, end) of the parameter, which in the optimizer's state begin at
  // `first`.
  struct Rows {
    ValueId gradient = kAbsent;
    Range range{0, 0};
    int64_t first = 0;
  };

  // For each run of rows that this rank updates, the node with these; all at once where it keeps all.
  template <typename Emit>
  void each_rows_of(const Node& node, const Emit& emit) {
    const auto found = updated_by_rows_.find(id_of(node));
    found == updated_by_rows_.end() ? emit() : each_rows_of(found->second, emit);
  }
  template <typename Emit>
  void each_rows_of(ValueId gradient, const Emit& emit) {
    int64_t first = 0;
    for (const Range& range : *assignment_.gradients.at(gradient).rows) {
      rows_ = Rows{gradient, range, first};
      emit();
      first += range.size();
    }
    rows_.reset();
  }

  // Whether the update that is emitted now uses only rows of this value.
  bool is_by_rows(ValueId id) const;

  Layout rows_in(const Layout& all, int64_t first) const;

  // The rows of a value of the update. What the update itself makes has a place for each run of rows.
  Operand& rows_of(ValueId id);

  TensorType type_of(ValueId id) const;

  // What of the optimizer's state this rank keeps.
  void keep_rows(ValueId id, BufferSpec& spec) const;

  // What of a parameter this rank updates, where other ranks update the rest.
  void update_rows(ValueId id, BufferSpec& spec) const;

  // Whether the node writes state in place.
  bool can_join(const Node& node) const;

  bool are_alike(const Node& a, const Node& b) const;

  void emit_updates();

  // Computes what no micro-batch changes: from state alone, or with numbers of the step.
  void emit_invariant(bool from_state);

  // Recipes make graphs, too: an order that no step can compute is refused, with the names of the graph.
  void require_order() const;

  // --- buffers

  void declare_outside();

  void make_buckets();

  Operand& operand(ValueId id, int microbatch) {
    return is_by_rows(id) ? rows_of(id) : whole_operand(id, microbatch);
  }
  Operand& whole_operand(ValueId id, int microbatch) {
    return operands_[id * (microbatches_ + 1) + microbatch + 1];
  }
  NodeId id_of(const Node& node) const { return static_cast<NodeId>(&node - graph_.nodes.data()); }
  void set_everywhere(ValueId id, const Operand& value) {
    for (int m = -1; m < microbatches_; ++m) operand(id, m) = value;
  }

  // Where the sum of an accumulated value is kept.
  Operand sum_of(ValueId id);
  // Whether nothing was written to it yet: from now on something is.
  bool begins(ValueId id) { return begun_.insert(analysis_.root_of(id)).second; }

  std::string hint(ValueId id) const;

  // Where a node's result goes, and whether it is added to what the target holds.
  struct Target {
    Operand operand;
    bool add = false;
    bool spill = false;  // an accumulated value that cannot be added in place: an extra instruction sums it
  };

  Target target(ValueId id, int microbatch, bool can_add);

  // --- instructions

  Operand packed(const Node& node, const Operand& from, int microbatch);

  void emit(const Node& node, int microbatch);

  // Computes nodes that belong to no stage when they are first needed, and awaits gradients that others add
  // to.
  void prepare(ValueId id, const Node& user, int microbatch);

  static int alias_of(const Node& node, int output);

  // Remembers where a result is; an accumulated one outside of its sum's buffer is added to the sum.
  void finish(const Node& node, ValueId id, const Target& where, int microbatch);

  void emit_view(const Node& node, int microbatch);

  void emit_concat(const Node& node, int microbatch);

  // A sum over the micro-batches of all ranks, no gradient: it is added up over the ranks at the step's end.
  bool is_shared(const Output& output) const;

  // What this rank adds to a shared output; absent: nothing, or another rank of its tensor group does.
  Operand own_part(const Output& output) const;

  // Outputs that are not sums already are copied to where they can be read; sums are added up over all ranks,
  // but those that came with the norms.
  void emit_outputs();

  // --- communication

  // A collective of the devices that share the layers, along an axis of their mesh. It is awaited where its
  // result is first used; what comes between is computed meanwhile.
  void emit_collective(const Node& node, int microbatch);

  // Whether a value is scratch that nothing but `user` reads, in the same run.
  bool dies_in(ValueId id, const Node& user) const;

  void await_collectives(BufferId buffer);
  void await_collectives();

  std::string label_of(ValueId id) const;

  // One stage's work on one micro-batch: receives are posted one unit ahead, sends follow the last node.
  void emit_unit(size_t u);

  void post_receives(size_t u);
  void await_receives(size_t u);
  // Returns the receive's instruction.
  int receive(const RankAssignment::Message& message, const Operand& to, int microbatch, Phase phase);

  // Of a rank whose sends and receives block: the messages between unit `u` and the one before, one after the
  // other. With u behind the last unit: what that one made.
  void exchange_blocking(size_t u);

  // At most one unit's gradients are in flight from a stage; activations stay for the backward pass.
  void send(int stage, int microbatch, Phase phase);

  bool has_backward() const;

  void await_sends(std::vector<int>& instructions);
  void await_all_sends();

  // Before a node of the backward pass: the layers whose values it uses and which are computed again are,
  // once for each micro-batch.
  void recompute_for(const Node& node, int microbatch);

  void recompute(int stage, int32_t layer, int microbatch);

  // The gradient that a value of the update is, perhaps gathered or summed over a tensor-parallel group
  // since.
  ValueId gradient_behind(ValueId id) const;

  // Each rank takes the norm of the gradients that it counts; the norm of these norms is the global norm.
  // Numbers that are summed over all ranks, as the loss is, travel with them and are added in the ranks'
  // order; the last number is the executor's.
  void emit_global_norm(const Node& node);

  const Graph& graph_;
  const RankAssignment& assignment_;
  int microbatches_;
  LoweringAnalysis analysis_;
  ProgramWriter out_;
  std::vector<Operand> operands_;                  // [value][micro-batch + 1]
  std::unordered_map<ValueId, Operand> sums_;      // by root_of
  std::set<ValueId> begun_;                        // sums that hold something
  std::set<std::tuple<int, int32_t, int>> again_;  // computed again: stage, layer, micro-batch
  struct Posted {                                  // a receive
    ValueId value;
    int start;
    Operand place;                  // of what comes, in the value's buffer
    std::vector<int64_t> gathered;  // RankAssignment::Message
  };
  std::map<size_t, std::vector<Posted>> posted_;                  // by unit
  std::map<std::pair<int, int>, std::vector<int>> sent_forward_;  // by stage and micro-batch
  std::map<int, std::vector<int>> sent_backward_;                 // by stage
  std::multimap<BufferId, int> running_;  // collectives: where they write, their Start
  struct Update {
    const Node* node;
    std::optional<Rows> rows;
  };
  std::vector<Update> updates_;                                  // to be made in one pass
  std::map<NodeId, ValueId> updated_by_rows_;                    // nodes, and the gradient that they read
  std::optional<Rows> rows_;                                     // that are emitted now; absent: all
  std::map<std::pair<ValueId, int64_t>, Operand> row_operands_;  // by the first row
  std::set<ValueId> summed_;                // shared outputs that went round with the norms
  std::optional<GradientBuckets> buckets_;  // once all that comes from outside has its buffers
};

}  // namespace het
