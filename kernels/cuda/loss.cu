// Cross-entropy, alone and fused with the classifier. The fused form makes the logits of some thousand rows
// at a time, in f32, by one product; one kernel finds each row's log Σ exp, its loss, and turns its logits
// into their gradient in place, rounded to the operands' type for the two products that use it. A block takes
// a row: it reads the logits once from memory for the sum, a second time from the L2 cache, and no
// probability is stored.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/raw.h"
#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kEach = 8;      // classes that a thread takes at a time
constexpr int kInFlight = 4;  // accesses of a thread that are on their way at a time
constexpr int kSumThreads = 256;
constexpr float kLowest = -3.402823466e38f;  // of all floats that are finite

unsigned threads_for(int64_t classes) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(ceil_div(classes, kEach * kWarp) * kWarp, kWarp, kMostThreads));
}

// What the labels mean: classes `first` to first + own - 1 of `of` are here.
struct Labels {
  const int* labels;  // of all rows
  int64_t ignore, first, own, of;
  const char* op;
  Failure* failure;

  // Whether the row counts. Labels are data: a wrong one is reported, and its row left out.
  __device__ bool counts(int64_t row) const {
    const int64_t label = labels[row];
    if (label == ignore) return false;
    if (label >= 0 && label < of) return true;
    if (threadIdx.x == 0) report(failure, {Failure::bad_index, row, label, of, op});
    return false;
  }
  // The label's place among the classes here; -1 when it is not.
  __device__ int64_t place(int64_t row) const {
    const int64_t at = labels[row] - first;
    return at >= 0 && at < own ? at : -1;
  }
};

// log Σ exp of a row of n, plus `bias` where there is one, in every thread of the block, to which `kept`, if
// it is given, then has the row. With packs of N the row's last may reach beyond n.
template <int N, typename T>
__device__ float row_log_sum_exp(const T* row, const float* bias, int64_t n, float* kept = nullptr) {
  __shared__ float scratch[kMostThreads / kWarp];
  float most = kLowest, sum = 0;
  const int64_t step = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t begin = static_cast<int64_t>(threadIdx.x) * N; begin < n; begin += kInFlight * step) {
    Raw<T, N> raw[kInFlight];
#pragma unroll
    for (int p = 0; p < kInFlight; ++p)
      if (begin + p * step < n) raw[p].load(row + begin + p * step);
#pragma unroll
    for (int p = 0; p < kInFlight; ++p) {
      const int64_t i = begin + p * step;
      if (i >= n) break;
      float v[N], larger = most;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        v[k] = i + k < n ? raw[p][k] : -INFINITY;
        if (bias != nullptr && i + k < n) v[k] += bias[i + k];
        larger = fmaxf(larger, v[k]);
      }
      if (kept != nullptr) store(kept + i, v);
      if (larger > most) {
        sum *= __expf(most - larger);
        most = larger;
      }
#pragma unroll
      for (int k = 0; k < N; ++k) sum += __expf(v[k] - most);
    }
  }
  const float all = block_max(most, scratch);
  return all + logf(block_sum(sum * __expf(most - all), scratch));
}

// loss = (or +=) scale * the sum of losses, in f64 and always in the same order. One block.
__global__ void __launch_bounds__(kSumThreads)
    add_losses(const float* losses, int64_t rows, const float* scale, float* loss, bool accumulate) {
  __shared__ double parts[kSumThreads];
  double sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kSumThreads) sum += losses[r];
  parts[threadIdx.x] = sum;
  for (unsigned half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = (accumulate ? *loss : 0.0f) + *scale * static_cast<float>(parts[0]);
}

// ---- on given logits [rows, classes] ----

// y: sign * (log Σ exp - the label's logit) of each row.
template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy(const T* logits, Labels labels, float sign, float* y, float* lses) {
  const int64_t row = blockIdx.x;
  const T* x = logits + row * labels.own;
  const float lse = row_log_sum_exp<N>(x, nullptr, labels.own);
  const bool counts = labels.counts(row);
  if (threadIdx.x != 0) return;
  lses[row] = lse;
  y[row] = counts ? sign * (lse - to_float(x[labels.place(row)])) : 0.0f;
}

std::unique_ptr<Kernel> prepare_cross_entropy(const KernelRequest& request, const Context& context) {
  const Layout& logits = request.inputs[0];
  require_packed(request, logits);
  const int64_t rows = kernels::rows_of(logits), classes = logits.type.shape.back();
  const int64_t ignore = integer(request, "ignore", -100);
  const bool add = (request.accumulate & 1) != 0;
  return for_float(request, logits.type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=, &context](const KernelArguments& a) {
          constexpr int N = kPack<T>;
          auto* losses = reinterpret_cast<float*>(a.workspace);
          const Labels labels{a.in<int>(1), ignore, 0, classes, classes, "cross_entropy", context.failure};
          const auto kernel = packs(a.in<T>(0), classes, N) ? cross_entropy<T, N> : cross_entropy<T, 1>;
          launch(context, kernel, static_cast<unsigned>(rows), threads_for(classes), 0, a.in<T>(0), labels,
                 1.0f, losses, a.out<float>(1));
          launch(context, add_losses, 1, kSumThreads, 0, losses, rows, a.in<float>(2), a.out<float>(0), add);
        },
        4 * rows);
  });
}

std::unique_ptr<Kernel> prepare_log_probability(const KernelRequest& request, const Context& context) {
  const Layout& logits = request.inputs[0];
  require_packed(request, logits);
  const int64_t rows = kernels::rows_of(logits), classes = logits.type.shape.back();
  const int64_t ignore = integer(request, "ignore", -100);
  return for_float(request, logits.type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      constexpr int N = kPack<T>;
      const Labels labels{a.in<int>(1), ignore, 0, classes, classes, "log_probability", context.failure};
      const auto kernel = packs(a.in<T>(0), classes, N) ? cross_entropy<T, N> : cross_entropy<T, 1>;
      launch(context, kernel, static_cast<unsigned>(rows), threads_for(classes), 0, a.in<T>(0), labels, -1.0f,
             a.out<float>(0), a.out<float>(1));
    });
  });
}

// scale: dlogits = dloss * scale * (softmax - one-hot); null: -dloss[row] takes their place.
template <typename T, int N>
__global__ void __launch_bounds__(kMostThreads)
    cross_entropy_gradient(const float* dloss, const T* logits, Labels labels, const float* scale,
                           const float* lses, T* dlogits) {
  const int64_t row = blockIdx.x, at = row * labels.own;
  const bool counts = labels.counts(row);
  const float factor = scale != nullptr ? *dloss * *scale : -dloss[row], lse = lses[row];
  const int64_t label = labels.place(row);
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < labels.own;
       i += static_cast<int64_t>(blockDim.x) * N) {
    float v[N];
    load(v, logits + at + i);
#pragma unroll
    for (int k = 0; k < N; ++k)
      v[k] = counts ? factor * (__expf(v[k] - lse) - (i + k == label ? 1.0f : 0.0f)) : 0.0f;
    store(dlogits + at + i, v);
  }
}

// Of cross_entropy; by_row: of log_probability, where each row has a gradient.
template <bool by_row>
std::unique_ptr<Kernel> prepare_logits_gradient(const KernelRequest& request, const Context& context) {
  const Layout& logits = request.inputs[1];
  require_packed(request, logits);
  require_packed(request, request.outputs[0]);
  const int64_t rows = kernels::rows_of(logits), classes = logits.type.shape.back();
  const int64_t ignore = integer(request, "ignore", -100);
  return for_float(request, logits.type.dtype, [&]<typename T>(T) {
    return make_kernel([=, &context](const KernelArguments& a) {
      constexpr int N = kPack<T>;
      const Labels labels{
          a.in<int>(2),   ignore,  0,
          classes,        classes, by_row ? "log_probability_gradient" : "cross_entropy_gradient",
          context.failure};
      const bool packed = packs(a.in<T>(1), classes, N) && packs(a.out<T>(0), classes, N);
      launch(context, packed ? cross_entropy_gradient<T, N> : cross_entropy_gradient<T, 1>,
             static_cast<unsigned>(rows), threads_for(classes), 0, a.in<float>(0), a.in<T>(1), labels,
             by_row ? nullptr : a.in<float>(3), a.in<float>(by_row ? 3 : 4), a.out<T>(0));
    });
  });
}

// Of logits in parts; for each part [lse, logit of the label if it is there] are given: [parts, 2, rows].
__global__ void __launch_bounds__(kSumThreads)
    join_parts(const float* given, int64_t parts, int64_t rows, const int* labels, int64_t ignore,
               float* losses, float* lses, float* given_losses) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float most = -INFINITY, sum = 0, logit = 0;
  for (int64_t p = 0; p < parts; ++p) most = fmaxf(most, given[2 * p * rows + r]);
  for (int64_t p = 0; p < parts; ++p) {
    sum += __expf(given[2 * p * rows + r] - most);
    logit += given[(2 * p + 1) * rows + r];
  }
  const float lse = most + logf(sum);
  lses[r] = lse;
  losses[r] = labels[r] == ignore ? 0.0f : lse - logit;
  if (given_losses != nullptr) given_losses[r] = losses[r];
}

std::unique_ptr<Kernel> prepare_cross_entropy_of_parts(const KernelRequest& request, const Context& context) {
  require_packed(request, request.inputs[0]);
  if (request.inputs[0].type.dtype != DType::f32) refuse_dtype(request, request.inputs[0].type.dtype);
  const int64_t parts = request.inputs[0].type.shape[0], rows = request.inputs[0].type.shape[2];
  const int64_t ignore = integer(request, "ignore", -100);
  const bool add = (request.accumulate & 1) != 0, gives_losses = present(request.outputs, 2);
  return make_kernel(
      [=, &context](const KernelArguments& a) {
        auto* losses = reinterpret_cast<float*>(a.workspace);
        launch(context, join_parts, static_cast<unsigned>(ceil_div(rows, kSumThreads)), kSumThreads, 0,
               a.in<float>(0), parts, rows, a.in<int>(1), ignore, losses, a.out<float>(1),
               gives_losses ? a.out<float>(2) : nullptr);
        launch(context, add_losses, 1, kSumThreads, 0, losses, rows, a.in<float>(2), a.out<float>(0), add);
      },
      4 * rows);
}

// ---- fused with the classifier ----

enum class Job {
  loss,           // linear_cross_entropy
  training,       // linear_cross_entropy_training
  parts,          // linear_log_sum_exp
  gradient,       // linear_cross_entropy_gradient
  rows,           // linear_log_probability
  rows_gradient,  // linear_log_probability_gradient
};
constexpr bool is_given_lse(Job job) { return job == Job::gradient || job == Job::rows_gradient; }
constexpr bool differentiates(Job job) { return job == Job::training || is_given_lse(job); }
// Operands: hidden, weight, bias and labels from this one on. Results: dhidden, dweight and dbias.
constexpr int operand_of(Job job) { return job == Job::rows_gradient ? 1 : 0; }
constexpr int result_of(Job job) { return job == Job::training ? 1 : 0; }
constexpr const char* name_of(Job job) {
  switch (job) {
    case Job::loss: return "linear_cross_entropy";
    case Job::training: return "linear_cross_entropy_training";
    case Job::parts: return "linear_log_sum_exp";
    case Job::rows: return "linear_log_probability";
    case Job::rows_gradient: return "linear_log_probability_gradient";
    case Job::gradient: break;
  }
  return "linear_cross_entropy_gradient";
}

// Rows from `begin` on, whose logits are [rows, lead].
struct Tile {
  float* logits;
  int64_t begin = 0, lead;
  const float* bias = nullptr;   // [classes]
  const float* scale = nullptr;  // gradients are multiplied by it, or by minus what is given of each row,
  const float* dy = nullptr;
  float rise;                    // and by this, which the products that use them take back
  const float* given = nullptr;  // lse of all rows, for gradients alone
  // Of all rows, what the job makes. label_values: the label's logit, or its log-probability.
  float *losses, *lses = nullptr, *label_values = nullptr;
};

// A row's logits become what the job makes of them. Gradients take the place of the logits: those of T in the
// first part of the row, which has been read when they are written.
template <typename T, Job job>
__global__ void __launch_bounds__(kMostThreads) classify(Tile tile, Labels labels, bool keeps) {
  const int64_t row = tile.begin + blockIdx.x, n = labels.own;
  float* logits = tile.logits + blockIdx.x * tile.lead;
  const bool counts = labels.counts(row);
  const int64_t label = counts ? labels.place(row) : -1;
  float* kept = keeps ? reinterpret_cast<float*>(dynamic_shared()) : nullptr;  // [lead]
  float lse = 0;
  if constexpr (is_given_lse(job))
    lse = tile.given[row];
  else if (job == Job::parts || job == Job::rows || counts)
    lse = row_log_sum_exp<4>(logits, tile.bias, n, kept);
  if constexpr (!is_given_lse(job)) {
    if (threadIdx.x == 0) {
      float logit = 0;
      if (label >= 0) logit = logits[label] + (tile.bias != nullptr ? tile.bias[label] : 0.0f);
      if constexpr (job == Job::parts || job == Job::rows) {
        tile.lses[row] = lse;
        tile.label_values[row] = job == Job::parts ? logit : counts ? logit - lse : 0.0f;
      } else {
        tile.losses[row] = counts ? lse - logit : 0.0f;
      }
    }
  }
  if constexpr (differentiates(job)) {
    const float factor = (job == Job::rows_gradient ? -tile.dy[row] : *tile.scale) * tile.rise;
    T* to = reinterpret_cast<T*>(logits);
    for (int64_t begin = 0; begin < n; begin += static_cast<int64_t>(blockDim.x) * kEach) {
      const int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kEach;
      float v[2][kEach / 2];
      if (counts && i < n) {
        if (keeps) {
          load(v[0], kept + i);
          load(v[1], kept + i + kEach / 2);
        } else {
          load(v[0], logits + i);
          load(v[1], logits + i + kEach / 2);
        }
      }
      // All threads have read as far as anyone writes; the first time also the label's logit.
      __syncthreads();
      if (i >= n) continue;
      float gradient[kEach];
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        gradient[k] = 0;
        if (!counts || i + k >= n) continue;
        float x = v[k / (kEach / 2)][k % (kEach / 2)];
        if (tile.bias != nullptr && !keeps) x += tile.bias[i + k];
        gradient[k] = factor * (__expf(x - lse) - (i + k == label ? 1.0f : 0.0f));
      }
      store(to + i, gradient);
    }
  }
}

constexpr int64_t kLeadAlign = 64;                 // elements
constexpr int64_t kRowsOfMultiprocessor = 32;      // so that products fill the machine
constexpr int64_t kLogitBytes = int64_t{1} << 30;  // of logits at a time, at most
constexpr int64_t kAlign = 256;                    // bytes: what products like best
constexpr int64_t kSlices = 16;                    // of a tile's rows, at most, for the bias's gradient

int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlign) * kAlign; }

// Sums of a slice of rows for each column: parts[slice] = factor * Σ of x[rows, lead].
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    sum_columns(const T* x, int64_t rows, int64_t n, int64_t lead, float factor, float* parts) {
  constexpr int kWarps = kSumThreads / kWarp;
  __shared__ float sums[kWarps][kWarp * kEach];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarp * kEach, i = first + lane * kEach;
  const int64_t share = (rows + gridDim.y - 1) / gridDim.y, end = min(rows, (blockIdx.y + 1) * share);
  float sum[kEach] = {};
  if (i < n)
#pragma unroll 4
    for (int64_t row = blockIdx.y * share + warp; row < end; row += kWarps) {
      float v[kEach];
      load(v, x + row * lead + i);
#pragma unroll
      for (int k = 0; k < kEach; ++k) sum[k] += v[k];
    }
#pragma unroll
  for (int k = 0; k < kEach; ++k) sums[warp][lane * kEach + k] = sum[k];
  __syncthreads();
  const int64_t column = first + threadIdx.x;
  if (column >= n) return;
  float total = 0;
  for (int other = 0; other < kWarps; ++other) total += sums[other][threadIdx.x];
  parts[blockIdx.y * n + column] = factor * total;
}
static_assert(kSumThreads == kWarp * kEach);

// The products of one tile of rows.
struct Products {
  int64_t begin, count;
  std::shared_ptr<Gemm> logits, dweight, dhidden;
};

struct Classifier {
  int64_t rows, classes, width, lead, ignore, first, of;
  float rise;
  uint32_t accumulate;
  bool bias;
  bool dhidden = false, dweight = false, dbias = false;  // are asked for
  size_t shared;                                         // bytes in which a block keeps a row; 0: it does not
  std::vector<Products> tiles;
  int64_t products_bytes = 0, logits_bytes = 0, parts_bytes = 0;

  int64_t workspace_bytes() const {
    return kAlign + aligned(products_bytes) + aligned(logits_bytes) + aligned(parts_bytes) + 4 * rows;
  }
};

template <typename T, Job job>
void run(const Classifier& c, const Context& context, const KernelArguments& a) {
  constexpr int kOperand = operand_of(job), kResult = result_of(job);
  std::byte* space = a.workspace + (-reinterpret_cast<uintptr_t>(a.workspace) & (kAlign - 1));
  auto* logits = reinterpret_cast<float*>(space + aligned(c.products_bytes));
  auto* parts = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(logits) + aligned(c.logits_bytes));
  auto* losses = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(parts) + aligned(c.parts_bytes));
  const Labels labels{a.in<int>(kOperand + 3), c.ignore, c.first, c.classes, c.of, name_of(job),
                      context.failure};
  const T *hidden = a.in<T>(kOperand), *weight = a.in<T>(kOperand + 1);
  Tile tile{.logits = logits, .lead = c.lead, .rise = c.rise, .losses = losses};
  if (c.bias) tile.bias = a.in<float>(kOperand + 2);
  if constexpr (job == Job::loss || job == Job::training || job == Job::gradient) tile.scale = a.in<float>(4);
  if constexpr (job == Job::rows_gradient) tile.dy = a.in<float>(0);
  if constexpr (is_given_lse(job)) tile.given = a.in<float>(5);
  if constexpr (job == Job::parts) {
    tile.lses = a.out<float>(0);
    tile.label_values = a.out<float>(0) + c.rows;
  }
  if constexpr (job == Job::rows) {
    tile.label_values = a.out<float>(0);
    tile.lses = a.out<float>(1);
  }
  for (const Products& products : c.tiles) {
    const int64_t at = products.begin * c.width;
    products.logits->run({hidden + at, weight, logits}, space);
    tile.begin = products.begin;
    launch(context, classify<T, job>, static_cast<unsigned>(products.count), threads_for(c.classes), c.shared,
           tile, labels, c.shared != 0);
    if constexpr (differentiates(job)) {
      if (c.dweight) products.dweight->run({logits, hidden + at, a.out<float>(kResult + 1)}, space);
      if (c.dhidden) products.dhidden->run({logits, weight, a.out<T>(kResult) + at}, space);
      if (!c.dbias) continue;
      const auto slices = static_cast<unsigned>(std::min(kSlices, products.count));
      launch(context, sum_columns<T>, dim3(static_cast<unsigned>(ceil_div(c.classes, kWarp * kEach)), slices),
             kSumThreads, 0, reinterpret_cast<const T*>(logits), products.count, c.classes,
             c.lead * 4 / static_cast<int64_t>(sizeof(T)), 1.0f / c.rise, parts);
      launch_add_parts(context, parts, slices, c.classes, a.out<float>(kResult + 2), c.classes,
                       products.begin > 0 || (c.accumulate >> (kResult + 2) & 1) != 0);
    }
  }
  if constexpr (differentiates(job)) {
    const auto clear = [&](int result, int64_t count) {
      if (c.rows == 0 && (c.accumulate >> result & 1) == 0)
        check(cudaMemsetAsync(a.outputs[result], 0, static_cast<size_t>(count * 4), context.stream),
              "clear a gradient");
    };
    if (c.dweight) clear(kResult + 1, c.classes * c.width);
    if (c.dbias) clear(kResult + 2, c.classes);
  }
  if constexpr (job == Job::loss || job == Job::training)
    launch(context, add_losses, 1, kSumThreads, 0, losses, c.rows, tile.scale, a.out<float>(0),
           (c.accumulate & 1) != 0);
}

template <Job job>
std::unique_ptr<Kernel> prepare_classifier(const KernelRequest& request, const Context& context) {
  constexpr size_t kOperand = operand_of(job), kResult = result_of(job);
  const Layout &hidden = request.inputs[kOperand], &weight = request.inputs[kOperand + 1];
  require_packed(request, hidden);
  require_packed(request, weight);
  const DType dtype = hidden.type.dtype;
  Classifier c{};
  c.width = weight.type.shape[1];
  c.rows = request.inputs[kOperand + 3].type.elements();
  c.classes = weight.type.shape[0];
  c.lead = std::max<int64_t>(1, ceil_div(c.classes, kLeadAlign)) * kLeadAlign;
  c.ignore = integer(request, "ignore", -100);
  c.first = integer(request, "first", 0);
  c.of = integer(request, "of", c.classes);
  c.accumulate = request.accumulate;
  c.bias = present(request.inputs, kOperand + 2);
  if (differentiates(job)) {
    c.dhidden = present(request.outputs, kResult);
    c.dweight = present(request.outputs, kResult + 1);
    c.dbias = present(request.outputs, kResult + 2);
  }
  // A mean's scale is about 1 / rows, and f16 has no numbers for probabilities times that. A row's own
  // gradient may be large: up to 1000 it stays finite.
  c.rise = 1;
  const float most_rise = job == Job::rows_gradient ? 64 : 4096;
  if (dtype == DType::f16)
    while (c.rise < most_rise && c.rise < static_cast<float>(c.rows)) c.rise *= 2;

  const int64_t fitting = std::max<int64_t>(
      1, std::min(kRowsOfMultiprocessor * context.multiprocessors, kLogitBytes / (4 * c.lead)));
  const int64_t tiles = ceil_div(c.rows, fitting);
  int64_t share = tiles == 0 ? 0 : ceil_div(c.rows, tiles);
  if (share > kLeadAlign) share = std::min(fitting, ceil_div(share, kLeadAlign) * kLeadAlign);
  std::vector<std::pair<Product, std::shared_ptr<Gemm>>> made;
  const auto gemm = [&](const Product& product) {
    for (const auto& [same, ready] : made)
      if (same == product) return ready;
    made.emplace_back(product, make_gemm(context, product));
    c.products_bytes = std::max(c.products_bytes, made.back().second->workspace_bytes());
    return made.back().second;
  };
  const int64_t gradient_lead = c.lead * 4 / bytes_of(dtype);
  for (int64_t begin = 0; begin < c.rows; begin += share) {
    Products p{begin, std::min(share, c.rows - begin), nullptr, nullptr, nullptr};
    Product logits{p.count, c.classes, c.width};  // [count, classes] = hidden weight^T
    logits.a = logits.b = dtype;
    logits.transposed_b = true;
    logits.lead_a = logits.lead_b = c.width;
    logits.lead_c = c.lead;
    p.logits = gemm(logits);
    if (c.dweight) {
      Product dweight{c.classes, c.width, p.count};  // [classes, width] = dlogits^T hidden
      dweight.a = dweight.b = dtype;
      dweight.transposed_a = true;
      dweight.lead_a = gradient_lead;
      dweight.lead_b = dweight.lead_c = c.width;
      dweight.alpha = 1 / c.rise;
      dweight.beta = begin > 0 || (c.accumulate >> (kResult + 1) & 1) != 0 ? 1 : 0;
      p.dweight = gemm(dweight);
    }
    if (c.dhidden) {
      Product dhidden{p.count, c.width, c.classes};  // [count, width] = dlogits weight
      dhidden.a = dhidden.b = dhidden.c = dtype;
      dhidden.lead_a = gradient_lead;
      dhidden.lead_b = dhidden.lead_c = c.width;
      dhidden.alpha = 1 / c.rise;
      p.dhidden = gemm(dhidden);
    }
    c.tiles.push_back(std::move(p));
  }
  c.logits_bytes = 4 * c.lead * share;
  if (const size_t row = 4 * c.lead; job == Job::training && row <= static_cast<size_t>(context.shared_bytes))
    c.shared = row;
  if (c.dbias) c.parts_bytes = 4 * kSlices * c.classes;
  return for_float(request, dtype, [&]<typename T>(T) {
    const int64_t bytes = c.workspace_bytes();
    allow_shared(classify<T, job>, c.shared);
    return make_kernel([c = std::move(c), &context](const KernelArguments& a) { run<T, job>(c, context, a); },
                       bytes);
  });
}

}  // namespace

std::vector<Entry> loss_kernels() {
  return {{"cross_entropy", prepare_cross_entropy},
          {"cross_entropy_gradient", prepare_logits_gradient<false>},
          {"log_probability", prepare_log_probability},
          {"log_probability_gradient", prepare_logits_gradient<true>},
          {"linear_cross_entropy", prepare_classifier<Job::loss>},
          {"linear_cross_entropy_training", prepare_classifier<Job::training>},
          {"linear_log_sum_exp", prepare_classifier<Job::parts>},
          {"cross_entropy_of_parts", prepare_cross_entropy_of_parts},
          {"linear_cross_entropy_gradient", prepare_classifier<Job::gradient>},
          {"linear_log_probability", prepare_classifier<Job::rows>},
          {"linear_log_probability_gradient", prepare_classifier<Job::rows_gradient>}};
}

}  // namespace het::HET_CUDA
