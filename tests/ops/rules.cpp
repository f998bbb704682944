// Shape rules, messages, costs and the encoding of elementwise programs.
#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/ops/elementwise.h"
#include "core/ops/op.h"
#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

std::vector<TensorType> infer(std::string_view name, const std::vector<TensorType>& inputs,
                              const Attributes& attributes = {}) {
  const OpDef& op = op_named(name);
  return op.infer({op, inputs, attributes});
}

std::string message(std::string_view name, const std::vector<TensorType>& inputs,
                    const Attributes& attributes = {}) {
  try {
    infer(name, inputs, attributes);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

TensorType f32(Shape shape) { return {DType::f32, std::move(shape)}; }
TensorType bf16(Shape shape) { return {DType::bf16, std::move(shape)}; }
TensorType i32(Shape shape) { return {DType::i32, std::move(shape)}; }

struct Refusal {
  std::string op;
  std::vector<TensorType> inputs;
  Attributes attributes;
  std::vector<std::string> says;  // all of these
};

const std::vector<int64_t> kNoSizes;

std::vector<Refusal> refusals() {
  using List = std::vector<int64_t>;
  const auto text = [](const char* s) { return std::string(s); };
  return {
      {"add",
       {f32({2, 3}), f32({4})},
       {},
       {"add:", "[2, 3]", "[4]", "broadcast", "a is f32[2, 3]", "b is f32[4]"}},
      {"add", {f32({2}), bf16({2})}, {}, {"same dtype", "a is f32[2]", "b is bf16[2]", "cast"}},
      {"add", {f32({2})}, {}, {"takes 2 operands", "1 were given"}},
      {"add", {f32({2}), {}}, {}, {"operand b is missing"}},
      {"exp", {i32({2})}, {}, {"x has to be a float", "i32[2]"}},
      {"scale", {f32({2})}, {}, {"'factor' is missing", "operator scale"}},
      {"scale", {f32({2})}, {{"factr", 1.0}}, {"no attribute 'factr'", "did you mean 'factor'"}},
      {"exp", {f32({2})}, {{"speed", 1.0}}, {"no attributes", "'speed'"}},
      {"gelu", {f32({2})}, {{"approximate", text("tan")}}, {"'tan'", "'tanh' or 'none'"}},
      {"cast", {f32({2})}, {{"dtype", text("fp32")}}, {"no dtype 'fp32'", "did you mean 'f32'"}},
      {"cast", {f32({2})}, {}, {"needs the attribute 'dtype'"}},
      {"reshape", {f32({2, 3})}, {{"shape", List{4, 2}}}, {"6 elements", "[4, 2]", "multiply to 6"}},
      {"reshape", {f32({2, 3})}, {{"shape", List{-1, 4}}}, {"6 elements", "[-1, 4]"}},
      {"reshape", {f32({2, 3})}, {{"shape", List{-1, -1}}}, {"more than one -1"}},
      {"transpose", {f32({2, 3})}, {{"order", List{0, 0}}}, {"[0, 0]", "each of the 2 dimensions once"}},
      {"transpose", {f32({2, 3})}, {{"order", List{1}}}, {"[1]", "2 dimensions"}},
      {"slice",
       {f32({2, 3})},
       {{"dim", int64_t{1}}, {"start", int64_t{2}}, {"length", int64_t{2}}},
       {"2 to 3", "0 to 2"}},
      {"slice",
       {f32({2, 3})},
       {{"dim", int64_t{2}}, {"start", int64_t{0}}, {"length", int64_t{1}}},
       {"dimension 2", "0 to 1"}},
      {"split",
       {f32({2, 7})},
       {{"dim", int64_t{1}}, {"sizes", List{3, 3}}},
       {"[3, 3]", "sum to 7", "they sum to 6"}},
      {"split", {f32({2, 7})}, {{"dim", int64_t{1}}, {"sizes", List{7, 0}}}, {"positive"}},
      {"concat",
       {f32({2, 3}), f32({3, 3})},
       {{"dim", int64_t{1}}},
       {"f32[3, 3]", "f32[2, 3]", "dimension 1"}},
      {"concat", {f32({2, 3}), bf16({2, 3})}, {{"dim", int64_t{1}}}, {"dtype"}},
      {"sum", {f32({2, 3})}, {{"dims", List{0, -2}}}, {"dimension 0 is named twice"}},
      {"sum", {f32({2, 3})}, {{"dims", List{5}}}, {"dimension 5", "0 to 1"}},
      {"sum", {f32({2})}, {{"dtype", text("i32")}}, {"cannot be i32"}},
      {"softmax", {f32({})}, {}, {"a scalar has no dimension"}},
      {"matmul", {f32({2, 3}), f32({4, 5})}, {}, {"3 columns", "4 rows", "a is f32[2, 3]", "b is f32[4, 5]"}},
      {"matmul", {f32({2, 3}), f32({4, 5})}, {{"transpose_b", true}}, {"b transposed has 5 rows"}},
      {"matmul", {f32({2, 3, 4}), f32({3, 4, 5})}, {}, {"[2]", "[3]", "leading dimensions"}},
      {"matmul", {f32({3}), f32({3, 5})}, {}, {"a needs 2 dimensions or more"}},
      {"linear", {f32({4, 6}), f32({5, 7})}, {}, {"x of shape [4, 6]", "weight [5, 7]", "[5, 6] would fit"}},
      {"linear", {bf16({4, 6}), bf16({5, 6}), bf16({5})}, {}, {"bias has to be f32[5]", "bias is bf16[5]"}},
      {"linear", {bf16({4, 6}), f32({5, 6})}, {}, {"weight has to be bf16"}},
      {"linear", {f32({4, 6}), f32({5, 6})}, {{"activation", text("relu")}}, {"'relu'", "'none' or 'gelu'"}},
      {"linear_input_gradient",
       {f32({4, 5}), f32({5, 6})},
       {{"activation", text("gelu")}},
       {"needs the operand before"}},
      {"linear_input_gradient", {f32({4, 5}), f32({5, 6}), f32({4, 6})}, {}, {"needs an activation"}},
      {"linear_input_gradient",
       {f32({4, 5}), f32({5, 6}), f32({4, 5})},
       {{"activation", text("gelu")}},
       {"before has to be f32[4, 6]"}},
      {"linear_weight_gradient", {f32({4, 6}), f32({5, 6})}, {}, {"[4]", "[5]"}},
      {"layer_norm", {f32({4, 6}), f32({4})}, {}, {"weight has to be f32[6]", "f32[4]"}},
      {"layer_norm", {f32({4, 6})}, {{"eps", -1.0}}, {"eps = -1"}},
      {"rms_norm",
       {bf16({4, 6}), f32({6}), bf16({6})},
       {},
       {"residual has to be bf16[4, 6]", "residual is bf16[6]"}},
      {"rms_norm_gradient",
       {bf16({4, 6}), bf16({4, 6}), f32({6}), f32({4}), f32({4, 6})},
       {},
       {"skip has to be bf16[4, 6]", "skip is f32[4, 6]"}},
      {"rotary", {f32({1, 2, 3, 5}), i32({2})}, {}, {"5 elements", "4 or 6"}},
      {"rotary", {f32({1, 2, 3, 4}), i32({3})}, {}, {"positions has to be i32[2]"}},
      {"rotary",
       {f32({1, 2, 3, 4}), i32({2})},
       {{"frequencies", std::vector<double>{1, 0.5, 0.25}}},
       {"3 frequencies", "2 pairs"}},
      {"attention",
       {f32({1, 2, 5, 8}), f32({1, 2, 2, 8}), f32({1, 2, 2, 8})},
       {},
       {"5 query heads", "2 key heads"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 2, 2, 6}), f32({1, 2, 2, 6})},
       {},
       {"8 elements", "those of k 6"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 3, 2, 8}), f32({1, 3, 2, 8})},
       {{"causal", true}},
       {"causal", "2 and 3"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 2, 2, 8}), f32({1, 2, 2, 8})},
       {{"casual", true}},
       {"did you mean 'causal'"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 2, 2, 8}), f32({1, 2, 2, 8}), i32({1, 2})},
       {},
       {"starts are of causal attention"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 2, 2, 8}), f32({1, 2, 2, 8}), i32({2})},
       {{"causal", true}},
       {"starts has to be i32[1, 2]", "i32[2]"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 2, 2, 8}), f32({1, 2, 2, 8})},
       {{"window", int64_t{2}}},
       {"a window is of causal attention"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 2, 2, 8}), f32({1, 2, 2, 8})},
       {{"causal", true}, {"window", int64_t{0}}},
       {"window = 0", "at least itself"}},
      {"attention",
       {f32({1, 2, 4, 8}), f32({1, 2, 2, 8}), f32({1, 2, 2, 8})},
       {{"score_cap", 0.0}},
       {"score_cap = 0", "from 0.001 to 10000"}},
      {"attention_cached",
       {f32({1, 1, 2, 8}), f32({1, 1, 2, 8}), f32({1, 1, 2, 8}), f32({1, 3, 2, 8}), f32({1, 3, 2, 8}),
        i32({1})},
       {{"score_cap", -2.5}},
       {"score_cap = -2.5"}},
      {"attention_cached",
       {f32({1, 1, 2, 8}), f32({1, 1, 2, 8}), f32({1, 1, 2, 8}), f32({1, 3, 2, 8}), f32({1, 3, 2, 8}),
        i32({1})},
       {{"window", int64_t{-1}}},
       {"window = -1"}},
      {"attention_cached",
       {f32({1, 4, 2, 8}), f32({1, 4, 2, 8}), f32({1, 4, 2, 8}), f32({1, 3, 2, 8}), f32({1, 3, 2, 8}),
        i32({1})},
       {},
       {"4 new keys", "cache of 3"}},
      {"embedding", {f32({3}), f32({5, 4})}, {}, {"ids has to be i32"}},
      {"embedding_gradient", {f32({3, 4}), i32({3})}, {}, {"'rows' is missing"}},
      {"conv2d", {f32({2, 3, 8, 8}), f32({4, 2, 3, 3})}, {}, {"images of 3 channels in 1 group", "takes 2"}},
      {"conv2d",
       {f32({2, 4, 8, 8}), f32({3, 2, 3, 3})},
       {{"groups", int64_t{2}}},
       {"groups = 2", "3 channels"}},
      {"conv2d", {f32({2, 3, 8, 2}), f32({4, 3, 3, 3})}, {}, {"reaches over 3 columns", "images have 2"}},
      {"conv2d", {f32({2, 3, 8}), f32({4, 3, 3, 3})}, {}, {"x needs 4 dimensions"}},
      {"conv2d", {f32({2, 3, 8, 8}), f32({4, 3, 3, 3}), f32({3})}, {}, {"bias has to be f32[4]"}},
      {"conv2d", {f32({2, 3, 8, 8}), f32({4, 3, 3, 3})}, {{"stride", int64_t{0}}}, {"stride = 0 of rows"}},
      {"conv2d",
       {f32({2, 3, 8, 8}), f32({4, 3, 3, 3})},
       {{"padding", List{1, -1}}},
       {"padding = -1 of columns"}},
      {"conv2d",
       {f32({2, 3, 8, 8}), f32({4, 3, 3, 3})},
       {{"dilation", List{1, 2, 3}}},
       {"operator conv2d", "'dilation' = {1, 2, 3} has 3 numbers", "{of rows, of columns}"}},
      {"conv2d_input_gradient",
       {f32({2, 4, 6, 6}), f32({4, 3, 3, 3})},
       {{"size", List{9, 8}}},
       {"dy has to have the shape [2, 4, 7, 6]"}},
      {"conv2d_weight_gradient",
       {f32({2, 4, 6, 6}), f32({2, 3, 8, 8})},
       {{"kernel", int64_t{5}}},
       {"dy has to have the shape [2, 4, 4, 4]"}},
      {"max_pool2d", {f32({2, 3, 8, 8})}, {}, {"'kernel' is missing"}},
      {"max_pool2d",
       {f32({2, 3, 8, 2})},
       {{"kernel", int64_t{3}}},
       {"window of 3 does not fit in 2 elements"}},
      {"max_pool2d",
       {f32({2, 3, 8, 8})},
       {{"kernel", int64_t{2}}, {"padding", int64_t{2}}},
       {"padding = {2, 2} can be half of kernel = {2, 2}"}},
      {"max_pool2d_gradient",
       {f32({2, 3, 4, 3}), f32({2, 3, 8, 8})},
       {{"kernel", int64_t{2}}},
       {"dy has to have the shape [2, 3, 4, 4]"}},
      {"avg_pool2d", {f32({3, 8, 8})}, {{"kernel", int64_t{2}}}, {"x needs 4 dimensions"}},
      {"adaptive_avg_pool2d", {f32({2, 3, 8, 8})}, {{"output_size", int64_t{0}}}, {"output_size = 0"}},
      {"matmul_weight_gradient", {f32({2, 3, 4}), f32({2, 5, 4})}, {}, {"[2, 3] of a", "[2, 5] of b"}},
      {"top_k", {f32({3, 4})}, {{"k", int64_t{5}}}, {"k = 5", "of 4 entries"}},
      {"top_k", {f32({3, 4})}, {}, {"'k' is missing"}},
      {"scatter_add", {f32({3, 2}), i32({3, 2})}, {{"size", int64_t{0}}}, {"size = 0"}},
      {"scatter_add", {f32({3, 2}), i32({2, 2})}, {{"size", int64_t{4}}}, {"index has to be i32[3, 2]"}},
      {"gather", {f32({3, 4}), i32({2, 2})}, {}, {"index has to be i32[3, 2]"}},
      {"cumsum", {f32({3, 4})}, {{"dim", int64_t{2}}}, {"2"}},
      {"clamp_min", {f32({3})}, {}, {"'bound' is missing"}},
      {"expert_slots", {i32({2, 3})}, {{"experts", int64_t{4}}, {"capacity", int64_t{2}}}, {"3 dimensions"}},
      {"expert_slots",
       {i32({2, 3, 0})},
       {{"experts", int64_t{4}}, {"capacity", int64_t{2}}},
       {"choose no expert"}},
      {"expert_slots",
       {i32({2, 3, 1})},
       {{"experts", int64_t{4}}, {"capacity", int64_t{0}}},
       {"capacity = 0"}},
      {"dispatch",
       {f32({2, 3, 4}), i32({2, 5, 1})},
       {{"experts", int64_t{4}}, {"capacity", int64_t{2}}},
       {"slot has to be i32[2, 3, 1]", "i32[2, 5, 1]"}},
      {"dispatch",
       {f32({2, 3, 4}), i32({2, 3, 1})},
       {{"experts", int64_t{4}}, {"capacity", int64_t{2}}, {"first", int64_t{1}}, {"of", int64_t{4}}},
       {"4 experts from 1 on are no part of 4"}},
      {"combine", {f32({4, 1, 2, 5}), i32({2, 3, 1})}, {}, {"1 samples of y and 2 of slot"}},
      {"combine_weight_gradient",
       {f32({2, 3, 4}), f32({4, 2, 2, 5}), i32({2, 3, 1})},
       {},
       {"y has to be f32[4, 2, 2, 4]"}},
      {"cross_entropy", {f32({3, 7}), i32({4}), f32({1})}, {}, {"labels has to be i32[3]", "i32[4]"}},
      {"linear_cross_entropy",
       {f32({3, 7}), f32({9, 6}), {}, i32({3}), f32({1})},
       {},
       {"hidden of shape [3, 7]", "[9, 7] would fit"}},
      {"dropout",
       {f32({3, 7}), {DType::i64, {2}}},
       {{"p", 1.0}, {"seed", int64_t{1}}, {"stream", int64_t{1}}},
       {"p = 1"}},
      {"uniform",
       {bf16({3, 7}), {DType::i64, {2}}},
       {{"seed", int64_t{1}}, {"stream", int64_t{1}}},
       {"x has to be f32 or f64"}},
      {"stochastic_cast",
       {bf16({3}), {DType::i64, {}}},
       {{"seed", 1.0}, {"stream", 2.0}},
       {"x has to be f32"}},
      {"stochastic_cast", {f32({3}), {DType::i64, {}}}, {{"seed", 1.0}}, {"stream"}},
      {"stochastic_cast",
       {f32({3, 4}), {DType::i64, {}}},
       {{"seed", 1.0}, {"stream", 2.0}, {"whole", List{3, 8}}, {"slice", std::string("[:, 0:2+1:3]")}},
       {"operator stochastic_cast",
        "'[:, 0:2+1:3]' is no slice of a tensor [3, 8]: it has ranges that do not ascend"}},
      {"stochastic_cast",
       {f32({3, 4}), {DType::i64, {}}},
       {{"seed", 1.0}, {"stream", 2.0}, {"whole", List{3, 8}}, {"slice", std::string("[:, 0:3]")}},
       {"slice = [:, 0:3] has the shape [3, 3], and operand 0 [3, 4]"}},
      {"stochastic_cast",
       {f32({1, 1, 1}), {DType::i64, {}}},
       {{"seed", 1.0}, {"stream", 2.0}, {"whole", List{2, 2, 2}}, {"slice", std::string("[0:1, 0:1, 0:1]")}},
       {"has more than 2 cut dimensions"}},
      {"adamw",
       {bf16({3}), bf16({3}), bf16({3}), bf16({3}), f32({}), {DType::i64, {}}, f32({})},
       {},
       {"param has to be f32"}},
      {"adamw",
       {f32({3}), f32({3}), f32({4}), f32({3}), f32({}), {DType::i64, {}}, f32({})},
       {},
       {"v has to be f32[3]"}},
      {"adamw",
       {f32({3}), f32({3}), f32({3}), f32({3}), f32({}), {DType::i64, {}}, f32({})},
       {{"beta1", 1.0}},
       {"beta1 = 1"}},
      {"adamw_n",
       {f32({3}), f32({3}), f32({3}), f32({3}), f32({}), {DType::i64, {}}, f32({}), f32({})},
       {{"weight_decays", std::vector<double>{0.1}}},
       {"four operands for each parameter"}},
      {"adamw_n",
       {f32({3}), f32({3}), f32({3}), f32({3}), f32({}), {DType::i64, {}}, f32({})},
       {{"weight_decays", std::vector<double>{0.1, 0.1}}},
       {"'weight_decays' are 2, parameters 1"}},
      {"sgd",
       {f32({3}), {}, f32({3}), f32({}), f32({})},
       {{"momentum", 0.9}},
       {"needs the operand momentum"}},
      {"sgd",
       {f32({3}), {}, f32({3}), f32({}), f32({})},
       {{"nesterov", true}},
       {"nesterov needs a momentum"}},
      {"global_norm", {}, {}, {"1 or more operands"}},
      {"add_n", {f32({3}), f32({4})}, {}, {"f32[3]", "f32[4]"}},
      {"fill", {}, {{"value", 1.0}, {"shape", List{-2}}}, {"negative"}},
      {"constant", {}, {{"values", std::vector<double>{1, 2}}, {"shape", List{3}}}, {"2 values", "[3]"}},
      {"fused",
       {f32({3})},
       {{"steps", List{0, 0}},
        {"immediates", std::vector<double>{0}},
        {"results", List{1}},
        {"dtypes", text("f32")}},
       {"three"}},
      {"fused",
       {f32({3})},
       {{"steps", List{0, 0, 1}},
        {"immediates", std::vector<double>{0}},
        {"results", List{1}},
        {"dtypes", text("f32")}},
       {"step 0 (add)"}},
      {"fused",
       {f32({3})},
       {{"steps", List{999, 0, 1}},
        {"immediates", std::vector<double>{0}},
        {"results", List{1}},
        {"dtypes", text("f32")}},
       {"code 999"}},
  };
}

}  // namespace

TEST_CASE("a call that does not fit is refused with both shapes and what would") {
  for (const Refusal& refusal : refusals()) {
    const std::string said = message(refusal.op, refusal.inputs, refusal.attributes);
    INFO(refusal.op << " said: " << said);
    for (const std::string& part : refusal.says) {
      INFO("missing: " << part);
      CHECK(said.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("an unknown operator is answered with the nearest") {
  CHECK_THROWS_WITH(op_named("layernorm"), Catch::Contains("did you mean 'layer_norm'?"));
  CHECK_THROWS_WITH(op_named("zzzzzzzz"), Catch::Contains("the operators are add, "));
}

TEST_CASE("every operator is documented and can be costed") {
  for (const OpDef& op : op_table()) {
    INFO(op.name);
    CHECK(&op_named(op.name) == &op);
    CHECK(op.signature.find("→") != std::string_view::npos);
    CHECK(!op.doc.empty());
    CHECK(op.doc.back() == '.');
    CHECK(static_cast<bool>(op.infer));
  }
  for (const Case& test : all_cases()) {
    INFO(to_string(test));
    const OpDef& op = op_named(test.op);
    std::vector<TensorType> types;
    for (const OperandCase& operand : test.inputs) types.push_back(type_of(operand, DType::bf16));
    const OpCall call{op, types, test.attributes};
    const Cost cost = cost_of(call, op.infer(call));
    CHECK(cost.flops >= 0);
    CHECK((op.view ? cost.bytes == 0 : cost.bytes > 0));
  }
}

TEST_CASE("costs count what they say") {
  const auto cost = [](std::string_view name, const std::vector<TensorType>& types,
                       const Attributes& attributes = {}) {
    const OpDef& op = op_named(name);
    const OpCall call{op, types, attributes};
    return cost_of(call, op.infer(call));
  };
  CHECK(cost("linear", {bf16({2, 3, 5}), bf16({7, 5})}).flops == 2 * 6 * 5 * 7);
  CHECK(cost("linear", {bf16({2, 3, 5}), bf16({7, 5})}).bytes == 2 * (30 + 35 + 42));
  CHECK(cost("linear_weight_gradient", {bf16({2, 3, 7}), bf16({2, 3, 5})}).flops == 2 * 6 * 5 * 7);
  CHECK(cost("matmul", {f32({4, 2, 3}), f32({3, 5})}).flops == 2 * 4 * 2 * 3 * 5);
  const Attributes conv{{"padding", int64_t{1}}, {"groups", int64_t{2}}};
  CHECK(cost("conv2d", {bf16({2, 4, 5, 6}), bf16({8, 2, 3, 3})}, conv).flops ==
        2 * (2 * 8 * 5 * 6) * (2 * 9));
  CHECK(cost("matmul_weight_gradient", {bf16({4, 2, 3}), bf16({4, 2, 5})}).flops == 2 * 4 * 2 * 3 * 5);
  CHECK(cost("combine", {f32({4, 2, 3, 8}), i32({2, 5, 2})}).flops == 2 * (2 * 5 * 2) * 8);
  const TensorType head = f32({1, 4, 2, 8});
  CHECK(cost("attention", {head, head, head}).flops == 4 * 2 * 8 * 16);
  CHECK(cost("attention", {head, head, head}, {{"causal", true}}).flops == 4 * 2 * 8 * 10);
  CHECK(cost("attention", {head, head, head}, {{"causal", true}, {"window", int64_t{9}}}).flops ==
        4 * 2 * 8 * 10);
  CHECK(cost("attention", {head, head, head}, {{"causal", true}, {"window", int64_t{2}}}).flops ==
        4 * 2 * 8 * 7);
  const TensorType fresh = f32({1, 1, 2, 8});
  const std::vector<TensorType> cached{fresh, fresh, fresh, head, head, i32({1})};
  CHECK(cost("attention_cached", cached).flops == 4 * 2 * 8 * 4);
  CHECK(cost("attention_cached", cached, {{"window", int64_t{3}}}).flops == 4 * 2 * 8 * 3);
  // The rows read, not the table.
  CHECK(cost("embedding", {i32({3}), f32({1000, 4})}).bytes == 4 * (3 + 2 * 12));
}

TEST_CASE("shape rules give what they promise") {
  using List = std::vector<int64_t>;
  CHECK(infer("linear", {bf16({2, 3, 5}), bf16({7, 5}), f32({7})}) == std::vector{bf16({2, 3, 7})});
  CHECK(infer("linear_weight_gradient", {bf16({6, 7}), bf16({6, 5})}, {{"bias", true}}) ==
        std::vector{f32({7, 5}), f32({7})});
  CHECK(infer("conv2d", {bf16({2, 4, 9, 8}), bf16({6, 4, 3, 2}), f32({6})},
              {{"stride", List{2, 3}}, {"padding", int64_t{1}}, {"dilation", List{2, 1}}}) ==
        std::vector{bf16({2, 6, 4, 3})});
  CHECK(infer("conv2d_weight_gradient", {bf16({2, 6, 7, 7}), bf16({2, 4, 9, 9})},
              {{"kernel", int64_t{3}}, {"groups", int64_t{2}}, {"bias", true}}) ==
        std::vector{f32({6, 2, 3, 3}), f32({6})});
  CHECK(infer("max_pool2d", {bf16({2, 4, 9, 8})}, {{"kernel", int64_t{3}}, {"stride", int64_t{2}}}) ==
        std::vector{bf16({2, 4, 4, 3})});
  CHECK(infer("matmul_weight_gradient", {bf16({4, 6, 7}), bf16({4, 6, 5})}) == std::vector{f32({4, 7, 5})});
  CHECK(infer("expert_slots", {i32({2, 5, 1})}, {{"experts", int64_t{4}}, {"capacity", int64_t{3}}}) ==
        std::vector{i32({2, 5, 1}), i32({2, 4})});
  CHECK(infer("dispatch", {bf16({2, 5, 8}), i32({2, 5, 1}), f32({2, 5, 1})},
              {{"experts", int64_t{4}}, {"capacity", int64_t{3}}}) == std::vector{bf16({4, 2, 3, 8})});
  CHECK(infer("layer_norm", {bf16({2, 3, 5}), f32({5})}) == std::vector{bf16({2, 3, 5}), f32({6}), f32({6})});
  CHECK(infer("layer_norm", {bf16({2, 3, 5}), f32({5}), f32({5}), bf16({2, 3, 5})}) ==
        std::vector{bf16({2, 3, 5}), f32({6}), f32({6}), bf16({2, 3, 5})});
  CHECK(infer("attention", {bf16({2, 3, 4, 8}), bf16({2, 5, 2, 8}), bf16({2, 5, 2, 8})}) ==
        std::vector{bf16({2, 3, 4, 8}), f32({2, 4, 3})});
  CHECK(infer("sum", {f32({2, 3, 4})}, {{"dims", List{-1, 0}}, {"keep", true}}) ==
        std::vector{f32({1, 3, 1})});
  CHECK(infer("sum", {f32({2, 3})}, {{"dims", kNoSizes}}) == std::vector{f32({})});
  CHECK(infer("reshape", {f32({2, 3, 4})}, {{"shape", List{4, -1}}}) == std::vector{f32({4, 6})});
  CHECK(infer("sgd", {f32({3}), {}, f32({3}), f32({}), f32({})}) == std::vector{f32({3}), TensorType{}});
}

TEST_CASE("views name the elements that their shape rule promises") {
  for (const Case& test : all_cases()) {
    const OpDef& op = op_named(test.op);
    if (!op.view) continue;
    INFO(to_string(test));
    const TensorType type = type_of(test.inputs[0], DType::f32);
    const auto layouts = op.view(Layout::contiguous(type), test.attributes);
    REQUIRE(layouts);
    const auto types = op.infer({op, std::vector{type}, test.attributes});
    REQUIRE(layouts->size() == types.size());
    for (size_t i = 0; i < types.size(); ++i) CHECK((*layouts)[i].type == types[i]);
  }
}

TEST_CASE("a pointwise program survives its encoding") {
  PointwiseProgram program;
  program.inputs = 2;
  program.steps = {
      {Pointwise::mul, 0, 1}, {Pointwise::shift, 2, -1, -0.25}, {Pointwise::gelu_erf_gradient, 3, 0}};
  program.results = {4, 1};
  program.dtypes = {DType::bf16, DType::f32};
  CHECK(decode(encode(program), 2) == program);
  CHECK(to_string(program) ==
        "t0 = mul(x0, x1); t1 = shift(t0, -0.25); t2 = gelu_erf_gradient(t1, x0) -> t2 bf16, x1 f32");
}

TEST_CASE("a single elementwise operator is a program of one step") {
  for (const OpDef& op : op_table()) {
    if (!op.elementwise || op.name == "fused") continue;
    INFO(op.name);
    Attributes attributes;
    for (const auto name : op.attributes) {
      if (name == "dtype" || name == "approximate")
        attributes.set(std::string(name), std::string(name == "dtype" ? "bf16" : "none"));
      else
        attributes.set(std::string(name), 2.0);
    }
    const int operands = op.signature.find(',') == std::string_view::npos ? 1 : 2;
    const PointwiseProgram program = pointwise_program(op, attributes, static_cast<size_t>(operands));
    REQUIRE(program.steps.size() == 1);
    CHECK(single_step(op, attributes) == program.steps[0].code);
    CHECK(operands_of(program.steps[0].code) == operands);
    CHECK(program.results == std::vector<int>{operands});
    CHECK(name_of(program.steps[0].code).substr(0, 4) == op.name.substr(0, 4));
  }
}

TEST_CASE("a fused chain, and what is not elementwise, is no single step") {
  PointwiseProgram program;
  program.inputs = 2;
  program.steps = {{Pointwise::add, 0, 1}};
  program.results = {2};
  program.dtypes = {DType::f32};
  CHECK_FALSE(single_step(op_named("fused"), encode(program)).has_value());
  CHECK_FALSE(single_step(op_named("add_n"), {}).has_value());
}

}  // namespace het::ops_test
