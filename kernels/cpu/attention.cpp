// Scaled dot-product attention in tiles, with the online softmax of Dao et al. ("FlashAttention: fast and
// memory-efficient exact attention with IO-awareness", 2022): scores are never stored beyond one tile, so
// that memory is linear in the length of the sequence. Keys and values of one head are packed once, as the
// product (attention_products.h) reads them, or read where they lie; scores, softmax and sums are f32.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_products.h"
#include "kernels/cpu/attention_window.h"
#include "kernels/cpu/kernel.h"

namespace het::cpu::HET_ISA {
namespace {

// Threads take whole key heads; where there are fewer of those than threads, ranges of queries of one head
// too.
struct Work {
  int64_t heads, ranges, parts;
};

// Allocates parts of whole cache lines from one thread's workspace; without memory it only counts.
struct WorkspaceAllocator {
  float* base = nullptr;
  int64_t floats = 0;
  float* take(int64_t count) {
    const int64_t at = floats;
    floats += rounded(count, 16);
    return base == nullptr ? nullptr : base + at;
  }
};

// Of a kernel that cuts workspace: what one thread needs, and the part of one.
template <typename Cutting>
int64_t floats_of(const Cutting& kernel) {
  WorkspaceAllocator allocator;
  kernel.cut(allocator);
  return allocator.floats;
}
template <typename Cutting>
auto space_of(const Cutting& kernel, const KernelArguments& a, int64_t part) {
  WorkspaceAllocator allocator{reinterpret_cast<float*>(a.workspace) + part * floats_of(kernel)};
  return kernel.cut(allocator);
}

// Products q . k of a row become tanh(inner q . k).
HET_INLINE void apply_tanh(float* row, int64_t count, float inner) {
  for_lanes(count, [&](int64_t j, auto lanes) { store(row + j, tanh(load(row + j, lanes) * inner), lanes); });
}

// ---- forward ----

template <typename T>
struct Forward {
  using Use = Products<T>;
  using Left = typename Use::Left;
  using Right = typename Use::Right;
  static constexpr int64_t kQueries = Use::kQueries;

  Sizes s;
  Heads q, k, v, out;
  Work work;

  struct Space {
    float *keys, *values, *rows, *scores, *sums, *row_max, *row_sum, *scratch;
  };
  Space cut(WorkspaceAllocator& allocator) const {
    return {.keys = allocator.take(Use::right_floats(s.head, s.keys)),
            .values = allocator.take(Use::right_floats(s.keys, s.head)),
            .rows = allocator.take(Use::left_floats(kQueries, s.head)),
            .scores = allocator.take(kQueries * kScoreStride),
            .sums = allocator.take(kQueries * padded(s.head)),
            .row_max = allocator.take(kQueries),
            .row_sum = allocator.take(kQueries),
            .scratch = allocator.take(Use::kScratchFloats)};
  }

  void run(const KernelArguments& a) const {
    check_starts(s, a, 3, "attention");
    parallel_parts(work.parts, [&](int64_t part) {
      const Space space = space_of(*this, a, part);
      [[maybe_unused]] const typename Use::State state{};
      Right key{}, value{};
      const Range share = share_of(work.heads * work.ranges, work.parts, part);
      for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t b = item / work.ranges / s.key_heads, h = item / work.ranges % s.key_heads;
        const Range queries = share_of(s.queries, work.ranges, item % work.ranges);
        if (item == share.begin || item % work.ranges == 0) {
          key = Use::transposed(a.in<T>(1) + k.at(b, 0, h), k.token, s.keys, s.head, space.keys);
          value = Use::straight(a.in<T>(2) + v.at(b, 0, h), v.token, s.keys, s.head, space.values);
        }
        for (int64_t g = h * s.group(); g < (h + 1) * s.group(); ++g)
          for (int64_t first = queries.begin; first < queries.end; first += kQueries)
            attend(a, b, g, first, smaller(queries.end - first, kQueries), key, value, space);
      }
    });
  }

  // Queries [first, first + count) of one head against all the keys that they see.
  void attend(const KernelArguments& a, int64_t b, int64_t h, int64_t first, int64_t count, const Right& keys,
              const Right& values, const Space& space) const {
    const int64_t width = padded(s.head);
    float *scores = space.scores, *sums = space.sums, *row_max = space.row_max, *row_sum = space.row_sum;
    const Left query = Use::rows_of(a.in<T>(0) + q.at(b, first, h), q.token, count, s.head, space.rows);
    for (int64_t i = 0; i < count; ++i) {
      row_max[i] = -std::numeric_limits<float>::infinity();
      row_sum[i] = 0;
    }
    for (int64_t i = 0; i < count * width; ++i) sums[i] = 0;

    const int64_t end = s.visible(first + count - 1);
    const int32_t* starts = starts_of(s, a, 3, b, first);
    for (int64_t from = block_begin(first_key(s, starts, first, 0)); from < end; from += kKeys) {
      const Window window{s, starts, first, from, smaller(s.keys - from, kKeys)};
      const auto lower = [&](int64_t i) { return window.lower(i); };
      const auto limit = [&](int64_t i) { return window.limit(i); };
      Use::multiply_rows(query, keys.from_panel(from / kPanel), count, s.head, scores, lower, limit);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t last =
            smaller(i - i % Use::kBlock + Use::kBlock, count) - 1;  // row multiplied with this one
        online_softmax(scores + i * kScoreStride, lower(i), limit(i), Use::covered(limit(last)), row_max[i],
                       row_sum[i], sums + i * width, width);
      }
      Use::accumulate_rows(scores, values.from_row(from), count, s.head, sums, width, lower, limit,
                           space.scratch);
    }
    float* lse = a.out<float>(1) + (b * s.query_heads + h) * s.queries + first;
    for_lanes(count, [&](int64_t i, auto lanes) {
      store(lse + i, load(row_max + i, lanes) + log(load(row_sum + i, lanes)), lanes);
    });
    for (int64_t i = 0; i < count; ++i) {
      const float scale = 1.0F / row_sum[i];
      T* to = reinterpret_cast<T*>(a.outputs[0]) + out.at(b, first + i, h);
      const float* from = sums + i * width;
      for_lanes(s.head, [&](int64_t c, auto lanes) { store(to + c, load(from + c, lanes) * scale, lanes); });
    }
  }

  // Products of one row become exp(score - row_max); what was summed before is scaled to the new
  // maximum. Columns up to `begin`, and from `seen` to `end`, become 0: the product takes them too.
  void online_softmax(float* columns, int64_t begin, int64_t seen, int64_t end, float& row_max,
                      float& row_sum, float* sums, int64_t width) const {
    for (int64_t j = 0; j < begin; ++j) columns[j] = 0;
    for (int64_t j = seen; j < end; ++j) columns[j] = 0;
    if (seen == begin) return;
    float* row = columns + begin;
    if (s.cap > 0) apply_tanh(row, seen - begin, s.inner());
    const float factor = s.factor();
    Vector larger = splat(-std::numeric_limits<float>::infinity());
    for_lanes(seen - begin, [&](int64_t j, auto lanes) {
      const Vector score = load(row + j, lanes) * factor;
      store(row + j, score, lanes);
      larger = maximum(larger, keep(score, lanes, -std::numeric_limits<float>::infinity()));
    });
    const float now = std::fmax(row_max, maximum_of(larger));
    const float shrink = row_max == now ? 1.0F : row_sum == 0 ? 0.0F : std::exp(row_max - now);
    Vector sum{};
    for_lanes(seen - begin, [&](int64_t j, auto lanes) {
      const Vector p = exp(load(row + j, lanes) - now);
      store(row + j, p, lanes);
      sum += keep(p, lanes, 0);
    });
    row_sum = row_sum * shrink + sum_of(sum);
    if (shrink != 1.0F)
      for (int64_t c = 0; c < width; c += kLanes) store(sums + c, load(sums + c) * shrink);
    row_max = now;
  }
};

std::unique_ptr<Kernel> prepare_attention(const KernelRequest& request) {
  const Sizes sizes = sizes_of(request, 0, 3);
  return for_float(request, request.inputs[0].type.dtype, [&]<typename T>(T) {
    const int64_t heads = sizes.batch * sizes.key_heads;
    const int64_t most = (sizes.queries + Forward<T>::kQueries - 1) / Forward<T>::kQueries;
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
                       4 * forward.work.parts * floats_of(forward));
  });
}

// ---- backward ----

// With p = exp(score - lse), e = dout . out and ds = p (dout . v - e) scale, times 1 - (score / cap)^2 with a
// cap: dq = ds k, dk = ds^T q, dv = p^T dout.
template <typename T>
struct Backward {
  using Use = Products<T>;
  using Left = typename Use::Left;
  using Right = typename Use::Right;
  static constexpr int64_t kQueries = Use::kQueries;

  Sizes s;
  Heads dout, q, k, v, out, dq, dk, dv;
  int64_t parts;

  struct Space {
    float *keys, *values, *key_rows;           // operands of one key head
    float *key_sums, *value_sums;              // dk, dv [keys, width]
    float *rows, *drows, *columns, *dcolumns;  // of a tile's queries and dout
    float *p, *ds, *sums, *e, *lse, *scratch;
  };
  Space cut(WorkspaceAllocator& allocator) const {
    const int64_t width = padded(s.head);
    return {.keys = allocator.take(Use::right_floats(s.head, s.keys)),
            .values = allocator.take(Use::right_floats(s.head, s.keys)),
            .key_rows = allocator.take(Use::right_floats(s.keys, s.head)),
            .key_sums = allocator.take(padded(s.keys) * width),
            .value_sums = allocator.take(padded(s.keys) * width),
            .rows = allocator.take(Use::left_floats(kQueries, s.head)),
            .drows = allocator.take(Use::left_floats(kQueries, s.head)),
            .columns = allocator.take(Use::right_floats(kQueries, s.head)),
            .dcolumns = allocator.take(Use::right_floats(kQueries, s.head)),
            .p = allocator.take(kQueries * kScoreStride),
            .ds = allocator.take(kQueries * kScoreStride),
            .sums = allocator.take(kQueries * width),
            .e = allocator.take(kQueries),
            .lse = allocator.take(kQueries),
            .scratch = allocator.take(Use::kScratchFloats)};
  }

  void run(const KernelArguments& a) const {
    check_starts(s, a, 6, "attention_gradient");
    parallel_parts(parts, [&](int64_t part) {
      const Space space = space_of(*this, a, part);
      [[maybe_unused]] const typename Use::State state{};
      const Range share = share_of(s.batch * s.key_heads, parts, part);
      for (int64_t item = share.begin; item < share.end; ++item)
        differentiate(a, item / s.key_heads, item % s.key_heads, space);
    });
  }

  // All queries of the group that share one key head.
  void differentiate(const KernelArguments& a, int64_t b, int64_t h, const Space& space) const {
    const int64_t width = padded(s.head);
    const T *from_k = a.in<T>(2) + k.at(b, 0, h), *from_v = a.in<T>(3) + v.at(b, 0, h);
    const Right key = Use::transposed(from_k, k.token, s.keys, s.head, space.keys);
    const Right value = Use::transposed(from_v, v.token, s.keys, s.head, space.values);
    const Right key_row = Use::straight(from_k, k.token, s.keys, s.head, space.key_rows);
    for (int64_t i = 0; i < padded(s.keys) * width; ++i) space.key_sums[i] = space.value_sums[i] = 0;
    for (int64_t g = h * s.group(); g < (h + 1) * s.group(); ++g)
      for (int64_t first = 0; first < s.queries; first += kQueries)
        differentiate_queries(a, b, g, first, smaller(s.queries - first, kQueries), key, value, key_row,
                              space);
    for (int64_t j = 0; j < s.keys; ++j) {
      T *to_k = reinterpret_cast<T*>(a.outputs[1]) + dk.at(b, j, h),
        *to_v = reinterpret_cast<T*>(a.outputs[2]) + dv.at(b, j, h);
      for_lanes(s.head, [&](int64_t c, auto lanes) {
        store(to_k + c, load(space.key_sums + j * width + c, lanes), lanes);
        store(to_v + c, load(space.value_sums + j * width + c, lanes), lanes);
      });
    }
  }

  // Products q . k of one row become p, and dout . v become ds.
  template <bool kCapped>
  HET_INLINE void differentiate_scores(float* p, float* ds, int64_t count, float lse, float e) const {
    const float factor = s.factor(), inner = s.inner();
    for_lanes(count, [&](int64_t j, auto lanes) {
      Vector product = load(p + j, lanes), slope = splat(s.scale);
      if constexpr (kCapped) {
        product = tanh(product * inner);
        slope = (1.0F - product * product) * s.scale;
      }
      const Vector weight = exp(product * factor - lse);
      store(p + j, weight, lanes);
      store(ds + j, weight * (load(ds + j, lanes) - e) * slope, lanes);
    });
  }

  void differentiate_queries(const KernelArguments& a, int64_t b, int64_t h, int64_t first, int64_t count,
                             const Right& keys, const Right& values, const Right& key_rows,
                             const Space& space) const {
    const int64_t width = padded(s.head);
    float *p = space.p, *ds = space.ds, *sums = space.sums, *e = space.e, *lse = space.lse;
    const T *from_q = a.in<T>(1) + q.at(b, first, h), *from_dout = a.in<T>(0) + dout.at(b, first, h);
    const Left query = Use::rows_of(from_q, q.token, count, s.head, space.rows);
    const Left dquery = Use::rows_of(from_dout, dout.token, count, s.head, space.drows);
    const Right query_row = Use::straight(from_q, q.token, count, s.head, space.columns);
    const Right dquery_row = Use::straight(from_dout, dout.token, count, s.head, space.dcolumns);
    for (int64_t i = 0; i < count; ++i) {
      const T *made = a.in<T>(4) + out.at(b, first + i, h), *dmade = from_dout + i * dout.token;
      Vector sum{};
      for_lanes(s.head,
                [&](int64_t c, auto lanes) { sum += load(dmade + c, lanes) * load(made + c, lanes); });
      e[i] = sum_of(sum);
      lse[i] = a.in<float>(5)[(b * s.query_heads + h) * s.queries + first + i];
    }
    for (int64_t i = 0; i < count * width; ++i) sums[i] = 0;

    const int64_t end = s.visible(first + count - 1);
    const int32_t* starts = starts_of(s, a, 6, b, first);
    for (int64_t from = block_begin(first_key(s, starts, first, 0)); from < end; from += kKeys) {
      const Window window{s, starts, first, from, smaller(s.keys - from, kKeys)};
      const auto lower = [&](int64_t i) { return window.lower(i); };
      const auto limit = [&](int64_t i) { return window.limit(i); };
      Use::multiply_rows(query, keys.from_panel(from / kPanel), count, s.head, p, lower, limit);
      Use::multiply_rows(dquery, values.from_panel(from / kPanel), count, s.head, ds, lower, limit);
      const int64_t columns = limit(count - 1);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t begin = lower(i), seen = limit(i);
        float *p_row = p + i * kScoreStride, *ds_row = ds + i * kScoreStride;
        for (int64_t j = 0; j < begin; ++j) p_row[j] = ds_row[j] = 0;
        for (int64_t j = seen; j < Use::covered(columns); ++j) p_row[j] = ds_row[j] = 0;
        if (s.cap > 0)
          differentiate_scores<true>(p_row + begin, ds_row + begin, seen - begin, lse[i], e[i]);
        else
          differentiate_scores<false>(p_row + begin, ds_row + begin, seen - begin, lse[i], e[i]);
      }
      const auto first_row = [&](int64_t j) { return window.first_row(j); };
      const auto last_row = [&](int64_t j) { return window.last_row(j, count); };
      Use::accumulate_rows(ds, key_rows.from_row(from), count, s.head, sums, width, lower, limit,
                           space.scratch);
      Use::accumulate_columns(ds, query_row, count, columns, s.head, space.key_sums + from * width, width,
                              first_row, last_row, space.scratch);
      Use::accumulate_columns(p, dquery_row, count, columns, s.head, space.value_sums + from * width, width,
                              first_row, last_row, space.scratch);
    }
    for (int64_t i = 0; i < count; ++i) {
      T* to = reinterpret_cast<T*>(a.outputs[0]) + dq.at(b, first + i, h);
      for_lanes(s.head,
                [&](int64_t c, auto lanes) { store(to + c, load(sums + i * width + c, lanes), lanes); });
    }
  }
};

std::unique_ptr<Kernel> prepare_gradient(const KernelRequest& request) {
  const Sizes sizes = sizes_of(request, 1, 6);
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
                       4 * backward.parts * floats_of(backward));
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
    float row_max = -std::numeric_limits<float>::infinity(), row_sum = 0;
    const int64_t begin = s.window_begin(seen);
    for (int64_t j = begin; j < seen; ++j) {
      Vector sum{};
      const T* key = keys + cache.at(b, j, kh);
      for_lanes(s.head, [&](int64_t c, auto lanes) { sum += load(query + c, lanes) * load(key + c, lanes); });
      scores[j] = sum_of(sum);
    }
    if (s.cap > 0) apply_tanh(scores + begin, seen - begin, s.inner());
    const float factor = s.factor();
    for (int64_t j = begin; j < seen; ++j) row_max = std::fmax(row_max, scores[j] *= factor);
    for (int64_t j = begin; j < seen; ++j) row_sum += scores[j] = std::exp(scores[j] - row_max);
    float* sums = scores + s.keys;
    for (int64_t c = 0; c < s.head; ++c) sums[c] = 0;
    for (int64_t j = begin; j < seen; ++j) {
      const T* value = values + cache.at(b, j, kh);
      for_lanes(s.head, [&](int64_t c, auto lanes) {
        store(sums + c, load(sums + c, lanes) + scores[j] * load(value + c, lanes), lanes);
      });
    }
    T* to = reinterpret_cast<T*>(a.outputs[0]) + out.at(b, t, h);
    for_lanes(s.head, [&](int64_t c, auto lanes) { store(to + c, load(sums + c, lanes) / row_sum, lanes); });
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
