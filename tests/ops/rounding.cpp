#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/ops/op.h"
#include "core/ops/part.h"
#include "core/program/eager.h"
#include "core/tensor/slice.h"
#include "tests/ops/case.h"
#include "tests/ops/devices.h"

namespace het::ops_test {
namespace {

Attributes keyed(Attributes attributes = {}) {
  attributes.set("seed", int64_t{42});
  attributes.set("stream", int64_t{1234567});
  return attributes;
}

Tensor rounded(const std::shared_ptr<Device>& device, const Tensor& x, int64_t step,
               const Attributes& attributes = keyed()) {
  Tensor counter({DType::i64, {}});
  counter.set(0, static_cast<double>(step));
  return Eager(device).call(op_named("stochastic_cast"), {x, counter}, attributes)[0];
}

// The bf16 next below a positive float that is none, and the distance to the one above.
double below(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u); }
double spacing(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) & 0xffff0000u) + 0x10000u) - below(x);
}

}  // namespace

std::vector<Case> rounding_cases() {
  constexpr Tolerance kExact{0, 0, 0};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<Case> cases;
  const auto add = [&](const OperandCase& x, double step, const Attributes& attributes) {
    cases.push_back({"stochastic_cast", {x, I64({step}, {})}, keyed(attributes), kExact});
    cases.back().gradient = false;  // a step function
    cases.back().dtypes = {DType::f32};
  };
  for (const Shape& shape : {Shape{1}, {7}, {8}, {3, 5}, {2, 33}, {5, 1}, {4, 3, 257}, {65, 127}, {128, 96}})
    for (const double step : {1.0, 3000000.0, 4294967301.0}) add(exact(DType::f32, shape), step, {});
  // Exact ones, the ends of the range, numbers below the normal ones, and what is no number.
  add(exact(DType::f32, {64})
          .of({0.0, -0.0, 1.0, -0.375, 3.3895313892515355e38, -3.3895313892515355e38, 3.3961e38, -3.3961e38,
               3.4028e38, kInfinity, -kInfinity, NAN, 1e-39, -3e-41, 1.4e-45, 1.17549e-38}),
      5, {});
  // Parts: rows, columns, several stretches of either, beginning and ending anywhere.
  const auto part = [&](const Shape& whole, const std::string& slice) {
    add(exact(DType::f32, parse_slice(whole, slice).shape()), 2, {{"slice", slice}, {"whole", whole}});
  };
  part({12, 20}, "[6:12, :]");
  part({19, 7}, "[10:19, :]");
  part({24, 16}, "[2:4+10:12+18:20, :]");
  part({5, 96}, "[:, 48:96]");
  part({5, 13}, "[:, 7:13]");
  part({3, 40, 3}, "[:, 0:3+11:16+38:40, :]");
  part({70, 390}, "[:, 65:130+260:325]");
  part({9, 5, 13}, "[2:3+5:8, :, 1:4+7:12]");  // a tile
  return cases;
}

TEST_CASE("stochastic rounding gives the number itself on average") {
  // Of 64 numbers over many magnitudes, each the same 500 times, in 4 steps: 2000 draws. Five deviations of
  // their mean: by chance one of 64 means lies beyond in 28,000 choices of a seed.
  constexpr int kNumbers = 64, kTimes = 500, kSteps = 4;
  Tensor x({DType::f32, {kTimes, kNumbers}});
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int n = static_cast<int>(i % kNumbers);
    x.set(i, std::ldexp(1 + (n + 0.3) / (kNumbers + 1) / 3, n - 32));
  }
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    std::vector<double> sums(kNumbers);
    std::vector<bool> moved(kNumbers);
    Tensor first;
    for (int step = 1; step <= kSteps; ++step) {
      const Tensor y = rounded(subject.device, x, step);
      if (step == 1) first = y;
      for (int64_t i = 0; i < y.elements(); ++i) {
        sums[static_cast<size_t>(i % kNumbers)] += y.at(i);
        if (y.at(i) != first.at(i)) moved[static_cast<size_t>(i % kNumbers)] = true;
      }
    }
    for (int n = 0; n < kNumbers; ++n) {
      const float number = static_cast<float>(x.at(n));
      const double share = (number - below(number)) / spacing(number);  // that is rounded up
      REQUIRE(share > 0);
      INFO(number << " lies " << share << " of the way from one bf16 to the next");
      const double mean = sums[static_cast<size_t>(n)] / (kTimes * kSteps);
      CHECK(std::abs(mean - number) <=
            5 * spacing(number) * std::sqrt(share * (1 - share) / (kTimes * kSteps)));
      CHECK(moved[static_cast<size_t>(n)]);  // a step draws again
    }
  }
}

TEST_CASE("a part of a parameter is rounded as it is in the whole") {
  const Shape shape{42, 26};
  Tensor x({DType::f32, shape});
  for (int64_t i = 0; i < x.elements(); ++i) x.set(i, std::sin(static_cast<double>(i)));
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    const Tensor whole = rounded(subject.device, x, 9);
    for (const char* text :
         {"[0:21, :]", "[21:42, :]", "[0:7+14:21+28:35, :]", "[3:4+9:10+40:42, :]", "[:, 0:13]", "[:, 9:10]",
          "[:, 5:8+13:26]", "[5:9+30:42, 3:8+9:26]", "[41:42, 25:26]"}) {
      const TensorSlice slice = parse_slice(shape, text);
      Attributes attributes = keyed();
      set_part(attributes, slice);
      const Tensor y = rounded(subject.device, take(x, slice), 9, attributes);
      const Tensor wanted = take(whole, slice);
      REQUIRE(y.type() == wanted.type());
      int64_t differ = 0;
      for (int64_t i = 0; i < y.elements(); ++i) differ += y.at(i) != wanted.at(i) ? 1 : 0;
      INFO(text);
      CHECK(differ == 0);
    }
  }
}

}  // namespace het::ops_test
