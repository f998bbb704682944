// What a collective over several hosts takes when nothing else is on its way, as NCCL runs it between GPUs,
// by rings and trees over the network interfaces of hosts. (For hetrun's mesh between processors:
// exchange.cpp.) Pure.
//
// What is modelled of NCCL (2.20; src/graph/search.cc, connect.cc, tuning.cc, src/transport):
// - One ring passes all ranks of a communicator and enters and leaves each host once. So an interface carries
//   2 (n - 1) / n of the bytes of an all-reduce, n the number of all ranks, in each of its two directions,
//   and a host's devices exchange over its inside links at the same time, not before.
// - Channels are copies of the ring over different interfaces: those nearest to the communicator's devices on
//   each host. The host with the fewest sets the number. Channels over one interface share it; two of them,
//   which NCCL makes at least, carry no more than one.
// - A tree, of an all-reduce, is a chain inside hosts and a double binary tree between them: with three
//   hosts or more each interface carries the bytes twice, with two hosts once, and latencies grow with the
//   logarithm.
// - Which of them NCCL takes: the one that it expects to take less. Between two hosts it expects a tree to go
//   at half of what its inside links carry, which it searches up to twice what leaves the host (search.cc):
//   the bytes once. Its tables of latencies, and the 0.92 of a ring's bandwidth that it expects of trees, are
//   left out, so that what is chosen is what takes less by the figures that are charged.
// - Tensor-parallel ranks are in as many communicators, one for each rank; these share the interfaces that
//   are nearest to the devices of the stage.
// Left out: the protocols for small messages (LL, LL128). NCCL takes them where they save some of the 14 us
// of a hop by Simple (2.7 us by LL, at a quarter of the bandwidth; tuning.cc), and stated latencies are of a
// message.
#pragma once

#include "core/comm/steps.h"

namespace het::planner {

// The ranks of a communicator that takes part in an exchange, one for each holder.
struct RingGroup {
  int members = 0, hosts = 0, most_in_host = 0;
  int lanes = 1;         // fewest interfaces that any host has for them
  Link slowest, inside;  // between two interfaces; inside the slowest host
  // Of a mesh: the longest latency, and the pace at which the slowest member, or the busiest interface,
  // reaches the others: the bytes for all of them over its seconds.
  Link mesh;
};

// Seconds before bytes pass interfaces, and while they do; and of the slowest link's bandwidth what is used
// then, which inside links may hold up. Within one host nothing passes interfaces.
struct RingSeconds {
  double fixed = 0, wire = 0, used = 1;
};

// `communicators` of a group at once, each with a tensor of `bytes`.
RingSeconds ring_seconds(CollectiveKind kind, const RingGroup& group, int communicators, double bytes);

}  // namespace het::planner
