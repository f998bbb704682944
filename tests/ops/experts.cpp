#include <algorithm>
#include <cmath>
#include <random>

#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

// Experts that tokens chose at random, each token different ones: [b, t, k].
OperandCase choices(int64_t samples, int64_t tokens, int64_t k, int64_t experts, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> all(static_cast<size_t>(experts)), chosen;
  for (int64_t e = 0; e < experts; ++e) all[static_cast<size_t>(e)] = static_cast<double>(e);
  for (int64_t token = 0; token < samples * tokens; ++token) {
    std::shuffle(all.begin(), all.end(), random);
    chosen.insert(chosen.end(), all.begin(), all.begin() + k);
  }
  return OperandCase{Kind::i32, {samples, tokens, k}}.of(chosen);
}

// Slots of a sample, none twice, about one in five without: [b, t, k].
OperandCase slots(int64_t samples, int64_t tokens, int64_t k, int64_t places, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> result;
  for (int64_t b = 0; b < samples; ++b) {
    std::vector<double> of_sample(static_cast<size_t>(std::max(places, tokens * k)), -1.0);
    for (int64_t s = 0; s < places; ++s) of_sample[static_cast<size_t>(s)] = static_cast<double>(s);
    std::shuffle(of_sample.begin(), of_sample.end(), random);
    of_sample.resize(static_cast<size_t>(tokens * k));
    for (double& slot : of_sample)
      if (random() % 5 == 0) slot = -1;
    result.insert(result.end(), of_sample.begin(), of_sample.end());
  }
  return OperandCase{Kind::i32, {samples, tokens, k}}.of(result);
}

// Values that no two entries of a row are near to one another: gradients do not change the choice.
OperandCase ranked(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  const int64_t n = shape.back();
  std::vector<double> row(static_cast<size_t>(n)), values;
  for (int64_t i = 0; i < n; ++i) row[static_cast<size_t>(i)] = static_cast<double>(i - n / 2) / 16;
  for (int64_t r = 0; r < elements_of(shape) / n; ++r) {
    std::shuffle(row.begin(), row.end(), random);
    values.insert(values.end(), row.begin(), row.end());
  }
  return T(shape).of(values);
}

void add_top_k(std::vector<Case>& cases) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> shapes = {
      {{1}, {1}}, {{7}, {1, 2, 7}}, {{3, 8}, {1, 2}}, {{2, 5, 33}, {1, 4}}, {{4, 65}, {3}}, {{700, 16}, {2}}};
  unsigned seed = 0;
  for (const auto& [shape, numbers] : shapes)
    for (const int64_t k : numbers) {
      cases.push_back({"top_k", {ranked(shape, ++seed)}, {{"k", k}}});
      cases.back().gradient = elements_of(shape) < 1000;
    }
  // Equal entries: the first comes first. Infinities are entries like others; NaN counts as -inf.
  for (const std::vector<double>& row : {std::vector<double>{1, 3, 3, 1, 3},
                                         {0, -0.0, 0, 0, 0},
                                         {INFINITY, 1, INFINITY, -INFINITY, 2},
                                         {-INFINITY, NAN, -INFINITY, 1, NAN}})
    for (const int64_t k : {1, 3, 5}) {
      cases.push_back({"top_k", {T({4, 5}).of(row)}, {{"k", k}}});
      cases.back().gradient = false;
    }
}

struct Sizes {
  int64_t samples, tokens, k, experts, capacity, width;
};

void add_ways(std::vector<Case>& cases, const Sizes& s, unsigned seed) {
  const OperandCase slot = slots(s.samples, s.tokens, s.k, s.experts * s.capacity, seed);
  const Shape x{s.samples, s.tokens, s.width}, y{s.experts, s.samples, s.capacity, s.width};
  const Shape chosen{s.samples, s.tokens, s.k};
  const Attributes there{{"experts", s.experts}, {"capacity", s.capacity}};
  for (const OperandCase& weight : {absent(), A(chosen)}) {
    cases.push_back({"dispatch", {T(x), slot, weight}, there});
    cases.push_back({"combine", {T(y), slot, weight}});
  }
  cases.push_back({"combine_weight_gradient", {T(x), T(y), slot}, {}, {1e-5}});
  // Two experts in the middle of them all.
  if (s.experts < 4) return;
  const Attributes part{{"first", int64_t{1}}, {"of", s.experts}};
  Attributes there_part = part;
  there_part.set("experts", int64_t{2});
  there_part.set("capacity", s.capacity);
  Shape own = y;
  own[0] = 2;
  cases.push_back({"dispatch", {T(x), slot, A(chosen)}, there_part});
  cases.push_back({"combine", {T(own), slot, A(chosen)}, part});
  cases.push_back({"combine_weight_gradient", {T(x), T(own), slot}, part, {1e-5}});
}

}  // namespace

std::vector<Case> experts_cases() {
  std::vector<Case> cases;
  add_top_k(cases);
  unsigned seed = 100;
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1, 1},
                         {3, 7, 1, 4, 2, 5},
                         {2, 9, 2, 4, 3, 8},
                         {4, 5, 3, 5, 3, 33},
                         {1, 40, 2, 8, 6, 64},
                         {3, 130, 2, 140, 2, 4},
                         {2, 1200, 1, 4, 300, 3}}) {
    const OperandCase expert = choices(s.samples, s.tokens, s.k, s.experts, ++seed);
    cases.push_back({"expert_slots", {expert}, {{"experts", s.experts}, {"capacity", s.capacity}}});
    const size_t before = cases.size();
    add_ways(cases, s, ++seed);
    for (size_t i = before; i < cases.size(); ++i) cases[i].gradient = s.tokens < 100;
  }
  // All choose one expert, which has room for a few of them.
  cases.push_back({"expert_slots",
                   {OperandCase{Kind::i32, {2, 6, 1}}.of({2})},
                   {{"experts", int64_t{3}}, {"capacity", int64_t{4}}}});
  return cases;
}

}  // namespace het::ops_test
