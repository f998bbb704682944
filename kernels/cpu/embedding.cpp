// Rows of a table by index, and the gradient: rows added into the table's. Each part of the gradient owns the
// rows whose index leaves its number as remainder, and walks all indices in order, so that sums need no
// atomics and always run in the same order.
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// Before any thread starts: an index outside the table must not be followed.
void check_indices(const char* op, const int32_t* ids, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= limit) [[unlikely]]
      refuse_index(op, i, ids[i], limit);
}

void require_indices(const KernelRequest& request, const Layout& ids) {
  require_packed(request, ids);
  if (ids.type.dtype != DType::i32) refuse_dtype(request, ids.type.dtype);
}

std::unique_ptr<Kernel> prepare_embedding(const KernelRequest& request) {
  require_indices(request, request.inputs[0]);
  const TensorType& table = request.inputs[1].type;
  require_packed(request, request.inputs[1]);
  require_packed(request, request.outputs[0]);
  const int64_t count = request.inputs[0].type.elements(), rows = table.shape[0], columns = table.shape[1];
  const int64_t row_bytes = columns * bytes_of(table.dtype);
  const int64_t first = integer(request, "first", 0), of = integer(request, "of", rows);
  return make_kernel([=](const KernelArguments& a) {
    check_indices("embedding", a.in<int32_t>(0), count, of);
    parallel_for(count, row_grain(kLightGrain, columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = a.in<int32_t>(0)[i] - first;
        if (row >= 0 && row < rows) [[likely]]
          std::memcpy(a.outputs[0] + i * row_bytes, a.inputs[1] + row * row_bytes, row_bytes);
        else
          std::memset(a.outputs[0] + i * row_bytes, 0, row_bytes);
      }
    });
  });
}

std::unique_ptr<Kernel> prepare_embedding_gradient(const KernelRequest& request) {
  require_indices(request, request.inputs[1]);
  require_packed(request, request.inputs[0]);
  require_packed(request, request.outputs[0]);
  const TensorType& table = request.outputs[0].type;
  if (table.dtype != DType::f32) refuse_dtype(request, table.dtype);
  const int64_t count = request.inputs[1].type.elements(), rows = table.shape[0], columns = table.shape[1];
  const int64_t first = integer(request, "first", 0), of = integer(request, "of", rows);
  const bool accumulate = request.accumulate & 1;
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const int64_t parts = parts_for(count, row_grain(kLightGrain, columns));
    return make_kernel([=](const KernelArguments& a) {
      const T* dy = a.in<T>(0);
      float* dtable = a.out<float>(0);
      check_indices("embedding_gradient", a.in<int32_t>(1), count, of);
      if (!accumulate)
        parallel_for(rows, row_grain(kLightGrain, columns), [&](int64_t begin, int64_t end) {
          std::memset(dtable + begin * columns, 0, (end - begin) * columns * 4);
        });
      parallel_parts(parts, [&](int64_t part) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t id = a.in<int32_t>(1)[i] - first;
          if (id < 0 || id >= rows || (parts > 1 && id % parts != part)) continue;
          const T* from = dy + i * columns;
          float* to = dtable + id * columns;
          for_lanes(columns, [&](int64_t c, auto lanes) {
            store(to + c, load(to + c, lanes) + load(from + c, lanes), lanes);
          });
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelEntry> embedding_kernels() {
  return {{"embedding", prepare_embedding}, {"embedding_gradient", prepare_embedding_gradient}};
}

}  // namespace het::cpu::HET_ISA
