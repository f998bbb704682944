// Sum and mean over any dimensions. After merging, the innermost loop is either summed (rows, as in a mean
// over the last dimension) or kept (columns, as in the gradient of a bias). Where the results are too few to
// occupy the threads, the outermost summed loop is split into parts, and their sums are added in order.
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// Columns whose sums are kept together in the first-level cache.
constexpr int64_t kStrip = 1024;

struct Reduction {
  Loops loops;              // operand 0: input, 1: result, with stride 0 in summed loops
  int first_summed = -1;    // the outermost summed loop, which parts divide; -1: nothing is summed
  bool by_columns = false;  // the innermost loop is kept
  int64_t results = 1;
  int64_t items = 1;   // results, or strips of columns
  int64_t strips = 1;  // strips in the innermost loop
  int64_t parts = 1;   // of the items, or of the first summed loop
  bool split_summed = false;
  float factor = 1;
  bool accumulate = false;
  DType to = DType::f32;

  bool summed(int d) const { return loops.stride[1][d] == 0; }
};

Reduction plan_reduction(const KernelRequest& request, bool mean) {
  Reduction r;
  r.loops = reduction_loops(request);
  r.to = request.outputs[0].type.dtype;
  r.accumulate = request.accumulate & 1;
  const int inner = r.loops.rank - 1;
  int64_t count = 1;
  for (int d = 0; d < r.loops.rank; ++d) {
    // A loop of one element (all dimensions had size 1) has stride 0 everywhere: summing it does nothing.
    if (!r.summed(d)) {
      r.results *= r.loops.size[d];
      continue;
    }
    count *= r.loops.size[d];
    if (r.first_summed < 0) r.first_summed = d;
  }
  r.factor = mean ? 1.0f / static_cast<float>(count) : 1.0f;
  r.by_columns = !r.summed(inner);
  r.items = r.results;
  if (r.by_columns) {
    r.strips = (r.loops.size[inner] + kStrip - 1) / kStrip;
    r.items = r.results / (r.loops.size[inner] > 0 ? r.loops.size[inner] : 1) * r.strips;
  }
  r.parts = parts_for(r.loops.elements(), kLightGrain);
  // Twice as many items as parts, lest one odd item leave the others idle.
  if (r.items < 2 * r.parts && r.parts > 1 && r.first_summed >= 0 &&
      r.loops.size[r.first_summed] >= r.parts) {
    r.split_summed = true;
  } else if (r.items < r.parts) {
    r.parts = r.items > 0 ? r.items : 1;
  }
  return r;
}

// Calls body(offset) for each iteration of the summed loops other than `skip`, the first restricted to
// `range`.
template <typename Body>
HET_INLINE void for_summed(const Reduction& r, int skip, Range range, int64_t offset, const Body& body) {
  int64_t at[kMaxRank] = {};
  int order[kMaxRank], count = 0;
  for (int d = 0; d < r.loops.rank; ++d)
    if (r.summed(d) && d != skip) order[count++] = d;
  for (int k = 0; k < count; ++k)
    if (r.loops.size[order[k]] == 0) return;
  if (count > 0 && order[0] == r.first_summed) {
    if (range.begin == range.end) return;
    offset += range.begin * r.loops.stride[0][order[0]];
  }
  for (;;) {
    body(offset);
    int k = count - 1;
    for (; k >= 0; --k) {
      const int d = order[k];
      const int64_t size = d == r.first_summed ? range.end - range.begin : r.loops.size[d];
      offset += r.loops.stride[0][d];
      if (++at[k] < size) break;
      offset -= size * r.loops.stride[0][d];
      at[k] = 0;
    }
    if (k < 0) return;
  }
}

// Where the kept loops `0 .. last` begin for their iteration `index`, in the input.
int64_t kept_offset(const Reduction& r, int last, int64_t index) {
  int64_t offset = 0;
  for (int d = last; d >= 0; --d) {
    if (r.summed(d)) continue;
    offset += index % r.loops.size[d] * r.loops.stride[0][d];
    index /= r.loops.size[d];
  }
  return offset;
}

template <typename T>
float sum_run(const T* x, int64_t n, int64_t step) {
  if (step != 1) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<float>(x[i * step]);
    return sum;
  }
  Vector sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int k = 0; k < 4; ++k) sums[k] += load(x + i + k * kLanes);
  for (; i + kLanes <= n; i += kLanes) sums[0] += load(x + i);
  if (i < n) sums[1] += load(x + i, Tail{static_cast<int>(n - i)});
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The sum of result `index` over `range` of the first summed loop. Long runs are summed in pieces, the pieces
// in f64.
template <typename T>
float sum_result(const Reduction& r, const T* x, int64_t index, Range range) {
  constexpr int64_t kPiece = 8192;
  const int inner = r.loops.rank - 1;
  const int64_t step = r.loops.stride[0][inner];
  const Range run = inner == r.first_summed ? range : Range{0, r.loops.size[inner]};
  double total = 0;
  for_summed(r, inner, range, kept_offset(r, inner, index), [&](int64_t offset) {
    for (int64_t i = run.begin; i < run.end; i += kPiece)
      total += sum_run(x + offset + i * step, run.end - i < kPiece ? run.end - i : kPiece, step);
  });
  return static_cast<float>(total);
}

// sums[0 .. columns) = the sums of one strip over `range` of the first summed loop, four rows at a time.
template <typename T>
void sum_strip(const Reduction& r, const T* x, int64_t item, Range range, float* sums, int64_t columns) {
  const int inner = r.loops.rank - 1;
  const int64_t step = r.loops.stride[0][inner];
  const int64_t start = kept_offset(r, inner - 1, item / r.strips) + item % r.strips * kStrip * step;
  for (int64_t i = 0; i < columns; ++i) sums[i] = 0;
  int rows_loop = inner - 1;
  while (rows_loop > 0 && !r.summed(rows_loop)) --rows_loop;
  const Range rows = rows_loop < 0 || !r.summed(rows_loop) ? Range{0, 1}
                     : rows_loop == r.first_summed         ? range
                                                           : Range{0, r.loops.size[rows_loop]};
  const int64_t row_step = rows_loop < 0 ? 0 : r.loops.stride[0][rows_loop];
  for_summed(r, rows_loop, range, start, [&](int64_t offset) {
    int64_t row = rows.begin;
    if (step == 1)
      for (; row + 4 <= rows.end; row += 4) {
        const T* p = x + offset + row * row_step;
        for_lanes(columns, [&](int64_t i, auto lanes) {
          const Vector four = (load(p + i, lanes) + load(p + row_step + i, lanes)) +
                              (load(p + 2 * row_step + i, lanes) + load(p + 3 * row_step + i, lanes));
          store(sums + i, load(sums + i, lanes) + four, lanes);
        });
      }
    for (; row < rows.end; ++row) {
      const T* p = x + offset + row * row_step;
      if (step == 1)
        for_lanes(columns, [&](int64_t i, auto lanes) {
          store(sums + i, load(sums + i, lanes) + load(p + i, lanes), lanes);
        });
      else
        for (int64_t i = 0; i < columns; ++i) sums[i] += static_cast<float>(p[i * step]);
    }
  });
}

int64_t strip_columns(const Reduction& r, int64_t item) {
  const int64_t rest = r.loops.size[r.loops.rank - 1] - item % r.strips * kStrip;
  return rest < kStrip ? rest : kStrip;
}
int64_t strip_result(const Reduction& r, int64_t item) {
  return item / r.strips * r.loops.size[r.loops.rank - 1] + item % r.strips * kStrip;
}

template <typename U>
void write_sums(const Reduction& r, const float* sums, U* y, int64_t n) {
  for_lanes(n, [&](int64_t i, auto lanes) {
    Vector v = load(sums + i, lanes) * r.factor;
    if (r.accumulate) v += load(y + i, lanes);
    store(y + i, v, lanes);
  });
}
void write_sums(const Reduction& r, const float* sums, std::byte* y, int64_t at, int64_t n) {
  switch (r.to) {
    case DType::bf16: return write_sums(r, sums, reinterpret_cast<bf16*>(y) + at, n);
    case DType::f16: return write_sums(r, sums, reinterpret_cast<f16*>(y) + at, n);
    default: return write_sums(r, sums, reinterpret_cast<float*>(y) + at, n);
  }
}

// The sums of items [begin, end) over `range`: to `sums` (one f32 for each result) when given, else to the
// result.
template <typename T>
void run_items(const Reduction& r, const KernelArguments& a, int64_t begin, int64_t end, Range range,
               float* sums) {
  const T* x = a.in<T>(0);
  float strip[kStrip];
  if (!r.by_columns) {
    // Results of neighbouring items lie side by side: written a strip at a time.
    for (int64_t first = begin; first < end; first += kStrip) {
      const int64_t n = end - first < kStrip ? end - first : kStrip;
      float* to = sums ? sums + first : strip;
      for (int64_t i = 0; i < n; ++i) to[i] = sum_result(r, x, first + i, range);
      if (!sums) write_sums(r, to, a.outputs[0], first, n);
    }
    return;
  }
  for (int64_t item = begin; item < end; ++item) {
    const int64_t n = strip_columns(r, item), at = strip_result(r, item);
    sum_strip(r, x, item, range, sums ? sums + at : strip, n);
    if (!sums) write_sums(r, strip, a.outputs[0], at, n);
  }
}

template <typename T>
std::unique_ptr<Kernel> prepare_narrow(const Reduction& r) {
  const int64_t length = r.first_summed < 0 ? 1 : r.loops.size[r.first_summed];
  const int64_t row = (r.results + 15) / 16 * 16;  // sums of one part, padded to whole cache lines
  if (!r.split_summed)
    return make_kernel([r, length](const KernelArguments& a) {
      parallel_parts(r.parts, [&](int64_t part) {
        const Range items = share_of(r.items, r.parts, part);
        run_items<T>(r, a, items.begin, items.end, {0, length}, nullptr);
      });
    });
  return make_kernel(
      [r, length, row](const KernelArguments& a) {
        float* sums = reinterpret_cast<float*>(a.workspace);
        parallel_parts(r.parts, [&](int64_t part) {
          run_items<T>(r, a, 0, r.items, share_of(length, r.parts, part), sums + part * row);
        });
        for_lanes(r.results, [&](int64_t i, auto lanes) {
          Vector total = load(sums + i, lanes);
          for (int64_t part = 1; part < r.parts; ++part) total += load(sums + part * row + i, lanes);
          store(sums + i, total, lanes);
        });
        write_sums(r, sums, a.outputs[0], 0, r.results);
      },
      r.parts * row * 4);
}

// f64: one result after the other.
std::unique_ptr<Kernel> prepare_wide(const Reduction& r, bool mean) {
  return make_kernel([r, mean](const KernelArguments& a) {
    const int64_t length = r.first_summed < 0 ? 1 : r.loops.size[r.first_summed];
    parallel_for(r.results, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double total = 0;
        int64_t count = 0;
        for_summed(r, -1, {0, length}, kept_offset(r, r.loops.rank - 1, i), [&](int64_t offset) {
          total += a.in<double>(0)[offset];
          ++count;
        });
        if (mean) total /= static_cast<double>(count);
        double* y = a.out<double>(0) + i;
        *y = r.accumulate ? *y + total : total;
      }
    });
  });
}

template <bool kMean>
std::unique_ptr<Kernel> prepare_reduction(const KernelRequest& request) {
  require_packed(request, request.outputs[0]);
  const Reduction r = plan_reduction(request, kMean);
  const DType from = request.inputs[0].type.dtype;
  if (from == DType::f64 && r.to == DType::f64) return prepare_wide(r, kMean);
  if (r.to != DType::f32 && r.to != DType::bf16 && r.to != DType::f16) refuse_dtype(request, r.to);
  return for_float(request, from, [&]<typename T>(T) { return prepare_narrow<T>(r); });
}

}  // namespace

std::vector<KernelEntry> reduce_kernels() {
  return {{"sum", prepare_reduction<false>}, {"mean", prepare_reduction<true>}};
}

}  // namespace het::cpu::HET_ISA
