// Matrix products: batched matmul, and linear layers with both their gradients.
#include "core/base/parallel.h"
#include "kernels/activation.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// Result 0 from the product. function(a vector of the product, where it lies, its lanes)
template <typename T, typename Function>
class Activation final : public Epilogue {
 public:
  Activation(const T* made, T* result, int64_t width, const Function& function)
      : made_(made), result_(result), width_(width), function_(function) {}
  void run(Range rows, Range columns) const override {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const int64_t row = i * width_ + columns.begin;
      for_lanes(columns.end - columns.begin, [&](int64_t j, auto lanes) {
        const int64_t at = row + j;
        store(result_ + at, function_(load(made_ + at, lanes), at, lanes), lanes);
      });
    }
  }

 private:
  const T* made_;
  T* result_;
  int64_t width_;
  Function function_;
};

// The product with GELU: it is kept as result 1 where it is wanted, else it lies where result 0 will.
std::unique_ptr<Kernel> with_gelu(const KernelRequest& request, const Gemm& gemm, int64_t width) {
  const bool bias = present(request.inputs, 2), keeps = present(request.outputs, 1);
  return for_float(request, request.outputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [gemm, width, bias, keeps](const KernelArguments& a) {
          T* const made = a.out<T>(keeps ? 1 : 0);
          const Activation epilogue(made, a.out<T>(0), width,
                                    [](Vector x, int64_t, auto) { return gelu(x); });
          gemm.run(a.inputs[0], a.inputs[1], made, bias ? a.in<float>(2) : nullptr, a.workspace, &epilogue);
        },
        gemm.workspace_bytes());
  });
}

// The gradient with that of GELU, whose operand is input 2.
std::unique_ptr<Kernel> with_gelu_gradient(const KernelRequest& request, const Gemm& gemm, int64_t width) {
  return for_float(request, request.outputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [gemm, width](const KernelArguments& a) {
          T* const made = a.out<T>(0);
          const Activation epilogue(made, made, width,
                                    [before = a.in<T>(2)](Vector dy, int64_t at, auto lanes) {
                                      return gelu_derivative(load(before + at, lanes)) * dy;
                                    });
          gemm.run(a.inputs[0], a.inputs[1], made, nullptr, a.workspace, &epilogue);
        },
        gemm.workspace_bytes());
  });
}

// y[..., out] = x[..., in] weight[out, in]^T + bias
std::unique_ptr<Kernel> prepare_linear(const KernelRequest& request) {
  require_packed_floats(request);
  const Layout &x = request.inputs[0], &weight = request.inputs[1], &y = request.outputs[0];
  GemmShape shape;
  shape.m = rows_of(x);
  shape.k = weight.type.shape[1];
  shape.n = weight.type.shape[0];
  shape.a_type = x.type.dtype;
  shape.b_type = weight.type.dtype;
  shape.c_type = y.type.dtype;
  shape.a_row = shape.k;
  shape.b_row = 1;
  shape.b_col = shape.k;
  shape.c_row = shape.n;
  const Gemm gemm(shape);
  if (is_activated(request)) return with_gelu(request, gemm, shape.n);
  return make_kernel(
      [gemm, bias = present(request.inputs, 2)](const KernelArguments& a) {
        gemm.run(a.inputs[0], a.inputs[1], a.outputs[0], bias ? a.in<float>(2) : nullptr, a.workspace);
      },
      gemm.workspace_bytes());
}

// dx[..., in] = dy[..., out] weight[out, in]
std::unique_ptr<Kernel> prepare_input_gradient(const KernelRequest& request) {
  require_packed_floats(request);
  const Layout &dy = request.inputs[0], &weight = request.inputs[1], &dx = request.outputs[0];
  GemmShape shape;
  shape.m = rows_of(dy);
  shape.k = weight.type.shape[0];
  shape.n = weight.type.shape[1];
  shape.a_type = dy.type.dtype;
  shape.b_type = weight.type.dtype;
  shape.c_type = dx.type.dtype;
  shape.a_row = shape.k;
  shape.b_row = shape.n;
  shape.c_row = shape.n;
  const Gemm gemm(shape);
  if (is_activated(request)) return with_gelu_gradient(request, gemm, shape.n);
  return make_kernel(
      [gemm](const KernelArguments& a) {
        gemm.run(a.inputs[0], a.inputs[1], a.outputs[0], nullptr, a.workspace);
      },
      gemm.workspace_bytes());
}

// sums[j] (+)= the sum of column j of matrix[rows, width] with lines of `stride` elements.
template <typename T>
void sum_columns(const T* matrix, int64_t rows, int64_t width, int64_t stride, float* sums, bool add) {
  constexpr int64_t kColumns = 4 * kLanes;
  for (int64_t j = 0; j < width; j += kColumns) {
    const int64_t columns = width - j < kColumns ? width - j : kColumns;
    Vector total[4] = {};
    for (int64_t r = 0; r < rows; ++r) {
      int v = 0;
      for_lanes(columns,
                [&](int64_t i, auto lanes) { total[v++] += load(matrix + r * stride + j + i, lanes); });
    }
    int v = 0;
    for_lanes(columns, [&](int64_t i, auto lanes) {
      store(sums + j + i, add ? load(sums + j + i, lanes) + total[v] : total[v], lanes);
      ++v;
    });
  }
}

// dweight[out, in] (+)= dy[..., out]^T x[..., in]; dbias[out] (+)= the column sums of dy.
//
// A small dweight is made from the tokens by parts: every thread multiplies its range of them, which it
// has just written in the step before and still holds in its cache, and the products are added up. A large
// one is cut into ranges of rows instead.
struct WeightGradient {
  std::vector<Gemm> products;  // one, or one for each part of the tokens
  int64_t tokens, out, in;
  bool bias, add_bias;

  int64_t parts() const { return static_cast<int64_t>(products.size()); }
  int64_t gemm_floats() const {  // of the part that needs most: another may be multiplied another way
    int64_t most = 0;
    for (const Gemm& product : products)
      if (product.workspace_bytes() > most) most = product.workspace_bytes();
    return (most + 63) / 64 * 16;
  }
  int64_t part_floats() const { return gemm_floats() + (out * in + out + 15) / 16 * 16; }  // and its sums
  int64_t workspace_bytes() const { return 4 * (parts() == 1 ? gemm_floats() : parts() * part_floats()); }

  template <typename T>
  void run(const KernelArguments& a) const {
    const T *dy = a.in<T>(0), *x = a.in<T>(1);
    if (parts() == 1) {
      products[0].run(dy, x, a.outputs[0], nullptr, a.workspace);
      if (bias)
        parallel_for(out, tokens > 0 ? 1 + 4 * kLightGrain / tokens : out, [&](int64_t begin, int64_t end) {
          sum_columns(dy + begin, tokens, end - begin, out, a.out<float>(1) + begin, add_bias);
        });
      return;
    }
    // The first part adds to the results themselves, the others make sums of their own.
    auto* space = reinterpret_cast<float*>(a.workspace);
    const auto weight_sums = [&](int64_t part) { return space + part * part_floats() + gemm_floats(); };
    parallel_parts(parts(), [&](int64_t part) {
      const Range share = share_of(tokens, parts(), part);
      float* own = weight_sums(part);
      products[part].run(dy + share.begin * out, x + share.begin * in, part == 0 ? a.out<float>(0) : own,
                         nullptr, reinterpret_cast<std::byte*>(space + part * part_floats()));
      if (bias)
        sum_columns(dy + share.begin * out, share.end - share.begin, out, out,
                    part == 0 ? a.out<float>(1) : own + out * in, part == 0 && add_bias);
    });
    const auto add_up = [&](float* to, int64_t offset, int64_t begin, int64_t end) {
      for (int64_t part = 1; part < parts(); ++part) {
        const float* from = weight_sums(part) + offset;
        for_lanes(end - begin, [&](int64_t i, auto lanes) {
          store(to + begin + i, load(to + begin + i, lanes) + load(from + begin + i, lanes), lanes);
        });
      }
    };
    parallel_for(out, row_grain(kLightGrain, in), [&](int64_t begin, int64_t end) {
      add_up(a.out<float>(0), 0, begin * in, end * in);
      if (bias) add_up(a.out<float>(1), out * in, begin, end);
    });
  }
};

std::unique_ptr<Kernel> prepare_weight_gradient(const KernelRequest& request) {
  require_packed_floats(request);
  constexpr int64_t kSmall = int64_t{1} << 18, kTokensEach = 128;
  const Layout &dy = request.inputs[0], &x = request.inputs[1];
  WeightGradient kernel;
  kernel.tokens = rows_of(dy);
  kernel.out = dy.type.shape.back();
  kernel.in = x.type.shape.back();
  kernel.bias = present(request.outputs, 1);
  kernel.add_bias = (request.accumulate & 2) != 0;
  GemmShape shape;
  shape.m = kernel.out;
  shape.n = kernel.in;
  shape.a_type = dy.type.dtype;
  shape.b_type = x.type.dtype;
  shape.c_type = DType::f32;
  shape.a_row = 1;
  shape.a_col = shape.m;
  shape.b_row = shape.n;
  shape.c_row = shape.n;
  const bool by_tokens = kernel.out * kernel.in <= kSmall && kernel.tokens >= kTokensEach * thread_count();
  const int64_t parts = by_tokens ? thread_count() : 1;
  for (int64_t part = 0; part < parts; ++part) {
    const Range share = share_of(kernel.tokens, parts, part);
    shape.k = share.end - share.begin;
    shape.serial = parts > 1;
    shape.add = part == 0 && (request.accumulate & 1) != 0;
    kernel.products.emplace_back(shape);
  }
  return for_float(request, dy.type.dtype, [&]<typename T>(T) {
    return make_kernel([kernel](const KernelArguments& a) { kernel.run<T>(a); }, kernel.workspace_bytes());
  });
}

// Of a batch of products: the sizes of one, and bytes from one matrix to the next.
struct Batch {
  GemmShape shape;
  int64_t count, step_a, step_b, step_c;
};

// Threads share out the batch when it is large enough, else the rows of each product.
std::unique_ptr<Kernel> prepare_batch(Batch batch) {
  const int64_t parts = batch.count < thread_count() ? 1 : thread_count();
  batch.shape.serial = parts > 1;
  const Gemm gemm(batch.shape);
  const int64_t own = (gemm.workspace_bytes() + 63) / 64 * 64;
  return make_kernel(
      [gemm, batch, parts, own](const KernelArguments& arguments) {
        parallel_parts(parts, [&](int64_t part) {
          const Range share = share_of(batch.count, parts, part);
          for (int64_t i = share.begin; i < share.end; ++i)
            gemm.run(arguments.inputs[0] + i * batch.step_a, arguments.inputs[1] + i * batch.step_b,
                     arguments.outputs[0] + i * batch.step_c, nullptr, arguments.workspace + part * own);
        });
      },
      parts * own);
}

// [..., m, k] by [..., k, n], or by one [k, n] for all.
Batch batch_of(const KernelRequest& request, bool ta, bool tb) {
  require_packed_floats(request);
  const Layout &a = request.inputs[0], &b = request.inputs[1], &c = request.outputs[0];
  GemmShape shape;
  shape.m = c.type.shape[c.type.shape.size() - 2];
  shape.n = c.type.shape.back();
  const int64_t rank = static_cast<int64_t>(a.type.shape.size());
  shape.k = ta ? a.type.shape[rank - 2] : a.type.shape[rank - 1];
  shape.a_type = a.type.dtype;
  shape.b_type = b.type.dtype;
  shape.c_type = c.type.dtype;
  shape.a_row = ta ? 1 : shape.k;
  shape.a_col = ta ? shape.m : 1;
  shape.b_row = tb ? 1 : shape.n;
  shape.b_col = tb ? shape.k : 1;
  shape.c_row = shape.n;
  const int64_t matrix = shape.m * shape.n;
  return {shape, matrix == 0 ? 0 : c.type.elements() / matrix, shape.m * shape.k * bytes_of(a.type.dtype),
          b.type.shape.size() == 2 ? 0 : shape.k * shape.n * bytes_of(b.type.dtype),
          matrix * bytes_of(c.type.dtype)};
}

std::unique_ptr<Kernel> prepare_matmul(const KernelRequest& request) {
  return prepare_batch(
      batch_of(request, flag(request, "transpose_a", false), flag(request, "transpose_b", false)));
}

// dweight[..., m, n] (+)= a[..., k, m]^T b[..., k, n]
std::unique_ptr<Kernel> prepare_matmul_weight_gradient(const KernelRequest& request) {
  Batch batch = batch_of(request, true, false);
  batch.shape.add = (request.accumulate & 1) != 0;
  return prepare_batch(batch);
}

}  // namespace

std::vector<KernelEntry> matmul_kernels() {
  return {{"matmul", &prepare_matmul},
          {"matmul_weight_gradient", &prepare_matmul_weight_gradient},
          {"linear", &prepare_linear},
          {"linear_input_gradient", &prepare_input_gradient},
          {"linear_weight_gradient", &prepare_weight_gradient}};
}

}  // namespace het::cpu::HET_ISA
