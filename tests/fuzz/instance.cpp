#include "tests/fuzz/instance.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  het::fuzz::instance({reinterpret_cast<const char*>(data), size});
  return 0;
}
