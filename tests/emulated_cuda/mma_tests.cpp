// The functions of kernels/cuda/mma.h as the emulation does them, each against its definition; and what
// attention makes of them that no result shows: that tensor cores are used, without bank conflicts.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "core/ops/op.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mma.h"

namespace het::HET_CUDA {
namespace {

// Run `body` as one warp with `shared` bytes of shared memory.
template <typename Body>
void on_a_warp(size_t shared, const Body& body) {
  emulated::run(dim3(1), dim3(kWarp), shared, body);
}

template <typename T>
T small_number(int i) {
  return from_float<T>(static_cast<float>(i * 7 % 11 - 5));
}

// The tile [rows, 16] in shared memory, row by row, from elements value(row, column).
template <typename T, typename Value>
void fill(int offset, int rows, const Value& value) {
  if (threadIdx.x == 0)
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < 16; ++j) reinterpret_cast<T*>(dynamic_shared() + offset)[i * 16 + j] = value(i, j);
  __syncwarp();
}

// Row l % 8 of matrix l / 8 of a tile [16, 16] at `offset`: matrices 0 and 1 below each other, 2 and 3 to
// their right.
Shared row_address(int offset) {
  const int lane = threadIdx.x % kWarp;
  return shared_address(dynamic_shared() + offset) + lane % 16 * 32 + lane / 16 * 16;
}

// d = a b for a [16, 16] and b [16, 8], b loaded from its rows or from its columns.
template <typename T>
void check_product(bool b_by_rows) {
  const auto a = [](int i, int k) { return small_number<T>(3 * i + 5 * k); };
  const auto b = [](int k, int j) { return small_number<T>(4 * k + j + 2); };
  std::vector<float> result(16 * 8);
  on_a_warp(1024, [&] {
    fill<T>(0, 16, a);
    fill<T>(512, 16, [&](int i, int j) { return b_by_rows ? b(i, j % 8) : b(j, i % 8); });
    uint32_t rows[4], columns[4];
    load_matrices(rows, row_address(0));
    float d[4] = {1, 1, 1, 1};
    if (b_by_rows) {
      load_matrices_transposed(columns, row_address(512));
      multiply_add<T>(d, rows, columns[0], columns[1]);
    } else {
      load_matrices(columns,
                    row_address(512));  // matrices 0 and 2 are k 0 to 7 and 8 to 15 of columns 0 to 7
      multiply_add<T>(d, rows, columns[0], columns[2]);
    }
    const int lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;
    for (int e = 0; e < 4; ++e) result[(row + e / 2 * 8) * 8 + column + e % 2] = d[e];
  });
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      float sum = 1;
      for (int k = 0; k < 16; ++k) sum += to_float(a(i, k)) * to_float(b(k, j));
      CHECK(result[i * 8 + j] == sum);
    }
}

}  // namespace

TEST_CASE("load_matrices gives each lane two neighbours of a row, transposed two of a column") {
  on_a_warp(512, [] {
    fill<uint16_t>(0, 16, [](int i, int j) { return static_cast<uint16_t>(i * 16 + j); });
    uint32_t straight[4], transposed[4];
    load_matrices(straight, row_address(0));
    load_matrices_transposed(transposed, row_address(0));
    const int group = threadIdx.x / 4, pair = threadIdx.x % 4 * 2;
    for (int m = 0; m < 4; ++m) {
      const int row = m % 2 * 8, column = m / 2 * 8;
      const auto at = [&](int i, int j) { return static_cast<uint32_t>((row + i) * 16 + column + j); };
      CHECK(straight[m] == (at(group, pair) | at(group, pair + 1) << 16));
      CHECK(transposed[m] == (at(pair, group) | at(pair + 1, group) << 16));
    }
  });
}

TEST_CASE("multiply_add is a product of 16 x 16 and 16 x 8") {
  for (const bool b_by_rows : {false, true}) {
    check_product<bf16>(b_by_rows);
    check_product<f16>(b_by_rows);
  }
}

TEST_CASE("two results of multiply_add in a pair are an operand of the next") {
  CHECK(pair_of<bf16>(1.0f, -2.0f) == 0xC0003F80);
  CHECK(pair_of<f16>(1.0f, -2.0f) == 0xC0003C00);
  // (a b) c with c the unit matrix [16, 16], eight columns at a time, is a b.
  std::vector<float> first(16 * 16), second(16 * 16);
  on_a_warp(1024, [&] {
    fill<bf16>(0, 16, [](int i, int k) { return small_number<bf16>(i + 3 * k); });
    fill<bf16>(512, 16, [](int k, int j) { return from_float<bf16>(k == j ? 1.0f : 0.0f); });
    uint32_t a[4], unit[4];
    load_matrices(a, row_address(0));
    load_matrices_transposed(unit, row_address(512));
    float d[2][4] = {}, e[2][4] = {};
    for (int n = 0; n < 2; ++n) multiply_add<bf16>(d[n], a, unit[2 * n], unit[2 * n + 1]);
    const uint32_t again[4] = {pair_of<bf16>(d[0][0], d[0][1]), pair_of<bf16>(d[0][2], d[0][3]),
                               pair_of<bf16>(d[1][0], d[1][1]), pair_of<bf16>(d[1][2], d[1][3])};
    for (int n = 0; n < 2; ++n) multiply_add<bf16>(e[n], again, unit[2 * n], unit[2 * n + 1]);
    const int lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) {
      const int at = (lane / 4 + i % 4 / 2 * 8) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      first[at] = d[i / 4][i % 4];
      second[at] = e[i / 4][i % 4];
    }
  });
  CHECK(first == second);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) CHECK(first[i * 16 + j] == to_float(small_number<bf16>(i + 3 * j)));
}

TEST_CASE("copies arrive no later than they are waited for, and fill with 0 what is not there") {
  alignas(16) static std::byte source[2 * kWarp * 16];
  for (size_t i = 0; i < sizeof source; ++i) source[i] = static_cast<std::byte>(i % 251 + 1);
  for (int launch = 0; launch < 2; ++launch)  // arriving late, and at once
    on_a_warp(3 * kWarp * 16, [] {
      const int lane = threadIdx.x;
      const Shared to = shared_address(dynamic_shared()) + lane * 16;
      const auto arrived = [&](int part, const std::byte* wanted) {
        return std::memcmp(dynamic_shared() + part * kWarp * 16 + lane * 16, wanted, 16) == 0;
      };
      constexpr std::byte nothing[16] = {};
      copy_async(to, source + lane * 16, true);
      copy_async(to + 2 * kWarp * 16, nullptr, false);
      commit_copies();
      copy_async(to + kWarp * 16, source + (kWarp + lane) * 16, true);
      commit_copies();
      wait_for_copies<1>();
      CHECK(arrived(0, source + lane * 16));
      CHECK(arrived(2, nothing));
      CHECK(arrived(1, source + (kWarp + lane) * 16) == emulated::copies_arrive_at_once());
      wait_for_copies<0>();
      CHECK(arrived(1, source + (kWarp + lane) * 16));
    });
}

TEST_CASE("a bank conflict is counted, an odd address refused") {
  const int64_t before = emulated::bank_conflicts();
  uint32_t to[4];
  on_a_warp(4096, [&] { load_matrices(to, threadIdx.x * 16); });
  CHECK(emulated::bank_conflicts() == before);
  on_a_warp(4096, [&] { load_matrices(to, threadIdx.x * 128); });
  CHECK(emulated::bank_conflicts() == before + 4);
  CHECK_THROWS(on_a_warp(4096, [&] { load_matrices(to, 8); }));
}

TEST_CASE("exp2_fast is 2^x, also of minus infinity") {
  for (const float x : {-20.5f, -1.0f, 0.0f, 0.25f, 7.0f})
    CHECK(exp2_fast(x) == Approx(std::exp2(static_cast<double>(x))).epsilon(3e-7));
  CHECK(exp2_fast(-INFINITY) == 0);
}

namespace {

struct Work {
  int64_t products, conflicts;
};

// What attention or its gradient makes of operands `offset` elements off the alignment.
Work work_of(const char* op, DType dtype, int64_t head, int64_t offset, double scale) {
  const TensorType x{dtype, {1, 130, 2, head}}, lse{DType::f32, {1, 2, 130}};
  const bool gradient = op == std::string_view("attention_gradient");
  const std::vector<TensorType> in = gradient ? std::vector{x, x, x, x, x, lse} : std::vector{x, x, x};
  const std::vector<TensorType> out = gradient ? std::vector{x, x, x} : std::vector{x, lse};
  const auto device = make_device();
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<Layout> layouts[2];
  std::vector<std::byte*> addresses[2];
  for (const int side : {0, 1})
    for (const TensorType& type : side == 0 ? in : out) {
      layouts[side].push_back({type, contiguous_strides(type.shape), 0});
      memory.push_back(device->allocate((type.elements() + offset) * bytes_of(type.dtype)));
      addresses[side].push_back(memory.back()->address() + offset * bytes_of(type.dtype));
      std::memset(addresses[side].back(), 0, static_cast<size_t>(type.elements() * bytes_of(type.dtype)));
    }
  const Attributes attributes{{"causal", true}, {"scale", scale}};
  const auto kernel = device->prepare({op_named(op), attributes, layouts[0], layouts[1], 0});
  const auto workspace = device->allocate(kernel->workspace_bytes());
  const Work before{emulated::products(), emulated::bank_conflicts()};
  kernel->run({addresses[0].data(), addresses[1].data(), workspace->address(), kernel->workspace_bytes()});
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

}  // namespace het::HET_CUDA
