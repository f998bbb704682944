#include <numeric>

#include "tests/ops/case.h"

namespace het::ops_test {

std::vector<Case> rotary_cases() {
  std::vector<Case> cases;
  for (const Shape& shape :
       {Shape{1, 1, 1, 2}, {2, 3, 2, 4}, {1, 5, 3, 16}, {2, 7, 1, 10}, {2, 9, 4, 64}, {5, 2, 1, 4}})
    for (const bool interleaved : {false, true})
      for (const bool inverse : {false, true}) {
        std::vector<double> positions(static_cast<size_t>(shape[1]));
        std::iota(positions.begin(), positions.end(), inverse ? 100 : 0);
        const OperandCase at = OperandCase{Kind::i32, {shape[1]}}.of(positions);
        cases.push_back(
            {"rotary",
             {T(shape), at},
             {{"interleaved", interleaved}, {"inverse", inverse}, {"base", inverse ? 500.0 : 10000.0}}});
      }
  // Given frequencies, such as those of scaled positions; a pair with 0 stays.
  for (const bool interleaved : {false, true})
    for (const bool inverse : {false, true})
      cases.push_back({"rotary",
                       {T({2, 3, 2, 8}), OperandCase{Kind::i32, {3}}.of({0, 5, 9000})},
                       {{"interleaved", interleaved},
                        {"inverse", inverse},
                        {"frequencies", std::vector<double>{1, 0.25, 0.001953125, 0}}}});
  // Far positions: angles reduced with care.
  cases.push_back(
      {"rotary", {T({1, 3, 2, 32}), OperandCase{Kind::i32, {3}}.of({8191, 32767, 131071})}, {}, {2e-5}});
  return cases;
}

}  // namespace het::ops_test
