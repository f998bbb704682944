// What cuBLASLt does on a GPU, in plain loops, queued on the stream as a kernel of one thread.
#include "kernels/cuda/gemm.h"

#include <numeric>
#include <vector>

#include "kernels/cuda/vector.h"
#include "kernels/reference/gelu.h"

namespace het::HET_CUDA {
namespace {

double at(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(p)[i];
    case DType::bf16: return to_float(static_cast<const bf16*>(p)[i]);
    case DType::f16: return to_float(static_cast<const f16*>(p)[i]);
    default: emulated::broken("a product of something else than f32, bf16 and f16");
  }
}

void set(void* p, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::f32: static_cast<float*>(p)[i] = value; break;
    case DType::bf16: static_cast<bf16*>(p)[i] = from_float<bf16>(value); break;
    case DType::f16: static_cast<f16*>(p)[i] = from_float<f16>(value); break;
    default: emulated::broken("a product into something else than f32, bf16 and f16");
  }
}

// `rows` x `terms` elements of an operand, each row's terms side by side.
std::vector<double> widened(const void* from, DType dtype, int64_t rows, int64_t terms, int64_t row_step,
                            int64_t term_step, int64_t first) {
  std::vector<double> all;
  all.reserve(static_cast<size_t>(rows * terms));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t term = 0; term < terms; ++term)
      all.push_back(at(from, dtype, first + row * row_step + term * term_step));
  return all;
}

void multiply(Product p, const void* a, const void* b, void* c, const void* bias, void* beside) {
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const std::vector<double> rows = widened(a, p.a, p.m, p.k, p.transposed_a ? 1 : p.lead_a,
                                             p.transposed_a ? p.lead_a : 1, batch * p.step_a);
    const std::vector<double> columns = widened(b, p.b, p.n, p.k, p.transposed_b ? p.lead_b : 1,
                                                p.transposed_b ? 1 : p.lead_b, batch * p.step_b);
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        const double* row = rows.data() + i * p.k;
        const double sum = std::inner_product(row, row + p.k, columns.data() + j * p.k, 0.0);
        const int64_t to = batch * p.step_c + i * p.lead_c + j;
        double value = p.alpha * sum;
        if (p.beta != 0) value += p.beta * at(c, p.c, to);
        if (p.bias) value += at(bias, p.c, j);
        if (p.epilogue == Epilogue::gelu_kept) set(beside, p.c, to, static_cast<float>(value));
        if (p.epilogue == Epilogue::gelu_gradient)
          value *= reference::gelu_slope(at(beside, p.c, to));
        else if (p.epilogue != Epilogue::none)
          value = reference::gelu(value);
        set(c, p.c, to, static_cast<float>(value));
      }
  }
}

class PlainGemm final : public Gemm {
 public:
  PlainGemm(const Context& context, const Product& product) : context_(context), product_(product) {}
  int64_t workspace_bytes() const override { return rounds_bias() ? 16 + product_.n * 2 : 0; }
  void run(const ProductOperands& o, std::byte* workspace) override {
    if (product_.k == 0) return run_without_terms(context_, product_, o.c, o.bias);
    if (product_.epilogue != Epilogue::none)
      for (const void* address :
           {o.a, o.b, static_cast<const void*>(o.c), static_cast<const void*>(o.beside)})
        if (reinterpret_cast<uintptr_t>(address) % kEpilogueAlign != 0)
          emulated::broken("a product with an epilogue at an odd address");
    const void* added = o.bias;
    if (rounds_bias()) {
      std::byte* space = workspace + (16 - reinterpret_cast<uintptr_t>(workspace) % 16) % 16;
      convert_bias(context_, o.bias, product_.c, space, product_.n);
      added = space;
    }
    launch(context_, multiply, 1, 1, 0, product_, o.a, o.b, o.c, added, o.beside);
  }

 private:
  bool rounds_bias() const { return product_.bias && product_.c != DType::f32; }

  const Context& context_;
  Product product_;
};

}  // namespace

std::unique_ptr<Gemm> make_gemm(const Context& context, const Product& product) {
  if (product.epilogue != Epilogue::none && !may_have_epilogue(product)) return nullptr;
  return std::make_unique<PlainGemm>(context, product);
}

}  // namespace het::HET_CUDA
