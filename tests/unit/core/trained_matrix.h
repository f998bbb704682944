// A program that is as small as one that trains can be, for tests of the executor.
#pragma once

#include "core/ops/op.h"
#include "core/program/executor.h"
#include "tests/unit/core/testing.h"

namespace het::testing {

// loss = Σ (x wᵀ)², one step of SGD with an lr that is an input.
inline Graph trained_matrix(DType compute = DType::f32) {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = b.input("x", {compute, {4, 6}});
  const ValueId w = b.parameter("w", {DType::f32, {6, 6}}, {Initial::Kind::normal, 0.5});
  const ValueId used =
      compute == DType::f32 ? w : b.call("cast", {w}, {{"dtype", std::string(name_of(compute))}});
  const ValueId y = b.call("linear", {x, used});
  const ValueId loss =
      b.call("sum", {b.call("square", {y})}, {{"dims", std::vector<int64_t>{0, 1}}, {"dtype", "f32"}});
  b.output("loss", loss);
  const auto gradients = differentiate(graph, loss);
  b.set_phase(Phase::update);
  const ValueId lr = b.input("lr", {DType::f32, {}}, true);
  const auto norm = b.call_all(op_named("global_norm"), {gradients.at(w)}, {{"max_norm", 0.0}});
  b.call_all(op_named("sgd"), {w, kAbsent, gradients.at(w), lr, norm[1]},
             {{"momentum", 0.0}, {"weight_decay", 0.0}, {"nesterov", false}});
  return graph;
}

inline void write_inputs(Executor& executor) {
  for (int m = 0; m < executor.program().microbatches; ++m)
    executor.write("x", wave({DType::f32, {4, 6}}, 0.5 + m), m);
  executor.write("lr", Tensor::of<float>({0.01F}, {}));
}

}  // namespace het::testing
