// How an elementwise program runs on the processor: element ranges cut into tiles that stay in the
// first-level cache, each step a loop over one tile, each source of the program given a place. Made when the
// kernel is prepared (pointwise.cpp, compiled once); walked by elementwise.cpp. Plain data without
// allocations.
#pragma once

#include "core/ops/elementwise.h"
#include "kernels/request.h"

namespace het::cpu {

using namespace kernels;

struct PointwisePlan {
  static constexpr int64_t kTile = 1024;  // elements; a tile of f32 is 4 KiB

  // How the elements of an operand come to a tile.
  enum class Load : uint8_t {
    direct,   // packed f32: read where it lies
    convert,  // packed, of another type: converted for each tile
    once,     // a scalar, or a pattern that repeats within the tile: the same for every tile
    gather,   // other broadcasts: walked by its loops
  };
  struct Input {
    DType dtype;
    Load load;
    int place;
    int64_t period;  // of `once`: elements after which it repeats
  };
  struct Step {
    Pointwise code;
    int a, b, to;  // places
    double immediate;
  };
  struct Result {
    DType dtype;
    bool direct;  // the step that makes it writes to memory itself
    int place;
  };

  // Places: tiles of the scratch memory first, then operands read directly, then results written directly.
  int slots = 0;
  int input_place(int i) const { return slots + i; }
  int result_place(int i) const { return slots + kMaxPointwiseInputs + i; }
  static constexpr int kMaxPlaces =
      kMaxPointwiseInputs + kMaxPointwiseSteps + kMaxPointwiseInputs + kMaxPointwiseResults;

  int inputs = 0, steps = 0, results = 0;
  Input input[kMaxPointwiseInputs];
  Step step[kMaxPointwiseSteps];
  Result result[kMaxPointwiseResults];
  Loops loops;  // over the result's elements in order; operands only
  int64_t elements = 0;
  int64_t tile = kTile;  // a whole number of every period
  bool heavy = false;    // has functions among its steps
  // f64 or integers take part: computed one element after the other in f64. Places are then the program's
  // sources.
  bool wide = false;
};

PointwisePlan plan_pointwise(const KernelRequest& request);

}  // namespace het::cpu
