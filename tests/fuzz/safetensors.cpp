#include "tests/fuzz/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

// The input is the JSON text and, after its last newline, the data: so the fuzzer need not guess the length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  het::fuzz::safetensors_header(input);
  const size_t end = input.rfind('\n') == std::string_view::npos ? size : input.rfind('\n') + 1;
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(end >> (8 * i) & 0xFF);
  het::fuzz::safetensors_header(file.append(input));
  return 0;
}
