#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

// Probabilities and scores pass through 16 bits on their way to the second product.
constexpr Tolerance kProducts{1e-5, 1.0 / 80, 1.0 / 600};
// Terms of gradients too, which cancel each other more.
constexpr Tolerance kTwoProducts{1e-5, 1.0 / 60, 1.0 / 500};

struct Sizes {
  int64_t batch, queries, keys, query_heads, key_heads, size;
};

// Rows of examples of these lengths, over and over, one row after the other; each of the last tokens of a row
// may be alone.
OperandCase starts(int64_t batch, int64_t tokens, const std::vector<int64_t>& lengths, int64_t alone = 0) {
  std::vector<double> values;
  size_t example = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t start = 0, i = 0; i < tokens; ++i) {
      if (i >= tokens - alone)
        start = i;
      else if (i - start == lengths[example % lengths.size()]) {
        start = i;
        ++example;
      }
      values.push_back(static_cast<double>(start));
    }
  return OperandCase{Kind::i32, {batch, tokens}}.of(std::move(values));
}

// Rows of several examples: within a tile, over several, from one tile's edge to the next.
void add_packed(std::vector<Case>& cases) {
  struct Packed {
    Sizes s;
    OperandCase starts;
  };
  const std::vector<Packed> all = {
      {{1, 1, 1, 1, 1, 1}, starts(1, 1, {1})},
      {{2, 9, 9, 2, 1, 4}, starts(2, 9, {4, 2, 3, 1})},
      {{1, 9, 9, 2, 2, 8}, starts(1, 9, {1})},
      {{2, 40, 40, 2, 2, 16}, starts(2, 40, {17, 5, 9}, 6)},
      {{1, 70, 70, 4, 2, 32}, starts(1, 70, {70})},
      {{2, 150, 150, 2, 1, 64}, starts(2, 150, {33, 70, 5, 28, 1}, 13)},
      {{1, 300, 300, 1, 1, 24}, starts(1, 300, {128, 64, 3, 96, 9})},
      {{1, 290, 290, 2, 1, 40}, starts(1, 290, {7}, 20)},
      {{1, 270, 270, 2, 2, 128}, starts(1, 270, {2, 150, 100}, 5)},
      {{2, 40, 40, 1, 1, 136}, starts(2, 40, {20, 3, 15})},
  };
  for (const auto& [s, begin] : all) {
    const Shape q{s.batch, s.queries, s.query_heads, s.size}, k{s.batch, s.keys, s.key_heads, s.size};
    cases.push_back(
        {"attention", {T(q).in(-2, 2), T(k).in(-2, 2), T(k), begin}, {{"causal", true}}, kProducts});
    cases.push_back({"attention_gradient",
                     {T(q), T(q), T(k), T(k), T(q), A({s.batch, s.query_heads, s.queries}).in(2, 4), begin},
                     {{"causal", true}},
                     kTwoProducts});
  }
}

// Windows: of one key, within a tile, over several, longer than the row; alone and in rows of several
// examples.
void add_windows(std::vector<Case>& cases) {
  struct Windowed {
    Sizes s;
    int64_t window;
    OperandCase starts = absent();
  };
  const std::vector<Windowed> all = {
      {{1, 1, 1, 1, 1, 1}, 1},
      {{2, 9, 9, 2, 1, 4}, 1},
      {{1, 9, 9, 2, 2, 8}, 20},
      {{1, 9, 9, 2, 2, 8}, int64_t{1} << 40},
      {{2, 40, 40, 2, 2, 16}, 7},
      {{1, 150, 150, 4, 2, 32}, 64},
      {{2, 300, 300, 2, 1, 64}, 33},
      {{1, 300, 300, 1, 1, 24}, 131},
      {{1, 270, 270, 2, 2, 128}, 128},
      {{2, 70, 70, 1, 1, 136}, 50},
      {{2, 150, 150, 2, 1, 64}, 40, starts(2, 150, {33, 70, 5, 28, 1}, 13)},
      {{1, 290, 290, 2, 1, 40}, 130, starts(1, 290, {7}, 20)},
  };
  for (const auto& [s, window, begin] : all) {
    const Shape q{s.batch, s.queries, s.query_heads, s.size}, k{s.batch, s.keys, s.key_heads, s.size};
    const Attributes attributes{{"causal", true}, {"window", window}};
    cases.push_back({"attention", {T(q).in(-2, 2), T(k).in(-2, 2), T(k), begin}, attributes, kProducts});
    cases.push_back({"attention_gradient",
                     {T(q), T(q), T(k), T(k), T(q), A({s.batch, s.query_heads, s.queries}).in(2, 4), begin},
                     attributes,
                     kTwoProducts});
  }
  // With a cache: a position before the window is full, within its tile, and where whole parts are behind it.
  for (const int64_t position : {0, 30, 300, 700})
    for (const int64_t window : {1, 20, 290})
      cases.push_back({"attention_cached",
                       {T({1, 2, 6, 16}).in(-3, 3), T({1, 2, 2, 16}).in(-3, 3), T({1, 2, 2, 16}),
                        T({1, 720, 2, 16}).in(-3, 3), T({1, 720, 2, 16}),
                        OperandCase{Kind::i32, {1}}.of({static_cast<double>(position)})},
                       {{"window", window}},
                       kProducts});
  cases.push_back({"attention_cached",
                   {T({2, 70, 2, 64}), T({2, 70, 1, 64}), T({2, 70, 1, 64}), T({2, 100, 1, 64}),
                    T({2, 100, 1, 64}), OperandCase{Kind::i32, {1}}.of({20})},
                   {{"window", int64_t{45}}},
                   kProducts});
}

// Capped scores: far beyond the cap, about it and far below; alone, with windows and in rows of several
// examples, seen by all, and with a cache.
void add_caps(std::vector<Case>& cases) {
  struct Capped {
    Sizes s;
    bool causal;
    double cap;
    int64_t window = 0;  // 0: none
    OperandCase starts = absent();
  };
  const std::vector<Capped> all = {
      {{1, 1, 1, 1, 1, 1}, true, 1.5},
      {{2, 5, 9, 4, 1, 8}, false, 0.5},
      {{1, 33, 33, 2, 1, 16}, true, 50},
      {{1, 70, 70, 2, 2, 32}, true, 2},
      {{2, 150, 150, 2, 1, 64}, true, 1, 40},
      {{1, 140, 140, 4, 2, 128}, true, 1.5},
      {{1, 40, 70, 2, 1, 128}, false, 3},
      {{2, 40, 40, 2, 1, 256}, true, 2},
      {{2, 70, 70, 1, 1, 136}, true, 2, 50},
      {{2, 150, 150, 2, 1, 64}, true, 0.75, 40, starts(2, 150, {33, 70, 5, 28, 1}, 13)},
      {{1, 290, 290, 2, 1, 40}, true, 4, 0, starts(1, 290, {7}, 20)},
  };
  for (const auto& [s, causal, cap, window, begin] : all) {
    const Shape q{s.batch, s.queries, s.query_heads, s.size}, k{s.batch, s.keys, s.key_heads, s.size};
    Attributes attributes{{"causal", causal}, {"score_cap", cap}};
    if (window > 0) attributes.set("window", window);
    if (s.size == 8) attributes.set("scale", 0.7);
    cases.push_back({"attention", {T(q).in(-2, 2), T(k).in(-2, 2), T(k), begin}, attributes, kProducts});
    cases.push_back(
        {"attention_gradient",
         {T(q).in(-2, 2), T(q), T(k), T(k), T(q), A({s.batch, s.query_heads, s.queries}).in(2, 4), begin},
         attributes,
         kTwoProducts});
  }
  for (const double position : {0.0, 300.0, 700.0})
    cases.push_back(
        {"attention_cached",
         {T({1, 2, 6, 16}).in(-3, 3), T({1, 2, 2, 16}).in(-3, 3), T({1, 2, 2, 16}),
          T({1, 720, 2, 16}).in(-3, 3), T({1, 720, 2, 16}), OperandCase{Kind::i32, {1}}.of({position})},
         {{"score_cap", 1.25}, {"scale", 0.5}},
         kProducts});
  cases.push_back({"attention_cached",
                   {T({2, 70, 2, 64}), T({2, 70, 1, 64}), T({2, 70, 1, 64}), T({2, 100, 1, 64}),
                    T({2, 100, 1, 64}), OperandCase{Kind::i32, {1}}.of({20})},
                   {{"score_cap", 0.5}, {"window", int64_t{45}}},
                   kProducts});
}

}  // namespace

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  const std::vector<Sizes> sizes = {{1, 1, 1, 1, 1, 1},     {1, 3, 3, 2, 2, 4},      {2, 5, 5, 4, 2, 8},
                                    {2, 5, 9, 4, 1, 8},     {1, 17, 4, 3, 3, 6},     {1, 33, 33, 2, 1, 16},
                                    {1, 70, 70, 2, 2, 32},  {1, 130, 130, 1, 1, 64}, {3, 64, 64, 2, 2, 32},
                                    {1, 40, 70, 2, 1, 128}, {1, 150, 150, 1, 1, 72}, {1, 140, 140, 4, 2, 64},
                                    {2, 20, 20, 1, 1, 136}, {1, 9, 33, 2, 2, 512}};
  for (const Sizes& s : sizes)
    for (const bool causal : {false, true}) {
      if (causal && s.queries != s.keys) continue;
      const Shape q{s.batch, s.queries, s.query_heads, s.size}, k{s.batch, s.keys, s.key_heads, s.size};
      Attributes attributes{{"causal", causal}};
      if (s.size == 8) attributes.set("scale", 0.7);
      cases.push_back({"attention", {T(q).in(-2, 2), T(k).in(-2, 2), T(k)}, attributes, kProducts});
      // out and lse as the forward pass made them would be consistent; any others do for comparing kernels,
      // as long as the probabilities exp(score - lse) stay near 1.
      cases.push_back({"attention_gradient",
                       {T(q), T(q), T(k), T(k), T(q), A({s.batch, s.query_heads, s.queries}).in(2, 4)},
                       attributes,
                       kTwoProducts});
    }
  add_packed(cases);
  add_windows(cases);
  add_caps(cases);
  // Scores far apart: the running maximum has to be kept.
  Case steep{"attention",
             {T({1, 9, 2, 8}).in(-30, 30), T({1, 9, 2, 8}), T({1, 9, 2, 8})},
             {{"scale", 1.0}},
             kProducts};
  steep.tolerance.f32 = 1e-4;
  steep.gradient = false;
  cases.push_back(steep);
  for (const int64_t position : {0, 3, 6})
    for (const int64_t tokens : {1, 2, 4}) {
      const double at = static_cast<double>(position);
      cases.push_back({"attention_cached",
                       {T({2, tokens, 4, 8}), T({2, tokens, 2, 8}), T({2, tokens, 2, 8}), T({2, 10, 2, 8}),
                        T({2, 10, 2, 8}), OperandCase{Kind::i32, {1}}.of({at})},
                       {},
                       kProducts});
    }
  cases.push_back({"attention_cached",
                   {T({1, 1, 3, 20}), T({1, 1, 3, 20}), T({1, 1, 3, 20}), T({1, 200, 3, 20}),
                    T({1, 200, 3, 20}), OperandCase{Kind::i32, {1}}.of({199})},
                   {{"scale", 0.3}},
                   kProducts});
  cases.push_back({"attention_cached",
                   {T({5, 2, 4, 8}), T({5, 2, 4, 8}), T({5, 2, 4, 8}), T({5, 6, 4, 8}), T({5, 6, 4, 8}),
                    OperandCase{Kind::i32, {1}}.of({1})},
                   {},
                   kProducts});
  // Enough keys to be read in parts, the last ones beyond the position; and enough queries for
  // several tiles.
  for (const int64_t position : {0, 300, 700})
    cases.push_back({"attention_cached",
                     {T({1, 2, 6, 16}).in(-3, 3), T({1, 2, 2, 16}).in(-3, 3), T({1, 2, 2, 16}),
                      T({1, 720, 2, 16}).in(-3, 3), T({1, 720, 2, 16}),
                      OperandCase{Kind::i32, {1}}.of({static_cast<double>(position)})},
                     {},
                     kProducts});
  cases.push_back({"attention_cached",
                   {T({2, 70, 2, 64}), T({2, 70, 1, 64}), T({2, 70, 1, 64}), T({2, 100, 1, 64}),
                    T({2, 100, 1, 64}), OperandCase{Kind::i32, {1}}.of({20})},
                   {},
                   kProducts});
  // Scores in reverse.
  for (const Attributes& reverse :
       {Attributes{{"scale", -0.5}}, Attributes{{"scale", -0.5}, {"score_cap", 0.25}}})
    cases.push_back({"attention", {T({1, 9, 2, 8}), T({1, 9, 2, 8}), T({1, 9, 2, 8})}, reverse, kProducts});
  return cases;
}

}  // namespace het::ops_test
