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

void arrive(const AsyncCopies::Copy& copy) {
  std::byte* to = dynamic_shared() + copy.to;
  if (copy.there)
    std::memcpy(to, copy.from, 16);
  else
    std::memset(to, 0, 16);
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

void copy_async(uint32_t to, const void* from, bool there) {
  if (to % 16 != 0 || (there && reinterpret_cast<uintptr_t>(from) % 16 != 0))
    broken("an asynchronous copy from or to an address that is no multiple of 16 bytes");
  if (copies_arrive_at_once())
    arrive({to, from, there});
  else
    async_copies().open.push_back({to, from, there});
}

void commit_copies() {
  AsyncCopies& copies = async_copies();
  copies.committed.push_back(std::move(copies.open));
  copies.open.clear();
}

void wait_for_copies(int pending) {
  auto& groups = async_copies().committed;
  const auto late = static_cast<size_t>(pending);
  const size_t done = groups.size() > late ? groups.size() - late : 0;
  for (size_t i = 0; i < done; ++i)
    for (const AsyncCopies::Copy& copy : groups[i]) arrive(copy);
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
}

int64_t products() { return multiplied; }
int64_t bank_conflicts() { return conflicts; }

}  // namespace emulated
