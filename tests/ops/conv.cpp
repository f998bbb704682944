#include "tests/ops/case.h"

namespace het::ops_test {
namespace {

constexpr Tolerance kProducts{1e-5, 1.0 / 200, 1.0 / 1500};

using List = std::vector<int64_t>;

// A convolution of [samples, groups * in, h, w] to groups * out channels.
struct Conv {
  int64_t samples, groups, in, out, h, w;
  List kernel, stride{1, 1}, padding{0, 0}, dilation{1, 1};

  int64_t places(size_t d) const {
    return ((d == 0 ? h : w) + 2 * padding[d] - (kernel[d] - 1) * dilation[d] - 1) / stride[d] + 1;
  }
};

}  // namespace

std::vector<Case> conv_cases() {
  std::vector<Case> cases;
  const auto add = [&](const Conv& c, bool gradient = true) {
    const Shape image{c.samples, c.groups * c.in, c.h, c.w};
    const Shape weight{c.groups * c.out, c.in, c.kernel[0], c.kernel[1]};
    const Shape made{c.samples, c.groups * c.out, c.places(0), c.places(1)};
    Attributes attributes;
    if (c.groups > 1) attributes.set("groups", c.groups);
    const auto set = [&](const char* name, const List& pair, int64_t usual) {
      if (pair != List{usual, usual}) attributes.set(name, pair);
    };
    set("stride", c.stride, 1);
    set("padding", c.padding, 0);
    set("dilation", c.dilation, 1);
    std::vector<Case> own{{"conv2d", {T(image), T(weight), A({weight[0]})}, attributes, kProducts},
                          {"conv2d", {T(image), T(weight)}, attributes, kProducts}};
    Attributes sized = attributes;
    sized.set("size", List{c.h, c.w});
    own.push_back({"conv2d_input_gradient", {T(made), T(weight)}, sized, kProducts});
    for (const bool bias : {false, true}) {
      Attributes with = attributes;
      with.set("kernel", c.kernel).set("bias", bias);
      own.push_back({"conv2d_weight_gradient", {T(made), T(image)}, with, kProducts});
    }
    for (Case& test : own) {
      test.gradient = gradient;
      cases.push_back(std::move(test));
    }
  };
  add({1, 1, 1, 1, 1, 1, {1, 1}});
  add({2, 1, 3, 4, 5, 6, {3, 3}, {1, 1}, {1, 1}});          // as in VGG
  add({2, 1, 3, 5, 4, 6, {2, 2}, {2, 2}});                  // as of patches
  add({1, 1, 2, 3, 7, 5, {3, 2}, {2, 1}, {1, 0}});          // unlike rows and columns
  add({2, 1, 2, 2, 6, 7, {2, 3}, {1, 2}, {2, 1}, {2, 1}});  // dilated
  add({1, 1, 2, 2, 9, 8, {3, 3}, {3, 3}, {0, 0}, {1, 2}});  // the last row is in no window
  add({3, 2, 2, 3, 4, 4, {3, 3}, {1, 1}, {1, 1}});          // groups
  add({2, 4, 1, 1, 5, 4, {3, 3}, {2, 2}, {1, 1}});          // of one channel each
  add({2, 1, 4, 3, 3, 3, {1, 1}});                          // of single elements
  add({1, 1, 2, 3, 2, 2, {2, 2}, {1, 1}, {3, 3}});          // windows of nothing but padding
  add({4, 1, 6, 4, 1, 1, {3, 3}, {1, 1}, {1, 1}});          // one place
  // The bias alone, as far as gradients go.
  cases.push_back(
      {"conv2d", {T({2, 2, 3, 3}).constant(), T({3, 2, 2, 2}).constant(), A({3})}, {}, kProducts});
  // Several tiles for each thread; more channels than are summed by every thread; few samples of many
  // channels.
  add({9, 1, 5, 33, 17, 19, {3, 3}, {1, 1}, {1, 1}}, false);
  add({3, 1, 70, 66, 8, 8, {3, 3}, {1, 1}, {1, 1}}, false);
  add({2, 1, 180, 170, 2, 2, {3, 3}, {1, 1}, {1, 1}}, false);
  add({1, 2, 20, 24, 40, 70, {3, 3}, {1, 1}, {1, 1}}, false);
  return cases;
}

}  // namespace het::ops_test
