// Cases of random shapes, drawn from a seed that every failure prints.
#include "core/base/random.h"

#include <algorithm>

#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : key_(philox_key(seed, hash_of("random cases"))) {}

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(philox(key_, next_++)[0] % static_cast<uint32_t>(high - low + 1));
  }
  bool coin() { return between(0, 1) == 1; }
  // Small sizes most of the time, so that edges are met, and 1 often.
  int64_t size(int64_t most) { return coin() ? between(1, std::min<int64_t>(most, 9)) : between(1, most); }
  Shape shape(int64_t least_rank, int64_t most_rank, int64_t most) {
    Shape shape(static_cast<size_t>(between(least_rank, most_rank)));
    for (int64_t& dim : shape) dim = size(most);
    return shape;
  }

 private:
  PhiloxKey key_;
  uint64_t next_ = 0;
};

// A shape that broadcasts with `shape`: leading dimensions dropped, some others 1.
Shape part_of(Dice& dice, const Shape& shape) {
  Shape part(shape.begin() + dice.between(0, static_cast<int64_t>(shape.size())), shape.end());
  for (int64_t& dim : part)
    if (dice.between(0, 2) == 0) dim = 1;
  return part;
}

constexpr Tolerance kProducts{1e-5, 1.0 / 150, 1.0 / 1000};
constexpr Tolerance kTwoProducts{1e-5, 1.0 / 60, 1.0 / 500};

}  // namespace

std::vector<Case> random_cases(uint64_t seed) {
  Dice dice(seed);
  std::vector<Case> cases;
  for (int round = 0; round < 6; ++round) {
    const Shape whole = dice.shape(1, 4, 20);
    for (const char* op : {"add", "mul", "sub"})
      cases.push_back({op, {T(part_of(dice, whole)), T(part_of(dice, whole))}});

    const Shape reduced = dice.shape(1, 4, 24);
    std::vector<int64_t> dims;
    for (size_t d = 0; d < reduced.size(); ++d)
      if (dice.coin()) dims.push_back(static_cast<int64_t>(d));
    for (const char* op : {"sum", "mean"})
      cases.push_back(
          {op, {T(reduced)}, {{"dims", dims}, {"keep", dice.coin()}}, {1e-5, 1.0 / 200, 1.0 / 1500}});

    const Shape rows = dice.shape(1, 3, 40);
    const int64_t n = rows.back(), count = elements_of(rows) / n;
    cases.push_back(
        {"softmax", {T(rows).in(-4, 4)}, {{"dim", dice.between(0, static_cast<int64_t>(rows.size()) - 1)}}});
    if (n > 1) cases.push_back({"layer_norm", {T(rows), A({n}), A({n})}, {{"eps", 1e-2}}, kProducts});
    cases.push_back({"rms_norm", {T(rows), A({n})}, {{"eps", 1e-2}}, kProducts});
    cases.push_back({"layer_norm_gradient",
                     {T(rows), T(rows), A({n}), A({count}), A({count}).in(0.5, 2)},
                     {},
                     kProducts});
    cases.push_back({"rms_norm_gradient", {T(rows), T(rows), A({n}), A({count}).in(0.5, 2)}, {}, kProducts});
    cases.push_back({"layer_norm_gradient",
                     {T(rows), T(rows), A({n}), A({count}), A({count}).in(0.5, 2), T(rows)},
                     {},
                     kProducts});
    cases.push_back(
        {"rms_norm_gradient", {T(rows), T(rows), A({n}), A({count}).in(0.5, 2), T(rows)}, {}, kProducts});

    const int64_t m = dice.size(70), k = dice.size(70), out = dice.size(70);
    const bool ta = dice.coin(), tb = dice.coin();
    Shape a = dice.shape(0, 2, 4), b = dice.coin() ? a : Shape{};
    a.insert(a.end(), {ta ? k : m, ta ? m : k});
    b.insert(b.end(), {tb ? out : k, tb ? k : out});
    cases.push_back({"matmul", {T(a), T(b)}, {{"transpose_a", ta}, {"transpose_b", tb}}, kProducts});
    Shape x = dice.shape(0, 2, 12);
    Shape dy = x, labels = x;
    x.push_back(k);
    dy.push_back(out);
    cases.push_back({"linear", {T(x), T({out, k}), dice.coin() ? A({out}) : absent()}, {}, kProducts});
    cases.push_back({"linear_input_gradient", {T(dy), T({out, k})}, {}, kProducts});
    const Attributes gelu{{"activation", "gelu"}};
    cases.push_back({"linear", {T(x), T({out, k}), dice.coin() ? A({out}) : absent()}, gelu, kProducts});
    cases.push_back({"linear_input_gradient", {T(dy), T({out, k}), T(x).in(-4, 4)}, gelu, kProducts});
    cases.push_back({"linear_weight_gradient", {T(dy), T(x)}, {{"bias", dice.coin()}}, kProducts});
    for (const char* op : {"linear_cross_entropy", "linear_cross_entropy_training"})
      cases.push_back(Case{op,
                           {T(x), T({out, k}), dice.coin() ? A({out}) : absent(), I32(labels, 0, out),
                            A({1}).of({0.25}).constant()},
                           {},
                           kTwoProducts}
                          .rounding(0b1100));

    const int64_t tokens = dice.size(80), heads = dice.between(1, 3), group = dice.between(1, 3),
                  size = dice.size(40);
    const bool causal = dice.coin();
    const Shape q{dice.between(1, 2), tokens, heads * group, size};
    const Shape keys{q[0], causal ? tokens : dice.size(80), heads, size};
    Attributes seen{{"causal", causal}};
    if (causal && dice.coin()) seen.set("window", dice.size(80));
    if (tokens % 2 == 0) seen.set("score_cap", static_cast<double>(size) / 4);
    cases.push_back({"attention", {T(q), T(keys), T(keys)}, seen, kTwoProducts});
    cases.push_back({"attention_gradient",
                     {T(q), T(q), T(keys), T(keys), T(q), A({q[0], q[2], q[1]}).in(2, 4)},
                     seen,
                     kTwoProducts});
    if (causal) {
      std::vector<double> starts;
      for (int64_t b = 0; b < q[0]; ++b)
        for (int64_t i = 0; i < tokens; ++i)
          starts.push_back(i == 0 || dice.size(9) == 1 ? static_cast<double>(i) : starts.back());
      const OperandCase begin = OperandCase{Kind::i32, {q[0], tokens}}.of(std::move(starts));
      cases.push_back({"attention", {T(q), T(keys), T(keys), begin}, seen, kTwoProducts});
      cases.push_back({"attention_gradient",
                       {T(q), T(q), T(keys), T(keys), T(q), A({q[0], q[2], q[1]}).in(2, 4), begin},
                       seen,
                       kTwoProducts});
    }
    cases.push_back({"rotary",
                     {T({q[0], tokens, q[2], 2 * size}), I32({tokens}, 0, 50)},
                     {{"interleaved", dice.coin()}}});
    cases.push_back({"embedding_gradient", {T(dy), I32(labels, 0, k)}, {{"rows", k}}, {1e-5}});
    cases.push_back({"dropout",
                     {T(rows), I64({static_cast<double>(round), 5}, {2})},
                     {{"p", 0.25}, {"seed", int64_t{1}}, {"stream", int64_t{2}}}});
  }
  return cases;
}

}  // namespace het::ops_test
