#include "tests/ops/case.h"

#include <cstdlib>

namespace het::ops_test {

OperandCase OperandCase::in(double low, double high) const {
  OperandCase result = *this;
  result.draw.low = low;
  result.draw.high = high;
  return result;
}

OperandCase OperandCase::apart(double gap) const {
  OperandCase result = *this;
  result.draw.apart = gap;
  return result;
}

OperandCase OperandCase::of(std::vector<double> values) const {
  OperandCase result = *this;
  result.draw.values = std::move(values);
  return result;
}

OperandCase OperandCase::constant() const {
  OperandCase result = *this;
  result.differentiable = false;
  return result;
}

Case Case::rounding(uint32_t results) const {
  Case result = *this;
  result.rounded = results;
  return result;
}

OperandCase T(Shape shape) { return {Kind::activation, std::move(shape)}; }
OperandCase A(Shape shape) { return {Kind::accumulator, std::move(shape)}; }
OperandCase I32(Shape shape, int64_t low, int64_t high) {
  return OperandCase{Kind::i32, std::move(shape)}.in(static_cast<double>(low), static_cast<double>(high));
}
OperandCase I64(std::vector<double> values, Shape shape) {
  return OperandCase{Kind::i64, std::move(shape)}.of(std::move(values));
}
OperandCase exact(DType dtype, Shape shape) {
  OperandCase result{Kind::exact, std::move(shape)};
  result.dtype = dtype;
  return result;
}
OperandCase absent() { return {Kind::absent, {}}; }

TensorType type_of(const OperandCase& operand, DType activation) {
  switch (operand.kind) {
    case Kind::absent: return {};
    case Kind::activation: return {activation, operand.shape};
    case Kind::accumulator: return {accumulator_of(activation), operand.shape};
    case Kind::i32: return {DType::i32, operand.shape};
    case Kind::i64: return {DType::i64, operand.shape};
    case Kind::exact: return {operand.dtype, operand.shape};
  }
  return {};
}

std::string to_string(const Case& test) {
  std::string text = test.op + "(";
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    const OperandCase& operand = test.inputs[i];
    static constexpr std::string_view kKinds[] = {"-", "T", "A", "i32", "i64", ""};
    text += fmt::format("{}{}{}{}", i == 0 ? "" : ", ", kKinds[static_cast<size_t>(operand.kind)],
                        operand.kind == Kind::exact ? name_of(operand.dtype) : "",
                        operand.kind == Kind::absent ? "" : het::to_string(operand.shape));
    if (!operand.draw.values.empty()) text += fmt::format(" of {}", fmt::join(operand.draw.values, " "));
  }
  return text + ") " + het::to_string(test.attributes);
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    for (auto family : {elementwise_cases, shape_cases, reduce_cases, softmax_cases, matmul_cases, norm_cases,
                        rotary_cases, attention_cases, embedding_cases, conv_cases, pool_cases, experts_cases,
                        gather_cases, scan_cases, loss_cases, dropout_cases, rounding_cases, optimizer_cases})
      for (Case& test : family()) all.push_back(std::move(test));
    for (Case& test : random_cases(random_seed())) all.push_back(std::move(test));
    return all;
  }();
  return cases;
}

uint64_t random_seed() {
  const char* given = std::getenv("HET_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 20260101;
}

}  // namespace het::ops_test
