// NCCL itself, which is opened when the first group asks for it, once for the process.
#pragma once

#include <string>

#include "core/tensor/dtype.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/nccl_api.h"

namespace het::HET_CUDA {

struct NcclLibrary {
  OpenLibrary library;
  nccl::Functions functions{};
  int version = 0;

  std::string version_text() const;  // "2.28.9"
};

// Look at library.problem before its functions are called.
const NcclLibrary& nccl_library();

nccl::Type nccl_type(DType dtype);

}  // namespace het::HET_CUDA
