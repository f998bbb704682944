#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

using List = std::vector<int64_t>;

struct Pool {
  Shape image;
  Shape result;  // of height and width
  Attributes attributes;
};

}  // namespace

std::vector<Case> pool_cases() {
  std::vector<Case> cases;
  const std::vector<Pool> pools = {
      {{1, 1, 1, 1}, {1, 1}, {{"kernel", int64_t{1}}}},
      {{2, 3, 4, 6}, {2, 3}, {{"kernel", int64_t{2}}}},
      {{2, 3, 5, 7}, {2, 3}, {{"kernel", int64_t{2}}}},  // the last row and column are in no window
      {{1, 2, 7, 9}, {3, 4}, {{"kernel", int64_t{3}}, {"stride", int64_t{2}}}},
      {{2, 2, 6, 5}, {3, 5}, {{"kernel", List{3, 3}}, {"stride", List{2, 1}}, {"padding", int64_t{1}}}},
      {{1, 3, 3, 20}, {2, 10}, {{"kernel", List{2, 4}}, {"stride", List{1, 2}}, {"padding", List{0, 1}}}},
      {{3, 2, 8, 37}, {4, 18}, {{"kernel", int64_t{2}}}},
  };
  for (const auto& [image, result, attributes] : pools) {
    const Shape made{image[0], image[1], result[0], result[1]};
    cases.push_back({"max_pool2d", {T(image)}, attributes});
    cases.push_back({"max_pool2d_gradient", {T(made), T(image)}, attributes});
    for (const bool counted : {true, false}) {
      Attributes own = attributes;
      if (!counted) own.set("count_include_pad", false);
      cases.push_back({"avg_pool2d", {T(image)}, own, {1e-5}});
      own.set("size", List{image[2], image[3]});
      cases.push_back({"avg_pool2d_gradient", {T(made)}, own, {1e-5}});
    }
  }
  // The first of equals; nothing but negative numbers; images that fill whole vectors.
  cases.push_back({"max_pool2d_gradient",
                   {T({1, 2, 2, 2}), T({1, 2, 4, 4}).of({1, 1, 0, 0, 1, 1, 0, 0.5})},
                   {{"kernel", int64_t{2}}}});
  cases.push_back({"max_pool2d",
                   {T({1, 2, 4, 5}).in(-3, -2)},
                   {{"kernel", int64_t{3}}, {"stride", int64_t{2}}, {"padding", int64_t{1}}}});
  cases.push_back({"max_pool2d", {T({5, 4, 16, 64})}, {{"kernel", int64_t{2}}}});

  // To fewer, as many, and more elements than there are.
  for (const auto& [image, result] : std::vector<std::pair<Shape, Shape>>{{{1, 1, 1, 1}, {1, 1}},
                                                                          {{2, 3, 6, 8}, {2, 4}},
                                                                          {{4, 3, 5, 7}, {2, 3}},
                                                                          {{2, 2, 4, 3}, {4, 3}},
                                                                          {{2, 2, 1, 2}, {3, 5}},
                                                                          {{2, 3, 9, 33}, {1, 1}}}) {
    cases.push_back(
        {"adaptive_avg_pool2d", {T(image)}, {{"output_size", List{result[0], result[1]}}}, {1e-5}});
    cases.push_back({"adaptive_avg_pool2d_gradient",
                     {T({image[0], image[1], result[0], result[1]})},
                     {{"size", List{image[2], image[3]}}},
                     {1e-5}});
  }
  cases.push_back({"adaptive_avg_pool2d", {T({3, 2, 9, 5})}, {{"output_size", int64_t{2}}}, {1e-5}});
  return cases;
}

}  // namespace het::ops_test
