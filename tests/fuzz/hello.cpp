#include "tests/fuzz/hello.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  het::fuzz::hello({reinterpret_cast<const char*>(data), size});
  return 0;
}
