// What the functions of kernels/cuda/mma.h do, on the processor. See there, and README.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulated {

// An offset into the block's dynamic shared memory.
uint32_t shared_address(const void* p);

void load_matrices(uint32_t (&to)[4], uint32_t row, bool transposed);
void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  float (*widen)(unsigned short));

// Copies arrive as late as they may (when they are waited for) in every second launch, at once in the others:
// so a wait that is missing shows, and a copy into memory that is still read.
void copy_async(uint32_t to, const void* from, bool there);
void commit_copies();
void wait_for_copies(int pending);

// In all launches so far: products of a warp by multiply_add, and reads of eight rows by load_matrices that
// met in a bank of shared memory.
int64_t products();
int64_t bank_conflicts();

// Of one thread: groups of copies that were committed, and the one that was not.
struct AsyncCopies {
  struct Copy {
    uint32_t to;
    const void* from;
    bool there;
  };
  std::vector<std::vector<Copy>> committed;
  std::vector<Copy> open;
};
AsyncCopies& async_copies();  // of the thread that runs
bool copies_arrive_at_once();

}  // namespace emulated
