// How one operator can run on parts of its operands: beside its gradient, as data. A rule cuts letters of the
// operator's notation, or says which operands may be summands; everything else follows from the letters. No
// rule knows of ranks, shares or meshes, so each holds for any of them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/ops/notation.h"
#include "core/tensor/slice.h"

namespace het {

struct OpCall;
class GraphBuilder;

// What a rule needs to emit nodes for a call on one part.
struct ShardedCall {
  GraphBuilder& graph;
  const OpCall& whole;
  const std::vector<ValueId>& inputs;                        // this part's, lying as the rule says
  std::span<const TensorSlice> input_slices, output_slices;  // as for OpDef::localize
  int parts, part;
  int axis = 0;  // of the mesh, that is cut

  // Every part's x, all of one shape, one after the other: [parts, ...].
  ValueId all_gather(ValueId x) const;
};

// Operands and results along which a letter of `cut` runs are sharded, all others are replicated; results in
// `sums` are partial: the sum over the ranks is the result. Names are those of the notation, separated by
// spaces. That everything may be replicated is not a separate rule.
struct ShardingRule {
  std::string_view cut = {};      // letters, cut together in proportion; see letter_sets()
  std::string_view partial = {};  // or none is cut: these operands and results are summands
  std::string_view sums = {};     // results that become partial where letters are cut
  std::string_view once = {};     // operands that count once: absent but on the first rank that has a part
  bool (*when)(const OpCall&) = nullptr;  // calls that it holds for; null: all
  bool one_range = false;  // a part has entries that follow one another: they are named by the first
  // It exchanges numbers for each row of activations, layer by layer: for whoever asks for the cut, not for
  // planners that cut what costs little.
  bool on_demand = false;
  // Emits several nodes, collectives among them, in place of the operator: its results on this part.
  std::vector<ValueId> (*decompose)(const ShardedCall&) = nullptr;
};

// A letter that no rule of its operator cuts, and why, as messages quote it: "a softmax needs all keys".
struct NeverCut {
  std::string_view letter, reason;
};

// How an operand or a result lies under a rule.
enum class Lies : uint8_t { replicated, sharded, partial, once };

// A rule with its letters, for one call.
struct ShardingInstance {
  size_t rule = 0;                    // of OpDef::sharding
  std::vector<std::string> letters;   // that are cut; none for a rule of summands
  int64_t units = 1;                  // in which they can be cut
  std::vector<Lies> inputs, outputs;  // absent ones are replicated
};

// Every way in which a call can run on parts, in the order of the rules.
std::vector<ShardingInstance> sharding_of(const OpCall& call, std::span<const TensorType> outputs);

// The attributes of the call on one part. Slices say what the part has of each operand and result, and are
// whole where these are replicated or partial.
Attributes localized(const OpCall& call, std::span<const TensorSlice> inputs,
                     std::span<const TensorSlice> outputs);

}  // namespace het
