// The functions of kernels/cuda/mma.h as the emulation does them, each against its definition; and what
// attention makes of them that no result shows: that tensor cores are used, without bank conflicts.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "core/ops/op.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"
#include "kernels/cuda/mma.h"
#include "kernels/cuda/wgmma.h"

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
      CHECK(arrived(1, source + (kWarp + lane) * 16) == emulated::work_is_done_at_once());
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

// wgmma: tiles of one panel or two, whose 16-byte chunk c of row r lies at c ^ r % 8.
TEST_CASE("a warpgroup multiplies tiles of shared memory, and rows in registers with columns there") {
  constexpr int kA = 0, kB = 64 * 128, kV = kB + 128 * 128, kPanel = 16 * 128;
  const auto a = [](int i, int k) { return small_number<bf16>(3 * i + 5 * k); };
  const auto b = [](int j, int k) { return small_number<bf16>(4 * k + j + 2); };
  const auto v = [](int j, int n) { return small_number<bf16>(2 * j + 3 * n); };
  const auto at = [](int tile, int row, int column) {
    return reinterpret_cast<bf16*>(dynamic_shared() + tile + row * 128 + ((column / 8 ^ row % 8) << 4)) +
           column % 8;
  };
  std::vector<float> scores(64 * 128), sums(64 * 128);
  for (int launch = 0; launch < 2; ++launch) {
    std::fill(scores.begin(), scores.end(), 0);
    emulated::run(dim3(1), dim3(128), kV + 2 * kPanel, [&] {
      if (threadIdx.x == 0) {
        for (int k = 0; k < 64; ++k) {
          for (int i = 0; i < 64; ++i) *at(kA, i, k) = a(i, k);
          for (int j = 0; j < 128; ++j) *at(kB, j, k) = b(j, k);
        }
        for (int j = 0; j < 16; ++j)
          for (int n = 0; n < 128; ++n) *at(kV + n / 64 * kPanel, j, n % 64) = v(j, n);
      }
      __syncthreads();
      const Shared shared = shared_address(dynamic_shared());
      float d[16][4], e[16][4];
      for (auto& four : e)
        for (float& value : four) value = 1;
      begin_products();
      for (int k = 0; k < 4; ++k)  // the second 16 elements are 32 bytes on
        multiply_tiles<bf16>(d, matrix_by_rows(shared + kA + k * 32), matrix_by_rows(shared + kB + k * 32),
                             k > 0);
      commit_products();
      const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
      const auto pair = [&](int i, int k) { return pair_of<bf16>(to_float(a(i, k)), to_float(a(i, k + 1))); };
      const uint32_t rows[4] = {pair(row, column), pair(row + 8, column), pair(row, column + 8),
                                pair(row + 8, column + 8)};
      multiply_rows<bf16>(e, rows, matrix_by_columns(shared + kV, kPanel));
      commit_products();
      wait_for_products<0>();
      for (int n = 0; n < 16; ++n)
        for (int f = 0; f < 4; ++f) {
          const int to = (row + f / 2 * 8) * 128 + n * 8 + column + f % 2;
          scores[to] = d[n][f];
          sums[to] = e[n][f];
        }
    });
    for (int i = 0; i < 64; ++i)
      for (int j = 0; j < 128; ++j) {
        float score = 0, sum = 1;
        for (int k = 0; k < 64; ++k) score += to_float(a(i, k)) * to_float(b(j, k));
        for (int k = 0; k < 16; ++k) sum += to_float(a(i, k)) * to_float(v(k, j));
        REQUIRE(scores[i * 128 + j] == score);
        REQUIRE(sums[i * 128 + j] == sum);
      }
  }
}

TEST_CASE("fast_exp2 is 2^x, also of minus infinity") {
  for (const float x : {-20.5f, -1.0f, 0.0f, 0.25f, 7.0f})
    CHECK(fast_exp2(x) == Approx(std::exp2(static_cast<double>(x))).epsilon(3e-7));
  CHECK(fast_exp2(-INFINITY) == 0);
}

}  // namespace het::HET_CUDA
