#include "tests/fuzz/snapshot_file.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  het::fuzz::snapshot_file({reinterpret_cast<const char*>(data), size});
  return 0;
}
