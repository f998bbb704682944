#include "tests/ops/case.h"

namespace het::ops_test {

std::vector<Case> scan_cases() {
  std::vector<Case> cases;
  for (const bool reverse : {false, true}) {
    const auto add = [&](const Shape& shape, int64_t dim) {
      cases.push_back({"cumsum", {T(shape)}, {{"dim", dim}, {"reverse", reverse}}, {1e-4}});
    };
    for (const Shape& shape : {Shape{1}, {7}, {3, 5}, {2, 33}, {4, 64}, {65, 127}}) add(shape, -1);
    for (const Shape& shape : {Shape{5, 1}, {9, 3}, {6, 300}, {2, 4, 17}}) add(shape, -2);
    add({3, 4, 5}, 0);
  }
  cases.push_back({"cumsum", {T({4, 9})}, {}, {1e-4}});
  return cases;
}

}  // namespace het::ops_test
