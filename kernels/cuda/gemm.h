// Products of matrices for the kernels here: by cuBLASLt on a GPU (gemm.cpp), by plain loops in the emulation
// (tests/emulated_cuda/gemm.cpp).
#pragma once

#include <memory>

#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {

// What is made of each element v of a product before it is rounded: gelu is by tanh, and `beside` a matrix as
// c is. `gelu_kept` also writes v to it, `gelu_gradient` takes from it where gelu's derivative is to be.
enum class Epilogue : uint8_t {
  none,
  gelu,           // gelu(v)
  gelu_kept,      // gelu(v), beside = v
  gelu_gradient,  // gelu'(beside) v
};

// c [m, n] = alpha * a [m, k] b [k, n] + beta * c for each of `batch`, all row-major, f32 sums. Leading
// dimensions are elements from one row of the matrix as it is stored to the next: a transposed a is stored as
// [k, m].
struct Product {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  DType a = DType::f32, b = DType::f32, c = DType::f32;
  bool transposed_a = false, transposed_b = false;
  int64_t lead_a = 0, lead_b = 0, lead_c = 0;
  int64_t step_a = 0, step_b = 0,
          step_c = 0;  // elements from one matrix of the batch to the next; 0: all share one
  float alpha = 1, beta = 0;
  bool bias = false;  // add a vector [n] of f32 to each row; first rounded to c's type
  Epilogue epilogue = Epilogue::none;
  bool operator==(const Product&) const = default;
};

struct ProductOperands {
  const void *a, *b;
  void* c;
  const float* bias = nullptr;
  void* beside = nullptr;
};

// A product ready to run: the algorithm chosen, nothing left to allocate.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual int64_t workspace_bytes() const { return 0; }
  // With an epilogue, matrices begin at multiples of kEpilogueAlign bytes.
  virtual void run(const ProductOperands& operands, std::byte* workspace) = 0;
};
inline constexpr uintptr_t kEpilogueAlign = 16;

// Throws Error(environment) when cuBLASLt is missing or has no algorithm for it. Of a product with an
// epilogue null where it has none.
std::unique_ptr<Gemm> make_gemm(const Context& context, const Product& product);

// What cuBLASLt asks of a product before it makes more of it than a sum: 16-bit results in whole packs of 8,
// one matrix, nothing that it is added to.
inline bool may_have_epilogue(const Product& p) {
  return p.c != DType::f32 && p.n % 8 == 0 && p.lead_c == p.n && p.batch == 1 && p.beta == 0 && p.m > 0 &&
         p.n > 0 && p.k > 0;
}

// For what implements Gemm (gemm_parts.cu): the bias in another type, and a product with k = 0.
void convert_bias(const Context& context, const float* from, DType dtype, void* to, int64_t n);
void run_without_terms(const Context& context, const Product& product, void* c, const float* bias);

}  // namespace het::HET_CUDA
