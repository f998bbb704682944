// Hugging Face's safetensors: eight bytes of header length, a JSON header, then the tensors. Files come from
// strangers: every number of the header is checked before it is believed. Files are mapped; tensors that were
// read share the mapping, and writing to them changes only this process's copy.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/stored.h"
#include "core/tensor/tensor.h"

namespace het {

struct StoredSafetensors {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<std::shared_ptr<const StoredFile>> files;

  int64_t bytes_read() const;  // of tensors
};

// `path`: a .safetensors file, a .safetensors.index.json that lists the shards beside it, or a folder that
// holds model.safetensors or model.safetensors.index.json. Reads the headers; each tensor when it is asked
// for. Throws Error(usage) naming the file, the tensor and what is wrong.
StoredSafetensors open_safetensors(const Path& path);

// Any dtypes but none; strided tensors are packed on the way. Data starts at a multiple of 64 bytes. The
// previous file stays until the new one is whole and on the disk; `staged` leaves it beside `path` (see
// AtomicFile).
void write_safetensors(const Path& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {}, bool staged = false);

// One tensor as the header describes it; begin and end count bytes from the end of the header.
struct SafetensorsEntry {
  std::string name;
  TensorType type;
  int64_t begin = 0, end = 0;
};
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of the data
  std::map<std::string, std::string> metadata;
  int64_t data_start = 0;  // bytes from the start of the file
};

inline constexpr int64_t kMostHeaderBytes = 100 << 20;

// Reads and checks the header of `file`, whose first bytes suffice; file_bytes is its whole length.
SafetensorsHeader parse_safetensors_header(std::string_view file, int64_t file_bytes,
                                           const std::string& path);

}  // namespace het
