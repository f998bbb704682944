#include "tests/fuzz/snapshot.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  het::fuzz::snapshot_manifest(bytes);
  het::fuzz::snapshot_header(bytes);
  return 0;
}
