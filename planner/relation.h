// How a tensor of the single-device graph lies on the ranks of a tensor-parallel group, and what each
// operator can do with operands that lie so. Plain data; nothing here is decided.
#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/tensor/slice.h"

namespace het {

struct Relation {
  enum class Kind : uint8_t {
    whole,    // every rank has all of it
    shard,    // every rank has its part of one dimension: of each of its segments
    partial,  // every rank has a summand of it
  };
  Kind kind = Kind::whole;
  int64_t dim = 0;                // of shards
  std::vector<int64_t> segments;  // of shards
  bool operator==(const Relation&) const = default;

  static Relation whole() { return {}; }
  static Relation partial() { return {Kind::partial, 0, {}}; }
  static Relation shard(int64_t dim, std::vector<int64_t> segments) {
    return {Kind::shard, dim, std::move(segments)};
  }
  bool is_whole() const { return kind == Kind::whole; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_partial() const { return kind == Kind::partial; }
};
std::string to_string(const Relation& relation);  // "whole", "partial", "shard of 2 in [64, 64, 64]"

// Whether every part of the segments has the same size.
bool divides_evenly(const std::vector<int64_t>& segments, int parts);

// One way to run a node on every rank: how each operand has to lie, and how each result then lies. Absent
// operands and results are whole.
struct Way {
  std::vector<Relation> inputs, outputs;
};

// What the ways are for.
struct Division {
  int parts = 1;
  bool sequence = false;  // sums of activations [samples, tokens, features] may be divided by tokens
};

// The ways to run a node whose operands lie as `given`, those that divide its work before the whole one.
// `wanted` is how its first result shall lie in the end, for operators that can make any part of it from
// whole operands.
std::vector<Way> ways_of(const Graph& graph, const Node& node, const std::vector<Relation>& given,
                         const Relation& wanted, const Division& division);

// The attributes that a node has on rank `part` when it runs in this way.
Attributes attributes_of(const Graph& graph, const Node& node, const Way& way, int parts, int part);

// The entries that part `part` has of segments that follow one another, each divided over the parts; and how
// many these are.
Ranges ranges_of(const std::vector<int64_t>& segments, int parts, int part);
int64_t share_of(const std::vector<int64_t>& segments, int parts, int part);

// What rank `part` has of a tensor.
TensorSlice slice_of(const Shape& whole, const Relation& relation, int parts, int part);
// The shape of a tensor on rank `part`.
Shape local_shape(const Shape& whole, const Relation& relation, int parts, int part);

}  // namespace het
