#include "core/data/images.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "core/base/error.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

std::vector<uint8_t> pixels_of(const Images& images, int64_t image) {
  const int64_t count = images.pixels.elements() / images.pixels.shape()[0];
  const uint8_t* from = images.pixels.data<uint8_t>() + image * count;
  return {from, from + count};
}

// A record of CIFAR-10: a label, and pixels that begin with it and go up by `step`.
std::string record(int label, int step) {
  std::string bytes(1, static_cast<char>(label));
  for (int i = 0; i < 3072; ++i) bytes += static_cast<char>(label + i * step);
  return bytes;
}

}  // namespace

TEST_CASE("a drawn image depends on its number, not on how many there are") {
  const Images few = draw_shapes(12, 16, 4, 7), many = draw_shapes(40, 16, 4, 7),
               other = draw_shapes(12, 16, 4, 8);
  CHECK(few.pixels.type() == TensorType{DType::u8, {12, 3, 16, 16}});
  CHECK(few.labels.type() == TensorType{DType::i32, {12}});
  std::set<std::vector<uint8_t>> seen;
  for (int64_t i = 0; i < 12; ++i) {
    CHECK(pixels_of(few, i) == pixels_of(many, i));
    CHECK(pixels_of(few, i) != pixels_of(other, i));
    CHECK(few.labels.at(i) == static_cast<double>(i % 4));
    seen.insert(pixels_of(few, i));
  }
  CHECK(seen.size() == 12);
}

TEST_CASE("drawn images are the same on every machine") {
  // The sum of all bytes, each times its place's number modulo 251.
  const Images images = draw_shapes(20, 32, kShapes, 1);
  int64_t sum = 0;
  for (int64_t i = 0; i < images.pixels.elements(); ++i) sum += images.pixels.data<uint8_t>()[i] * (i % 251);
  CHECK(sum == 999642730);
}

TEST_CASE("each shape stands out from its background, and shapes differ") {
  // With noise of 24, and colours at least 80 apart all the way round, both colours are seen in one channel.
  const Images images = draw_shapes(kShapes * 4, 32, kShapes, 3);
  for (int64_t i = 0; i < kShapes * 4; ++i) {
    const auto pixels = pixels_of(images, i);
    int64_t widest = 0;
    for (int64_t c = 0; c < 3; ++c) {
      const auto [low, high] =
          std::minmax_element(pixels.begin() + c * 1024, pixels.begin() + (c + 1) * 1024);
      widest = std::max<int64_t>(widest, *high - *low);
    }
    INFO("image " << i);
    CHECK(widest > 2 * 24);
  }
}

TEST_CASE("images that cannot be drawn are refused") {
  CHECK_THROWS_WITH(draw_shapes(0, 16, 4, 1), Contains("0 images of 16 by 16 pixels of 4 shapes"));
  CHECK_THROWS_AS(draw_shapes(1, 7, 4, 1), Error);
  CHECK_THROWS_AS(draw_shapes(1, 16, kShapes + 1, 1), Error);
}

TEST_CASE("CIFAR-10 is read from its binary files, and its test images are held out") {
  const Scratch scratch;
  scratch.put("data_batch_1.bin", record(3, 1) + record(9, 2));
  scratch.put("data_batch_2.bin", record(0, 3));
  scratch.put("test_batch.bin", record(5, 1));
  const Images images = read_cifar10(scratch.folder());
  CHECK(images.pixels.type() == TensorType{DType::u8, {4, 3, 32, 32}});
  CHECK(images.held == 1);
  const std::vector<int> labels{3, 9, 0, 5}, steps{1, 2, 3, 1};
  for (int64_t i = 0; i < 4; ++i) {
    const int label = labels[static_cast<size_t>(i)], step = steps[static_cast<size_t>(i)];
    CHECK(images.labels.at(i) == label);
    const auto pixels = pixels_of(images, i);
    for (const int at : {0, 1, 1024, 3071})
      CHECK(pixels[static_cast<size_t>(at)] == static_cast<uint8_t>(label + at * step));
  }
}

TEST_CASE("files that are not CIFAR-10's are refused") {
  const Scratch scratch;
  CHECK_THROWS_WITH(read_cifar10(scratch.folder()), Contains("data_batch_1.bin"));
  scratch.put("data_batch_1.bin", record(3, 1));
  CHECK_THROWS_WITH(read_cifar10(scratch.folder()), Contains("test_batch.bin"));
  scratch.put("test_batch.bin", record(3, 1) + "x");
  CHECK_THROWS_WITH(read_cifar10(scratch.folder()),
                    Contains("has 3074 bytes") && Contains("records of 3073 bytes"));
  scratch.put("test_batch.bin", record(3, 1) + record(10, 1));
  CHECK_THROWS_WITH(read_cifar10(scratch.folder()), Contains("record 2 has the label 10"));
}
