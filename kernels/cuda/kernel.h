// What the kernel files share on the host side: how a kernel is made from a lambda, and the choice by element
// type.
#pragma once

#include <type_traits>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/request.h"

namespace het::HET_CUDA {

using namespace kernels;

// One line of the table: the operator's name and how to prepare it. Each family file returns its lines.
struct Entry {
  std::string_view op;
  std::unique_ptr<Kernel> (*prepare)(const KernelRequest&, const Context&);
};

// make(T{}) for the float type `dtype`, as float, bf16 or f16.
template <typename Make>
std::unique_ptr<Kernel> for_float(const KernelRequest& request, DType dtype, const Make& make) {
  switch (dtype) {
    case DType::f32: return make(float{});
    case DType::bf16: return make(bf16{});
    case DType::f16: return make(f16{});
    default: refuse_dtype(request, dtype);
  }
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace het::HET_CUDA
