#include "kernels/request.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/convert.h"

namespace het::kernels {

Loops merge_loops(const KernelRequest& request, const Shape& shape, std::span<const Layout* const> operands) {
  HET_REQUIRE(operands.size() <= kMaxOperands, operands.size());
  std::vector<Layout> stretched;
  for (const Layout* operand : operands) stretched.push_back(broadcast_to(*operand, shape));

  // Inner to outer: a dimension joins the loop inside it when every operand continues there.
  std::vector<int64_t> sizes;
  std::vector<Strides> strides;  // [loop][operand]
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    Strides here;
    for (const Layout& layout : stretched) here.push_back(layout.strides[d]);
    bool joins = !sizes.empty();
    for (size_t i = 0; joins && i < here.size(); ++i) joins = here[i] == strides.back()[i] * sizes.back();
    if (joins) {
      sizes.back() *= shape[d];
    } else {
      sizes.push_back(shape[d]);
      strides.push_back(std::move(here));
    }
  }
  if (sizes.size() > kMaxRank) refuse(request, "operands with more than 8 dimensions that cannot be merged");

  Loops loops;
  loops.rank = std::max<int>(1, static_cast<int>(sizes.size()));
  for (size_t l = 0; l < sizes.size(); ++l) {
    const size_t d = sizes.size() - 1 - l;
    loops.size[d] = sizes[l];
    for (size_t i = 0; i < operands.size(); ++i) loops.stride[i][d] = strides[l][i];
  }
  return loops;
}

Loops copy_loops(const KernelRequest& request, const Layout& to, const Layout& from) {
  std::vector<int64_t> order(to.type.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return to.strides[a] > to.strides[b]; });
  const Layout target = permuted(to, order), source = permuted(from, order);
  const Layout* const operands[] = {&target, &source};
  return merge_loops(request, target.type.shape, operands);
}

Loops reduction_loops(const KernelRequest& request) {
  const Layout& x = request.inputs[0];
  const int64_t rank = static_cast<int64_t>(x.type.shape.size());
  const auto dims = request.attributes.get<std::vector<int64_t>>("dims", {});
  std::vector<bool> summed(rank, dims.empty());
  for (const int64_t dim : dims) summed[from_start(dim, rank)] = true;
  Layout result{{request.outputs[0].type.dtype, x.type.shape}, Strides(rank, 0)};
  int64_t step = 1;
  for (int64_t d = rank; d-- > 0;) {
    if (summed[d]) continue;
    result.strides[d] = step;
    step *= x.type.shape[d];
  }
  const Layout* const operands[] = {&x, &result};
  return merge_loops(request, x.type.shape, operands);
}

Split3 split_at(const Shape& shape, int64_t dim) {
  dim = from_start(dim, shape.size());
  Split3 split{1, 1, 1};
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d)
    (d < dim ? split.outer : d == dim ? split.size : split.inner) *= shape[d];
  return split;
}

void refuse_dtype(const KernelRequest& request, DType dtype) {
  fail_usage("the kernel of {} takes no {}; f32, bf16 and f16 work (on the reference device f64 too)",
             request.op.name, dtype);
}

void refuse(const KernelRequest& request, std::string_view why) {
  fail_usage("the kernel of {} does not take {}", request.op.name, why);
}

void require_packed(const KernelRequest& request, const Layout& layout) {
  if (!layout.is_contiguous())
    fail(ErrorKind::bug, "the kernel of {} was prepared for a strided operand {}", request.op.name,
         to_string(layout.type));
}

bool is_narrow(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

void require_packed_floats(const KernelRequest& request) {
  for (const auto& operands : {request.inputs, request.outputs})
    for (const Layout& layout : operands) {
      if (!layout.type.present()) continue;
      if (!is_narrow(layout.type.dtype)) refuse_dtype(request, layout.type.dtype);
      require_packed(request, layout);
    }
}

void refuse_index(const char* op, int64_t position, int64_t value, int64_t limit) {
  fail_usage(
      "{}: index {} at position {} is outside 0 to {}: there are {} rows of a table, or classes of labels",
      op, value, position, limit - 1, limit);
}

void refuse_position(const char* op, int64_t tokens, int64_t position, int64_t cache) {
  fail_usage("{}: {} new tokens at position {} do not fit in a cache of {}", op, tokens, position, cache);
}

void refuse_start(const char* op, int64_t token, int64_t start) {
  fail_usage("{}: the start of token {} is {}; it has to be from that of the token before it to {}", op,
             token, start, token);
}

void require_starts(const char* op, const int32_t* starts, int64_t count) {
  int32_t before = 0;
  for (int64_t i = 0; i < count; before = starts[i++])
    if (starts[i] < before || starts[i] > i) refuse_start(op, i, starts[i]);
}

int64_t rows_of(const Layout& layout) { return split_at(layout.type.shape, -1).outer; }

Rows packed_rows(const KernelRequest& request, const Layout& layout) {
  require_packed(request, layout);
  const Split3 split = split_at(layout.type.shape, -1);
  return {split.outer, split.size};
}

double number(const KernelRequest& request, std::string_view attribute, double fallback) {
  return request.attributes.get<double>(attribute, fallback);
}
int64_t integer(const KernelRequest& request, std::string_view attribute, int64_t fallback) {
  return request.attributes.get<int64_t>(attribute, fallback);
}
bool flag(const KernelRequest& request, std::string_view attribute, bool fallback) {
  return request.attributes.get<bool>(attribute, fallback);
}

std::vector<std::byte> constant_bytes(const KernelRequest& request) {
  const auto values = request.attributes.get<std::vector<double>>("values");
  const TensorType& type = request.outputs[0].type;
  std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
  for (size_t i = 0; i < values.size(); ++i)
    store_element(bytes.data(), type.dtype, values[i], static_cast<int64_t>(i));
  return bytes;
}

double weight_decay_of(const KernelRequest& request, size_t parameter) {
  if (!request.attributes.has("weight_decays")) return number(request, "weight_decay", 0.0);
  return request.attributes.get<std::vector<double>>("weight_decays")[parameter];
}

PhiloxKey draw_key(const KernelRequest& request) {
  return philox_key(static_cast<uint64_t>(integer(request, "seed", 0)),
                    static_cast<uint64_t>(integer(request, "stream", 0)));
}

}  // namespace het::kernels
