// Entries of rows by index, and sums of entries by index: a row is written by one thread, so sums always run
// in the same order.
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

struct Indexed {
  int64_t rows, n, k;  // entries of a row, and how many of them are indexed
};

Indexed rows_by_index(const KernelRequest& request, const Layout& all) {
  for (const Layout& layout : request.inputs) require_packed(request, layout);
  require_packed(request, request.outputs[0]);
  const TensorType& index = request.inputs[1].type;
  if (index.dtype != DType::i32) refuse_dtype(request, index.dtype);
  return {rows_of(all), all.type.shape.back(), index.shape.back()};
}

// Before any thread starts: an index outside its row must not be followed.
void check_index(const char* op, const int32_t* index, const Indexed& r) {
  for (int64_t i = 0; i < r.rows * r.k; ++i)
    if (index[i] < 0 || index[i] >= r.n) [[unlikely]]
      refuse_index(op, i, index[i], r.n);
}

std::unique_ptr<Kernel> prepare_gather(const KernelRequest& request) {
  const Indexed r = rows_by_index(request, request.inputs[0]);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      const T* x = a.in<T>(0);
      const int32_t* index = a.in<int32_t>(1);
      T* y = a.out<T>(0);
      check_index("gather", index, r);
      parallel_for(r.rows, row_grain(kLightGrain, r.k), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          for (int64_t j = row * r.k; j < (row + 1) * r.k; ++j) y[j] = x[row * r.n + index[j]];
      });
    });
  });
}

// Sums in f32, in a row of the workspace.
std::unique_ptr<Kernel> prepare_scatter_add(const KernelRequest& request) {
  const Indexed r = rows_by_index(request, request.outputs[0]);
  const int64_t parts = parts_for(r.rows, row_grain(kLightGrain, r.n + r.k)), scratch = (r.n + 15) / 16 * 16;
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=](const KernelArguments& a) {
          const T* x = a.in<T>(0);
          const int32_t* index = a.in<int32_t>(1);
          check_index("scatter_add", index, r);
          parallel_parts(parts, [&](int64_t part) {
            float* sums = reinterpret_cast<float*>(a.workspace) + part * scratch;
            const Range range = share_of(r.rows, parts, part);
            for (int64_t row = range.begin; row < range.end; ++row) {
              std::memset(sums, 0, r.n * 4);
              for (int64_t j = row * r.k; j < (row + 1) * r.k; ++j)
                sums[index[j]] += static_cast<float>(x[j]);
              T* y = a.out<T>(0) + row * r.n;
              for_lanes(r.n, [&](int64_t i, auto lanes) { store(y + i, load(sums + i, lanes), lanes); });
            }
          });
        },
        parts * scratch * 4);
  });
}

}  // namespace

std::vector<KernelEntry> gather_kernels() {
  return {{"gather", prepare_gather}, {"scatter_add", prepare_scatter_add}};
}

}  // namespace het::cpu::HET_ISA
