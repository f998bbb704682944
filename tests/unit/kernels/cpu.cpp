// The CPU device: every instruction set that this processor can run gives the reference's results, on sizes
// that leave ragged ends for the widest vectors. What an operator means is tested in tests/ops.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include <malloc.h>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/parallel.h"
#include "core/base/random.h"
#include "core/ops/elementwise.h"
#include "core/ops/op.h"
#include "core/program/eager.h"
#include "core/tensor/tensor.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/processor.h"
#include "kernels/reference/device.h"
#include "tests/unit/io/scratch.h"

namespace het {
namespace {

struct Case {
  std::string op;
  std::vector<Layout> inputs;
  Attributes attributes;
  std::vector<Layout> outputs = {};  // packed results when empty
  uint32_t accumulate = 0;
  double spread = 1;  // standard deviation of the operands
  int64_t limit = 7;  // integers are drawn below it
};

Layout packed(DType dtype, Shape shape) { return Layout::contiguous({dtype, std::move(shape)}); }
Layout f32(Shape shape) { return packed(DType::f32, std::move(shape)); }
Layout absent() { return {}; }

// Elements of the buffer that a layout needs.
int64_t extent_of(const Layout& layout) {
  int64_t last = 0;
  for (size_t d = 0; d < layout.strides.size(); ++d) last += (layout.type.shape[d] - 1) * layout.strides[d];
  return last + 1;
}

Tensor drawn(const Layout& layout, uint64_t stream, double spread, int64_t limit) {
  if (!layout.type.present()) return {};
  Tensor buffer(TensorType{layout.type.dtype, {extent_of(layout)}});
  const PhiloxKey key = philox_key(7, stream);
  for (int64_t i = 0; i < buffer.elements(); ++i) {
    const auto words = philox(key, i);
    const double normal = std::sqrt(-2 * std::log(1 - static_cast<double>(uniform_of(words[0])))) *
                          std::cos(6.283185307179586 * uniform_of(words[1]));
    buffer.set(i, is_float(layout.type.dtype) ? spread * normal : static_cast<double>(words[0] % limit));
  }
  return buffer.view(layout);
}

std::vector<Tensor> run_case(Device& device, const Case& c) {
  const OpDef& op = op_named(c.op);
  std::vector<TensorType> types;
  std::vector<Tensor> inputs, outputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    types.push_back(c.inputs[i].type);
    inputs.push_back(drawn(c.inputs[i], i, c.spread, c.limit));
  }
  // Second moments are not negative.
  if (c.op == "adamw")
    for (int64_t i = 0; i < inputs[2].elements(); ++i) inputs[2].set(i, std::abs(inputs[2].at(i)));
  std::vector<Layout> layouts = c.outputs;
  if (layouts.empty())
    for (const TensorType& type : op.infer(OpCall{op, types, c.attributes}))
      layouts.push_back(type.present() ? Layout::contiguous(type) : Layout{});
  for (size_t o = 0; o < layouts.size(); ++o) outputs.push_back(drawn(layouts[o], 100 + o, 1, 5));
  for (size_t o = 0; o < outputs.size(); ++o)
    if (const int in = written_over(op, static_cast<int>(o)); in >= 0 && inputs[in].present())
      outputs[o] = inputs[in];

  std::vector<std::byte*> in, out;
  for (const Tensor& tensor : inputs) in.push_back(tensor.present() ? tensor.bytes() : nullptr);
  for (const Tensor& tensor : outputs) out.push_back(tensor.present() ? tensor.bytes() : nullptr);
  const auto kernel = device.prepare({op, c.attributes, c.inputs, layouts, c.accumulate});
  // A canary behind the workspace: kernels must not write past what they asked for.
  constexpr int64_t kGuard = 256;
  const Buffer workspace(kernel->workspace_bytes() + kGuard);
  std::memset(workspace.data(), 0xa5, workspace.bytes());
  kernel->run({in.data(), out.data(), workspace.data(), kernel->workspace_bytes()});
  for (int64_t i = 0; i < kGuard; ++i)
    REQUIRE(workspace.data()[kernel->workspace_bytes() + i] == std::byte{0xa5});
  return outputs;
}

// One unit in the last place of the 16-bit types: results that f32 rounding moves over a boundary differ by
// that.
double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 3e-6;
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    case DType::f64: return 1e-13;
    default: return 0;
  }
}

void require_close(const Tensor& actual, const Tensor& wanted) {
  REQUIRE(actual.type() == wanted.type());
  double square = 0;
  for (int64_t i = 0; i < wanted.elements(); ++i)
    if (std::isfinite(wanted.at(i))) square += wanted.at(i) * wanted.at(i);
  const double typical = std::sqrt(square / std::max<double>(1, static_cast<double>(wanted.elements())));
  const double tolerance = tolerance_of(wanted.dtype());
  for (int64_t i = 0; i < wanted.elements(); ++i) {
    const double a = actual.at(i), b = wanted.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    INFO("element " << i << ": " << a << ", wanted " << b);
    REQUIRE(std::abs(a - b) <= tolerance * (std::abs(b) + typical));
  }
}

// A view of `layout`'s elements with dimensions exchanged.
Layout transposed(const Layout& layout, const std::vector<int64_t>& order) { return permuted(layout, order); }
// Every `step`th element of the second last dimension's rows: rows lie further apart than they are long.
Layout spaced(DType dtype, Shape shape, int64_t gap) {
  Layout layout = packed(dtype, shape);
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    layout.strides[d] = step;
    step *= shape[d] + (d == shape.size() - 1 ? gap : 0);
  }
  return layout;
}

Attributes fused(const PointwiseProgram& program) { return encode(program); }

std::vector<Case> elementwise_cases() {
  std::vector<Case> cases;
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    for (const char* op : {"add", "sub", "mul", "div", "maximum", "gelu_gradient", "silu_gradient",
                           "relu_gradient", "tanh_gradient", "sigmoid_gradient"})
      cases.push_back({op, {packed(t, {3, 1003}), packed(t, {3, 1003})}, {}});
    for (const char* op : {"neg", "square", "sqrt", "exp", "log", "tanh", "sigmoid", "relu", "silu", "gelu"})
      cases.push_back({op, {packed(t, {5, 611})}, {}});
    cases.push_back({"scale", {packed(t, {5, 611})}, {{"factor", 0.3}}});
    cases.push_back({"shift", {packed(t, {5, 611})}, {{"amount", -0.3}}});
    cases.push_back({"gelu", {packed(t, {5, 611})}, {{"approximate", "none"}}});
    cases.push_back({"gelu_gradient", {packed(t, {5, 611}), packed(t, {5, 611})}, {{"approximate", "none"}}});
    // A row, a column, a scalar, a row longer than a tile, one that divides no tile, a middle dimension.
    cases.push_back({"add", {packed(t, {40, 128}), packed(t, {128})}, {}});
    cases.push_back({"mul", {packed(t, {40, 1}), packed(t, {40, 33})}, {}});
    cases.push_back({"sub", {packed(t, {}), packed(t, {40, 33})}, {}});
    cases.push_back({"add", {packed(t, {3, 2500}), packed(t, {2500})}, {}});
    cases.push_back({"add", {packed(t, {70, 37}), packed(t, {37})}, {}});
    cases.push_back({"div", {packed(t, {4, 5, 6}), packed(t, {5, 1})}, {}});
    cases.push_back({"add", {packed(t, {4, 1, 6}), packed(t, {5, 1})}, {}});
    cases.push_back({"add", {packed(t, {1}), packed(t, {})}, {}});
    cases.push_back({"add", {packed(t, {0, 4}), packed(t, {4})}, {}});
    for (const DType to : {DType::f32, DType::bf16, DType::f16})
      cases.push_back({"cast", {packed(t, {5, 611})}, {{"dtype", std::string(name_of(to))}}});
    // A chain with two results, one of them used again, and a row that repeats.
    PointwiseProgram program{3,
                             {{Pointwise::add, 0, 1},
                              {Pointwise::gelu_tanh, 3},
                              {Pointwise::scale, 4, -1, 0.5},
                              {Pointwise::mul, 4, 2},
                              {Pointwise::sub, 6, 3}},
                             {5, 7},
                             {DType::f32, t}};
    cases.push_back(
        {"fused", {packed(t, {130, 96}), packed(DType::f32, {96}), packed(t, {130, 96})}, fused(program)});
  }
  for (const char* op : {"exp", "tanh", "gelu", "log", "sigmoid", "silu"})
    cases.push_back({op, {f32({4000})}, {}, {}, 0, 40});
  for (const char* to : {"f32", "bf16", "i32", "i64", "u8", "bool", "f64"})
    for (const DType from : {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8, DType::boolean})
      cases.push_back({"cast", {packed(from, {311})}, {{"dtype", to}}});
  cases.push_back({"gelu", {packed(DType::f64, {311})}, {}});
  cases.push_back(
      {"gelu_gradient", {packed(DType::f64, {311}), packed(DType::f64, {311})}, {{"approximate", "none"}}});
  cases.push_back({"add", {packed(DType::f64, {9, 7}), packed(DType::f64, {7})}, {}});
  return cases;
}

std::vector<Case> row_cases() {
  std::vector<Case> cases;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t n : {1, 5, 16, 67, 128, 1000}) {
      for (const int64_t dim : {-1, 0, 1}) {
        cases.push_back({"softmax", {packed(t, {3, 9, n})}, {{"dim", dim}}});
        cases.push_back({"softmax_gradient", {packed(t, {3, 9, n}), packed(t, {3, 9, n})}, {{"dim", dim}}});
      }
      const Layout x = packed(t, {31, n}), w = f32({n}), s = f32({31});
      cases.push_back({"layer_norm", {x, w, w}, {}});
      cases.push_back({"layer_norm", {x, absent(), absent()}, {}});
      cases.push_back({"rms_norm", {x, w}, {{"eps", 1e-6}}});
      cases.push_back({"rms_norm", {x, absent()}, {}});
      cases.push_back({"layer_norm", {x, w, w, x}, {}});
      cases.push_back({"rms_norm", {x, absent(), x}, {}});
      for (const uint32_t accumulate : {0u, 2u, 6u})
        cases.push_back({"layer_norm_gradient", {x, x, w, s, s}, {}, {x, w, w}, accumulate});
      cases.push_back({"layer_norm_gradient", {x, x, absent(), s, s}, {}, {x, absent(), absent()}});
      for (const uint32_t accumulate : {0u, 2u})
        cases.push_back({"rms_norm_gradient", {x, x, w, s}, {}, {x, w}, accumulate});
      cases.push_back({"layer_norm_gradient", {x, x, w, s, s, x}, {}});
      cases.push_back({"rms_norm_gradient", {x, x, w, s, x}, {}});
    }
  cases.push_back({"layer_norm_gradient",
                   {f32({900, 128}), f32({900, 128}), f32({128}), f32({900}), f32({900})},
                   {},
                   {f32({900, 128}), f32({128}), f32({128})}});
  return cases;
}

std::vector<Case> moving_cases() {
  std::vector<Case> cases;
  using Dims = std::vector<int64_t>;
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const Dims& dims :
         {Dims{0}, Dims{1}, Dims{2}, Dims{0, 1}, Dims{1, 2}, Dims{0, 2}, Dims{0, 1, 2}, Dims{}})
      for (const Shape& shape :
           {Shape{6, 7, 33}, Shape{2, 150, 130}, Shape{30, 2, 1100}, Shape{1, 1, 1}, Shape{3, 1, 5}})
        for (const uint32_t accumulate : {0u, 1u})
          cases.push_back(
              {accumulate ? "sum" : "mean", {packed(t, shape)}, {{"dims", dims}}, {}, accumulate});
    if (t != DType::f64)
      cases.push_back({"sum", {packed(t, {700, 96})}, {{"dims", Dims{0}}, {"dtype", "f32"}}});
  }
  for (const DType t : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
    const Layout wide = packed(t, {5, 70, 3, 41});
    cases.push_back({"copy", {wide}, {}, {wide}});
    cases.push_back({"copy", {transposed(wide, {0, 2, 1, 3})}, {}, {packed(t, {5, 3, 70, 41})}});
    cases.push_back({"copy", {packed(t, {5, 3, 70, 41})}, {}, {transposed(wide, {0, 2, 1, 3})}});
    cases.push_back({"copy", {transposed(wide, {3, 2, 1, 0})}, {}, {packed(t, {41, 3, 70, 5})}});
    cases.push_back({"copy", {transposed(wide, {0, 1, 3, 2})}, {}, {packed(t, {5, 70, 41, 3})}});
    cases.push_back({"copy", {spaced(t, {20, 30}, 5)}, {}, {packed(t, {20, 30})}});
    cases.push_back({"copy", {packed(t, {20, 30})}, {}, {spaced(t, {20, 30}, 5)}});
    cases.push_back({"copy", {transposed(packed(t, {300, 200}), {1, 0})}, {}, {packed(t, {200, 300})}});
    cases.push_back({"copy", {packed(t, {})}, {}, {packed(t, {})}});
    cases.push_back({"fill", {}, {{"value", 3.0}}, {packed(t, {5, 70})}});
  }
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Layout together = packed(t, {2, 9, 3, 4, 24});  // q, k and v side by side
    Layout strided = together;
    strided.type.shape = {2, 9, 4, 24};
    strided.strides = {together.strides[0], together.strides[1], together.strides[3], 1};
    for (const bool interleaved : {false, true})
      for (const bool inverse : {false, true}) {
        const Attributes a{{"interleaved", interleaved}, {"inverse", inverse}, {"base", 500.0}};
        cases.push_back(
            {"rotary", {strided, packed(DType::i32, {9})}, a, {packed(t, {2, 9, 4, 24})}, 0, 1, 100000});
        cases.push_back(
            {"rotary", {packed(t, {2, 9, 4, 24}), packed(DType::i32, {9})}, a, {strided}, 0, 1, 50});
      }
    for (const int64_t width : {1, 16, 37, 768}) {
      cases.push_back({"embedding", {packed(DType::i32, {3, 50}), packed(t, {7, width})}, {}});
      for (const uint32_t accumulate : {0u, 1u})
        cases.push_back({"embedding_gradient",
                         {packed(t, {3, 50, width}), packed(DType::i32, {3, 50})},
                         {{"rows", int64_t{7}}},
                         {f32({7, width})},
                         accumulate});
    }
    for (const Shape& shape :
         {Shape{3, 700}, Shape{5, 1}, Shape{4, 31}, Shape{4, 48}, Shape{4, 2, 24}, Shape{300}})
      cases.push_back({"dropout",
                       {packed(t, shape), packed(DType::i64, {2})},
                       {{"p", 0.25}, {"seed", int64_t{3}}, {"stream", int64_t{-77}}},
                       {},
                       0,
                       1,
                       int64_t{1} << 31});
  }
  return cases;
}

std::vector<Case> update_cases() {
  std::vector<Case> cases;
  for (const int64_t n : {1, 40, 20000}) {
    const Layout p = f32({n}), one = f32({}), step = packed(DType::i64, {});
    cases.push_back(
        {"adamw", {p, p, p, p, one, step, one}, {{"weight_decay", 0.1}, {"beta2", 0.95}}, {}, 0, 1, 100});
    cases.push_back({"sgd", {p, absent(), p, one, one}, {{"weight_decay", 0.1}}});
    for (const bool nesterov : {false, true})
      cases.push_back({"sgd", {p, p, p, one, one}, {{"momentum", 0.9}, {"nesterov", nesterov}}});
    cases.push_back({"global_norm", {p, f32({33, 3}), f32({140000})}, {{"max_norm", 1.0}}});
    cases.push_back({"global_norm", {p}, {}});
    for (const DType t : {DType::f32, DType::bf16})
      cases.push_back({"add_n", {packed(t, {n}), packed(t, {n}), packed(t, {n})}, {}});
  }
  return cases;
}

std::string name_of(const Case& c) {
  std::string text = c.op + to_string(c.attributes);
  for (const Layout& layout : c.inputs)
    text += " " + to_string(layout.type) + fmt::format("({})", fmt::join(layout.strides, ","));
  return text + fmt::format(" accumulate {}", c.accumulate);
}

void require_reference(const std::vector<Case>& cases) {
  const auto reference = make_reference_device();
  std::vector<std::shared_ptr<Device>> devices;
  for (const std::string& set : cpu_instruction_sets()) devices.push_back(make_cpu_device(set));
  REQUIRE(!devices.empty());
  for (const Case& c : cases) {
    const auto wanted = run_case(*reference, c);
    for (size_t d = 0; d < devices.size(); ++d) {
      INFO(cpu_instruction_sets()[d] << ": " << name_of(c));
      const auto actual = run_case(*devices[d], c);
      for (size_t o = 0; o < wanted.size(); ++o) {
        INFO("result " << o);
        if (wanted[o].present()) require_close(actual[o], wanted[o]);
      }
    }
  }
}

TEST_CASE("elementwise programs equal the reference on every instruction set", "[cpu]") {
  require_reference(elementwise_cases());
}
TEST_CASE("softmax and norms equal the reference on every instruction set", "[cpu]") {
  require_reference(row_cases());
}
TEST_CASE("copies, reductions, rotary, embedding and dropout equal the reference on every instruction set",
          "[cpu]") {
  require_reference(moving_cases());
}
TEST_CASE("optimizers equal the reference on every instruction set", "[cpu]") {
  require_reference(update_cases());
}

// Of copies on unlike processors, which must stay equal.
TEST_CASE("updates have the same bits on every instruction set", "[cpu]") {
  std::vector<std::shared_ptr<Device>> devices;
  for (const std::string& set : cpu_instruction_sets()) devices.push_back(make_cpu_device(set));
  for (const Case& c : update_cases()) {
    const auto wanted = run_case(*devices[0], c);
    for (size_t d = 1; d < devices.size(); ++d) {
      INFO(cpu_instruction_sets()[d] << " and " << cpu_instruction_sets()[0] << ": " << name_of(c));
      const auto actual = run_case(*devices[d], c);
      for (size_t o = 0; o < wanted.size(); ++o) {
        if (!wanted[o].present()) continue;
        const auto bytes = extent_of(wanted[o].layout()) * bytes_of(wanted[o].dtype());
        CHECK(std::memcmp(actual[o].bytes(), wanted[o].bytes(), bytes) == 0);
      }
    }
  }
}

TEST_CASE("attention takes memory by the length of its sequence, a classifier none for all its logits",
          "[cpu]") {
  for (const std::string& set : cpu_instruction_sets()) {
    INFO(set);
    const auto device = make_cpu_device(set);
    const auto workspace = [&](const char* op, const std::vector<Layout>& inputs,
                               const Attributes& attributes) {
      std::vector<TensorType> types;
      for (const Layout& input : inputs) types.push_back(input.type);
      std::vector<Layout> outputs;
      for (const TensorType& type : op_named(op).infer(OpCall{op_named(op), types, attributes}))
        outputs.push_back(Layout::contiguous(type));
      return device->prepare({op_named(op), attributes, inputs, outputs, 0})->workspace_bytes();
    };
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Attributes causal{{"causal", true}};
      const auto forward = [&](int64_t length) {
        const Layout x = packed(dtype, {1, length, 4, 64});
        return workspace("attention", {x, x, x}, causal);
      };
      const auto backward = [&](int64_t length) {
        const Layout x = packed(dtype, {1, length, 4, 64});
        return workspace("attention_gradient", {x, x, x, x, x, f32({1, 4, length})}, causal);
      };
      CHECK(forward(8192) <= 2 * forward(4096));
      CHECK(backward(8192) <= 2 * backward(4096));
      constexpr int64_t kTokens = 8192, kClasses = 50257, kWidth = 64;
      CHECK(workspace("linear_cross_entropy_training",
                      {packed(dtype, {kTokens, kWidth}), packed(dtype, {kClasses, kWidth}), absent(),
                       packed(DType::i32, {kTokens}), f32({1})},
                      {}) < 4 * kTokens * kClasses / 4);
    }
  }
}

TEST_CASE("elementwise functions keep NaN and infinities", "[cpu]") {
  const float inf = INFINITY, nan = NAN;
  for (const std::string& set : cpu_instruction_sets()) {
    const auto device = make_cpu_device(set);
    const auto apply = [&](const char* op, const std::vector<float>& values) {
      const OpDef& def = op_named(op);
      const Tensor x = Tensor::of<float>(values, {static_cast<int64_t>(values.size())}), y(x.type());
      const std::vector<Layout> layouts{x.layout()};
      std::byte *in[] = {x.bytes()}, *out[] = {y.bytes()};
      const auto kernel = device->prepare({def, {}, layouts, layouts, 0});
      const Buffer workspace(kernel->workspace_bytes());
      kernel->run({in, out, workspace.data(), workspace.bytes()});
      return std::vector<float>(y.data<float>(), y.data<float>() + values.size());
    };
    INFO(set);
    for (const char* op : {"exp", "log", "tanh", "sigmoid", "relu", "silu", "gelu", "sqrt", "square", "neg"})
      CHECK(std::isnan(apply(op, {nan})[0]));
    CHECK(apply("exp", {inf, -inf, 89.5f, -150.0f, 0.0f}) == std::vector<float>{inf, 0, inf, 0, 1});
    CHECK(apply("exp", {-95.0f})[0] ==
          Approx(std::exp(-95.0)).epsilon(1e-4));  // below the least normal number
    CHECK(apply("log", {inf, 0.0f, 1.0f}) == std::vector<float>{inf, -inf, 0});
    CHECK(std::isnan(apply("log", {-1.0f})[0]));
    CHECK(apply("log", {0x1p-140f})[0] == Approx(-140 * std::log(2.0)).epsilon(1e-6));
    CHECK(apply("tanh", {inf, -inf, 0.0f}) == std::vector<float>{1, -1, 0});
    CHECK(apply("sigmoid", {inf, -inf, 0.0f}) == std::vector<float>{1, 0, 0.5f});
    CHECK(apply("relu", {inf, -inf, -1.0f}) == std::vector<float>{inf, 0, 0});
  }
}

TEST_CASE("results do not depend on chance, and hardly on the number of threads", "[cpu]") {
  const auto device = make_cpu_device();
  std::vector<Case> cases;
  for (const auto& group : {row_cases(), moving_cases(), update_cases()})
    cases.insert(cases.end(), group.begin(), group.end());
  const int threads = thread_count();
  for (const Case& c : cases) {
    if (c.op == "copy" || c.op == "fill") continue;
    INFO(name_of(c));
    set_thread_count(3);
    const auto first = run_case(*device, c), again = run_case(*device, c);
    set_thread_count(1);
    const auto alone = run_case(*device, c);
    for (size_t o = 0; o < first.size(); ++o) {
      if (!first[o].present()) continue;
      const auto bytes = extent_of(first[o].layout()) * bytes_of(first[o].dtype());
      REQUIRE(std::memcmp(first[o].bytes(), again[o].bytes(), bytes) == 0);
      require_close(first[o], alone[o]);
    }
  }
  set_thread_count(threads);
}

TEST_CASE("a large operand gives the same bits read in place and packed", "[cpu]") {
  constexpr int64_t kTokens = 2048, kSize = 544;
  const int threads = thread_count();
  set_thread_count(1);  // small products are divided among threads, along the tokens
  for (const std::string& set : cpu_instruction_sets()) {
    CAPTURE(set);
    Eager device(make_cpu_device(set));
    const auto gradient_of = [&](const Tensor& dy, const Tensor& x) {
      return device.call(op_named("linear_weight_gradient"), {dy, x}, {})[0];
    };
    const Tensor x = drawn(f32({kTokens, kSize}), 1, 1, 5), dy = drawn(f32({kTokens, kSize}), 2, 1, 5);
    // Whether all rows are made of a copy is the processor's choice; few of them are made in place.
    const Tensor all = gradient_of(dy, x);
    const Tensor some = gradient_of(take(dy, TensorSlice::whole(dy.shape()).narrowed(1, Range{0, 96})), x);
    CHECK(std::memcmp(all.bytes(), some.bytes(), static_cast<size_t>(some.type().bytes())) == 0);
  }
  set_thread_count(threads);
}

TEST_CASE("a product of many terms has the bits of one of fewer columns", "[cpu]") {
  // The right operand is packed some terms at a time where it is large, and at once where it has few columns.
  constexpr int64_t kTerms = 14000, kColumns = 310, kFew = 100;
  const int threads = thread_count();
  const Tensor right = drawn(f32({kTerms, kColumns}), 2, 1, 5);
  const Tensor few = take(right, TensorSlice::whole(right.shape()).narrowed(1, Range{0, kFew}));
  for (const int count : {1, 3})
    for (const int64_t rows : {10, 50}) {  // threads share out columns, or rows
      set_thread_count(count);
      const Tensor left = drawn(f32({rows, kTerms}), 1, 1, 5);
      for (const std::string& set : cpu_instruction_sets()) {
        CAPTURE(set, count, rows);
        Eager device(make_cpu_device(set));
        const Tensor all = device.call(op_named("matmul"), {left, right}, {})[0];
        const Tensor some = device.call(op_named("matmul"), {left, few}, {})[0];
        for (int64_t i = 0; i < rows; ++i)
          REQUIRE(std::memcmp(all.bytes() + 4 * i * kColumns, some.bytes() + 4 * i * kFew, 4 * kFew) == 0);
      }
    }
  set_thread_count(threads);
}

TEST_CASE("a device says what it lacks", "[cpu]") {
  CHECK_THROWS_WITH(make_cpu_device("v9"),
                    Catch::Contains("no instruction set 'v9'") && Catch::Contains("generic"));
  const auto device = make_cpu_device();
  OpDef unknown;
  unknown.name = "sofmax";
  CHECK_THROWS_WITH(device->prepare({unknown, {}, {}, {}, 0}),
                    Catch::Contains("'sofmax'") && Catch::Contains("'softmax'"));
  const std::vector<Layout> layouts{packed(DType::i32, {4})};
  CHECK_THROWS_WITH(device->prepare({op_named("softmax"), {}, layouts, layouts, 0}),
                    Catch::Contains("takes no i32"));
}

// c[m, n] = a[m, k] b[k, n] on one instruction set, from and to `type`.
std::vector<float> product(const std::string& set, DType type, const std::vector<float>& a,
                           const std::vector<float>& b, int64_t m, int64_t k, int64_t n) {
  const auto filled = [&](const std::vector<float>& values, const Shape& shape) {
    Tensor tensor({type, shape});
    for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<int64_t>(i), values[i]);
    return tensor;
  };
  const std::vector<Tensor> operands{filled(a, {m, k}), filled(b, {k, n})};
  const Tensor c = Eager(make_cpu_device(set)).call(op_named("matmul"), operands, {})[0];
  std::vector<float> values;
  for (int64_t i = 0; i < m * n; ++i) values.push_back(static_cast<float>(c.at(i)));
  return values;
}

TEST_CASE("products in f32 are as exact as multiply-adds, over the whole range of f32", "[cpu]") {
  constexpr int64_t m = 64, k = 256, n = 64;
  for (const int exponent : {-60, 0, 60}) {
    std::vector<float> a(m * k), b(k * n);
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    for (float& x : a) x = std::ldexp(normal(generator), exponent);
    for (float& x : b) x = std::ldexp(normal(generator), -exponent / 2);
    for (const std::string& set : cpu_instruction_sets()) {
      INFO(set << ", 2^" << exponent);
      const std::vector<float> c = product(set, DType::f32, a, b, m, k, n);
      double worst = 0;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0, size = 0;
          for (int64_t p = 0; p < k; ++p) {
            const double term = static_cast<double>(a[i * k + p]) * b[p * n + j];
            sum += term;
            size += std::abs(term);
          }
          worst = std::max(worst, std::abs(c[i * n + j] - sum) / size);
        }
      CHECK(worst < 4 * 0x1p-24);  // of rounding once for each term
    }
  }
}

TEST_CASE("products keep what is not finite", "[cpu]") {
  constexpr int64_t m = 48, k = 64, n = 48;
  for (const std::string& set : cpu_instruction_sets())
    for (const DType type : {DType::f32, DType::bf16})
      for (const float odd : {INFINITY, -INFINITY, std::nanf("")}) {
        INFO(set << ", " << name_of(type) << ": " << odd);
        std::vector<float> a(m * k, 1.5F), b(k * n, 0.25F);
        a[5 * k + 9] = odd;
        b[11 * n + 7] = odd;
        const std::vector<float> c = product(set, type, a, b, m, k, n);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) REQUIRE(std::isfinite(c[i * n + j]) == (i != 5 && j != 7));
      }
}

TEST_CASE("HETRUN_INSTRUCTION_SET chooses the kernels", "[cpu]") {
  constexpr const char* kName = "HETRUN_INSTRUCTION_SET";
  const char* const before = std::getenv(kName);
  const std::string kept = before == nullptr ? "" : before;
  ::setenv(kName, "", 1);
  CHECK(cpu_instruction_set() == cpu_instruction_sets().front());
  ::setenv(kName, "generic", 1);
  CHECK(cpu_instruction_set() == "generic");
  CHECK(make_cpu_device()->model() == "cpu generic");
  ::setenv(kName, "v5", 1);
  CHECK_THROWS_WITH(
      make_cpu_device(),
      Catch::StartsWith(
          "HETRUN_INSTRUCTION_SET: there is no instruction set 'v5'; this processor can run: ") &&
          Catch::Contains("generic"));
  if (before != nullptr)
    ::setenv(kName, kept.c_str(), 1);
  else
    ::unsetenv(kName);
}

TEST_CASE("the processor's peak is that of one of its instructions", "[cpu]") {
  const CpuPeak f32 = measure_cpu_peak(DType::f32);
  CHECK(f32.instruction == "f32 multiply-add");
  CHECK(f32.flops > 0);
  CHECK(std::isfinite(f32.flops));
  const std::vector<std::string> sets = cpu_instruction_sets();
  const auto has = [&](const char* set) { return std::find(sets.begin(), sets.end(), set) != sets.end(); };
  const std::string bf16 = measure_cpu_peak(DType::bf16).instruction;
  INFO(bf16);
  CHECK((bf16 == "f32 multiply-add" || (bf16 == "bf16 dot product" && has("v4_dot")) ||
         (bf16 == "bf16 matrix units" && has("v4_amx"))));
  CHECK(measure_cpu_peak(DType::f16).instruction == "f32 multiply-add");  // to which it is widened
  CHECK_THROWS_WITH(measure_cpu_peak(DType::i32), Catch::Contains("not in i32"));
}

TEST_CASE("the instruction set that multiplies fastest is chosen, the plainest among equals", "[cpu]") {
  CHECK(fastest_set({}).empty());
  const auto fastest = [](double amx, double dot, double plain) {
    return fastest_set(
        std::vector<ProductSpeed>{{"amx", {amx, amx}}, {"dot", {dot, dot}}, {"plain", {plain, plain}}});
  };
  CHECK(fastest(1, 2, 1) == "dot");
  CHECK(fastest(1, 1.05, 1) == "plain");
  CHECK(fastest(9, 2, 1) == "amx");
  CHECK(fastest(2.1, 2, 1) == "dot");
  CHECK(fastest(1, 0.5, 1) == "plain");
  // One class far behind costs more than another one gains.
  CHECK(fastest_set(std::vector<ProductSpeed>{{"a", {0.1, 9}}, {"b", {1, 1}}}) == "b");
}

TEST_CASE("every set with another way to multiply is measured in every class", "[cpu]") {
  const int threads = thread_count();
  const std::vector<ProductSpeed> speeds = measure_product_speeds();
  CHECK(thread_count() == threads);
  REQUIRE(speeds.size() == product_sets().size());
  CHECK(speeds.size() != 1);
  for (size_t i = 0; i < speeds.size(); ++i) {
    CHECK(speeds[i].set == product_sets()[i]);
    REQUIRE(speeds[i].flops.size() == product_classes().size());
    for (const double flops : speeds[i].flops) CHECK(flops > 0);
  }
  CHECK(fastest_set(speeds).empty() == speeds.empty());
}

TEST_CASE("an index outside the table is refused, not followed", "[cpu]") {
  const auto device = make_cpu_device();
  const Tensor ids = Tensor::of<int32_t>({1, 9}, {2}), table = Tensor::zeros({DType::f32, {7, 3}}),
               y({DType::f32, {2, 3}});
  const std::vector<Layout> in{ids.layout(), table.layout()}, out{y.layout()};
  std::byte *from[] = {ids.bytes(), table.bytes()}, *to[] = {y.bytes()};
  const auto kernel = device->prepare({op_named("embedding"), {}, in, out, 0});
  CHECK_THROWS_WITH(kernel->run({from, to, nullptr, 0}), Catch::Contains("index 9 at position 1"));
}

TEST_CASE("a cache that is full is refused with its size", "[cpu]") {
  const auto device = make_cpu_device();
  const Tensor one = Tensor::zeros({DType::f32, {1, 2, 1, 4}}),
               cache = Tensor::zeros({DType::f32, {1, 8, 1, 4}});
  const std::vector<Tensor> operands{one, one, one, cache, cache, Tensor::of<int32_t>({7}, {1})};
  CHECK_THROWS_WITH(Eager(device).call(op_named("attention_cached"), operands, {}),
                    "attention_cached: 2 new tokens at position 7 do not fit in a cache of 8");
}

TEST_CASE("available memory is known and within the machine", "[cpu]") {
  const int64_t bytes = make_cpu_device()->available_bytes();
  CHECK(bytes > 0);
  CHECK(bytes < int64_t{1} << 50);
}

TEST_CASE("a tensor converts as a cast does, on every device", "[cpu]") {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinite = std::numeric_limits<double>::infinity();
  const std::vector<double> values{0,          -0.9,    1.9,    -1.9,    254.9,    255.9,
                                   256,        -1,      nan,    1e30,    -1e30,    0x1p31,
                                   0x1p31 - 1, -0x1p31, 0x1p63, -0x1p63, infinite, -infinite};
  const std::vector<int64_t> whole{0,         -1,       255, 256, int64_t{1} << 40, -(int64_t{1} << 40),
                                   INT64_MAX, INT64_MIN};
  const std::vector<Tensor> sources{Tensor::of(values, {static_cast<int64_t>(values.size())}),
                                    Tensor::of(values, {static_cast<int64_t>(values.size())}).to(DType::f32),
                                    Tensor::of(whole, {static_cast<int64_t>(whole.size())})};
  std::vector<std::shared_ptr<Device>> devices{make_reference_device()};
  for (const std::string& set : cpu_instruction_sets()) devices.push_back(make_cpu_device(set));
  for (const auto& device : devices)
    for (const Tensor& source : sources)
      for (const DType dtype : {DType::i32, DType::i64, DType::u8, DType::boolean}) {
        if (source.dtype() == dtype) continue;
        INFO(device->model() << ": " << name_of(source.dtype()) << " to " << name_of(dtype));
        const Tensor converted = source.to(dtype);
        const Tensor cast =
            Eager(device).call(op_named("cast"), {source}, {{"dtype", std::string(name_of(dtype))}}).front();
        for (int64_t i = 0; i < source.elements(); ++i) CHECK(converted.at(i) == cast.at(i));
      }
  const Tensor to_i32 = sources[0].to(DType::i32);
  CHECK(to_i32.at(8) == 0);  // NaN
  CHECK(to_i32.at(9) == 2147483647);
  CHECK(to_i32.at(10) == -2147483648.0);
  CHECK(sources[2].to(DType::u8).at(1) == 0);
}

TEST_CASE("memory handed out and not yet written to is not promised again", "[cpu]") {
  mallopt(M_PERTURB, 0);  // the test runner has fresh memory filled, and so touched
  const auto device = make_cpu_device();
  const int64_t before = device->memory_budget_bytes();
  const auto untouched = device->allocate(before / 2);
  // Others use the machine meanwhile: a quarter is left to them.
  CHECK(device->memory_budget_bytes() < before - before / 4);
  CHECK(device->available_bytes() > before - before / 4);

  const auto block = device->allocate(int64_t{64} << 20);
  CHECK(untouched_bytes(block->address(), int64_t{64} << 20) > int64_t{48} << 20);
  std::memset(block->address(), 1, int64_t{64} << 20);
  CHECK(untouched_bytes(block->address(), int64_t{64} << 20) == 0);
}

TEST_CASE("ranks of one machine share its memory", "[cpu]") {
  const auto whole = make_cpu_device(), quarter = make_cpu_device({}, 4);
  const int64_t share = quarter->memory_budget_bytes();
  CHECK(share > 0);
  CHECK(share < whole->memory_budget_bytes() / 2);
  const auto block = quarter->allocate(share / 2);
  CHECK(quarter->memory_budget_bytes() <= share - share / 2);
}

TEST_CASE("a control group's file pages count as free, on every level", "[cpu]") {
  const testing::Scratch root;  // stands for /
  CHECK(available_memory(root.folder()) == std::numeric_limits<int64_t>::max());
  root.put("/proc/meminfo", "MemTotal: 4000 kB\nMemFree: 100 kB\nMemAvailable: 3000 kB\n");
  CHECK(available_memory(root.folder()) == 3000 * 1024);
  SECTION("version 2") {
    root.put("/proc/self/cgroup", "0::/outer/inner\n");
    const std::string outer = "/sys/fs/cgroup/outer", inner = outer + "/inner";
    root.put(inner + "/memory.max", "max\n");
    root.put(inner + "/memory.current", "70000\n");
    root.put(outer + "/memory.max", "100000\n");
    root.put(outer + "/memory.current", "90000\n");
    CHECK(available_memory(root.folder()) == 10000);
    root.put(outer + "/memory.stat", "anon 20000\nfile 70000\nactive_file 30000\ninactive_file 40000\n");
    CHECK(available_memory(root.folder()) == 50000);
    root.put(inner + "/memory.max", "80000\n");
    CHECK(available_memory(root.folder()) == 10000);
  }
  SECTION("version 1") {
    root.put("/proc/self/cgroup", "5:cpu:/elsewhere\n4:memory:/job\n");
    const std::string job = "/sys/fs/cgroup/memory/job";
    root.put(job + "/memory.limit_in_bytes", "100000\n");
    root.put(job + "/memory.usage_in_bytes", "90000\n");
    root.put(job + "/memory.stat", "inactive_file 1000\ntotal_inactive_file 40000\n");
    CHECK(available_memory(root.folder()) == 50000);
  }
}

}  // namespace
}  // namespace het
