#include "tests/ops/case.h"

namespace het::ops_test {

using List = std::vector<int64_t>;

std::vector<Case> reduce_cases() {
  std::vector<Case> cases;
  for (const char* op : {"sum", "mean"}) {
    const auto add = [&](Shape shape, List dims, bool keep = false) {
      cases.push_back({op, {T(std::move(shape))}, {{"dims", std::move(dims)}, {"keep", keep}}, {1e-5}});
    };
    add({1}, {0});
    add({17}, {0});
    add({5, 33}, {0});
    add({5, 33}, {1});
    add({5, 33}, {-1}, true);
    add({5, 33}, {0}, true);
    add({5, 33}, {0, 1});
    add({5, 33}, {});
    add({2, 3, 4, 5}, {1, 3});
    add({2, 3, 4, 5}, {0, 2}, true);
    add({2, 3, 4, 5}, {2});
    add({3, 1, 7}, {1});
    add({129, 65}, {0});
    add({129, 65}, {1});
    add({7, 40, 64}, {0, 1});
    add({12000}, {0});
    // Differences would see the rounding of the result.
    cases.push_back({op, {T({6, 50}).constant()}, {{"dtype", std::string("f32")}}, {1e-5}});
    cases.push_back(
        {op, {T({6, 50}).constant()}, {{"dims", List{0}}, {"dtype", std::string("f32")}}, {1e-5}});
    cases.push_back({op, {T({})}});
  }
  return cases;
}

}  // namespace het::ops_test
