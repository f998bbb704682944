// Indices and labels are data: a wrong one is found when the operator runs, and never followed.
#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "planner/lower/lower.h"
#include "tests/ops/devices.h"
#include "tests/ops/harness.h"

namespace het::ops_test {
namespace {

struct Wrong {
  Case test;
  size_t operand;  // that has the index
  std::string says;
};

std::vector<Wrong> wrong_indices() {
  const OperandCase ids = OperandCase{Kind::i32, {4}}.of({1, 6, 9, 0}),
                    below = OperandCase{Kind::i32, {4}}.of({1, 6, 0, -3}), scale = A({1}).of({1}),
                    table = T({7, 3}), logits = T({4, 7}), hidden = T({4, 3});
  const std::string above = ": index 9 at position 2 is outside 0 to 6: there are 7 rows",
                    negative = ": index -3 at position 3 is outside 0 to 6: there are 7 rows";
  const OperandCase pairs = OperandCase{Kind::i32, {2, 2}}.of({1, 6, 9, 0});
  const OperandCase slot = OperandCase{Kind::i32, {1, 4, 1}}.of({1, 6, 9, 0}),
                    below_none = OperandCase{Kind::i32, {1, 4, 1}}.of({1, -1, 0, -3}), x = T({1, 4, 3}),
                    places = T({7, 1, 1, 3});
  const Attributes experts{{"experts", int64_t{7}}, {"capacity", int64_t{1}}};
  const OperandCase behind = OperandCase{Kind::i32, {1, 4}}.of({0, 0, 2, 4}),
                    falls = OperandCase{Kind::i32, {1, 4}}.of({0, 1, 0, 0}), head = T({1, 4, 1, 8});
  const Attributes causal{{"causal", true}};
  return {
      {{"attention", {head, head, head, behind}, causal}, 3, ": the start of token 3 is 4"},
      {{"attention", {head, head, head, falls}, causal}, 3, ": the start of token 2 is 0"},
      {{"attention_gradient", {head, head, head, head, head, A({1, 1, 4}), falls}, causal},
       6,
       ": the start of token 2 is 0"},
      {{"scatter_add", {T({2, 2}), pairs}, {{"size", int64_t{7}}}}, 1, above},
      {{"gather", {T({2, 7}), pairs}}, 1, above},
      {{"expert_slots", {slot}, experts}, 0, above},
      {{"dispatch", {x, below_none}, experts}, 1, negative},
      {{"combine", {places, slot}}, 1, above},
      {{"combine_weight_gradient", {x, places, slot}}, 2, above},
      {{"embedding", {ids, table}}, 0, above},
      {{"embedding", {below, table}}, 0, negative},
      {{"embedding_gradient", {hidden, ids}, {{"rows", int64_t{7}}}}, 1, above},
      {{"cross_entropy", {logits, below, scale}}, 1, negative},
      {{"cross_entropy_gradient", {A({}), logits, ids, scale, A({4})}}, 2, above},
      {{"linear_cross_entropy", {hidden, table, absent(), ids, scale}}, 3, above},
      {{"linear_cross_entropy_training", {hidden, table, A({7}), below, scale}}, 3, negative},
      {{"linear_log_sum_exp", {hidden, table, absent(), ids}}, 3, above},
      {{"linear_cross_entropy_gradient", {hidden, table, absent(), ids, scale, A({4})}}, 3, above},
  };
}

}  // namespace

TEST_CASE("an index outside its table is refused with the operator's name, and the device goes on") {
  for (const Subject& subject : subjects()) {
    if (subject.is_reference()) continue;  // it has other words
    for (const Wrong& wrong : wrong_indices()) {
      INFO(subject.name << ": " << to_string(wrong.test));
      Graph graph;
      GraphBuilder builder(graph);
      std::vector<ValueId> operands;
      for (size_t i = 0; i < wrong.test.inputs.size(); ++i) {
        const TensorType type = type_of(wrong.test.inputs[i], DType::f32);
        operands.push_back(type.present() ? builder.input("x" + std::to_string(i), type) : kAbsent);
      }
      const auto results = builder.call_all(op_named(wrong.test.op), operands, wrong.test.attributes);
      graph.outputs.push_back({"y", results[0]});
      Executor executor(lower_single(graph), std::make_shared<StateStore>(subject.device, 1));
      const std::vector<Tensor> inputs = drawn_inputs(wrong.test, DType::f32);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].present()) executor.write("x" + std::to_string(i), inputs[i]);
      const auto run = [&] {
        executor.run();
        executor.read("y");
      };
      CHECK_THROWS_WITH(run(), Catch::Contains(wrong.test.op + wrong.says));
      executor.write("x" + std::to_string(wrong.operand), Tensor::zeros(inputs[wrong.operand].type()));
      CHECK_NOTHROW(run());
    }
  }
}

}  // namespace het::ops_test
