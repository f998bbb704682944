#include <array>
#include <cstring>

#include <cuda_runtime.h>
#include <emulated_mma.h>

namespace emulated {
namespace {

int64_t multiplied = 0, conflicts = 0;

// What a lane leaves for the others.
struct Row {
  uint16_t elements[8];
  uint32_t address;
};
struct Fragments {
  float a[4][2], b[2][2];
};

template <typename T>
T left_by(unsigned lane, unsigned turn) {
  T value;
  std::memcpy(&value, exchange_slot(lane, turn), sizeof value);
  return value;
}

template <typename T>
unsigned leave(const T& value) {
  static_assert(sizeof(T) <= 64);
  const unsigned turn = next_turn();
  std::memcpy(exchange_slot(lane_id(), turn), &value, sizeof value);
  warp_barrier(~0u);
  return turn;
}

}  // namespace

uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(p) - dynamic_shared());
}

void load_matrices(uint32_t (&to)[4], uint32_t row, bool transposed) {
  if (row % 16 != 0) broken("a matrix row that does not begin at a multiple of 16 bytes");
  Row own{{}, row};
  std::memcpy(own.elements, dynamic_shared() + row, sizeof own.elements);
  const unsigned turn = leave(own);
  const int lane = lane_id(), group = lane / 4, pair = 2 * (lane % 4);
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int i, int j) { return left_by<Row>(8 * m + i, turn).elements[j]; };
    const uint32_t first = transposed ? element(pair, group) : element(group, pair);
    const uint32_t second = transposed ? element(pair + 1, group) : element(group, pair + 1);
    to[m] = first | second << 16;
    if (lane != 0) continue;
    unsigned banks = 0;  // of 16 bytes
    for (int i = 0; i < 8; ++i) banks |= 1u << left_by<Row>(8 * m + i, turn).address / 16 % 8;
    conflicts += banks != 0xFF;
  }
}

void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  float (*widen)(unsigned short)) {
  Fragments own;
  const auto widen_pair = [&](float(&pair)[2], uint32_t bits) {
    pair[0] = widen(static_cast<unsigned short>(bits));
    pair[1] = widen(static_cast<unsigned short>(bits >> 16));
  };
  for (int i = 0; i < 4; ++i) widen_pair(own.a[i], a[i]);
  widen_pair(own.b[0], b0);
  widen_pair(own.b[1], b1);
  const unsigned turn = leave(own);
  const int lane = lane_id(), group = lane / 4, pair = 2 * (lane % 4);
  multiplied += lane == 0;
  double sums[4] = {d[0], d[1], d[2], d[3]};
  for (int t = 0; t < 4; ++t) {  // terms 2t, 2t + 1, 2t + 8 and 2t + 9
    const auto rows = left_by<Fragments>(4 * group + t, turn);
    for (int column = 0; column < 2; ++column) {
      const auto columns = left_by<Fragments>(4 * (pair + column) + t, turn);
      for (int half = 0; half < 2; ++half)
        for (int k = 0; k < 2; ++k) {
          sums[column] += static_cast<double>(rows.a[2 * half][k]) * columns.b[half][k];
          sums[2 + column] += static_cast<double>(rows.a[2 * half + 1][k]) * columns.b[half][k];
        }
    }
  }
  for (int i = 0; i < 4; ++i) d[i] = static_cast<float>(sums[i]);
}

namespace {

// A matrix descriptor of wgmma, the bits that are used here.
struct Matrix {
  uint32_t start, lead, stride;  // bytes

  explicit Matrix(uint64_t bits)
      : start(static_cast<uint32_t>(bits & 0x3FFF) << 4),
        lead(static_cast<uint32_t>(bits >> 16 & 0x3FFF) << 4),
        stride(static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4) {
    if (bits >> 62 != 1) broken("a matrix of wgmma without the 128-byte swizzle");
  }
  // The 128-byte swizzle: bits 4 to 6 of an address are changed by bits 7 to 9.
  uint16_t element(uint32_t at) const {
    at ^= (at >> 7 & 7) << 4;
    uint16_t value;
    std::memcpy(&value, dynamic_shared() + at, sizeof value);
    return value;
  }
  uint16_t by_rows(int row, int k) const { return element(start + row / 8 * stride + row % 8 * 128 + k * 2); }
  uint16_t by_columns(int k, int column) const {
    return element(start + column / 64 * lead + k / 8 * stride + k % 8 * 128 + column % 64 * 2);
  }
};

}  // namespace

void multiply_tiles(float* d, uint64_t a, uint64_t b, bool accumulate, float (*widen)(unsigned short)) {
  const Matrix rows(a), columns(b);
  const int lane = lane_id(), first = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  multiplied += lane == 0;
  asynchronous_products().add([=] {
    float row[2][16], column[16];
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 16; ++k) row[i][k] = widen(rows.by_rows(first + 8 * i, k));
    for (int n = 0; n < 16; ++n)
      for (int e = 0; e < 2; ++e) {
        for (int k = 0; k < 16; ++k) column[k] = widen(columns.by_rows(n * 8 + lane % 4 * 2 + e, k));
        for (int i = 0; i < 2; ++i) {
          float& to = d[n * 4 + 2 * i + e];
          double sum = accumulate ? to : 0;
          for (int k = 0; k < 16; ++k) sum += static_cast<double>(row[i][k]) * column[k];
          to = static_cast<float>(sum);
        }
      }
  });
}

void multiply_rows(float* d, int tiles, const uint32_t (&a)[4], uint64_t b, float (*widen)(unsigned short)) {
  struct Pairs {
    uint32_t a[4];
  };
  const Matrix columns(b);
  const unsigned turn = leave(Pairs{{a[0], a[1], a[2], a[3]}});
  const int lane = lane_id();
  multiplied += lane == 0;
  std::array<std::array<float, 16>, 2> rows;
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 16; ++k) {
      const uint32_t pair = left_by<Pairs>(lane / 4 * 4 + k % 8 / 2, turn).a[k / 8 * 2 + i];
      rows[i][k] = widen(static_cast<unsigned short>(pair >> k % 2 * 16));
    }
  asynchronous_products().add([=] {
    float column[16];
    for (int n = 0; n < tiles; ++n)
      for (int e = 0; e < 2; ++e) {
        for (int k = 0; k < 16; ++k) column[k] = widen(columns.by_columns(k, n * 8 + lane % 4 * 2 + e));
        for (int i = 0; i < 2; ++i) {
          double sum = d[n * 4 + 2 * i + e];
          for (int k = 0; k < 16; ++k) sum += static_cast<double>(rows[i][k]) * column[k];
          d[n * 4 + 2 * i + e] = static_cast<float>(sum);
        }
      }
  });
}

void commit_products() { asynchronous_products().commit(); }
void wait_for_products(int pending) { asynchronous_products().wait(pending); }

void Groups::add(Work work) {
  if (work_is_done_at_once())
    work();
  else
    open.push_back(std::move(work));
}
void Groups::commit() {
  committed.push_back(std::move(open));
  open.clear();
}
void Groups::wait(int pending) {
  const auto late = static_cast<size_t>(pending);
  const size_t done = committed.size() > late ? committed.size() - late : 0;
  for (size_t i = 0; i < done; ++i)
    for (const Work& work : committed[i]) work();
  committed.erase(committed.begin(), committed.begin() + static_cast<std::ptrdiff_t>(done));
}

void copy_async(uint32_t to, const void* from, bool there) {
  if (to % 16 != 0 || (there && reinterpret_cast<uintptr_t>(from) % 16 != 0))
    broken("an asynchronous copy from or to an address that is no multiple of 16 bytes");
  copies().add([=] {
    if (there)
      std::memcpy(dynamic_shared() + to, from, 16);
    else
      std::memset(dynamic_shared() + to, 0, 16);
  });
}
void commit_copies() { copies().commit(); }
void wait_for_copies(int pending) { copies().wait(pending); }

int64_t products() { return multiplied; }
int64_t bank_conflicts() { return conflicts; }

}  // namespace emulated
