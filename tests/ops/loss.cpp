#include <algorithm>
#include <limits>

#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

constexpr Tolerance kRows{1e-5, 1.0 / 150, 1.0 / 1000};
// The gradient of the logits is rounded to 16 bits before the products that use it.
constexpr Tolerance kProducts{1e-5, 1.0 / 60, 1.0 / 500};

}  // namespace

std::vector<Case> loss_cases() {
  std::vector<Case> cases;
  const std::vector<std::pair<Shape, int64_t>> shapes = {{{1}, 1},     {{7}, 5},    {{2, 9}, 33},
                                                         {{5, 4}, 64}, {{70}, 130}, {{}, 9}};
  for (const auto& [rows, classes] : shapes) {
    Shape logits = rows;
    logits.push_back(classes);
    const OperandCase labels = I32(rows, 0, classes);
    const OperandCase scale = A({1}).of({0.125}).constant();
    const OperandCase lse = A({elements_of(rows)}).in(2, 4);
    cases.push_back({"cross_entropy", {T(logits).in(-3, 3), labels, scale}, {}, kRows});
    cases.push_back(
        {"cross_entropy_gradient", {A({}).of({1.5}), T(logits).in(-3, 3), labels, scale, lse}, {}, kRows});
    cases.push_back({"log_probability", {T(logits).in(-3, 3), labels}, {}, kRows});
    cases.push_back({"log_probability_gradient", {A(rows), T(logits).in(-3, 3), labels, lse}, {}, kRows});
    for (const int64_t parts : {1, 3})
      cases.push_back(
          {"cross_entropy_of_parts", {A({parts, 2, elements_of(rows)}).in(-3, 3), labels, scale}, {}, kRows});
    for (const int64_t width : {1, 6, 40}) {
      Shape hidden = rows;
      hidden.push_back(width);
      for (const bool bias : {false, true}) {
        const std::vector<OperandCase> inputs = {T(hidden), T({classes, width}),
                                                 bias ? A({classes}) : absent(), labels, scale};
        cases.push_back({"linear_cross_entropy", inputs, {}, kProducts});
        cases.push_back(Case{"linear_cross_entropy_training", inputs, {}, kProducts}.rounding(0b1100));
        cases.push_back({"linear_log_probability", {inputs[0], inputs[1], inputs[2], labels}, {}, kProducts});
        // All classes, and those in the middle of three times as many.
        for (const int64_t times : {1, 3}) {
          const OperandCase among = I32(rows, 0, times * classes);
          const Attributes part{{"first", times == 1 ? 0 : classes}, {"of", times * classes}};
          std::vector<OperandCase> operands{inputs[0], inputs[1], inputs[2], among};
          cases.push_back({"linear_log_sum_exp", operands, part, kProducts});
          // Weights of both signs, but whose sum, which dhidden of the classes beside the label's is, is not
          // nearly 0: gradients of logits are rounded to T.
          cases.push_back(Case{"linear_log_probability_gradient",
                               {A(rows), inputs[0], T({classes, width}).in(-0.25, 1), inputs[2], among, lse},
                               part,
                               kProducts}
                              .rounding(0b110));
          operands.insert(operands.end(), {scale, lse});
          cases.push_back(Case{"linear_cross_entropy_gradient", operands, part, kProducts}.rounding(0b110));
        }
      }
    }
  }
  // Ignored labels: some, under another number, and all.
  const OperandCase scale = A({1}).of({0.5}).constant();
  for (const auto& [labels, ignore] : std::vector<std::pair<std::vector<double>, int64_t>>{
           {{0, -100, 4, 2, -100}, -100}, {{0, 3, 4, 3, 1}, 3}, {{-100}, -100}, {{-1, 2}, -1}}) {
    const OperandCase operand = OperandCase{Kind::i32, {5}}.of(labels);
    const Attributes attributes{{"ignore", ignore}};
    cases.push_back({"cross_entropy", {T({5, 6}), operand, scale}, attributes, kRows});
    cases.push_back(
        {"cross_entropy_gradient", {A({}), T({5, 6}), operand, scale, A({5}).in(1, 3)}, attributes, kRows});
    cases.push_back({"log_probability", {T({5, 6}), operand}, attributes, kRows});
    cases.push_back(
        {"log_probability_gradient", {A({5}), T({5, 6}), operand, A({5}).in(1, 3)}, attributes, kRows});
    cases.push_back(
        {"linear_cross_entropy", {T({5, 8}), T({6, 8}), A({6}), operand, scale}, attributes, kProducts});
    cases.push_back(Case{"linear_cross_entropy_training",
                         {T({5, 8}), T({6, 8}), absent(), operand, scale},
                         attributes,
                         kProducts}
                        .rounding(0b1100));
    cases.push_back({"linear_log_sum_exp", {T({5, 8}), T({6, 8}), A({6}), operand}, attributes, kProducts});
    cases.push_back(
        {"linear_log_probability", {T({5, 8}), T({6, 8}), A({6}), operand}, attributes, kProducts});
    cases.push_back(Case{"linear_log_probability_gradient",
                         {A({5}), T({5, 8}), T({6, 8}), absent(), operand, A({5}).in(1, 3)},
                         attributes,
                         kProducts}
                        .rounding(0b110));
    cases.push_back({"cross_entropy_of_parts", {A({2, 2, 5}), operand, scale}, attributes, kRows});
    cases.push_back(Case{"linear_cross_entropy_gradient",
                         {T({5, 8}), T({6, 8}), A({6}), operand, scale, A({5}).in(1, 3)},
                         attributes,
                         kProducts}
                        .rounding(0b110));
  }
  // More rows than a device may take at a time.
  const OperandCase many = I32({300}, 0, 40);
  for (const bool bias : {false, true}) {
    const std::vector<OperandCase> inputs = {T({300, 8}), T({40, 8}), bias ? A({40}) : absent(), many, scale};
    cases.push_back({"linear_cross_entropy", inputs, {}, kProducts});
    cases.push_back(Case{"linear_cross_entropy_training", inputs, {}, kProducts}.rounding(0b1100));
    cases.push_back({"linear_log_probability", {inputs[0], inputs[1], inputs[2], many}, {}, kProducts});
    cases.push_back(Case{"linear_log_probability_gradient",
                         {A({300}), inputs[0], inputs[1], inputs[2], many, A({300}).in(3, 5)},
                         {},
                         kProducts}
                        .rounding(0b110));
  }
  // Probabilities that are nothing in f16 once the scale of a mean has been multiplied in.
  const OperandCase zeros = OperandCase{Kind::i32, {70}}.of({0}), tiny = A({1}).of({1.0 / 8192}).constant();
  cases.push_back(
      Case{"linear_cross_entropy_training", {T({70, 8}), T({2000, 8}), absent(), zeros, tiny}, {}, kProducts}
          .rounding(0b1100));
  cases.back().dtypes = {DType::f16};
  // Rows of several packs for each thread, the last one ragged, and too long for a GPU's shared memory.
  for (const int64_t classes : {9000, 9003, 60003}) {
    const std::vector<OperandCase> inputs = {T({2, classes}).in(-8, 8), I32({2}, 0, classes), scale};
    Case row{"cross_entropy", inputs, {}, kRows};
    row.dtypes = {DType::bf16};
    cases.push_back(row);
    row.op = "log_probability";
    row.inputs.pop_back();
    cases.push_back(row);
    cases.push_back(Case{"linear_cross_entropy_training",
                         {T({2, 2}), T({classes, 2}), absent(), inputs[1], scale},
                         {},
                         kProducts}
                        .rounding(0b1100));
    cases.back().dtypes = {DType::bf16};
  }
  // Two likely classes among many that hardly are, whose probabilities add up to 0.0003 all the same.
  std::vector<double> logits(9003, -17);
  logits[4] = 0;
  logits[7] = -1;
  const OperandCase likely = OperandCase{Kind::i32, {1}}.of({7});
  cases.push_back({"cross_entropy", {T({1, 9003}).of(logits), likely, scale}, {}, kRows});
  cases.push_back({"log_probability", {T({1, 9003}).of(logits), likely}, {}, kRows});
  const OperandCase one = T({1, 1}).of({1}), classes = T({9003, 1}).of(logits);
  cases.push_back({"linear_cross_entropy", {one, classes, absent(), likely, scale}, {}, kProducts});
  cases.push_back(
      Case{"linear_cross_entropy_training", {one, classes, absent(), likely, scale}, {}, kProducts}.rounding(
          0b1100));
  cases.back().dtypes = {DType::f32, DType::bf16};  // f16 has nothing as small as these gradients of logits
  cases.push_back({"linear_log_probability", {one, classes, absent(), likely}, {}, kProducts});
  cases.push_back({"linear_log_sum_exp", {one, classes, absent(), likely}, {}, kProducts});
  // Many classes that are masked by the bias, before the others.
  std::vector<double> bias(50, -std::numeric_limits<double>::infinity());
  std::fill(bias.begin() + 40, bias.end(), 0.5);
  Case masked{"linear_cross_entropy",
              {T({3, 4}), T({50, 4}), A({50}).of(bias), I32({3}, 40, 50), scale},
              {},
              kProducts};
  masked.gradient = false;
  cases.push_back(masked);
  // Logits so large that exp of them is infinite.
  Case large{"cross_entropy",
             {T({3, 4}).of({1000, 0, -1000, 999, 500, 500, -500, 0}), I32({3}, 0, 4), scale},
             {},
             kRows};
  large.gradient = false;
  cases.push_back(large);
  return cases;
}

}  // namespace het::ops_test
