#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "core/graph/fuse.h"
#include "core/program/executor.h"
#include "kernels/cpu/device.h"
#include "tests/unit/core/trained_gpt.h"
#include "tests/unit/core/trained_matrix.h"

using namespace het;
using namespace het::testing;

namespace {

// What the process asked operator new for while `counting`, on any thread.
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

TEST_CASE("a step allocates nothing", "[executor]") {
  for (const auto& device : {make_cpu_device(), make_reference_device()}) {
    INFO(device->name());
    Executor executor(lower_single(fuse(trained_matrix(DType::bf16)), 3),
                      std::make_shared<StateStore>(device, 1));
    write_inputs(executor);
    executor.run();  // a thread's first work may make what it keeps
    allocations = 0;
    counting = true;
    for (int step = 0; step < 3; ++step) executor.run();
    counting = false;
    CHECK(allocations == 0);
    counting = true;
    const std::vector<int> more(100);
    counting = false;
    CHECK(allocations == 1);
  }
}

TEST_CASE("a step of a GPT allocates nothing", "[executor]") {
  Tensor tokens(TensorType{DType::i32, {2, 16}});
  for (int64_t i = 0; i < tokens.elements(); ++i) tokens.set(i, static_cast<double>(i * 7 % 11));
  Executor executor(lower_single(fuse(testing::trained_gpt({2, 16, 24, 3, 11, 2})), 2),
                    std::make_shared<StateStore>(make_cpu_device(), 1));
  for (int m = 0; m < 2; ++m) {
    executor.write("tokens", tokens, m);
    executor.write("labels", tokens, m);
  }
  executor.write("scale", Tensor::of<float>({1.0F / 64}, {1}));
  executor.write("lr", Tensor::of<float>({1e-3F}, {}));
  executor.write("step", Tensor::of<int64_t>({1}, {}));
  executor.run();
  allocations = 0;
  counting = true;
  for (int step = 0; step < 3; ++step) executor.run();
  counting = false;
  CHECK(allocations == 0);
}
