// A shard: the part of a tensor that one rank of a tensor-parallel group holds. One dimension is divided;
// where it joins several things (the queries, keys and values of one projection) each of them is, so that
// every rank has its part of each. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/parallel.h"
#include "core/tensor/shape.h"

namespace het {

class Tensor;

struct Shard {
  Shape whole;                    // shape of the tensor that it is a part of
  int64_t dim = 0;                // that is divided
  std::vector<int64_t> segments;  // sizes, one after the other along `dim`, each divided over the parts
  int parts = 1, part = 0;
  bool operator==(const Shard&) const = default;
};

// The entries of `dim` that part `part` has, as ranges of the whole: share_of each segment.
std::vector<Range> ranges_of(const std::vector<int64_t>& segments, int parts, int part);
// How many entries these are.
int64_t share_of(const std::vector<int64_t>& segments, int parts, int part);

Shape shape_of(const Shard& shard);  // of the part

// visit(byte offset in the whole, byte offset in the part, bytes) for every run of bytes that both have
// together.
void each_run(const Shard& shard, DType dtype,
              const std::function<void(int64_t whole, int64_t part, int64_t bytes)>& visit);

Tensor take(const Tensor& whole, const Shard& shard);             // the part, copied
void put(Tensor& whole, const Tensor& part, const Shard& shard);  // copied to its place

}  // namespace het
