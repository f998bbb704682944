// What the kernels of attention share: sizes, where rows lie, and which keys a query sees.
#pragma once

#include <climits>

#include "kernels/cuda/vector.h"

namespace het::HET_CUDA {

inline constexpr float kLog2e = 1.4426950408889634f;

// One operand [batch, tokens, heads, size of a head], strides in elements; elements of a head are adjacent.
struct Heads {
  int64_t batch = 0, token = 0, head = 0;
  __host__ __device__ int64_t at(int b, int t, int h) const { return b * batch + t * token + h * head; }
};

struct Attention {
  int batch = 0, queries = 0, keys = 0, query_heads = 0, key_heads = 0, head = 0;
  // Query heads that share a tile, all reading the same key head: row r of a tile's rows is query r / packed
  // in head h * packed + r % packed. More than 1 with a cache, where queries are few.
  int packed = 1;
  // The keys that are seen in `splits` ranges of `span`, whose results combine() brings together: with a
  // cache there are few tiles, and the keys have to be read by the whole machine.
  int splits = 1, span = 0;
  bool causal = false;
  int window = INT_MAX;  // keys that a causal query sees at most
  float scale = 1;
  float cap = 0;  // of scores, 0 without one
  // [batch, queries]: where each query begins to see, in rows of several examples; null: all from key 0.
  // Which operator has it, for failures.
  const int* starts = nullptr;
  const char* op = nullptr;
  Failure* failure = nullptr;
  Heads q, k, v, out, dout, dq, dk, dv;

  // A score is factor() q . k, or with a cap factor() tanh(inner() q . k).
  __host__ __device__ float factor() const { return cap > 0 ? cap : scale; }
  __host__ __device__ float inner() const { return scale / cap; }
  __host__ __device__ int group() const { return query_heads / key_heads; }
  __host__ __device__ int rows() const { return queries * packed; }
  __host__ __device__ int row_heads() const { return query_heads / packed; }
  __device__ int query_of(int row) const { return packed == 1 ? row : row / packed; }
  __device__ int head_of(int row_head, int row) const {
    return packed == 1 ? row_head : row_head * packed + row % packed;
  }
  // Keys that a row sees, when query 0 sees keys 0 to `position`.
  __device__ int visible(int row, int position) const {
    return causal ? min(keys, query_of(row) + position + 1) : keys;
  }
  // The first key that a query sees, when query 0 sees keys 0 to `position`. It never falls along a row: a
  // tile of queries sees keys from that of its first query on, and those before its last query's are not seen
  // by all.
  __device__ int begin(int b, int query, int position) const {
    if (starts == nullptr && window == INT_MAX) return 0;
    const int i = min(query, queries - 1);
    const int start = starts == nullptr ? 0 : min(i, starts[static_cast<int64_t>(b) * queries + i]);
    return max(max(0, start), position + i - window + 1);
  }
  // Report a query that begins to see behind itself, or before the query before it.
  __device__ void check_start(int b, int query) const {
    if (starts == nullptr || query >= queries) return;
    const int* row = starts + static_cast<int64_t>(b) * queries;
    const int start = row[query], before = query == 0 ? 0 : row[query - 1];
    if (start < before || start > query) report(failure, {Failure::bad_start, query, start, 0, op});
  }
  // The first query that sees no key up to `key` any more, from query `from` on.
  __device__ int queries_end(int b, int key, int from) const {
    if (starts == nullptr && window == INT_MAX) return queries;
    int low = from, high = queries;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (begin(b, middle, 0) > key)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
  // A query in the order of lse [batch, query_heads, queries].
  __device__ int64_t index(int b, int query, int h) const {
    return (static_cast<int64_t>(b) * query_heads + h) * queries + query;
  }
};

// A block of forward: rows [first, ..) of row head `h`, and keys [begin, end). Blocks of one head follow each
// other, so that its keys stay in the L2 cache; those with most keys come first.
struct RowBlock {
  int b, h, first, split, begin, end;

  __device__ RowBlock(const Attention& p, int tile_rows, int position) {
    const int tiles = (p.rows() + tile_rows - 1) / tile_rows;
    unsigned i = blockIdx.x;
    split = static_cast<int>(i % p.splits);
    i /= p.splits;
    first = (tiles - 1 - static_cast<int>(i % tiles)) * tile_rows;
    i /= tiles;
    h = static_cast<int>(i % p.row_heads());
    b = static_cast<int>(i / p.row_heads());
    end = p.visible(min(p.rows(), first + tile_rows) - 1, position);
    begin = p.begin(b, p.query_of(first), position);
    if (p.splits > 1) {
      begin += split * p.span;
      end = min(end, begin + p.span);
    }
  }
};

// Where forward writes: `out` and `lse`, or with splits the normalised sums of each split [splits, batch,
// query_heads, queries, head] in `parts`, their log-sum-exps [splits, batch, query_heads, queries] in `lse`.
template <typename T>
struct Results {
  T* out;
  float* lse;
  float* parts;
};

// Position of the first query in the cache, 0 without one; -1 when its tokens do not fit there (write_caches
// has said so).
__device__ inline int position_of(const Attention& p, const int* position) {
  if (position == nullptr) return 0;
  const int at = *position;
  return at < 0 || at > p.keys - p.queries ? -1 : at;
}

}  // namespace het::HET_CUDA
