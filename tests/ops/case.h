// The table of cases: what each operator is tried on. One case gives the comparison of every device with the
// oracle (f64 loops), the numeric check of the gradient, and a run through lowering and fusion. A family's
// cases stand in the file of its name. Plain data.
#pragma once

#include <string>
#include <vector>

#include "core/graph/attributes.h"
#include "core/tensor/shape.h"

namespace het::ops_test {

enum class Kind : uint8_t {
  absent,
  activation,   // T: each float dtype in turn
  accumulator,  // A: accumulator_of(T)
  i32,
  i64,
  exact,  // the dtype given, whatever T is
};

// How the elements of an operand are drawn.
struct Draw {
  double low = -1, high = 1;   // uniform; integers in [low, high)
  double apart = 0;            // no closer to 0 than this: for kinks
  std::vector<double> values;  // these, repeated, instead of random ones
};

struct OperandCase {
  Kind kind = Kind::activation;
  Shape shape;
  Draw draw;
  DType dtype = DType::none;   // of Kind::exact
  bool differentiable = true;  // float operands: checked numerically

  OperandCase in(double low, double high) const;
  OperandCase apart(double gap) const;
  OperandCase of(std::vector<double> values) const;
  OperandCase constant() const;  // not differentiable
};

OperandCase T(Shape shape);  // uniform in [-1, 1]
OperandCase A(Shape shape);
OperandCase I32(Shape shape, int64_t low, int64_t high);  // in [low, high)
OperandCase I64(std::vector<double> values, Shape shape);
OperandCase exact(DType dtype, Shape shape);
OperandCase absent();

// The largest error allowed, relative to the element and to the root mean square of the result.
struct Tolerance {
  double f32 = 4e-6;
  double bf16 = 1.0 / 256;  // half a unit in the last place is 1/512 of the element
  double f16 = 1.0 / 2048;
};

struct Case {
  std::string op;
  std::vector<OperandCase> inputs;
  Attributes attributes;
  Tolerance tolerance = {};
  // Outputs whose sum with random weights is the loss of the gradient check; bit 0 alone is usual.
  uint32_t through = 1;
  bool gradient = true;  // check it, when the operator has one
  std::vector<DType> dtypes = {DType::f32, DType::bf16, DType::f16};
  // Bit o: GPUs, and processors that multiply bf16 (matrix units, dot products), round to T what result o,
  // which is f32, is a product of. There the tolerance of T holds.
  uint32_t rounded = 0;

  Case rounding(uint32_t results) const;  // this case with `rounded` set
};

TensorType type_of(const OperandCase& operand, DType activation);
std::string to_string(const Case& test);

std::vector<Case> elementwise_cases();
std::vector<Case> shape_cases();
std::vector<Case> reduce_cases();
std::vector<Case> softmax_cases();
std::vector<Case> matmul_cases();
std::vector<Case> norm_cases();
std::vector<Case> rotary_cases();
std::vector<Case> attention_cases();
std::vector<Case> embedding_cases();
std::vector<Case> conv_cases();
std::vector<Case> pool_cases();
std::vector<Case> experts_cases();
std::vector<Case> gather_cases();
std::vector<Case> scan_cases();
std::vector<Case> loss_cases();
std::vector<Case> dropout_cases();
std::vector<Case> rounding_cases();
std::vector<Case> optimizer_cases();

// All of them, and those that random.cpp draws from the seed.
const std::vector<Case>& all_cases();
std::vector<Case> random_cases(uint64_t seed);
uint64_t random_seed();  // HET_TEST_SEED, or a fixed one

}  // namespace het::ops_test
