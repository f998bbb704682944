// Elementwise operators as data. A PointwiseProgram is a straight list of steps over one element of each
// operand; a single operator is a program of one step and `fused` a longer one, so that a device needs one
// elementwise kernel and no more. How it is stored in the attributes of a `fused` node is known to encode and
// decode only.
//
// A program computes in f64 when any operand or result is f64, else in f32; elements are converted when they
// are read and when results are written, and nowhere between (`cast` inside a program does nothing). Operands
// of smaller shape are repeated as broadcasting says; they are packed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/graph/attributes.h"
#include "core/ops/op.h"

namespace het {

// X(code, operands): the steps there are; i is the step's immediate. To add one: a line here, the OpDef in
// elementwise.cpp and a case in each device's kernel.
#define HET_POINTWISE_STEPS(X)                                                          \
  X(add, 2)       /* a + b */                                                           \
  X(sub, 2)       /* a - b */                                                           \
  X(mul, 2)       /* a * b */                                                           \
  X(div, 2)       /* a / b */                                                           \
  X(maximum, 2)   /* the larger; NaN when either is */                                  \
  X(minimum, 2)   /* the smaller; NaN when either is */                                 \
  X(power, 2)     /* a to the power of b */                                             \
  X(clamp_min, 1) /* a < i ? i : a */                                                   \
  X(clamp_max, 1) /* a > i ? i : a */                                                   \
  X(equal, 2)     /* a == b ? 1 : 0, as all comparisons */                              \
  X(not_equal, 2)                                                                       \
  X(less, 2)                                                                            \
  X(less_equal, 2)                                                                      \
  X(mask, 2)     /* a != 0 ? b : 0 */                                                   \
  X(mask_out, 2) /* a != 0 ? 0 : b */                                                   \
  X(scale, 1)    /* a * i */                                                            \
  X(shift, 1)    /* a + i */                                                            \
  X(neg, 1)                                                                             \
  X(abs, 1)                                                                             \
  X(sign, 1) /* -1, 0 or 1; NaN stays NaN */                                            \
  X(sin, 1)                                                                             \
  X(cos, 1)                                                                             \
  X(pow, 1) /* a to the power of i */                                                   \
  X(square, 1)                                                                          \
  X(sqrt, 1)                                                                            \
  X(exp, 1)                                                                             \
  X(log, 1)                                                                             \
  X(tanh, 1)                                                                            \
  X(sigmoid, 1)            /* 1 / (1 + exp(-a)) */                                      \
  X(relu, 1)               /* a > 0 ? a : 0, and NaN stays NaN */                       \
  X(silu, 1)               /* a * sigmoid(a) */                                         \
  X(gelu_tanh, 1)          /* a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3))) */  \
  X(gelu_erf, 1)           /* a / 2 * (1 + erf(a / sqrt(2))) */                         \
  X(gelu_tanh_gradient, 2) /* gelu_tanh'(a) * b */                                      \
  X(gelu_erf_gradient, 2)  /* gelu_erf'(a) * b */                                       \
  X(silu_gradient, 2)      /* silu'(a) * b = s (1 + a (1 - s)) b with s = sigmoid(a) */ \
  X(relu_gradient, 2)      /* a > 0 ? b : 0 */                                          \
  X(tanh_gradient, 2)      /* (1 - a^2) * b, a being tanh's result */                   \
  X(sigmoid_gradient, 2)   /* a (1 - a) b, a being sigmoid's result */                  \
  X(cast, 1)               /* a: only the dtype of the result changes */

enum class Pointwise : uint8_t {
#define HET_POINTWISE_CODE(code, operands) code,
  HET_POINTWISE_STEPS(HET_POINTWISE_CODE)
#undef HET_POINTWISE_CODE
};

std::string_view name_of(Pointwise code);
int operands_of(Pointwise code);

// Sources are numbered: operand i is i, the result of step j is `inputs` + j.
struct PointwiseStep {
  Pointwise code = Pointwise::cast;
  int a = 0, b = -1;  // b is -1 for steps of one operand
  double immediate = 0;
  bool operator==(const PointwiseStep&) const = default;
};

struct PointwiseProgram {
  int inputs = 0;  // operands
  std::vector<PointwiseStep> steps;
  std::vector<int> results;  // the source of each result
  // Of the results. Programs of single operators other than `cast` leave it empty: as the first operand.
  std::vector<DType> dtypes;
  bool operator==(const PointwiseProgram&) const = default;
};

inline constexpr int kMaxPointwiseInputs = 8, kMaxPointwiseResults = 4, kMaxPointwiseSteps = 32;

// The operators that are such programs: one kernel of a device serves them all.
std::vector<std::string_view> elementwise_names();

// The program of any elementwise node: one step for a single operator, the decoded attributes for `fused`.
// Kernels take the dtypes of operands and results from their layouts.
PointwiseProgram pointwise_program(const OpDef& op, const Attributes& attributes, size_t inputs);

// The one step that a call computes; nullopt for `fused` and for what is not elementwise.
std::optional<Pointwise> single_step(const OpDef& op, const Attributes& attributes);

// Attributes of a `fused` node, and back. decode throws Error(usage) when they are not a sound program.
Attributes encode(const PointwiseProgram& program);
PointwiseProgram decode(const Attributes& attributes, size_t inputs);

// A program of one result that a rule writes step by step, for one call of `fused`.
class Pass {
 public:
  // Sources 0, 1, … are these operands.
  explicit Pass(std::vector<ValueId> operands) : operands_(std::move(operands)) {
    program_.inputs = static_cast<int>(operands_.size());
  }
  // Another step: its source.
  int operator()(Pointwise code, int a, int b = -1, double immediate = 0) {
    program_.steps.push_back({code, a, b, immediate});
    return program_.inputs + static_cast<int>(program_.steps.size()) - 1;
  }
  // The value of the last step.
  ValueId call(GraphBuilder& graph, DType dtype);

 private:
  std::vector<ValueId> operands_;
  PointwiseProgram program_;
};

// "t0 = mul(x0, x1); t1 = scale(t0, 0.5) -> t1 bf16"
std::string to_string(const PointwiseProgram& program);

// May this call join a chain? Elementwise, and all types are floats (integers are cast by a kernel of their
// own).
bool can_fuse(const OpDef& op, std::span<const TensorType> inputs, std::span<const TensorType> outputs);

}  // namespace het
