// What the cases of tests/ops do not show of attention: the kernels of each generation of GPUs, that tensor
// cores are used, without bank conflicts, and that nothing is written where it does not fit.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <emulated_mma.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/ops/op.h"
#include "core/tensor/tensor.h"
#include "kernels/cuda/device.h"
#include "kernels/reference/device.h"

namespace het::HET_CUDA {
namespace {

// The emulated GPU is of another generation while this lives.
class Generation {
 public:
  explicit Generation(int generation) : before_(std::exchange(emulated::generation, generation)) {}
  ~Generation() { emulated::generation = before_; }

 private:
  int before_;
};

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

// Where tokens begin to see whose examples have this many tokens.
std::vector<int> starts_of(int64_t tokens, int64_t length) {
  std::vector<int> starts;
  for (int64_t i = 0; i < tokens; ++i) starts.push_back(static_cast<int>(i / length * length));
  return starts;
}

Work work_of(std::string_view op, DType dtype, int64_t head, int64_t offset, double scale, double cap = 0) {
  const TensorType x{dtype, {1, 130, 2, head}}, lse{DType::f32, {1, 2, 130}};
  Call call = op == "attention_gradient" ? Call({x, x, x, x, x, lse}, {x, x, x}, offset)
                                         : Call({x, x, x}, {x, lse}, offset);
  const Work before{emulated::products(), emulated::bank_conflicts()};
  Attributes attributes{{"causal", true}, {"scale", scale}};
  if (cap > 0) attributes.set("score_cap", cap);
  call.run(op.data(), attributes);
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
        CHECK(work_of(op, dtype, head, 0, 0.1, 50).products == work.products);
        CHECK(work_of(op, dtype, head, 1, 0.1).products == 0);
      }
    CHECK(work_of(op, DType::f32, 64, 0, 0.1).products == 0);
    CHECK(work_of(op, DType::bf16, 60, 0, 0.1).products == 0);
    CHECK(work_of(op, DType::bf16, 136, 0, 0.1).products == 0);
    CHECK(work_of(op, DType::bf16, 64, 0, -0.1).products == 0);
  }
}

TEST_CASE("causal attention skips the tiles that no query sees") {
  {
    // 130 queries in tiles of 128 rows, a warp having 32 of them; keys in tiles of 64: warps see 1, 1, 2, 2
    // and then 3 tiles of 2 x 8 x 8 products each, for each of two heads, twice (scores, then sums).
    const Generation ampere(8);
    const int64_t products = work_of("attention", DType::bf16, 128, 0, 0.1).products;
    CHECK(products == int64_t{1 + 1 + 2 + 2 + 3} * 2 * 8 * 8 * 2 * 2);
  }
  {
    // Keys in tiles of 128: the first eight warps see 1, the next eight 2, of 8 products each.
    const Generation hopper(9);
    const int64_t products = work_of("attention", DType::bf16, 128, 0, 0.1).products;
    CHECK(products == int64_t{1 + 2} * 8 * 8 * 2 * 2);
  }
}

TEST_CASE("attention of packed rows, and with a window, skips the tiles that no query sees") {
  const TensorType x{DType::bf16, {1, 512, 1, 128}}, starts{DType::i32, {1, 512}},
      lse{DType::f32, {1, 1, 512}};
  const std::vector<int> values = starts_of(512, 128);
  const auto products = [&](const char* op, std::vector<TensorType> in, const std::vector<TensorType>& out,
                            bool packed, int64_t window = 512) {
    if (packed) in.push_back(starts);
    Call call(in, out);
    if (packed) std::memcpy(call.addresses[0].back(), values.data(), values.size() * sizeof(int));
    const int64_t before = emulated::products();
    call.run(op, {{"causal", true}, {"window", window}});
    return emulated::products() - before;
  };
  for (const int generation : {8, 9}) {
    INFO("generation " << generation);
    const Generation as(generation);
    // Blocks of 128 queries: they see 1, 2, 3 and 4 times 128 keys, or packed 128 each. On the diagonal half
    // of the tiles of 64 keys, or of 32, are skipped by warps of 32 rows.
    const int64_t all = products("attention", {x, x, x}, {x, lse}, false);
    const int64_t packed = products("attention", {x, x, x}, {x, lse}, true);
    CHECK(packed * 3 < all * 2);
    const int64_t gradient = products("attention_gradient", {x, x, x, x, x, lse}, {x, x, x}, false);
    CHECK(products("attention_gradient", {x, x, x, x, x, lse}, {x, x, x}, true) * 3 < gradient * 2);
    // With a window of 64 each block sees 192 keys at most: 1, 2, 2 and 2 times 128.
    CHECK(products("attention", {x, x, x}, {x, lse}, false, 64) * 4 < all * 3);
    CHECK(products("attention_gradient", {x, x, x, x, x, lse}, {x, x, x}, false, 64) * 4 < gradient * 3);
  }
}

TEST_CASE("attention refuses starts that fall or are behind their token, on tensor cores too") {
  const TensorType x{DType::bf16, {2, 70, 2, 64}}, starts{DType::i32, {2, 70}}, lse{DType::f32, {2, 2, 70}};
  for (const int generation : {8, 9})
    for (const char* op : {"attention", "attention_gradient"})
      for (const int bad : {-7, 3, 1 << 30}) {
        INFO(op << ", generation " << generation << ", start " << bad);
        const Generation as(generation);
        const bool gradient = op == std::string("attention_gradient");
        Call call =
            gradient ? Call({x, x, x, x, x, lse, starts}, {x, x, x}) : Call({x, x, x, starts}, {x, lse});
        std::vector<int> values(140);
        for (int i = 0; i < 70; ++i) values[70 + i] = i < 40 ? 0 : i < 65 ? 40 : bad;
        std::memcpy(call.addresses[0].back(), values.data(), values.size() * sizeof(int));
        CHECK_THROWS_WITH(call.run(op, {{"causal", true}}),
                          Catch::Contains(" is " + std::to_string(bad) + "; it has to be"));
      }
}

TEST_CASE("attention is the reference's on GPUs of each generation") {
  struct Sizes {
    int64_t batch, queries, keys, query_heads, key_heads, head;
    bool causal;
    int64_t example = 0;  // tokens of one; 0: rows are not packed
    int64_t window = 0;   // 0: none
    double cap = 0;       // 0: none
  };
  for (const Sizes& z :
       {Sizes{1, 300, 300, 2, 1, 128, true}, Sizes{1, 70, 400, 1, 1, 64, false},
        Sizes{2, 129, 129, 2, 2, 72, true}, Sizes{1, 5, 257, 2, 2, 40, false},
        Sizes{1, 300, 300, 2, 1, 128, true, 70}, Sizes{2, 290, 290, 2, 2, 64, true, 131},
        Sizes{1, 260, 260, 1, 1, 40, true, 3}, Sizes{1, 129, 129, 1, 1, 64, true, 1},
        Sizes{1, 300, 300, 2, 1, 128, true, 0, 70}, Sizes{1, 129, 129, 1, 1, 64, true, 0, 1},
        Sizes{1, 290, 290, 2, 2, 64, true, 40, 131}, Sizes{1, 290, 290, 1, 1, 64, true, 150, 40},
        Sizes{1, 300, 300, 2, 1, 128, true, 0, 0, 2}, Sizes{1, 70, 400, 1, 1, 64, false, 0, 0, 0.5},
        Sizes{1, 290, 290, 1, 1, 40, true, 150, 40, 30}})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const TensorType q{dtype, {z.batch, z.queries, z.query_heads, z.head}};
      const TensorType k{dtype, {z.batch, z.keys, z.key_heads, z.head}};
      const TensorType lse{DType::f32, {z.batch, z.query_heads, z.queries}};
      Attributes attributes{{"causal", z.causal}, {"scale", 0.2}};
      if (z.window > 0) attributes.set("window", z.window);
      if (z.cap > 0) attributes.set("score_cap", z.cap);
      std::vector<Tensor> in, wanted;
      for (const TensorType& type : {q, k, k}) {
        in.emplace_back(type);
        for (int64_t i = 0; i < type.elements(); ++i)
          in.back().set(i, philox(philox_key(in.size(), 1), static_cast<uint64_t>(i))[0] * 0x1p-30 - 2);
      }
      for (const TensorType& type : {q, lse}) wanted.emplace_back(type);
      std::vector<TensorType> types{q, k, k};
      if (z.example > 0) {
        types.push_back({DType::i32, {z.batch, z.queries}});
        in.emplace_back(types.back());
        const std::vector<int> starts = starts_of(z.queries, z.example);
        for (int64_t i = 0; i < in.back().elements(); ++i)
          in.back().set(i, starts[static_cast<size_t>(i % z.queries)]);
      }
      const Call layouts(types, {q, lse});
      std::vector<std::byte*> inputs, outputs;
      for (const Tensor& tensor : in) inputs.push_back(tensor.bytes());
      for (const Tensor& tensor : wanted) outputs.push_back(tensor.bytes());
      const auto reference = make_reference_device()->prepare(
          {op_named("attention"), attributes, layouts.layouts[0], layouts.layouts[1], 0});
      std::vector<std::byte> workspace(static_cast<size_t>(reference->workspace_bytes()));
      reference->run({inputs.data(), outputs.data(), workspace.data(), reference->workspace_bytes()});
      for (const int generation : {8, 9})
        for (int run = 0; run < 2; ++run) {  // work done late, and at once
          INFO("generation " << generation << ", " << z.queries << " queries, head " << z.head);
          const Generation as(generation);
          Call call(types, {q, lse});
          for (size_t i = 0; i < in.size(); ++i)
            std::memcpy(call.addresses[0][i], in[i].bytes(),
                        static_cast<size_t>(in[i].elements() * bytes_of(in[i].dtype())));
          call.run("attention", attributes);
          int64_t wrong = 0;  // NaN too
          for (size_t o = 0; o < wanted.size(); ++o) {
            Tensor made(wanted[o].type());
            std::memcpy(made.bytes(), call.addresses[1][o],
                        static_cast<size_t>(made.elements() * bytes_of(made.dtype())));
            for (int64_t i = 0; i < made.elements(); ++i) {
              const double value = wanted[o].at(i), error = std::abs(made.at(i) - value);
              wrong += !(error <= (dtype == DType::bf16 ? 0.01 : 0.002) * (std::abs(value) + 1));
            }
          }
          CHECK(wrong == 0);
        }
    }
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
