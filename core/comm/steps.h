// What each collective sends, step by step. Stated once: the transport takes its blocks from here
// (exchange.cpp), shaped links take as long as these steps do (shaped.cpp), and the planner predicts with
// them. Plain data and pure functions; nothing travels here.
//
// With n ranks and B the bytes of the whole tensor, in equal blocks:
//   algorithm  collective               steps           a rank sends      to ranks
//   mesh       all_reduce up to 4 KiB   1               (n-1) B           n-1
//              all_reduce               2               2 (n-1)/n B       n-1
//              reduce_scatter           1               (n-1)/n B         n-1
//              all_gather               1               (n-1)/n B         n-1
//              broadcast                2               at most B         n-1
//   ring       all_reduce               2 (n-1)         2 (n-1)/n B       1
//              reduce_scatter           n-1             (n-1)/n B         1
//              all_gather               n-1             (n-1)/n B         1
//   tree       all_reduce               2 ceil(log2 n)  2 B               1
// grouped_broadcast is all_gather. A broadcast between two ranks, or of up to 4 KiB, takes one step, in which
// the root sends B to each. In all_to_all, send, receive and barrier every message is a part of one step.
//
// The mesh is what hetrun does between processors, over whatever links (exchange.h). NCCL does all_reduce by
// a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)
// or by a double binary tree (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast,
// reduction and scan", 2009), whichever it expects to be faster. Half of a tree stands for the logarithmic
// reduce_scatter and all_gather of its newer versions (PAT).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/comm/communicator.h"

namespace het {

// A transfer of n bytes takes latency_seconds + n / bytes_per_second.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  double seconds(double bytes) const { return latency_seconds + bytes / bytes_per_second; }
  bool operator==(const Link&) const = default;
};

// ---- the mesh, message by message; counts may differ ----

struct StepTransfer {
  int from = 0, to = 0;  // ranks of the group
  int64_t bytes = 0;     // in as many segments as the transport likes
  bool operator==(const StepTransfer&) const = default;
};
// What begins together. A rank sends a segment of the next step when it has what the segment is made from.
using CollectiveStep = std::vector<StepTransfer>;

// No step is empty; only those of a barrier have messages without bytes. `rank` matters to send and receive.
std::vector<CollectiveStep> mesh_steps(const CollectiveRequest& request, int rank, int size);

struct Block {
  int64_t begin = 0, count = 0;  // elements
};
// What `rank` sums (all_reduce, reduce_scatter), has (all_gather, grouped_broadcast), or passes on
// (broadcast; none at the root).
Block block_of(const CollectiveRequest& request, int rank, int size);
// Of all_reduce and broadcast: everything goes at once to everybody who needs it.
bool in_one_step(const CollectiveRequest& request, int size);

// Bytes that `rank` sends in all steps.
int64_t sent_bytes(const CollectiveRequest& request, int rank, int size);

// The link from one rank of the group to another.
using LinkOf = std::function<Link(int from, int to)>;
// Seconds on the wire of an operation that nothing delays, and the latency that comes after.
struct WireTime {
  double busy = 0, latency = 0;
};
// Each rank has one way out and one way in, which work at once; messages of either follow each other.
// Segments of one step travel while those of the next do, so the busiest way of all ranks decides; the
// longest latency of each step is waited for. All ranks are done together.
WireTime wire_time(const std::vector<CollectiveStep>& steps, int size, const LinkOf& link);

// ---- in closed form, with equal blocks ----

enum class Algorithm : uint8_t { mesh, ring, tree };

// What every rank does in all steps together.
struct EvenSteps {
  double steps = 0;  // latencies
  double peers = 0;  // to which it sends
  double bytes = 0;  // to each of them
};
// `kind`: all_reduce, reduce_scatter, all_gather or grouped_broadcast, of a tensor of `bytes` in all.
EvenSteps even_steps(CollectiveKind kind, Algorithm algorithm, int size, double bytes);
// wire_time's rule, where all links are alike.
double seconds_of(const EvenSteps& steps, const Link& link);

}  // namespace het
