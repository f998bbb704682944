#include "core/tensor/tensor.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "core/base/error.h"

using namespace het;

TEST_CASE("a view shares its elements, a packed copy does not") {
  Tensor matrix = Tensor::of<float>({0, 1, 2, 3, 4, 5}, {2, 3});
  Tensor column = matrix.view(sliced(matrix.layout(), 1, 1, 1));
  CHECK(column.at(0) == 1);
  CHECK(column.at(1) == 4);
  column.set(1, 40);
  CHECK(matrix.at(4) == 40);
  Tensor copy = column.contiguous();
  copy.set(0, 7);
  CHECK(matrix.at(1) == 1);
}

TEST_CASE("buffers are aligned to 64 bytes") {
  for (const int64_t bytes : {1, 100, 5000000}) {
    const Buffer buffer(bytes);
    CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0);
  }
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN and infinity") {
  CHECK(static_cast<float>(bf16(1.0F + 1.0F / 256)) == 1.0F);  // a tie goes to even
  CHECK(static_cast<float>(bf16(1.0F + 3.0F / 256)) == 1.0F + 4.0F / 256);
  CHECK(std::isnan(static_cast<float>(bf16(NAN))));
  CHECK(std::isinf(static_cast<float>(bf16(INFINITY))));
  CHECK(std::isinf(static_cast<float>(bf16(3.4e38F))));
}

TEST_CASE("f16 rounds to nearest even, and every value of it converts as the compiler's does") {
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  CHECK(f16(65519).bits == 0x7bff);  // the largest
  CHECK(f16(65520).bits == 0x7c00);  // infinity
  CHECK(f16(-1e-8F).bits == 0x8000);
  CHECK(f16(0x1p-25F).bits == 0);          // a tie goes to even
  CHECK(f16(0x1.8p-24F).bits == 2);        // the same
  CHECK(f16(0x1.ffep-15F).bits == 0x400);  // rounded up to a normal number
  CHECK(std::isnan(static_cast<float>(f16(NAN))));
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = std::bit_cast<f16>(static_cast<uint16_t>(bits));
    const auto value = static_cast<float>(half);
#ifdef __FLT16_MAX__
    if (!same(value, static_cast<float>(std::bit_cast<_Float16>(half)))) FAIL(bits);
#endif
    if (std::isnan(value)) continue;
    if (f16(value).bits != bits) FAIL(bits);
    // Between it and the next: below, at and above the middle.
    const auto next = static_cast<float>(std::bit_cast<f16>(static_cast<uint16_t>(bits + 1)));
    if (!std::isfinite(value) || !std::isfinite(next)) continue;
    const float middle = (value + next) / 2;
    const auto even = static_cast<uint16_t>(bits + bits % 2);
    if (f16(middle).bits != even || f16(std::nextafter(middle, value)).bits != bits ||
        f16(std::nextafter(middle, next)).bits != bits + 1)
      FAIL(bits);
  }
}

TEST_CASE("conversion goes through the value, for strided sources too") {
  const Tensor matrix = Tensor::of<float>({1.5F, -2, 3, 300}, {2, 2});
  const Tensor turned = matrix.view(permuted(matrix.layout(), {1, 0})).to(DType::i32);
  CHECK(turned.at(0) == 1);
  CHECK(turned.at(1) == 3);
  CHECK(turned.at(2) == -2);
  CHECK(turned.at(3) == 300);
}

TEST_CASE("tensors print as matrices, long ones abridged") {
  CHECK(to_string(Tensor::of<float>({1, 2.5F, -3, 4}, {2, 2})) ==
        "[[ 1.0000,  2.5000]\n [-3.0000,  4.0000]]\nf32[2, 2]");
  CHECK(to_string(Tensor::of<int32_t>({7}, {})) == "7\ni32[]");
  const std::string text = to_string(Tensor::zeros({DType::f32, {100, 100}}));
  CHECK(text.find("...") != std::string::npos);
  CHECK(text.size() < 1000);
}

TEST_CASE("reading a tensor as another type is refused") {
  const Tensor tensor = Tensor::of<float>({1}, {1});
  CHECK_THROWS_AS(tensor.data<double>(), Error);
}

TEST_CASE("a tensor larger than the machine's memory is refused before anything is touched") {
  for (const int shift : {42, 46}) {
    try {
      const Tensor tensor(TensorType{DType::f64, {int64_t{1} << shift}});
      FAIL("nothing was thrown");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::environment);
      CHECK_THAT(error.what(), Catch::Contains("cannot allocate") && Catch::Contains("are available"));
    }
  }
}

TEST_CASE("a tensor of many dimensions prints as its type") {
  CHECK(to_string(Tensor::zeros({DType::u8, Shape(20, 2)})).size() < 100);
}
