// What the functions of kernels/cuda/mma.h do, on the processor. See there, and README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace emulated {

inline int generation = 9;  // of the GPU: the first number of its compute capability

// An offset into the block's dynamic shared memory.
uint32_t shared_address(const void* p);

void load_matrices(uint32_t (&to)[4], uint32_t row, bool transposed);
void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  float (*widen)(unsigned short));

// Copies, and the products of kernels/cuda/wgmma.h, happen as late as they may (when they are waited for) in
// every second launch, at once in the others: so a wait that is missing shows, and an operand that is
// overwritten too early.
bool work_is_done_at_once();

void copy_async(uint32_t to, const void* from, bool there);
void commit_copies();
void wait_for_copies(int pending);

// d is [n / 8][4], n = 128 in multiply_tiles.
void multiply_tiles(float* d, uint64_t a, uint64_t b, bool accumulate, float (*widen)(unsigned short));
void multiply_rows(float* d, int tiles, const uint32_t (&a)[4], uint64_t b, float (*widen)(unsigned short));
void commit_products();
void wait_for_products(int pending);

// In all launches so far: products of a warp by multiply_add, and reads of eight rows by load_matrices that
// met in a bank of shared memory.
int64_t products();
int64_t bank_conflicts();

// What one thread has begun and not waited for: groups that were committed, and the one that was not.
struct Groups {
  using Work = std::function<void()>;
  std::vector<std::vector<Work>> committed;
  std::vector<Work> open;

  void add(Work work);
  void commit();
  void wait(int pending);
};
Groups& copies();  // of the thread that runs
Groups& asynchronous_products();

}  // namespace emulated
