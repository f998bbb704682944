// Scaled dot-product attention in tiles, with the online softmax of Dao et al. ("FlashAttention: fast and
// memory-efficient exact attention with IO-awareness", 2022): scores are never stored beyond one tile, so
// that memory is linear in the length of the sequence. Keys and values of one head are packed once, as panels
// of the matrix product's register tile, or read where they lie; all arithmetic is f32.
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

constexpr int kQueries = 8 * kRows;       // of one tile
constexpr int kKeys = 4 * kPanel;         // of one tile
constexpr int kScoreStride = kKeys + 16;  // floats between rows of a tile of scores
constexpr int64_t kMostHead = 512;        // elements of a head
constexpr int kQueryStride = kMostHead + 16;

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
  bool causal;
  int64_t group() const { return query_heads / key_heads; }
  // Keys that query i sees: the last query sees all.
  int64_t visible(int64_t i) const { return causal ? i + 1 + keys - queries : keys; }
};

Sizes sizes_of(const KernelRequest& request, const Layout& q, const Layout& k) {
  const Shape &a = q.type.shape, &b = k.type.shape;
  const double scale = number(request, "scale", 1 / std::sqrt(static_cast<double>(a[3])));
  if (a[3] > kMostHead)
    refuse(request, fmt::format("heads of {} features; at most {}: more heads of the same width are narrower",
                                a[3], kMostHead));
  return {a[0], a[1], b[1], a[2], b[2], a[3], static_cast<float>(scale), flag(request, "causal", false)};
}

int64_t padded(int64_t count) { return rounded(count, kPanel); }

// Operands of a product as the register tiles read them. Left: row i at data + i * stride. Right: row p of
// panel j at data + j * panel + p * stride.
struct Left {
  const float* data;
  int64_t stride;
};
struct Right {
  const float* data;
  int64_t panel, stride;
  Right from_panel(int64_t j) const { return {data + j * panel, panel, stride}; }
  Right from_row(int64_t p) const { return {data + p * stride, panel, stride}; }
};

// The transpose of [tokens, head] as right operand, for products over the head's elements: packed into
// `space`.
template <typename T>
Right transposed(const T* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
  for (int64_t j = 0; j < tokens; j += kPanel)
    pack_panel(from + j * stride, 1, stride, head, smaller(tokens - j, kPanel), space + j * head);
  return {space, kPanel * head, kPanel};
}
// [tokens, head] as right operand, for products over tokens: f32 in whole panels where it lies, else in
// `space`.
template <typename T>
Right straight(const T* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
  if constexpr (std::is_same_v<T, float>)
    if (head % kPanel == 0) return {from, kPanel, stride};
  for (int64_t c = 0; c < head; c += kPanel)
    pack_panel(from + c, stride, 1, tokens, smaller(head - c, kPanel), space + c * tokens);
  return {space, kPanel * tokens, kPanel};
}
// [tokens, head] as left operand: f32 where it lies, else in `space`.
template <typename T>
Left rows_of(const T* from, int64_t stride, int64_t tokens, int64_t head, float* space) {
  if constexpr (std::is_same_v<T, float>) return {from, stride};
  for (int64_t i = 0; i < tokens; ++i) copy_row(from + i * stride, head, space + i * kQueryStride);
  return {space, kQueryStride};
}

// scores[i][j] = a_i . b_j for `rows` rows and keys [0, limit(i) rounded up to a panel).
template <typename Limit>
void multiply_rows(const Left& a, const Right& b, int64_t rows, int64_t head, float* scores,
                   const Limit& limit) {
  for (int64_t i = 0; i < rows; i += kRows) {
    const int64_t count = smaller(rows - i, kRows), columns = limit(i + count - 1);
    for (int64_t j = 0; j < columns; j += kPanel)
      tile_of<Order::row, float>(count)(a.data + i * a.stride, a.stride, b.data + j / kPanel * b.panel,
                                        b.stride, head, scores + i * kScoreStride + j, kScoreStride, kPanel,
                                        Start::zero, nullptr);
  }
}

// out[i][:] += sum over j < limit(i) of p[i][j] b_j
template <typename Limit>
void accumulate_rows(const float* p, const Right& b, int64_t rows, int64_t head, float* out,
                     int64_t out_stride, const Limit& limit) {
  for (int64_t i = 0; i < rows; i += kRows) {
    const int64_t count = smaller(rows - i, kRows), terms = limit(i + count - 1);
    for (int64_t c = 0; c < head; c += kPanel)
      tile_of<Order::row, float>(count)(p + i * kScoreStride, kScoreStride, b.data + c / kPanel * b.panel,
                                        b.stride, terms, out + i * out_stride + c, out_stride, kPanel,
                                        Start::sum, nullptr);
  }
}

// out[j][:] += sum over rows i >= first(j) of p[i][j] b_i
template <typename First>
void accumulate_columns(const float* p, const Right& b, int64_t rows, int64_t columns, int64_t head,
                        float* out, int64_t out_stride, const First& first) {
  for (int64_t j = 0; j < columns; j += kRows) {
    const int64_t count = smaller(columns - j, kRows), skip = first(j);
    if (skip >= rows) break;
    for (int64_t c = 0; c < head; c += kPanel)
      tile_of<Order::column, float>(count)(
          p + skip * kScoreStride + j, kScoreStride, b.data + c / kPanel * b.panel + skip * b.stride,
          b.stride, rows - skip, out + j * out_stride + c, out_stride, kPanel, Start::sum, nullptr);
  }
}

// Threads take whole key heads; where there are fewer of those than threads, ranges of queries of one head
// too.
struct Work {
  int64_t heads, ranges, parts;
};

// ---- forward ----

template <typename T>
struct Forward {
  Sizes s;
  Heads q, k, v, out;
  Work work;

  int64_t floats() const {  // workspace of one thread
    return s.head * padded(s.keys) + padded(s.head) * s.keys + kQueries * (kQueryStride + kScoreStride) +
           kQueries * padded(s.head) + 2 * kQueries;
  }

  void run(const KernelArguments& a) const {
    parallel_parts(work.parts, [&](int64_t part) {
      float* keys = reinterpret_cast<float*>(a.workspace) + part * floats();
      float* values = keys + s.head * padded(s.keys);
      float* rest = values + padded(s.head) * s.keys;
      Right key{}, value{};
      const Range share = share_of(work.heads * work.ranges, work.parts, part);
      for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t b = item / work.ranges / s.key_heads, h = item / work.ranges % s.key_heads;
        const Range queries = share_of(s.queries, work.ranges, item % work.ranges);
        if (item == share.begin || item % work.ranges == 0) {
          key = transposed(a.in<T>(1) + k.at(b, 0, h), k.token, s.keys, s.head, keys);
          value = straight(a.in<T>(2) + v.at(b, 0, h), v.token, s.keys, s.head, values);
        }
        for (int64_t g = h * s.group(); g < (h + 1) * s.group(); ++g)
          for (int64_t first = queries.begin; first < queries.end; first += kQueries)
            attend(a, b, g, first, smaller(queries.end - first, kQueries), key, value, rest);
      }
    });
  }

  // Queries [first, first + count) of one head against all the keys that they see.
  void attend(const KernelArguments& a, int64_t b, int64_t h, int64_t first, int64_t count, const Right& keys,
              const Right& values, float* rest) const {
    const int64_t width = padded(s.head);
    float *rows = rest, *scores = rows + kQueries * kQueryStride, *sums = scores + kQueries * kScoreStride;
    float *most = sums + kQueries * width, *total = most + kQueries;
    const Left query = rows_of(a.in<T>(0) + q.at(b, first, h), q.token, count, s.head, rows);
    for (int64_t i = 0; i < count; ++i) {
      most[i] = -std::numeric_limits<float>::infinity();
      total[i] = 0;
    }
    for (int64_t i = 0; i < count * width; ++i) sums[i] = 0;

    const int64_t end = s.visible(first + count - 1);
    for (int64_t from = 0; from < end; from += kKeys) {
      const int64_t tokens = smaller(s.keys - from, kKeys);
      const auto limit = [&](int64_t i) {
        const int64_t seen = s.visible(first + i) - from;
        return seen < 0 ? 0 : smaller(seen, tokens);
      };
      multiply_rows(query, keys.from_panel(from / kPanel), count, s.head, scores, limit);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t last = smaller(i - i % kRows + kRows, count) - 1;  // of this row's register tile
        soften(scores + i * kScoreStride, limit(i), limit(last), most[i], total[i], sums + i * width, width);
      }
      accumulate_rows(scores, values.from_row(from), count, s.head, sums, width, limit);
    }
    float* lse = a.out<float>(1) + (b * s.query_heads + h) * s.queries + first;
    for_lanes(count, [&](int64_t i, auto lanes) {
      store(lse + i, load(most + i, lanes) + log(load(total + i, lanes)), lanes);
    });
    for (int64_t i = 0; i < count; ++i) {
      const float scale = 1.0F / total[i];
      T* to = reinterpret_cast<T*>(a.outputs[0]) + out.at(b, first + i, h);
      const float* from = sums + i * width;
      for_lanes(s.head, [&](int64_t c, auto lanes) { store(to + c, load(from + c, lanes) * scale, lanes); });
    }
  }

  // Scores of one row become exp(scale * score - most); what was summed before is scaled to the new maximum.
  // Columns from `seen` to `tile_end` become 0: the register tile takes them too.
  void soften(float* row, int64_t seen, int64_t tile_end, float& most, float& total, float* sums,
              int64_t width) const {
    Vector larger = splat(-std::numeric_limits<float>::infinity());
    for_lanes(seen, [&](int64_t j, auto lanes) {
      const Vector score = load(row + j, lanes) * s.scale;
      store(row + j, score, lanes);
      larger = maximum(larger, keep(score, lanes, -std::numeric_limits<float>::infinity()));
    });
    const float now = std::fmax(most, maximum_of(larger));
    if (seen > 0) {
      const float shrink = most == now ? 1.0F : total == 0 ? 0.0F : std::exp(most - now);
      Vector sum{};
      for_lanes(seen, [&](int64_t j, auto lanes) {
        const Vector p = exp(load(row + j, lanes) - now);
        store(row + j, p, lanes);
        sum += keep(p, lanes, 0);
      });
      total = total * shrink + sum_of(sum);
      if (shrink != 1.0F)
        for (int64_t c = 0; c < width; c += kLanes) store(sums + c, load(sums + c) * shrink);
      most = now;
    }
    for (int64_t j = seen; j < tile_end; ++j) row[j] = 0;
  }
};

std::unique_ptr<Kernel> prepare_attention(const KernelRequest& request) {
  const Sizes sizes = sizes_of(request, request.inputs[0], request.inputs[1]);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const int64_t heads = sizes.batch * sizes.key_heads;
    const int64_t most = (sizes.queries + kQueries - 1) / kQueries;
    const int64_t wanted = heads == 0 ? 1 : (thread_count() + heads - 1) / heads;
    const int64_t ranges = wanted < most ? wanted : most > 0 ? most : 1;
    const Forward<T> forward{
        sizes,
        Heads(request.inputs[0]),
        Heads(request.inputs[1]),
        Heads(request.inputs[2]),
        Heads(request.outputs[0]),
        {heads, ranges, heads * ranges < thread_count() ? heads * ranges : thread_count()}};
    return make_kernel([forward](const KernelArguments& a) { forward.run(a); },
                       4 * forward.work.parts * forward.floats());
  });
}

// ---- backward ----

// With p = exp(scale q.k - lse), e = dout . out and ds = p (dout . v - e) scale:
// dq = ds k, dk = ds^T q, dv = p^T dout.
template <typename T>
struct Backward {
  Sizes s;
  Heads dout, q, k, v, out, dq, dk, dv;
  int64_t parts;

  int64_t floats() const {
    const int64_t width = padded(s.head);
    return 2 * s.head * padded(s.keys) + width * s.keys + 2 * padded(s.keys) * width +  // packed k, v; dk, dv
           2 * kQueries * kQueryStride + 2 * kQueries * kScoreStride +  // rows of q, dout; p, ds
           2 * kQueries * width + kQueries * width + 2 * kQueries;      // panels of q, dout; dq; e, lse
  }

  void run(const KernelArguments& a) const {
    parallel_parts(parts, [&](int64_t part) {
      float* workspace = reinterpret_cast<float*>(a.workspace) + part * floats();
      const Range share = share_of(s.batch * s.key_heads, parts, part);
      for (int64_t item = share.begin; item < share.end; ++item)
        differentiate(a, item / s.key_heads, item % s.key_heads, workspace);
    });
  }

  // All queries of the group that share one key head.
  void differentiate(const KernelArguments& a, int64_t b, int64_t h, float* workspace) const {
    const int64_t width = padded(s.head);
    float* keys = workspace;                                // k by key
    float* values = keys + s.head * padded(s.keys);         // v by key
    float* key_rows = values + s.head * padded(s.keys);     // k by element
    float* key_sums = key_rows + width * s.keys;            // dk [keys, width]
    float* value_sums = key_sums + padded(s.keys) * width;  // dv
    float* rest = value_sums + padded(s.keys) * width;
    const T *from_k = a.in<T>(2) + k.at(b, 0, h), *from_v = a.in<T>(3) + v.at(b, 0, h);
    const Right key = transposed(from_k, k.token, s.keys, s.head, keys);
    const Right value = transposed(from_v, v.token, s.keys, s.head, values);
    const Right key_row = straight(from_k, k.token, s.keys, s.head, key_rows);
    for (int64_t i = 0; i < 2 * padded(s.keys) * width; ++i) key_sums[i] = 0;
    for (int64_t g = h * s.group(); g < (h + 1) * s.group(); ++g)
      for (int64_t first = 0; first < s.queries; first += kQueries)
        differentiate_queries(a, b, g, first, smaller(s.queries - first, kQueries), key, value, key_row,
                              key_sums, value_sums, rest);
    for (int64_t j = 0; j < s.keys; ++j) {
      T *to_k = reinterpret_cast<T*>(a.outputs[1]) + dk.at(b, j, h),
        *to_v = reinterpret_cast<T*>(a.outputs[2]) + dv.at(b, j, h);
      for_lanes(s.head, [&](int64_t c, auto lanes) {
        store(to_k + c, load(key_sums + j * width + c, lanes), lanes);
        store(to_v + c, load(value_sums + j * width + c, lanes), lanes);
      });
    }
  }

  void differentiate_queries(const KernelArguments& a, int64_t b, int64_t h, int64_t first, int64_t count,
                             const Right& keys, const Right& values, const Right& key_rows, float* key_sums,
                             float* value_sums, float* rest) const {
    const int64_t width = padded(s.head);
    float *rows = rest, *drows = rows + kQueries * kQueryStride;
    float *p = drows + kQueries * kQueryStride, *ds = p + kQueries * kScoreStride;
    float *panels = ds + kQueries * kScoreStride, *dpanels = panels + kQueries * width;
    float *sums = dpanels + kQueries * width, *e = sums + kQueries * width, *lse = e + kQueries;
    const T *from_q = a.in<T>(1) + q.at(b, first, h), *from_dout = a.in<T>(0) + dout.at(b, first, h);
    const Left query = rows_of(from_q, q.token, count, s.head, rows);
    const Left dquery = rows_of(from_dout, dout.token, count, s.head, drows);
    const Right query_row = straight(from_q, q.token, count, s.head, panels);
    const Right dquery_row = straight(from_dout, dout.token, count, s.head, dpanels);
    for (int64_t i = 0; i < count; ++i) {
      const T* made = a.in<T>(4) + out.at(b, first + i, h);
      Vector sum{};
      for_lanes(s.head, [&](int64_t c, auto lanes) {
        sum += load(dquery.data + i * dquery.stride + c, lanes) * load(made + c, lanes);
      });
      e[i] = sum_of(sum);
      lse[i] = a.in<float>(5)[(b * s.query_heads + h) * s.queries + first + i];
    }
    for (int64_t i = 0; i < count * width; ++i) sums[i] = 0;

    const int64_t end = s.visible(first + count - 1);
    for (int64_t from = 0; from < end; from += kKeys) {
      const int64_t tokens = smaller(s.keys - from, kKeys);
      const auto limit = [&](int64_t i) {
        const int64_t seen = s.visible(first + i) - from;
        return seen < 0 ? 0 : smaller(seen, tokens);
      };
      multiply_rows(query, keys.from_panel(from / kPanel), count, s.head, p, limit);
      multiply_rows(dquery, values.from_panel(from / kPanel), count, s.head, ds, limit);
      const int64_t columns = limit(count - 1);
      for (int64_t i = 0; i < count; ++i) {
        float *p_row = p + i * kScoreStride, *ds_row = ds + i * kScoreStride;
        const int64_t seen = limit(i);
        for_lanes(seen, [&](int64_t j, auto lanes) {
          const Vector weight = exp(load(p_row + j, lanes) * s.scale - lse[i]);
          store(p_row + j, weight, lanes);
          store(ds_row + j, weight * (load(ds_row + j, lanes) - e[i]) * s.scale, lanes);
        });
        for (int64_t j = seen; j < columns; ++j) p_row[j] = ds_row[j] = 0;
      }
      // The first row of this tile that sees key `from + j`.
      const auto first_row = [&](int64_t j) {
        if (!s.causal) return int64_t{0};
        const int64_t row = from + j - (s.keys - s.queries) - first;
        return row < 0 ? int64_t{0} : row;
      };
      accumulate_rows(ds, key_rows.from_row(from), count, s.head, sums, width, limit);
      accumulate_columns(ds, query_row, count, columns, s.head, key_sums + from * width, width, first_row);
      accumulate_columns(p, dquery_row, count, columns, s.head, value_sums + from * width, width, first_row);
    }
    for (int64_t i = 0; i < count; ++i) {
      T* to = reinterpret_cast<T*>(a.outputs[0]) + dq.at(b, first + i, h);
      for_lanes(s.head,
                [&](int64_t c, auto lanes) { store(to + c, load(sums + i * width + c, lanes), lanes); });
    }
  }
};

std::unique_ptr<Kernel> prepare_gradient(const KernelRequest& request) {
  const Sizes sizes = sizes_of(request, request.inputs[1], request.inputs[2]);
  return for_float(request, request.inputs[1].type.dtype, [&]<typename T>(T) {
    const int64_t heads = sizes.batch * sizes.key_heads;
    const Backward<T> backward{sizes,
                               Heads(request.inputs[0]),
                               Heads(request.inputs[1]),
                               Heads(request.inputs[2]),
                               Heads(request.inputs[3]),
                               Heads(request.inputs[4]),
                               Heads(request.outputs[0]),
                               Heads(request.outputs[1]),
                               Heads(request.outputs[2]),
                               heads < thread_count() ? heads : thread_count()};
    return make_kernel([backward](const KernelArguments& a) { backward.run(a); },
                       4 * backward.parts * backward.floats());
  });
}

// ---- with a cache of keys and values, for generation ----

template <typename T>
struct Cached {
  Sizes s;  // keys: of the cache
  Heads q, k, v, cache, out;
  int64_t parts;

  void run(const KernelArguments& a) const {
    const int64_t position = a.in<int32_t>(5)[0];
    if (position < 0 || position + s.queries > s.keys)
      refuse_position("attention_cached", s.queries, position, s.keys);
    T *keys = a.out<T>(1), *values = a.out<T>(2);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t t = 0; t < s.queries; ++t)
        for (int64_t h = 0; h < s.key_heads; ++h)
          for (int64_t c = 0; c < s.head; ++c) {
            keys[cache.at(b, position + t, h) + c] = a.in<T>(1)[k.at(b, t, h) + c];
            values[cache.at(b, position + t, h) + c] = a.in<T>(2)[v.at(b, t, h) + c];
          }
    const int64_t items = s.batch * s.query_heads;
    parallel_parts(parts, [&](int64_t part) {
      float* scores = reinterpret_cast<float*>(a.workspace) + part * (s.keys + padded(s.head));
      const Range share = share_of(items, parts, part);
      for (int64_t item = share.begin; item < share.end; ++item)
        for (int64_t t = 0; t < s.queries; ++t)
          attend(a, item / s.query_heads, item % s.query_heads, t, position + t + 1, keys, values, scores);
    });
  }

  void attend(const KernelArguments& a, int64_t b, int64_t h, int64_t t, int64_t seen, const T* keys,
              const T* values, float* scores) const {
    const T* query = a.in<T>(0) + q.at(b, t, h);
    const int64_t kh = h / s.group();
    float most = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t j = 0; j < seen; ++j) {
      Vector sum{};
      const T* key = keys + cache.at(b, j, kh);
      for_lanes(s.head, [&](int64_t c, auto lanes) { sum += load(query + c, lanes) * load(key + c, lanes); });
      scores[j] = sum_of(sum) * s.scale;
      most = std::fmax(most, scores[j]);
    }
    for (int64_t j = 0; j < seen; ++j) total += scores[j] = std::exp(scores[j] - most);
    float* sums = scores + s.keys;
    for (int64_t c = 0; c < s.head; ++c) sums[c] = 0;
    for (int64_t j = 0; j < seen; ++j) {
      const T* value = values + cache.at(b, j, kh);
      for_lanes(s.head, [&](int64_t c, auto lanes) {
        store(sums + c, load(sums + c, lanes) + scores[j] * load(value + c, lanes), lanes);
      });
    }
    T* to = reinterpret_cast<T*>(a.outputs[0]) + out.at(b, t, h);
    for_lanes(s.head, [&](int64_t c, auto lanes) { store(to + c, load(sums + c, lanes) / total, lanes); });
  }
};

std::unique_ptr<Kernel> prepare_cached(const KernelRequest& request) {
  Sizes sizes = sizes_of(request, request.inputs[0], request.inputs[3]);
  sizes.causal = true;
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const int64_t items = sizes.batch * sizes.query_heads;
    const Cached<T> cached{sizes,
                           Heads(request.inputs[0]),
                           Heads(request.inputs[1]),
                           Heads(request.inputs[2]),
                           Heads(request.inputs[3]),
                           Heads(request.outputs[0]),
                           items < thread_count() ? items : thread_count()};
    return make_kernel([cached](const KernelArguments& a) { cached.run(a); },
                       4 * cached.parts * (sizes.keys + padded(sizes.head)));
  });
}

}  // namespace

std::vector<KernelEntry> attention_kernels() {
  return {{"attention", &prepare_attention},
          {"attention_gradient", &prepare_gradient},
          {"attention_cached", &prepare_cached}};
}

}  // namespace het::cpu::HET_ISA
