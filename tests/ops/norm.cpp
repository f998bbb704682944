#include <catch2/catch.hpp>
#include <cstring>

#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "planner/lower/lower.h"
#include "tests/ops/devices.h"
#include "tests/ops/harness.h"

namespace het::ops_test {
namespace {

constexpr Tolerance kRows{1e-5, 1.0 / 200, 1.0 / 1500};

// The statistics that the gradient kernels are given need not be those of x: they are operands like any
// other.
OperandCase rstd(int64_t rows) { return A({rows}).in(0.5, 2); }

// A gradient that is rounded, and rounded again when another is added.
constexpr Tolerance kTwice{1e-5, 1.0 / 150, 1.0 / 1000};

// Multiples of 1/64 in [-1, 1], whose sums no dtype rounds: a row of almost equal elements would make much of
// it.
OperandCase sixtyfourths(const Shape& shape, int step) {
  std::vector<double> values(127);
  for (int i = 0; i < 127; ++i) values[static_cast<size_t>(i)] = (i * step % 127 - 63) / 64.0;
  return T(shape).of(values);
}

void adding_cases(std::vector<Case>& cases, const Shape& shape) {
  const int64_t n = shape.back(), rows = elements_of(shape) / n;
  const OperandCase x = sixtyfourths(shape, 37), residual = sixtyfourths(shape, 53);
  const Attributes eps{{"eps", 1e-3}};
  // What flows back comes through y, through the sum, which nothing of the weights reaches, or both.
  for (const bool y : {true, false})
    for (const bool sum : {false, true}) {
      if (!y && !sum) continue;
      const OperandCase vector = y ? A({n}) : A({n}).constant();
      cases.push_back(
          {"layer_norm", {x, vector, vector, residual}, eps, kRows, (y ? 1u : 0u) | (sum ? 8u : 0u)});
      cases.push_back({"rms_norm", {x, vector, residual}, eps, kRows, (y ? 1u : 0u) | (sum ? 4u : 0u)});
    }
  cases.push_back({"layer_norm", {x, absent(), absent(), residual}, {}, kRows});
  cases.push_back({"rms_norm", {x, absent(), residual}, {}, kRows});
  cases.push_back(
      {"layer_norm_gradient", {T(shape), x, A({n}), A({rows}), rstd(rows), T(shape)}, {}, kTwice});
  cases.push_back(
      {"layer_norm_gradient", {T(shape), x, absent(), A({rows}), rstd(rows), T(shape)}, {}, kTwice});
  cases.push_back({"rms_norm_gradient", {T(shape), x, A({n}), rstd(rows), T(shape)}, {}, kTwice});
  cases.push_back({"rms_norm_gradient", {T(shape), x, absent(), rstd(rows), T(shape)}, {}, kTwice});
}

// What a part of the columns gives.
void part_cases(std::vector<Case>& cases, const Shape& shape) {
  const int64_t n = shape.back(), rows = elements_of(shape) / n;
  const OperandCase means = A({rows});
  cases.push_back({"row_moments", {T(shape)}, {}, kRows});
  cases.push_back({"norm_gradient_sums", {T(shape), T(shape), A({n}), means, rstd(rows)}, {}, kRows});
  cases.push_back({"norm_gradient_sums", {T(shape), T(shape), absent(), absent(), rstd(rows)}, {}, kRows});
  cases.push_back(
      {"norm_gradient_sums", {T(shape), T(shape), absent(), means, rstd(rows)}, {{"bias", true}}, kRows});
}

// A norm of a sum and the sum of its gradient and something else, all results read.
Graph sums_around_norms(DType dtype, const Shape& shape, bool rms) {
  Graph graph;
  GraphBuilder b(graph);
  const TensorType type{dtype, shape}, vector{accumulator_of(dtype), {shape.back()}};
  const ValueId x = b.input("x", type), residual = b.input("residual", type), dy = b.input("dy", type),
                skip = b.input("skip", type);
  const ValueId weight = b.input("weight", vector);
  const ValueId sum = b.call("add", {x, residual});
  std::vector<ValueId> inputs{sum, weight};
  if (!rms) inputs.push_back(b.input("bias", vector));
  std::vector<ValueId> results = b.call_all(op_named(rms ? "rms_norm" : "layer_norm"), inputs);
  inputs = {dy, sum, weight};
  inputs.insert(inputs.end(), results.begin() + 1, results.end());
  std::vector<ValueId> made = b.call_all(op_named(rms ? "rms_norm_gradient" : "layer_norm_gradient"), inputs);
  made[0] = b.call("add", {skip, made[0]});
  results.insert(results.end(), made.begin(), made.end());
  results.push_back(sum);
  for (size_t i = 0; i < results.size(); ++i) b.output(fmt::format("y{}", i), results[i]);
  return graph;
}

}  // namespace

TEST_CASE("a norm that makes the additions beside it changes no bit") {
  for (const Subject& subject : subjects())
    for (const bool rms : {false, true})
      DYNAMIC_SECTION(subject.name << (rms ? ", RMS norm" : ", layer norm")) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
          for (const Shape& shape : {Shape{7, 33}, {5, 256}, {3, 1032}, {2, 2112}, {2, 8208}}) {
            const Graph apart = sums_around_norms(dtype, shape, rms), joined = fuse(apart);
            REQUIRE(verify(joined).empty());
            REQUIRE(joined.nodes.size() + 2 == apart.nodes.size());
            Executor separate(lower_single(apart), std::make_shared<StateStore>(subject.device, 1));
            Executor together(lower_single(joined), std::make_shared<StateStore>(subject.device, 1));
            for (Executor* executor : {&separate, &together}) {
              for (const BufferSpec& buffer : executor->program().buffers)
                if (buffer.home == Home::input)
                  executor->write(buffer.name, drawn(T({}).in(-3, 3), buffer.type, hash_of(buffer.name)));
              executor->run();
            }
            for (const Output& output : apart.outputs) {
              INFO(output.name << ", " << name_of(dtype) << ", " << het::to_string(shape));
              const Tensor a = separate.read(output.name), b = together.read(output.name);
              REQUIRE(a.type() == b.type());
              CHECK(std::memcmp(a.bytes(), b.bytes(), static_cast<size_t>(a.type().bytes())) == 0);
            }
          }
      }
}

std::vector<Case> norm_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{7}, {1, 5}, {3, 17}, {2, 3, 33}, {4, 64}, {65, 127}, {40, 256}, {9, 2}}) {
    const int64_t n = shape.back(), rows = elements_of(shape) / n;
    const Attributes eps{{"eps", 1e-3}};
    cases.push_back({"layer_norm", {T(shape), A({n}), A({n})}, {}, kRows});
    cases.push_back({"layer_norm", {T(shape).in(2, 4), A({n})}, eps, kRows});
    cases.push_back({"layer_norm", {T(shape), absent(), A({n})}, eps, kRows});
    cases.push_back({"layer_norm", {T(shape)}, eps, kRows});
    cases.push_back({"layer_norm_gradient", {T(shape), T(shape), A({n}), A({rows}), rstd(rows)}, {}, kRows});
    cases.push_back({"layer_norm_gradient",
                     {T(shape), T(shape), A({n}), A({rows}), rstd(rows)},
                     {{"bias", false}},
                     kRows});
    cases.push_back({"layer_norm_gradient",
                     {T(shape), T(shape), absent(), A({rows}), rstd(rows)},
                     {{"bias", true}},
                     kRows});
    cases.push_back(
        {"layer_norm_gradient", {T(shape), T(shape), absent(), A({rows}), rstd(rows)}, {}, kRows});
    cases.push_back({"rms_norm", {T(shape), A({n})}, {}, kRows});
    cases.push_back({"rms_norm", {T(shape)}, eps, kRows});
    cases.push_back({"rms_norm_gradient", {T(shape), T(shape), A({n}), rstd(rows)}, {}, kRows});
    cases.push_back({"rms_norm_gradient", {T(shape), T(shape), absent(), rstd(rows)}, {}, kRows});
    adding_cases(cases, shape);
    part_cases(cases, shape);
  }
  // Rows that are shared among several warps, or too long to be held in registers; more rows than blocks.
  for (const Shape& shape : {Shape{35, 320}, {11, 1032}, {9, 2112}, {9, 8208}, {70, 8}}) {
    const int64_t n = shape.back(), rows = shape[0];
    cases.push_back({"layer_norm", {T(shape), A({n}), A({n})}, {}, kRows});
    cases.push_back({"rms_norm", {T(shape), A({n})}, {}, kRows});
    cases.push_back({"layer_norm_gradient", {T(shape), T(shape), A({n}), A({rows}), rstd(rows)}, {}, kRows});
    cases.push_back({"rms_norm_gradient", {T(shape), T(shape), A({n}), rstd(rows)}, {}, kRows});
    adding_cases(cases, shape);
    part_cases(cases, shape);
  }
  // A mean far from 0: the variance must not come from the difference of two large numbers.
  Case far{"layer_norm", {T({3, 64}).in(1000, 1001), A({64}), A({64})}, {}, {2e-4}};
  far.dtypes = {DType::f32};
  far.gradient = false;
  cases.push_back(far);
  // Equal elements: the variance is 0 and eps alone keeps the result finite.
  Case flat{"layer_norm", {T({2, 16}).of({0.5}), A({16}), A({16})}, {}, kRows};
  flat.gradient = false;
  cases.push_back(flat);
  return cases;
}

}  // namespace het::ops_test
