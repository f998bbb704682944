// Sizes of zero, as the prompt can ask for: every operator gives a result or refuses in words.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/program/eager.h"
#include "tests/ops/devices.h"
#include "tests/ops/harness.h"

namespace het::ops_test {
namespace {

// The case with one dimension of one operand empty; and with all dimensions of one size empty everywhere.
std::vector<Case> emptied(const Case& test) {
  std::vector<Case> cases;
  std::set<int64_t> sizes;
  const size_t step = test.inputs.size() > 16 ? 13 : 1;  // of many equal operands every 13th
  for (size_t i = 0; i < test.inputs.size(); i += step)
    for (size_t d = 0; d < test.inputs[i].shape.size(); ++d) {
      cases.push_back(test);
      cases.back().inputs[i].shape[d] = 0;
      sizes.insert(test.inputs[i].shape[d]);
    }
  for (const int64_t size : sizes) {
    cases.push_back(test);
    for (OperandCase& operand : cases.back().inputs)
      std::replace(operand.shape.begin(), operand.shape.end(), size, int64_t{0});
  }
  for (const bool trailing : {false, true}) {  // nothing in any leading dimension; nothing at all
    cases.push_back(test);
    for (OperandCase& operand : cases.back().inputs)
      for (size_t d = 0; d < operand.shape.size(); ++d)
        if (trailing || d + 1 < operand.shape.size()) operand.shape[d] = 0;
  }
  return cases;
}

bool is_accepted(const Case& test) {
  std::vector<TensorType> types;
  for (const OperandCase& operand : test.inputs) types.push_back(type_of(operand, DType::f32));
  const OpDef& op = op_named(test.op);
  try {
    op.infer(OpCall{op, types, test.attributes});
  } catch (const Error&) {
    return false;
  }
  return true;
}

bool refuses_or_makes_nothing(const Subject& subject, const Case& test, DType dtype) {
  try {
    const auto made =
        Eager(subject.device).call(op_named(test.op), drawn_inputs(test, dtype), test.attributes);
    return std::all_of(made.begin(), made.end(), [](const Tensor& tensor) { return tensor.elements() == 0; });
  } catch (const Error& error) {
    return error.kind() == ErrorKind::usage;
  }
}

}  // namespace

TEST_CASE("operands with nothing in them give a result or an error, on every device") {
  int results = 0, refusals = 0;
  std::set<std::string> seen;
  for (const Case& test : all_cases())
    for (const Case& empty : emptied(test)) {
      if (!seen.insert(to_string(empty)).second) continue;
      INFO(to_string(empty));
      const OpDef& op = op_named(empty.op);
      std::vector<TensorType> types, wanted;
      for (const OperandCase& operand : empty.inputs) types.push_back(type_of(operand, DType::f32));
      const OpCall call{op, types, empty.attributes};
      try {
        wanted = op.infer(call);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
        ++refusals;
        continue;
      }
      ++results;
      cost_of(call, wanted);
      for (const TensorType& type : wanted) CHECK((!type.present() || type.elements() >= 0));
      if (op.collective) continue;
      for (const Subject& subject : subjects()) {
        INFO(subject.name);
        std::vector<Tensor> made;
        try {
          made = Eager(subject.device).call(op, drawn_inputs(empty, DType::f32), empty.attributes);
        } catch (const Error& error) {  // of a table without rows every index is wrong
          CHECK(error.kind() == ErrorKind::usage);
          continue;
        }
        REQUIRE(made.size() == wanted.size());
        for (size_t o = 0; o < made.size(); ++o) CHECK(made[o].type() == wanted[o]);
      }
    }
  CHECK(results > 0);
  CHECK(refusals > 0);
}

TEST_CASE("of operands with nothing in them every device makes what plain loops make, and all of it") {
  std::set<std::string> seen;
  for (const Case& test : all_cases()) {
    const OpDef& op = op_named(test.op);
    if (op.view || op.name == "concat" || op.collective) continue;  // no kernels
    const auto masks =
        op.accumulates == 0 ? std::vector<uint32_t>{0} : std::vector<uint32_t>{0, op.accumulates};
    for (const Case& empty : emptied(test)) {
      if (!seen.insert(to_string(empty)).second || !is_accepted(empty)) continue;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        if (std::find(empty.dtypes.begin(), empty.dtypes.end(), dtype) == empty.dtypes.end()) continue;
        INFO(to_string(empty) << ", " << name_of(dtype));
        std::optional<TypedCase> typed;
        try {
          typed.emplace(typed_case(empty, dtype));
        } catch (const Error& error) {  // every label of no classes is wrong
          CHECK(error.kind() == ErrorKind::usage);
        }
        for (const Subject& subject : subjects())
          for (const uint32_t accumulate : masks) {
            INFO(subject.name << ", accumulating into " << accumulate);
            bool supported = false;
            if (typed)
              CHECK(compare(*subject.device, {*typed, Placing::packed, accumulate}, supported).empty());
            else
              CHECK(refuses_or_makes_nothing(subject, empty, dtype));
          }
      }
    }
  }
}

TEST_CASE("a sum of nothing is 0, a mean of nothing NaN, and a product of nothing zeros or the bias") {
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    const auto first = [&](const char* name, const std::vector<Tensor>& inputs,
                           const Attributes& attributes = {}) {
      const Tensor result = Eager(subject.device).call(op_named(name), inputs, attributes).front();
      std::vector<double> values;
      for (int64_t i = 0; i < result.elements(); ++i) values.push_back(result.at(i));
      return values;
    };
    const auto none = [](Shape shape) { return Tensor(TensorType{DType::f32, std::move(shape)}); };
    const Tensor bias = Tensor::of<float>({1, 2, 3}, {3});
    CHECK(first("linear", {none({2, 0}), none({3, 0})}) == std::vector<double>(6, 0));
    CHECK(first("linear", {none({2, 0}), none({3, 0}), bias}) == std::vector<double>{1, 2, 3, 1, 2, 3});
    CHECK(first("linear", {none({9, 0}), none({3, 0})}) == std::vector<double>(27, 0));
    CHECK(first("matmul", {none({2, 0}), none({0, 3})}) == std::vector<double>(6, 0));
    CHECK(first("matmul", {none({4, 2, 0}), none({4, 0, 3})}) == std::vector<double>(24, 0));
    CHECK(first("linear_input_gradient", {none({2, 0}), none({0, 3})}) == std::vector<double>(6, 0));
    CHECK(first("linear_weight_gradient", {none({0, 2}), none({0, 3})}) == std::vector<double>(6, 0));
    CHECK(first("sum", {none({2, 0})}, {{"dims", std::vector<int64_t>{1}}}) == std::vector<double>(2, 0));
    CHECK(first("sum", {none({2, 0})}) == std::vector<double>{0});
    const auto means = first("mean", {none({2, 0})}, {{"dims", std::vector<int64_t>{1}}});
    CHECK((means.size() == 2 && std::isnan(means[0]) && std::isnan(means[1])));
  }
}

}  // namespace het::ops_test
