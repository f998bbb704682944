#include "tests/ops/case.h"

namespace het::ops_test {

std::vector<Case> dropout_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{1}, {7}, {3, 5}, {2, 33}, {5, 1}, {3, 5, 18}, {4, 3, 257}, {65, 127}})
    for (const double p : {0.0, 0.1, 0.5, 0.9})
      cases.push_back({"dropout",
                       {T(shape), I64({3, 12}, {2})},
                       {{"p", p}, {"seed", int64_t{42}}, {"stream", int64_t{-7046029254386353131}}}});
  // A stretch in the middle of each sample.
  cases.push_back({"dropout",
                   {T({3, 5, 12}), I64({3, 12}, {2})},
                   {{"p", 0.5}, {"seed", int64_t{42}}, {"stream", int64_t{7}}, {"offset", int64_t{60}}}});
  // Steps and samples past 32 bits of either count.
  cases.push_back({"dropout",
                   {T({2, 37}), I64({3000000, 4294967290.0}, {2})},
                   {{"p", 0.3}, {"seed", int64_t{0}}, {"stream", int64_t{9}}}});
  return cases;
}

}  // namespace het::ops_test
