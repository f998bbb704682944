// Choices of experts, and the way of tokens there and back. Every row of a result is written by one thread:
// for tokens on their way there it is first found which token each slot has.
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr float kLowest = -__builtin_inff();

void require_i32(const KernelRequest& request, const Layout& ids) {
  if (ids.type.dtype != DType::i32) refuse_dtype(request, ids.type.dtype);
}

void require_packed_operands(const KernelRequest& request) {
  for (const auto& operands : {request.inputs, request.outputs})
    for (const Layout& layout : operands)
      if (layout.type.dtype != DType::none) require_packed(request, layout);
}

// Before any thread starts: ids outside [least, limit) must not be followed.
void check_ids(const char* op, const int32_t* ids, int64_t count, int64_t least, int64_t limit) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < least || ids[i] >= limit) [[unlikely]]
      refuse_index(op, i, ids[i], limit);
}

// values[r, j], index[r, j]: the j-th largest of x[r, :]. Each is the first of the largest that come after
// the one before it, in the order of values, then of places.
std::unique_ptr<Kernel> prepare_top_k(const KernelRequest& request) {
  require_packed_operands(request);
  const Layout& x = request.inputs[0];
  const int64_t rows = rows_of(x), n = x.type.shape.back(), k = integer(request, "k", 1);
  const bool has_values = present(request.outputs, 0), has_index = present(request.outputs, 1);
  return for_float(request, x.type.dtype, [&]<typename T>(T) {
    const int64_t parts = parts_for(rows, row_grain(kLightGrain, n * (k + 1)));
    const int64_t scratch = (n + kLanes) / 16 * 16 + 16;
    return make_kernel(
        [=](const KernelArguments& a) {
          parallel_parts(parts, [&](int64_t part) {
            float* keys = reinterpret_cast<float*>(a.workspace) + part * scratch;
            const Range range = share_of(rows, parts, part);
            for (int64_t r = range.begin; r < range.end; ++r) {
              const T* row = a.in<T>(0) + r * n;
              for_lanes(n, [&](int64_t i, auto lanes) {
                const Vector v = load(row + i, lanes);
                store(keys + i, v == v ? v : splat(kLowest), lanes);
              });
              float last = -kLowest;
              int64_t place = -1;
              for (int64_t j = 0; j < k; ++j) {
                int64_t best = -1;
                for (int64_t i = 0; i < n; ++i)
                  if ((keys[i] < last || (keys[i] == last && i > place)) &&
                      (best < 0 || keys[i] > keys[best]))
                    best = i;
                last = keys[best];
                place = best;
                if (has_values) a.out<T>(0)[r * k + j] = row[best];
                if (has_index) a.out<int32_t>(1)[r * k + j] = static_cast<int32_t>(best);
              }
            }
          });
        },
        parts * scratch * 4);
  });
}

// slot[b, t, j] in the order of j, then of t; counts[b, e] after the first choices.
std::unique_ptr<Kernel> prepare_expert_slots(const KernelRequest& request) {
  require_packed_operands(request);
  require_i32(request, request.inputs[0]);
  const Shape& shape = request.inputs[0].type.shape;
  const int64_t samples = shape[0], tokens = shape[1], k = shape[2];
  const int64_t experts = integer(request, "experts", 1), capacity = integer(request, "capacity", 1);
  if (experts * capacity >= int64_t{1} << 31) refuse(request, "2^31 slots");
  const bool has_slot = present(request.outputs, 0), has_counts = present(request.outputs, 1);
  const int64_t parts = parts_for(samples, row_grain(kLightGrain, tokens * k));
  const int64_t scratch = (experts + 15) / 16 * 16;
  return make_kernel(
      [=](const KernelArguments& a) {
        const int32_t* expert = a.in<int32_t>(0);
        check_ids("expert_slots", expert, samples * tokens * k, 0, experts);
        parallel_parts(parts, [&](int64_t part) {
          int32_t* chosen = reinterpret_cast<int32_t*>(a.workspace) + part * scratch;
          const Range range = share_of(samples, parts, part);
          for (int64_t b = range.begin; b < range.end; ++b) {
            std::memset(chosen, 0, experts * 4);
            for (int64_t j = 0; j < k; ++j) {
              for (int64_t t = 0; t < tokens; ++t) {
                const int64_t at = (b * tokens + t) * k + j;
                const int32_t e = expert[at], place = chosen[e]++;
                if (has_slot)
                  a.out<int32_t>(0)[at] = place < capacity ? static_cast<int32_t>(e * capacity) + place : -1;
              }
              if (j == 0 && has_counts) std::memcpy(a.out<int32_t>(1) + b * experts, chosen, experts * 4);
            }
          }
        });
      },
      parts * scratch * 4);
}

// What the kernels of slots know: sizes of slot[b, t, k], and of y[own, b, capacity, width], whose experts
// are [first, first + own) of `of`.
struct Places {
  int64_t samples, tokens, k, own, capacity, width, first, of;

  Places(const KernelRequest& request, const Layout& slot, const Layout& y)
      : samples(slot.type.shape[0]),
        tokens(slot.type.shape[1]),
        k(slot.type.shape[2]),
        own(y.type.shape[0]),
        capacity(y.type.shape[2]),
        width(y.type.shape[3]),
        first(integer(request, "first", 0)),
        of(integer(request, "of", own)) {
    require_packed_operands(request);
    require_i32(request, slot);
    if (of * capacity >= int64_t{1} << 31 || tokens * k >= int64_t{1} << 31) refuse(request, "2^31 slots");
  }
  int64_t choices() const { return samples * tokens * k; }
  int64_t rows() const { return own * samples * capacity; }
  void check(const char* op, const int32_t* slots) const {
    check_ids(op, slots, choices(), -1, of * capacity);
  }
  // The row of y that a sample's slot is; -1: it is not here.
  int64_t row_of(int64_t b, int64_t slot) const {
    const int64_t own_slot = slot - first * capacity;
    if (slot < 0 || own_slot < 0 || own_slot >= own * capacity) return -1;
    return (own_slot / capacity * samples + b) * capacity + own_slot % capacity;
  }
};

std::unique_ptr<Kernel> prepare_dispatch(const KernelRequest& request) {
  const Places p(request, request.inputs[1], request.outputs[0]);
  const bool weighted = present(request.inputs, 2);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel(
        [=](const KernelArguments& a) {
          const int32_t* slots = a.in<int32_t>(1);
          p.check("dispatch", slots);
          auto* choice = reinterpret_cast<int32_t*>(a.workspace);  // [rows]: t · k + j, or -1
          std::memset(choice, -1, p.rows() * 4);
          const int64_t each = p.tokens * p.k;
          parallel_for(p.samples, row_grain(kLightGrain, each), [&](int64_t begin, int64_t end) {
            for (int64_t b = begin; b < end; ++b)
              for (int64_t i = 0; i < each; ++i)
                if (const int64_t row = p.row_of(b, slots[b * each + i]); row >= 0)
                  choice[row] = static_cast<int32_t>(i);
          });
          parallel_for(p.rows(), row_grain(kLightGrain, p.width), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              T* to = a.out<T>(0) + row * p.width;
              if (choice[row] < 0) {
                std::memset(static_cast<void*>(to), 0, p.width * sizeof(T));
                continue;
              }
              const int64_t b = row / p.capacity % p.samples, i = choice[row];
              const T* from = a.in<T>(0) + (b * p.tokens + i / p.k) * p.width;
              if (!weighted) {
                std::memcpy(static_cast<void*>(to), from, p.width * sizeof(T));
                continue;
              }
              const Vector weight = splat(a.in<float>(2)[b * each + i]);
              for_lanes(p.width,
                        [&](int64_t c, auto lanes) { store(to + c, load(from + c, lanes) * weight, lanes); });
            }
          });
        },
        p.rows() * 4);
  });
}

std::unique_ptr<Kernel> prepare_combine(const KernelRequest& request) {
  const Places p(request, request.inputs[1], request.inputs[0]);
  const bool weighted = present(request.inputs, 2);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      const int32_t* slots = a.in<int32_t>(1);
      p.check("combine", slots);
      parallel_for(p.samples * p.tokens, row_grain(kLightGrain, p.width * p.k),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t token = begin; token < end; ++token) {
                       T* to = a.out<T>(0) + token * p.width;
                       for_lanes(p.width, [&](int64_t c, auto lanes) {
                         Vector sum{};
                         for (int64_t i = token * p.k; i < (token + 1) * p.k; ++i) {
                           const int64_t row = p.row_of(token / p.tokens, slots[i]);
                           if (row < 0) continue;
                           const Vector y = load(a.in<T>(0) + row * p.width + c, lanes);
                           sum += weighted ? y * splat(a.in<float>(2)[i]) : y;
                         }
                         store(to + c, sum, lanes);
                       });
                     }
                   });
    });
  });
}

std::unique_ptr<Kernel> prepare_combine_weight_gradient(const KernelRequest& request) {
  const Places p(request, request.inputs[2], request.inputs[1]);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    return make_kernel([=](const KernelArguments& a) {
      const int32_t* slots = a.in<int32_t>(2);
      p.check("combine_weight_gradient", slots);
      parallel_for(p.choices(), row_grain(kLightGrain, p.width), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t token = i / p.k, row = p.row_of(token / p.tokens, slots[i]);
          Vector dot{};
          for_lanes(row < 0 ? 0 : p.width, [&](int64_t c, auto lanes) {
            dot +=
                load(a.in<T>(0) + token * p.width + c, lanes) * load(a.in<T>(1) + row * p.width + c, lanes);
          });
          a.out<float>(0)[i] = sum_of(dot);
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelEntry> experts_kernels() {
  return {{"top_k", prepare_top_k},
          {"expert_slots", prepare_expert_slots},
          {"dispatch", prepare_dispatch},
          {"combine", prepare_combine},
          {"combine_weight_gradient", prepare_combine_weight_gradient}};
}

}  // namespace het::cpu::HET_ISA
