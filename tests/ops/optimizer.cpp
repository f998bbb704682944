#include <cmath>

#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

OperandCase number(double value) { return A({}).of({value}).constant(); }

}  // namespace

std::vector<Case> optimizer_cases() {
  std::vector<Case> cases;
  for (const double most : {0.0, 0.5, 1e6}) {
    const Attributes attributes{{"max_norm", most}};
    cases.push_back({"global_norm", {A({7})}, attributes, {1e-5}});
    cases.push_back({"global_norm", {A({3, 5}), A({1}), A({}), A({65, 127})}, attributes, {1e-5}});
  }
  // Many operands, and a large one.
  std::vector<OperandCase> many(300, A({3}));
  cases.push_back({"add_n", many, {}, {1e-5}});
  many[150] = A({40000});
  cases.push_back({"global_norm", many, {{"max_norm", 1.0}}, {1e-5}});
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)})
    cases.push_back({"global_norm", {A({3}), A({4}).of({1, bad, 0})}, {{"max_norm", 1.0}}});
  cases.push_back({"global_norm", {A({9}).of({0})}, {{"max_norm", 1.0}}});

  for (const Shape& shape : {Shape{}, {1}, {7}, {17, 3}, {65, 127}})
    for (const double step : {1, 2, 1000}) {
      const Attributes settings{
          {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", step == 2 ? 0.0 : 0.1}};
      cases.push_back({"adamw",
                       {A(shape), A(shape).in(-0.1, 0.1), A(shape).in(0.001, 0.01), A(shape), number(0.01),
                        I64({step}, {}), number(step == 2 ? 0.5 : 1)},
                       settings,
                       {1e-5}});
    }
  // Several parameters: shorter and longer than what a block takes, an empty one, more than a launch takes;
  // and nothing written.
  const auto several = [&](const std::vector<Shape>& shapes, double coefficient) {
    Case test{"adamw_n", {}, {{"beta2", 0.95}}, {1e-5}};
    std::vector<double> decays;
    for (const Shape& shape : shapes) {
      test.inputs.insert(test.inputs.end(),
                         {A(shape), A(shape).in(-0.1, 0.1), A(shape).in(0.001, 0.01), A(shape)});
      decays.push_back(decays.size() % 3 == 0 ? 0.1 : 0.0);
    }
    test.inputs.insert(test.inputs.end(), {number(0.01), I64({3}, {}), number(coefficient)});
    test.attributes.set("weight_decays", decays);
    cases.push_back(test);
  };
  several({{33}}, 1);
  several({{65, 127}, {}, {8192}, {0, 3}, {3, 5}, {17000}, {1}}, 0.5);
  several(std::vector<Shape>(650, {3}), 1);
  several({{33}, {9000}}, static_cast<double>(NAN));
  // Values of a fresh start, and settings left to their defaults.
  cases.push_back(
      {"adamw",
       {A({33}), A({33}).of({0}), A({33}).of({0}), A({33}), number(0.01), I64({1}, {}), number(1)},
       {},
       {1e-5}});
  // A coefficient that is not finite: nothing is written.
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    cases.push_back({"adamw",
                     {A({33}), A({33}), A({33}).in(0, 1), A({33}), number(0.01), I64({5}, {}), number(bad)},
                     {{"beta1", 0.9}}});
    cases.push_back({"sgd", {A({33}), A({33}), A({33}), number(0.1), number(bad)}, {{"momentum", 0.9}}});
  }

  for (const double coefficient : {1.0, 0.25, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    for (const Shape& shape : {Shape{}, {7}, {65, 127}})
      cases.push_back({"assign", {A(shape), A(shape), number(coefficient)}});

  for (const Shape& shape : {Shape{}, {1}, {17, 3}, {65, 127}}) {
    cases.push_back(
        {"sgd", {A(shape), absent(), A(shape), number(0.1), number(0.5)}, {{"weight_decay", 0.1}}});
    cases.push_back({"sgd",
                     {A(shape), A(shape), A(shape), number(0.1), number(1)},
                     {{"momentum", 0.9}, {"weight_decay", 0.01}}});
    cases.push_back({"sgd",
                     {A(shape), A(shape), A(shape), number(0.1), number(2)},
                     {{"momentum", 0.9}, {"nesterov", true}}});
    cases.push_back({"add_n", {A(shape), A(shape)}});
    cases.push_back({"add_n", {A(shape), A(shape), A(shape), A(shape)}});
    cases.push_back({"add_n", {T(shape)}});
  }
  return cases;
}

}  // namespace het::ops_test
