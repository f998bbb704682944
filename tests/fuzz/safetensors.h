// What every fuzzer of safetensors headers asks: any bytes either give a sound header or an Error of the
// usage kind. Used by the libFuzzer target beside it and, over mutations of a small file, by the unit tests.
#pragma once

#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/io/safetensors.h"

namespace het::fuzz {

// True when the header was accepted. Aborts when it breaks the promise.
inline bool safetensors_header(std::string_view file) {
  const int64_t file_bytes = static_cast<int64_t>(file.size());
  try {
    const SafetensorsHeader header = parse_safetensors_header(file, file_bytes, "fuzz");
    int64_t next = header.data_start;
    for (const SafetensorsEntry& entry : header.entries) {
      if (header.data_start + entry.begin != next || entry.end - entry.begin != entry.type.bytes())
        std::abort();
      next = header.data_start + entry.end;
      if (Layout::contiguous(entry.type).strides.size() != entry.type.shape.size()) std::abort();
    }
    if (next != file_bytes) std::abort();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
}

}  // namespace het::fuzz
