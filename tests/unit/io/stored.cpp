#include "core/io/stored.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "core/io/safetensors.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

Tensor numbered(Shape shape, double first = 0) {
  Tensor tensor({DType::f32, std::move(shape)});
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, first + static_cast<double>(i));
  return tensor;
}

void check_equal(const Tensor& a, const Tensor& b) {
  REQUIRE(a.type() == b.type());
  CHECK(std::memcmp(a.bytes(), b.bytes(), static_cast<size_t>(a.type().bytes())) == 0);
}

StoredSafetensors stored(const Scratch& scratch, const std::map<std::string, Tensor>& tensors) {
  const std::string path = scratch.path("model.safetensors");
  write_safetensors(path, tensors);
  return open_safetensors(path);
}

}  // namespace

TEST_CASE("of a stored tensor each part is read, and nothing else") {
  const Scratch scratch;
  const Tensor whole = numbered({12, 10});
  const StoredSafetensors file = stored(scratch, {{"x", whole}, {"y", numbered({100})}});
  CHECK(file.bytes_read() == 0);
  const auto& x = file.tensors.at("x");
  int64_t read = 0;
  for (const char* text :
       {"[6:9, :]", "[3:6+7:8+10:12, :]", "[:, 0:4]", "[:, 2:4+7:10]", "[1:3+5:12, 4:5+6:9]"}) {
    const TensorSlice slice = parse_slice({12, 10}, text);
    const Tensor part = x.read(slice);
    check_equal(part, take(whole, slice));
    read += part.type().bytes();
    CHECK(file.bytes_read() == read);
  }
  check_equal(x.read(), whole);
  CHECK(file.bytes_read() == read + whole.type().bytes());
}

TEST_CASE("stored tensors one below the other are read as one") {
  const Scratch scratch;
  const Tensor q = numbered({4, 3}), k = numbered({2, 3}, 100), v = numbered({2, 3}, 200);
  Tensor whole({DType::f32, {8, 3}});
  std::memcpy(whole.bytes(), q.bytes(), 48);
  std::memcpy(whole.bytes() + 48, k.bytes(), 24);
  std::memcpy(whole.bytes() + 72, v.bytes(), 24);
  const StoredSafetensors file = stored(scratch, {{"q", q}, {"k", k}, {"v", v}});
  const StoredTensor joined =
      StoredTensor::joined({file.tensors.at("q"), file.tensors.at("k"), file.tensors.at("v")});
  check_equal(joined.read(), whole);
  // Of the heads' queries, keys and values; a run of rows over two files' tensors; columns.
  for (const char* text :
       {"[0:2+4:5+6:7, :]", "[2:4+5:6+7:8, :]", "[0:3, :]", "[3:6, :]", "[:, 0:2]", "[:, 2:3]"}) {
    const TensorSlice slice = parse_slice({8, 3}, text);
    const int64_t before = file.bytes_read();
    check_equal(joined.read(slice), take(whole, slice));
    CHECK(file.bytes_read() - before == 4 * slice.elements());
  }
}

TEST_CASE("a matrix that is stored the other way round is read as it is needed") {
  const Scratch scratch;
  const Tensor matrix = numbered({6, 4});
  const Tensor wanted = matrix.view(permuted(matrix.layout(), {1, 0})).contiguous();
  const StoredSafetensors file = stored(scratch, {{"x", matrix}});
  const StoredTensor x = file.tensors.at("x").transposed();
  CHECK(x.type().shape == Shape{4, 6});
  check_equal(x.read(), wanted);
  for (const char* text : {"[2:4, :]", "[:, 0:1+2:4]"}) {
    const TensorSlice slice = parse_slice({4, 6}, text);
    const int64_t before = file.bytes_read();
    check_equal(x.read(slice), take(wanted, slice));
    CHECK(file.bytes_read() - before == wanted.type().bytes() / 2);
  }
  check_equal(x.transposed().read(), matrix);
  const StoredTensor cube = x.reshaped({4, 3, 2});
  const Tensor whole = wanted.view(Layout::contiguous(cube.type()));
  check_equal(cube.read(), whole);
  const TensorSlice slice = parse_slice({4, 3, 2}, "[1:3, :, 1:2]");
  check_equal(cube.read(slice), take(whole, slice));
  CHECK_THAT(error_of([&] { x.reshaped({2, 2, 6}); }), Contains("cannot be taken as [2, 2, 6]"));
}

TEST_CASE("tensors that do not go together are refused by name") {
  const Scratch scratch;
  const StoredSafetensors file = stored(scratch, {{"a", numbered({4, 3})},
                                                  {"b", numbered({4, 2})},
                                                  {"c", numbered({4, 3}).to(DType::bf16)},
                                                  {"line", numbered({3})}});
  const auto joined = [&](const char* one, const char* other) {
    return error_of([&] { StoredTensor::joined({file.tensors.at(one), file.tensors.at(other)}); });
  };
  CHECK_THAT(joined("a", "b"), Contains("tensor 'b' is f32[4, 2], which cannot be joined to 'a', f32[4, 3]"));
  CHECK_THAT(joined("a", "c"), Contains("tensor 'c' is bf16[4, 3]"));
  CHECK_THAT(joined("a", "line"), Contains("tensor 'line'"));
  CHECK_THAT(error_of([&] { file.tensors.at("line").transposed(); }),
             Contains("tensor 'line' is f32[3]; a matrix is needed"));
}

TEST_CASE("parts of tensors at odd addresses are read") {
  const Scratch scratch;
  const Tensor whole = numbered({4, 2});
  const std::string header = R"({"x":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]}})";
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  text += header + std::string(reinterpret_cast<const char*>(whole.bytes()), 32);
  REQUIRE((8 + header.size()) % 4 != 0);
  const StoredSafetensors file = open_safetensors(scratch.put("odd.safetensors", text));
  const TensorSlice slice = parse_slice({4, 2}, "[2:4, :]");
  check_equal(file.tensors.at("x").read(slice), take(whole, slice));
  check_equal(file.tensors.at("x").read(), whole);
}
