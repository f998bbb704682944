// What no result of attention shows: that tensor cores are used, without bank conflicts, and that nothing is
// written where it does not fit.
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include <emulated_mma.h>

#include "core/base/error.h"
#include "core/ops/op.h"
#include "kernels/cuda/device.h"

namespace het::HET_CUDA {
namespace {

// An operator on operands that lie `offset` elements off the alignment, all zero.
struct Call {
  std::shared_ptr<Device> device = make_device();
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<Layout> layouts[2];  // of inputs, of results
  std::vector<std::byte*> addresses[2];

  Call(const std::vector<TensorType>& in, const std::vector<TensorType>& out, int64_t offset = 0) {
    for (const int side : {0, 1})
      for (const TensorType& type : side == 0 ? in : out) {
        const int64_t size = bytes_of(type.dtype);
        layouts[side].push_back({type, contiguous_strides(type.shape), 0});
        memory.push_back(device->allocate((type.elements() + offset) * size));
        addresses[side].push_back(memory.back()->address() + offset * size);
        std::memset(addresses[side].back(), 0, static_cast<size_t>(type.elements() * size));
      }
  }
  void run(const char* op, const Attributes& attributes) {
    const auto kernel = device->prepare({op_named(op), attributes, layouts[0], layouts[1], 0});
    const auto workspace = device->allocate(kernel->workspace_bytes());
    kernel->run({addresses[0].data(), addresses[1].data(), workspace->address(), kernel->workspace_bytes()});
    device->synchronize();
  }
};

struct Work {
  int64_t products, conflicts;
};

Work work_of(std::string_view op, DType dtype, int64_t head, int64_t offset, double scale) {
  const TensorType x{dtype, {1, 130, 2, head}}, lse{DType::f32, {1, 2, 130}};
  Call call = op == "attention_gradient" ? Call({x, x, x, x, x, lse}, {x, x, x}, offset)
                                         : Call({x, x, x}, {x, lse}, offset);
  const Work before{emulated::products(), emulated::bank_conflicts()};
  call.run(op.data(), {{"causal", true}, {"scale", scale}});
  return {emulated::products() - before.products, emulated::bank_conflicts() - before.conflicts};
}

}  // namespace

TEST_CASE("attention uses tensor cores where operands allow it, without bank conflicts") {
  for (const char* op : {"attention", "attention_gradient"}) {
    INFO(op);
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const int64_t head : {40, 64, 128}) {
        const Work work = work_of(op, dtype, head, 0, 0.1);
        CHECK(work.products > 0);
        CHECK(work.conflicts == 0);
        CHECK(work_of(op, dtype, head, 1, 0.1).products == 0);
      }
    CHECK(work_of(op, DType::f32, 64, 0, 0.1).products == 0);
    CHECK(work_of(op, DType::bf16, 60, 0, 0.1).products == 0);
    CHECK(work_of(op, DType::bf16, 136, 0, 0.1).products == 0);
    CHECK(work_of(op, DType::bf16, 64, 0, -0.1).products == 0);
  }
}

TEST_CASE("causal attention skips the tiles that nobody sees") {
  // 130 queries in tiles of 128 rows, a warp having 32 of them; keys in tiles of 64: warps see 1, 1, 2, 2 and
  // then 3 tiles of each 2 x 8 x 8 products, for each of two heads, twice (scores, then sums).
  const int64_t products = work_of("attention", DType::bf16, 128, 0, 0.1).products;
  CHECK(products == int64_t{1 + 1 + 2 + 2 + 3} * 2 * 8 * 8 * 2 * 2);
}

TEST_CASE("keys that do not fit their cache are refused, and nothing is written") {
  const TensorType x{DType::bf16, {1, 3, 2, 8}}, cache{DType::bf16, {1, 10, 2, 8}}, one{DType::i32, {1}};
  for (const int position : {-1, 8, 1 << 30}) {
    Call call({x, x, x, cache, cache, one}, {x, cache, cache});
    std::memcpy(call.addresses[0][5], &position, sizeof position);
    std::memset(call.addresses[0][1], 0x3F, static_cast<size_t>(x.elements() * 2));
    call.addresses[1][1] = call.addresses[0][3];
    call.addresses[1][2] = call.addresses[0][4];
    CHECK_THROWS_WITH(call.run("attention_cached", {}),
                      Catch::Contains("3 new tokens at position " + std::to_string(position)) &&
                          Catch::Contains("a cache of 10"));
    for (int64_t i = 0; i < cache.elements() * 2; ++i) REQUIRE(call.addresses[0][3][i] == std::byte{0});
  }
}

}  // namespace het::HET_CUDA
