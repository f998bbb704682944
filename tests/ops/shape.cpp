#include "tests/ops/case.h"

namespace het::ops_test {

using List = std::vector<int64_t>;

std::vector<Case> shape_cases() {
  std::vector<Case> cases;
  cases.push_back({"reshape", {T({2, 3, 4})}, {{"shape", List{6, 4}}}});
  cases.push_back({"reshape", {T({2, 3, 4})}, {{"shape", List{-1}}}});
  cases.push_back({"reshape", {T({5})}, {{"shape", List{1, 5, 1}}}});
  cases.push_back({"reshape", {T({1, 1})}, {{"shape", List{}}}});
  cases.push_back({"reshape", {T({})}, {{"shape", List{1, -1}}}});
  cases.push_back({"transpose", {T({3, 5})}, {{"order", List{1, 0}}}});
  cases.push_back({"transpose", {T({2, 3, 4, 5})}, {{"order", List{0, 2, 1, 3}}}});
  cases.push_back({"transpose", {T({2, 3, 4})}, {{"order", List{2, 0, 1}}}});
  cases.push_back({"transpose", {T({2, 3, 4})}, {{"order", List{0, -1, -2}}}});
  cases.push_back(
      {"slice", {T({5, 7})}, {{"dim", int64_t{1}}, {"start", int64_t{2}}, {"length", int64_t{3}}}});
  cases.push_back(
      {"slice", {T({5, 7})}, {{"dim", int64_t{0}}, {"start", int64_t{0}}, {"length", int64_t{2}}}});
  cases.push_back(
      {"slice", {T({5, 7})}, {{"dim", int64_t{-2}}, {"start", int64_t{4}}, {"length", int64_t{1}}}});
  cases.push_back(
      {"slice", {T({5, 7})}, {{"dim", int64_t{-1}}, {"start", int64_t{0}}, {"length", int64_t{7}}}});
  for (const uint32_t through : {0b111u, 0b010u, 0b100u, 0b001u}) {
    Case test{"split", {T({4, 9})}, {{"dim", int64_t{1}}, {"sizes", List{2, 3, 4}}}};
    test.through = through;
    cases.push_back(test);
  }
  cases.push_back({"split", {T({3, 4})}, {{"dim", int64_t{-2}}, {"sizes", List{3}}}});
  cases.push_back({"concat", {T({2, 3}), T({2, 5}), T({2, 1})}, {{"dim", int64_t{1}}}});
  cases.push_back({"concat", {T({2, 3}), T({4, 3})}, {{"dim", int64_t{-2}}}});
  cases.push_back({"concat", {T({2, 3})}, {{"dim", int64_t{0}}}});
  cases.push_back({"concat", {T({2, 4}), T({2, 8})}, {{"dim", int64_t{1}}}});  // that are cut in 4 units
  Case numbers{"concat", {I32({4}, 0, 9), I32({2}, 0, 9)}, {{"dim", int64_t{0}}}};
  numbers.gradient = false;
  cases.push_back(numbers);
  for (const Shape& shape : {Shape{}, {1}, {65}, {3, 5}, {2, 3, 4, 5}, {1, 7, 1, 3}, {70, 90}})
    cases.push_back({"copy", {T(shape)}});
  for (const DType dtype : {DType::i32, DType::i64, DType::u8, DType::boolean}) {
    Case test{"copy", {exact(dtype, {3, 4, 5}).in(0, 2)}};
    test.dtypes = {DType::f32};
    test.gradient = false;
    cases.push_back(test);
  }
  for (const char* dtype : {"f32", "bf16", "f16", "i32", "i64", "u8", "bool"}) {
    Case test{"fill", {}, {{"value", 1.0}, {"shape", List{3, 23}}, {"dtype", std::string(dtype)}}};
    test.dtypes = {DType::f32};
    cases.push_back(test);
  }
  for (const char* dtype : {"f32", "bf16", "f16", "i32", "bool"})
    for (const Shape& shape : {Shape{}, {7}, {3, 5}, {40, 33}}) {
      std::vector<double> values;
      for (int64_t i = 0; i < elements_of(shape); ++i) values.push_back(static_cast<double>(i % 23 - 7) / 4);
      Case test{"constant", {}, {{"values", values}, {"shape", shape}, {"dtype", std::string(dtype)}}};
      test.dtypes = {DType::f32};
      cases.push_back(test);
    }
  Case scalar{"fill", {}, {{"value", -2.5}, {"shape", List{}}, {"dtype", std::string("f32")}}};
  scalar.dtypes = {DType::f32};
  cases.push_back(scalar);
  return cases;
}

}  // namespace het::ops_test
