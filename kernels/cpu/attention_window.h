// What the kernels of attention.cpp share: where operands lie, and which keys a query sees.
#pragma once

#include <cmath>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {

inline constexpr int64_t kMostHead = 512;  // elements of a head

// One operand [batch, tokens, heads, size of a head], strides in elements.
struct Heads {
  int64_t batch = 0, token = 0, head = 0;
  explicit Heads(const Layout& layout)
      : batch(layout.strides[0]), token(layout.strides[1]), head(layout.strides[2]) {}
  int64_t at(int64_t b, int64_t t, int64_t h) const { return b * batch + t * token + h * head; }
};

struct Sizes {
  int64_t batch, queries, keys, query_heads, key_heads, head;
  float scale;
  float cap;  // of scores, 0 without one
  bool causal;
  int64_t window;       // keys that a causal query sees at most
  bool packed = false;  // rows of several examples: tokens begin to see where theirs begins
  int64_t group() const { return query_heads / key_heads; }
  // A score is factor() q . k, or with a cap factor() tanh(inner() q . k).
  float factor() const { return cap > 0 ? cap : scale; }
  float inner() const { return scale / cap; }
  // Keys that query i sees: the last query sees all.
  int64_t visible(int64_t i) const { return causal ? i + 1 + keys - queries : keys; }
  // The first of the `seen` keys that are in the window.
  int64_t window_begin(int64_t seen) const { return causal && seen > window ? seen - window : 0; }
};

// Where the queries of sample b begin to see, from query `first` on; null: all from key 0. `operand` has it.
inline const int32_t* starts_of(const Sizes& s, const KernelArguments& a, size_t operand, int64_t b,
                                int64_t first) {
  return s.packed ? a.in<int32_t>(operand) + b * s.queries + first : nullptr;
}
inline void check_starts(const Sizes& s, const KernelArguments& a, size_t operand, const char* op) {
  for (int64_t b = 0; b < s.batch && s.packed; ++b)
    require_starts(op, starts_of(s, a, operand, b, 0), s.queries);
}

// The first key that row i of the rows of queries from `first` on sees; `starts` of these rows.
inline int64_t first_key(const Sizes& s, const int32_t* starts, int64_t first, int64_t i) {
  const int64_t in_window = s.window_begin(s.visible(first + i)), start = starts == nullptr ? 0 : starts[i];
  return in_window > start ? in_window : start;
}

// Of a tile of keys, which rows of queries [first, first + count) see: keys lower(i) to limit(i) of row i.
struct Window {
  const Sizes& s;
  const int32_t* starts;  // of these rows
  int64_t first, from, tokens;

  int64_t lower(int64_t i) const {
    const int64_t hidden = first_key(s, starts, first, i) - from;
    return hidden < 0 ? 0 : smaller(hidden, tokens);
  }
  int64_t limit(int64_t i) const {
    const int64_t seen = s.visible(first + i) - from;
    return seen < 0 ? 0 : smaller(seen, tokens);
  }
  // The first of the rows that see key j, and the first behind them.
  int64_t first_row(int64_t j) const {
    if (!s.causal) return 0;
    const int64_t row = from + j - (s.keys - s.queries) - first;
    return row < 0 ? 0 : row;
  }
  int64_t last_row(int64_t j, int64_t count) const {
    int64_t row = count;
    while (row > 0 && first_key(s, starts, first, row - 1) > from + j) --row;
    return row;
  }
};

inline Sizes sizes_of(const KernelRequest& request, const Layout& q, const Layout& k) {
  const Shape &a = q.type.shape, &b = k.type.shape;
  const double scale = number(request, "scale", 1 / std::sqrt(static_cast<double>(a[3])));
  if (a[3] > kMostHead)
    refuse(request, fmt::format("heads of {} features; at most {}: more heads of the same width are narrower",
                                a[3], kMostHead));
  return {a[0],
          a[1],
          b[1],
          a[2],
          b[2],
          a[3],
          static_cast<float>(scale),
          static_cast<float>(number(request, "score_cap", 0)),
          flag(request, "causal", false),
          integer(request, "window", INT64_MAX)};
}
inline Sizes sizes_of(const KernelRequest& request, size_t q, size_t starts) {
  Sizes sizes = sizes_of(request, request.inputs[q], request.inputs[q + 1]);
  sizes.packed = present(request.inputs, starts);
  return sizes;
}

}  // namespace het::cpu::HET_ISA
