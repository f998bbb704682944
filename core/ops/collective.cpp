// Collectives inside a tensor-parallel group, or along an `axis` of its mesh: every rank of it runs the same
// ones, each with separate operands. They appear in the graph of one rank (core/plan/partition.h) and are
// lowered to communication: devices have no kernels.
#include "core/comm/communicator.h"
#include "core/ops/rules.h"

namespace het::ops {
namespace {

std::vector<int64_t> counts_of(const OpCall& call) {
  auto counts = setting<std::vector<int64_t>>(call, "counts");
  if (counts.empty()) refuse(call, "counts has to name the elements of each part; it is empty");
  for (const int64_t count : counts)
    if (count < 0) refuse(call, fmt::format("counts = {} has a negative number", to_string(counts)));
  return counts;
}

size_t part_of(const OpCall& call, const std::vector<int64_t>& counts) {
  const int64_t part = setting<int64_t>(call, "part");
  if (part < 0 || part >= static_cast<int64_t>(counts.size()))
    refuse(call, fmt::format("part = {} is not in 0 to {}", part, counts.size() - 1));
  return static_cast<size_t>(part);
}

// Of the mesh of the devices that share a stage's layers.
void require_axis(const OpCall& call) {
  const auto axis = call.attributes.get<int64_t>("axis", 0);
  if (axis < 0) refuse(call, fmt::format("axis = {} is not an axis of a mesh", axis));
}

void require_elements(const OpCall& call, int64_t wanted) {
  require_axis(call);
  require_inputs(call, 1, 1);
  require_rank(call, 0, 1);
  if (call[0].elements() != wanted)
    refuse(call, fmt::format("x has {} elements, counts say {}", call[0].elements(), wanted));
}

Types infer_all_reduce(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_axis(call);
  require_float(call, 0);
  return {call[0]};
}

Types infer_all_gather(const OpCall& call) {
  const auto counts = counts_of(call);
  require_elements(call, counts[part_of(call, counts)]);
  return {{call[0].dtype, {sum_of(counts)}}};
}

// Every rank gives an operand of the result's shape; only the root's counts.
Types infer_broadcast(const OpCall& call) {
  require_inputs(call, 1, 1);
  require_axis(call);
  const int64_t root = setting<int64_t>(call, "root");
  if (root < 0) refuse(call, fmt::format("root = {} is no rank", root));
  return {call[0]};
}

Types infer_reduce_scatter(const OpCall& call) {
  const auto counts = counts_of(call);
  require_elements(call, sum_of(counts));
  require_float(call, 0);
  return {{call[0].dtype, {counts[part_of(call, counts)]}}};
}

// The elements of the blocks that rank `part` sends, or receives, of counts[from * ranks + to].
int64_t exchanged(const OpCall& call, bool sent) {
  const auto counts = counts_of(call);
  size_t ranks = 1;
  while (ranks * ranks < counts.size()) ++ranks;
  if (ranks * ranks != counts.size())
    refuse(call, fmt::format("counts has {} entries; one for each pair of ranks is needed", counts.size()));
  const auto part = static_cast<size_t>(setting<int64_t>(call, "part"));
  if (part >= ranks) refuse(call, fmt::format("part = {} is not in 0 to {}", part, ranks - 1));
  int64_t elements = 0;
  for (size_t other = 0; other < ranks; ++other)
    elements += sent ? counts[part * ranks + other] : counts[other * ranks + part];
  return elements;
}

Types infer_all_to_all(const OpCall& call) {
  require_elements(call, exchanged(call, true));
  return {{call[0].dtype, {exchanged(call, false)}}};
}

}  // namespace

std::vector<OpDef> collective_ops() {
  return {
      {.name = "all_reduce",
       .signature = "x[...]:T → sum[...]:T",
       .doc = "The sum of x over the ranks of the tensor-parallel group; of a mesh, over those along `axis`.",
       .attributes = {"axis"},
       .infer = infer_all_reduce,
       .sharding = {{.cut = "..."}, {.partial = "x sum"}},
       .collective = CollectiveKind::all_reduce},
      {.name = "all_gather",
       .signature = "x[counts[part]] → [sum of counts]",
       .doc = "The x of all ranks of the tensor-parallel group, one after the other; rank `part` gives "
              "`counts[part]` "
              "elements.",
       .attributes = {"counts", "part", "axis"},
       .infer = infer_all_gather,
       .collective = CollectiveKind::all_gather},
      {.name = "broadcast",
       .signature = "x[...] → y[...]",
       .doc = "The x of rank `root` of the tensor-parallel group; that of the others only says the type.",
       .attributes = {"root", "axis"},
       .infer = infer_broadcast,
       .sharding = {{.cut = "..."}, {.partial = "x y"}},
       .collective = CollectiveKind::broadcast},
      {.name = "grouped_broadcast",
       .signature = "x[counts[part]] → [sum of counts]",
       .doc = "all_gather as one broadcast for each rank, by which blocks of very uneven `counts` are never "
              "padded.",
       .attributes = {"counts", "part", "axis"},
       .infer = infer_all_gather,
       .collective = CollectiveKind::grouped_broadcast},
      {.name = "reduce_scatter",
       .signature = "x[sum of counts]:T → [counts[part]]:T",
       .doc = "Block `part` of the sum of x over the ranks of the tensor-parallel group, whose blocks have "
              "`counts` "
              "elements.",
       .attributes = {"counts", "part", "axis"},
       .infer = infer_reduce_scatter,
       .collective = CollectiveKind::reduce_scatter},
      {.name = "all_to_all",
       .signature = "x[sent] → [received]",
       .doc =
           "Blocks of x, one for each rank of the tensor-parallel group, exchanged for those that the others "
           "have for this rank, `part`, in the order of ranks; `counts[from * ranks + to]` elements.",
       .attributes = {"counts", "part", "axis"},
       .infer = infer_all_to_all,
       .collective = CollectiveKind::all_to_all},
  };
}

}  // namespace het::ops
