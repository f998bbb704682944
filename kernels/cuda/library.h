// CUDA's own libraries, found and opened when the program runs: nothing of them is needed to build or start.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/device.h"

namespace het::HET_CUDA {

// A library that stays open, once found, until the program ends.
struct OpenLibrary {
  void* handle = nullptr;  // of dlopen; null: not found
  std::string path;
  std::string problem;  // why not: a sentence's part, with what would help
};

// Looks for `file` ("libcublasLt.so.13") in the folders of HETRUN_CUDA_LIBRARIES (separated by colons), where
// the loader looks (LD_LIBRARY_PATH), in the toolkit's folders, and in those of Python's wheels.
OpenLibrary open_library(const std::string& file);

// The folders beyond the loader's own, in the order in which they are searched; only those that exist.
std::vector<std::string> library_folders();

}  // namespace het::HET_CUDA
