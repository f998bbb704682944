#include "tests/fuzz/store.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  het::fuzz::store_greeting(bytes);
  het::fuzz::store_request(bytes);
  het::fuzz::store_response(bytes);
  het::fuzz::store_frame(bytes, het::kQuestionFrameBytes);
  return 0;
}
