#include "tests/fuzz/vocabulary.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const het::testing::Scratch scratch;
  het::fuzz::vocabulary({reinterpret_cast<const char*>(data), size}, scratch);
  return 0;
}
