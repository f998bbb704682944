#include <catch2/catch.hpp>

#include "core/ops/op.h"
#include "core/ops/part.h"
#include "core/program/eager.h"
#include "core/tensor/slice.h"
#include "tests/ops/case.h"
#include "tests/ops/devices.h"

namespace het::ops_test {

std::vector<Case> dropout_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{1}, {7}, {3, 5}, {2, 33}, {5, 1}, {3, 5, 18}, {4, 3, 257}, {65, 127}})
    for (const double p : {0.0, 0.1, 0.5, 0.9})
      cases.push_back({"dropout",
                       {T(shape), I64({3, 12}, {2})},
                       {{"p", p}, {"seed", int64_t{42}}, {"stream", int64_t{-7046029254386353131}}}});
  // Parts of samples, and some of the samples.
  const auto part = [&](const Shape& whole, const std::string& slice) {
    cases.push_back(
        {"dropout",
         {T(parse_slice(whole, slice).shape()), I64({3, 12}, {2})},
         {{"p", 0.5}, {"seed", int64_t{42}}, {"stream", int64_t{7}}, {"slice", slice}, {"whole", whole}}});
  };
  part({3, 15, 12}, "[:, 5:10, :]");
  part({3, 15, 7}, "[:, 3:8+9:15, :]");
  part({2, 5, 70}, "[:, :, 3:40+41:42+50:70]");
  part({9, 33}, "[2:3+5:9, :]");
  part({9, 4, 33}, "[2:3+5:9, :, 1:30]");
  for (size_t i = 0, dropped = cases.size(); i < dropped; ++i)
    if (cases[i].attributes.get<double>("p") == 0.5) {
      Case drawn{"uniform",
                 {A(cases[i].inputs[0].shape).constant(), cases[i].inputs[1]},
                 {{"seed", int64_t{42}}, {"stream", int64_t{7}}}};
      if (cases[i].attributes.has("slice")) {
        drawn.attributes.set("slice", cases[i].attributes.get<std::string>("slice"));
        drawn.attributes.set("whole", cases[i].attributes.get<Shape>("whole"));
      }
      cases.push_back(std::move(drawn));
    }
  // Steps and samples past 32 bits of either count.
  cases.push_back({"dropout",
                   {T({2, 37}), I64({3000000, 4294967290.0}, {2})},
                   {{"p", 0.3}, {"seed", int64_t{0}}, {"stream", int64_t{9}}}});
  return cases;
}

TEST_CASE("a part of an activation drops what the whole drops") {
  const Shape shape{6, 9, 21};
  const Attributes settings{{"p", 0.4}, {"seed", int64_t{3}}, {"stream", int64_t{5}}};
  const Tensor ones = [&] {
    Tensor x({DType::f32, shape});
    for (int64_t i = 0; i < x.elements(); ++i) x.set(i, 1 + static_cast<double>(i % 7));
    return x;
  }();
  Tensor counter({DType::i64, {2}});
  counter.set(0, 8);
  counter.set(1, 100);
  for (const Subject& subject : subjects()) {
    INFO(subject.name);
    Eager eager(subject.device);
    const Tensor whole = eager.call(op_named("dropout"), {ones, counter}, settings)[0];
    for (const char* text : {"[0:2, :, :]", "[1:2+4:6, :, :]", "[:, 0:4, :]", "[:, 3:9, :]",
                             "[:, :, 2:3+5:21]", "[5:6, :, 1:20]", "[:, 2:5+7:8, 1:9]"}) {
      INFO(text);
      const TensorSlice slice = parse_slice(shape, text);
      Attributes attributes = settings;
      set_part(attributes, slice);
      const Tensor y = eager.call(op_named("dropout"), {take(ones, slice), counter}, attributes)[0];
      const Tensor wanted = take(whole, slice);
      REQUIRE(y.type() == wanted.type());
      int64_t differ = 0;
      for (int64_t i = 0; i < y.elements(); ++i) differ += y.at(i) != wanted.at(i) ? 1 : 0;
      CHECK(differ == 0);
    }
  }
}

}  // namespace het::ops_test
