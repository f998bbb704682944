// Cross-entropy, alone and fused with the classifier. The fused form makes logits for some hundreds of rows
// at a time, in f32, transposed: [classes, rows]. Reading the large weight as the left operand needs no
// repacked copy of it, and the softmax runs over many rows at once. Gradients of logits are f32; matrix units
// round them to bf16 for the products with weights and hidden states that are bf16.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int64_t kLogitBytes = int64_t{224} << 20;  // of logits at a time
constexpr int64_t kClassChunk = 4096;                // classes whose gradient is multiplied at a time
constexpr int64_t kStatisticsChunk = 32;             // classes between rescalings of the running sum

// Labels are data: a wrong one is the user's mistake, and found before anything is computed.
void check_labels(const char* op, const int32_t* labels, int64_t rows, int64_t classes, int64_t ignore) {
  for (int64_t r = 0; r < rows; ++r)
    if (labels[r] != ignore && (labels[r] < 0 || labels[r] >= classes))
      refuse_index(op, r, labels[r], classes);
}

// The sum of values in order, with a double: the same whatever the number of threads.
float sum_in_order(const float* values, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += values[i];
  return static_cast<float>(total);
}

// One f32 sum loses terms that are much smaller than it. So terms are added up in groups, and the rounding
// error of each addition is carried into the next (Kahan, "Further remarks on reducing truncation errors",
// 1965).
struct CompensatedSum {
  Vector total{}, compensation{};  // the total is too large by the compensation
  HET_INLINE void add(Vector group) {
    const Vector more = group - compensation, now = total + more;
    compensation = (now - total) - more;
    total = now;
  }
};

// ---- on given logits [rows, classes] ----

template <typename T>
float row_lse(const T* row, int64_t classes) {
  Vector larger = splat(std::numeric_limits<float>::lowest());  // no infinity: all may be -infinity
  for_lanes(classes, [&](int64_t j, auto lanes) {
    larger = maximum(larger, keep(load(row + j, lanes), lanes, -std::numeric_limits<float>::infinity()));
  });
  const float most = maximum_of(larger);
  constexpr int64_t kGroup = 32 * kLanes;
  CompensatedSum sum;
  for (int64_t first = 0; first < classes; first += kGroup) {
    Vector group{};
    for_lanes(std::min(kGroup, classes - first), [&](int64_t j, auto lanes) {
      group += keep(exp(load(row + first + j, lanes) - most), lanes, 0);
    });
    sum.add(group);
  }
  return most + std::log(sum_of(sum.total));
}

// y: sign * (the label's logit - log Σ exp) of each row, 0 where the label is `ignore`.
template <typename T>
void log_probabilities(const T* logits, const int32_t* labels, int64_t rows, int64_t classes, int64_t ignore,
                       float sign, float* y, float* lses) {
  parallel_for(rows, row_grain(kHeavyGrain, classes), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = logits + r * classes;
      lses[r] = row_lse(row, classes);
      y[r] = labels[r] == ignore ? 0.0F : sign * (static_cast<float>(row[labels[r]]) - lses[r]);
    }
  });
}

std::unique_ptr<Kernel> prepare_cross_entropy(const KernelRequest& request) {
  const Layout& logits = request.inputs[0];
  require_packed(request, logits);
  const int64_t rows = rows_of(logits), classes = logits.type.shape.back();
  const int64_t ignore = integer(request, "ignore", -100);
  const bool add = (request.accumulate & 1) != 0;
  return for_float(request, logits.type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=](const KernelArguments& a) {
          const int32_t* labels = a.in<int32_t>(1);
          check_labels("cross_entropy", labels, rows, classes, ignore);
          auto* losses = reinterpret_cast<float*>(a.workspace);
          log_probabilities(a.in<T>(0), labels, rows, classes, ignore, -1, losses, a.out<float>(1));
          const float loss = a.in<float>(2)[0] * sum_in_order(losses, rows);
          *a.out<float>(0) = add ? *a.out<float>(0) + loss : loss;
        },
        4 * rows);
  });
}

std::unique_ptr<Kernel> prepare_log_probability(const KernelRequest& request) {
  const Layout& logits = request.inputs[0];
  require_packed(request, logits);
  const int64_t rows = rows_of(logits), classes = logits.type.shape.back();
  const int64_t ignore = integer(request, "ignore", -100);
  return for_float(request, logits.type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      const int32_t* labels = a.in<int32_t>(1);
      check_labels("log_probability", labels, rows, classes, ignore);
      log_probabilities(a.in<T>(0), labels, rows, classes, ignore, 1, a.out<float>(0), a.out<float>(1));
    });
  });
}

// Of cross_entropy; by_row: of log_probability, where each row has a gradient.
template <bool by_row>
std::unique_ptr<Kernel> prepare_logits_gradient(const KernelRequest& request) {
  constexpr const char* kName = by_row ? "log_probability_gradient" : "cross_entropy_gradient";
  const Layout& logits = request.inputs[1];
  require_packed(request, logits);
  const int64_t rows = rows_of(logits), classes = logits.type.shape.back();
  const int64_t ignore = integer(request, "ignore", -100);
  return for_float(request, logits.type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      const int32_t* labels = a.in<int32_t>(2);
      check_labels(kName, labels, rows, classes, ignore);
      const float* lses = a.in<float>(by_row ? 3 : 4);
      parallel_for(rows, row_grain(kHeavyGrain, classes), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* from = a.in<T>(1) + r * classes;
          T* to = a.out<T>(0) + r * classes;
          const bool counts = labels[r] != ignore;
          const float lse = lses[r],
                      factor = by_row ? -a.in<float>(0)[r] : a.in<float>(0)[0] * a.in<float>(3)[0];
          for_lanes(classes, [&](int64_t j, auto lanes) {
            store(to + j, counts ? exp(load(from + j, lanes) - lse) * factor : Vector{}, lanes);
          });
          if (counts) {
            const int64_t j = labels[r];
            to[j] = T(factor * (std::exp(static_cast<float>(from[j]) - lse) - 1));
          }
        }
      });
    });
  });
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

struct Classifier {
  Job job;
  int64_t rows, classes, width, ignore;
  int64_t first, of;  // the classes here are first, first + 1, ... of so many
  int64_t tiles;      // of rows
  DType dtype;
  bool bias;
  bool dhidden, dweight, dbias;  // are asked for
  uint32_t accumulate;
  int threads;  // when it was prepared: the workspace is for so many
  int64_t gemm_space_bytes;

  bool is_given_lse() const { return job == Job::gradient || job == Job::rows_gradient; }
  bool differentiates() const { return job == Job::training || is_given_lse(); }
  // Operands: hidden, weight, bias and labels from this one on. Results: dhidden, dweight, dbias.
  int operand() const { return job == Job::rows_gradient ? 1 : 0; }
  int result() const { return job == Job::training ? 1 : 0; }
  // Whether gradients are added to what result `of` (1: dweight, 2: dbias) holds.
  bool adds(int of) const { return ((accumulate >> (result() + of)) & 1) != 0; }
  int64_t tile_rows() const { return tiles == 0 ? 0 : (rows + tiles - 1) / tiles; }

  GemmShape logits_shape(int64_t count) const {  // logits^T[classes, count] = weight hidden^T
    GemmShape s;
    s.m = classes;
    s.n = count;
    s.k = width;
    s.a_type = s.b_type = dtype;
    s.a_row = width;
    s.b_row = 1;
    s.b_col = width;
    s.c_row = count;
    s.parts = threads;
    return s;
  }
  GemmShape weight_shape(int64_t count, int64_t chunk, bool add) const {  // dweight = dlogits^T hidden
    GemmShape s;
    s.m = chunk;
    s.n = width;
    s.k = count;
    s.b_type = dtype;
    s.a_row = count;
    s.b_row = width;
    s.c_row = width;
    s.add = add;
    s.parts = threads;
    return s;
  }
  GemmShape hidden_shape(int64_t count, int64_t chunk, bool add) const {  // dhidden = dlogits weight
    GemmShape s;
    s.m = count;
    s.n = width;
    s.k = chunk;
    s.b_type = dtype;
    s.a_row = 1;
    s.a_col = count;
    s.b_row = width;
    s.c_row = width;
    s.add = add;
    s.parts = threads;
    return s;
  }

  // Floats: logits, dhidden of a tile in f32; lse, factor, sums, compensations and maxima of its rows; then
  // losses of all rows.
  int64_t own_floats() const {
    const int64_t count = tile_rows();
    return (classes * count + 15) / 16 * 16 + (dhidden ? (count * width + 15) / 16 * 16 : 0) +
           5 * (count + 16) + rows + 16;
  }
  int64_t gemm_bytes() const {
    int64_t most = 0;
    for (const int64_t count : {tile_rows(), tile_rows() - 1}) {
      if (count <= 0) continue;
      const int64_t chunk = classes < kClassChunk ? classes : kClassChunk;
      for (const int64_t c : {chunk, classes % kClassChunk}) {
        if (c == 0) continue;
        const int64_t a = dweight ? Gemm(weight_shape(count, c, true)).workspace_bytes() : 0;
        const int64_t b = dhidden ? Gemm(hidden_shape(count, c, true)).workspace_bytes() : 0;
        most = most > a ? most : a;
        most = most > b ? most : b;
      }
      const int64_t c = Gemm(logits_shape(count)).workspace_bytes();
      most = most > c ? most : c;
    }
    return (most + 63) / 64 * 64;
  }

  template <typename T>
  void run(const KernelArguments& a) const {
    const int32_t* labels = a.in<int32_t>(operand() + 3);
    check_labels(name(), labels, rows, of, ignore);
    const bool is_scaled = job == Job::loss || job == Job::training || job == Job::gradient;
    const float scale = is_scaled ? a.in<float>(4)[0] : 0.0F;
    std::byte* gemm_space = a.workspace;
    auto* logits = reinterpret_cast<float*>(a.workspace + gemm_space_bytes);
    const int64_t most_rows = tile_rows();
    float* own_dhidden = logits + (classes * most_rows + 15) / 16 * 16;
    float* own_lse = own_dhidden + (dhidden ? (most_rows * width + 15) / 16 * 16 : 0);
    float *factor = own_lse + most_rows + 16, *running = factor + most_rows + 16,
          *compensation = running + most_rows + 16, *largest = compensation + most_rows + 16;
    float* losses = largest + most_rows + 16;
    const float* biases = bias ? a.in<float>(operand() + 2) : nullptr;
    if (differentiates() && tiles == 0) clear_sums(a);

    for (int64_t tile = 0; tile < tiles; ++tile) {
      const Range share = share_of(rows, tiles, tile);
      const int64_t count = share.end - share.begin;
      const T* hidden = a.in<T>(operand()) + share.begin * width;
      Gemm(logits_shape(count)).run(a.inputs[operand() + 1], hidden, logits, nullptr, gemm_space);
      const float* lse = own_lse;
      if (is_given_lse()) {
        lse = a.in<float>(5) + share.begin;
        if (bias) add_bias(logits, biases, count);
      } else {
        statistics(logits, biases, count, own_lse, largest, running, compensation);
      }
      for (int64_t r = 0; r < count; ++r) {
        const int64_t row = share.begin + r, label = labels[row] - first;
        const bool counts = labels[row] != ignore, here = counts && label >= 0 && label < classes;
        const float logit = here ? logits[label * count + r] : 0.0F;
        factor[r] = !counts ? 0.0F : job == Job::rows_gradient ? -a.in<float>(0)[row] : scale;
        if (job == Job::parts) {
          a.out<float>(0)[row] = lse[r];
          a.out<float>(0)[rows + row] = logit;
        } else if (job == Job::rows) {
          a.out<float>(0)[row] = here ? logit - lse[r] : 0.0F;
          a.out<float>(1)[row] = lse[r];
        } else {
          losses[row] = here ? lse[r] - logit : 0.0F;
        }
      }
      if (differentiates()) gradients<T>(a, share, logits, own_dhidden, lse, factor, gemm_space);
    }
    if (job != Job::loss && job != Job::training) return;
    const float loss = scale * sum_in_order(losses, rows);
    *a.out<float>(0) = (accumulate & 1) ? *a.out<float>(0) + loss : loss;
  }

  const char* name() const {
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

  // dweight and dbias of no rows: tiles, which there are none of, would write them.
  void clear_sums(const KernelArguments& a) const {
    const auto clear = [&](int of, int64_t size) {
      for (int64_t j = 0; j < size && !adds(of); ++j) a.out<float>(result() + of)[j] = 0;
    };
    if (dweight) clear(1, classes * width);
    if (dbias) clear(2, classes);
  }

  // From the logits of the rows of `share`, which are overwritten: their part of dhidden, dweight and dbias.
  template <typename T>
  void gradients(const KernelArguments& a, Range share, float* logits, float* own_dhidden, const float* lse,
                 const float* factor, std::byte* gemm_space) const {
    const int32_t* labels = a.in<int32_t>(operand() + 3) + share.begin;
    const int64_t count = share.end - share.begin;
    const T* hidden = a.in<T>(operand()) + share.begin * width;
    const bool later = share.begin > 0;
    if (classes == 0 && dhidden)  // no product writes it
      for (int64_t i = 0; i < count * width; ++i) own_dhidden[i] = 0;
    for (int64_t from = 0; from < classes; from += kClassChunk) {
      const int64_t chunk = classes - from < kClassChunk ? classes - from : kClassChunk;
      float* part = logits + from * count;
      float* biases = dbias ? a.out<float>(result() + 2) + from : nullptr;
      differentiate(part, labels, first + from, chunk, count, lse, factor, biases, later || adds(2));
      if (dweight)
        Gemm(weight_shape(count, chunk, later || adds(1)))
            .run(part, hidden, a.out<float>(result() + 1) + from * width, nullptr, gemm_space);
      if (dhidden)
        Gemm(hidden_shape(count, chunk, from > 0))
            .run(part, a.in<T>(operand() + 1) + from * width, own_dhidden, nullptr, gemm_space);
    }
    if (!dhidden) return;
    T* to = a.out<T>(result()) + share.begin * width;
    parallel_for(count * width, kLightGrain, [&](int64_t begin, int64_t end) {
      for_lanes(end - begin, [&](int64_t i, auto lanes) {
        store(to + begin + i, load(own_dhidden + begin + i, lanes), lanes);
      });
    });
  }

  void add_bias(float* logits, const float* biases, int64_t count) const {
    parallel_for(classes, row_grain(kLightGrain, count), [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j)
        for_lanes(count, [&](int64_t r, auto lanes) {
          store(logits + j * count + r, load(logits + j * count + r, lanes) + biases[j], lanes);
        });
    });
  }

  // Adds the bias and finds lse[r] of every column. Threads share out the columns; classes go by in chunks,
  // so that the running sum is rescaled rarely.
  void statistics(float* logits, const float* biases, int64_t count, float* lse, float* largest,
                  float* running, float* compensation) const {
    parallel_for(count, row_grain(kHeavyGrain, classes) + kLanes, [&](int64_t begin, int64_t end) {
      const int64_t n = end - begin;
      for (int64_t r = begin; r < end; ++r) {
        largest[r] = std::numeric_limits<float>::lowest();  // no infinity: classes may begin with -infinity
        running[r] = compensation[r] = 0;
      }
      for (int64_t first = 0; first < classes; first += kStatisticsChunk) {
        const int64_t last = first + kStatisticsChunk < classes ? first + kStatisticsChunk : classes;
        for_lanes(n, [&](int64_t i, auto lanes) {
          const int64_t r = begin + i;
          const Vector before = load(largest + r, lanes);
          Vector most = before;
          for (int64_t j = first; j < last; ++j) {
            Vector x = load(logits + j * count + r, lanes);
            if (biases != nullptr) {
              x += biases[j];
              store(logits + j * count + r, x, lanes);
            }
            most = maximum(most, x);
          }
          const Vector scale = exp(before - most);
          CompensatedSum sum{load(running + r, lanes) * scale, load(compensation + r, lanes) * scale};
          Vector group{};
          for (int64_t j = first; j < last; ++j) group += exp(load(logits + j * count + r, lanes) - most);
          sum.add(group);
          store(largest + r, most, lanes);
          store(running + r, sum.total, lanes);
          store(compensation + r, sum.compensation, lanes);
        });
      }
      for_lanes(n, [&](int64_t i, auto lanes) {
        store(lse + begin + i, load(largest + begin + i, lanes) + log(load(running + begin + i, lanes)),
              lanes);
      });
    });
  }

  // Logits of classes [from, from + chunk) become their gradients: factor * (exp(logit - lse) - [class is
  // label]).
  void differentiate(float* part, const int32_t* labels, int64_t from, int64_t chunk, int64_t count,
                     const float* lse, const float* factor, float* dbias, bool add_bias) const {
    parallel_for(chunk, row_grain(kHeavyGrain, count), [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        float* row = part + j * count;
        for_lanes(count, [&](int64_t r, auto lanes) {
          store(row + r, exp(load(row + r, lanes) - load(lse + r, lanes)) * load(factor + r, lanes), lanes);
        });
      }
      for (int64_t r = 0; r < count; ++r) {
        const int64_t j = labels[r] - from;
        if (labels[r] != ignore && j >= begin && j < end) part[j * count + r] -= factor[r];
      }
      if (dbias == nullptr) return;
      for (int64_t j = begin; j < end; ++j) {
        Vector sum{};
        for_lanes(count, [&](int64_t r, auto lanes) { sum += load(part + j * count + r, lanes); });
        dbias[j] = (add_bias ? dbias[j] : 0.0F) + sum_of(sum);
      }
    });
  }
};

std::unique_ptr<Kernel> prepare_classifier(const KernelRequest& request, Job job) {
  Classifier c{};
  c.job = job;
  const auto operand = static_cast<size_t>(c.operand()), result = static_cast<size_t>(c.result());
  const Layout &hidden = request.inputs[operand], &weight = request.inputs[operand + 1];
  require_packed(request, hidden);
  require_packed(request, weight);
  c.rows = rows_of(hidden);
  c.classes = weight.type.shape[0];
  c.width = weight.type.shape[1];
  c.ignore = integer(request, "ignore", -100);
  c.first = integer(request, "first", 0);
  c.of = integer(request, "of", c.classes);
  const int64_t fitting = 1 + kLogitBytes / (4 * (c.classes + 1));
  c.tiles = c.rows == 0 ? 0 : (c.rows + fitting - 1) / fitting;
  c.dtype = hidden.type.dtype;
  c.bias = present(request.inputs, operand + 2);
  if (c.differentiates()) {
    c.dhidden = present(request.outputs, result);
    c.dweight = present(request.outputs, result + 1);
    c.dbias = present(request.outputs, result + 2);
  }
  c.accumulate = request.accumulate;
  c.threads = thread_count();
  c.gemm_space_bytes = c.gemm_bytes();
  return for_float(request, hidden.type.dtype, [&]<typename T>(T) {
    return make_kernel([c](const KernelArguments& a) { c.run<T>(a); },
                       c.gemm_space_bytes + 4 * c.own_floats());
  });
}

template <Job job>
std::unique_ptr<Kernel> prepare(const KernelRequest& request) {
  return prepare_classifier(request, job);
}

// The loss of logits in parts; for each part [lse, logit of the label if it is there] are given.
std::unique_ptr<Kernel> prepare_cross_entropy_of_parts(const KernelRequest& request) {
  require_packed(request, request.inputs[0]);
  const int64_t parts = request.inputs[0].type.shape[0], rows = request.inputs[0].type.shape[2];
  const int64_t ignore = integer(request, "ignore", -100);
  const bool add = (request.accumulate & 1) != 0, gives_losses = present(request.outputs, 2);
  return make_kernel(
      [=](const KernelArguments& a) {
        const int32_t* labels = a.in<int32_t>(1);
        const float* given = a.in<float>(0);
        auto* losses = reinterpret_cast<float*>(a.workspace);
        for (int64_t r = 0; r < rows; ++r) {
          float most = -std::numeric_limits<float>::infinity(), sum = 0, logit = 0;
          for (int64_t p = 0; p < parts; ++p) {
            const float lse = given[2 * p * rows + r];
            most = most > lse ? most : lse;
          }
          for (int64_t p = 0; p < parts; ++p) {
            sum += std::exp(given[2 * p * rows + r] - most);
            logit += given[(2 * p + 1) * rows + r];
          }
          const float lse = most + std::log(sum);
          a.out<float>(1)[r] = lse;
          losses[r] = labels[r] == ignore ? 0.0F : lse - logit;
          if (gives_losses) a.out<float>(2)[r] = losses[r];
        }
        const float loss = a.in<float>(2)[0] * sum_in_order(losses, rows);
        *a.out<float>(0) = add ? *a.out<float>(0) + loss : loss;
      },
      4 * rows);
}

}  // namespace

std::vector<KernelEntry> loss_kernels() {
  return {{"cross_entropy", &prepare_cross_entropy},
          {"cross_entropy_gradient", &prepare_logits_gradient<false>},
          {"log_probability", &prepare_log_probability},
          {"log_probability_gradient", &prepare_logits_gradient<true>},
          {"linear_cross_entropy", &prepare<Job::loss>},
          {"linear_cross_entropy_training", &prepare<Job::training>},
          {"linear_log_sum_exp", &prepare<Job::parts>},
          {"cross_entropy_of_parts", &prepare_cross_entropy_of_parts},
          {"linear_cross_entropy_gradient", &prepare<Job::gradient>},
          {"linear_log_probability", &prepare<Job::rows>},
          {"linear_log_probability_gradient", &prepare<Job::rows_gradient>}};
}

}  // namespace het::cpu::HET_ISA
