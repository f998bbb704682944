#include "tests/fuzz/exchange.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  het::fuzz::exchange_frame(bytes);
  het::fuzz::exchange_request(bytes);
  het::fuzz::exchange_response(bytes);
  return 0;
}
