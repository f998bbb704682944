// Sizes of zero, as the prompt can ask for: every operator gives a result or refuses in words.
#include <algorithm>
#include <catch2/catch.hpp>
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
  for (size_t i = 0; i < test.inputs.size(); ++i)
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
      if (op.communicates) continue;
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

}  // namespace het::ops_test
