// What the fuzzer of whole snapshot files asks: a file whose checksums all match, though its manifest comes
// from a stranger, is refused with an Error of the usage kind, or each of its units is read: whole, in part,
// and as a part of the snapshot that the file is alone.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "snapshot/layout.h"
#include "snapshot/manifest.h"
#include "snapshot/snapshot.h"

namespace het::fuzz {

// A file in memory: what is read lies within it.
class BytesSource final : public SnapshotSource {
 public:
  explicit BytesSource(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& name() const override { return name_; }
  int64_t bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  void read_at(int64_t position, std::byte* to, int64_t count) const override {
    if (position < 0 || count < 0 || position > bytes() || count > bytes() - position) std::abort();
    std::copy_n(reinterpret_cast<const std::byte*>(bytes_.data()) + position, count, to);
  }

 private:
  const std::string bytes_, name_ = "fuzz";
};

// A file of this manifest and data, a multiple of pages. Where the manifest can be read, each unit gets the
// checksums of its data: a fuzzer guesses none.
inline std::string file_with_checksums(std::string_view manifest, const std::string& data) {
  const auto data_end = kSnapshotPage + static_cast<int64_t>(data.size());
  std::vector<uint64_t> words(manifest.size() / 8);
  std::copy_n(manifest.data(), 8 * words.size(), reinterpret_cast<char*>(words.data()));
  const auto as_it_is = std::as_bytes(std::span(words));
  std::vector<std::byte> message(as_it_is.begin(), as_it_is.end());
  try {
    SnapshotManifest read = parse_manifest(as_it_is, data_end, "fuzz");
    for (SnapshotUnit& unit : read.units)
      for (size_t chunk = 0; chunk < unit.checksums.size(); ++chunk) {
        const int64_t begin = static_cast<int64_t>(chunk) * kSnapshotChunk;
        unit.checksums[chunk] = crc32c(data.data() + unit.offset - kSnapshotPage + begin,
                                       std::min(kSnapshotChunk, read.bytes_of(unit) - begin));
      }
    message = encode_manifest(read);
  } catch (const Error&) {  // it goes into the file as it is
  }
  const auto bytes = static_cast<int64_t>(message.size());
  const HeaderPage page = encode_header({data_end, bytes, crc32c(message.data(), bytes)});
  std::string file(reinterpret_cast<const char*>(page.data()), page.size());
  file += data;
  file.append(reinterpret_cast<const char*>(message.data()), message.size());
  file.resize(static_cast<size_t>(data_end + round_up_to_page(bytes)));
  return file;
}

// Reads the unit, and in each dimension its first element alone.
inline void read_unit(const Snapshot& snapshot, const SnapshotFile& file, size_t index) {
  const SnapshotUnit& unit = file.manifest().units[index];
  const std::string& name = file.manifest().tensors[unit.tensor].name;
  const Tensor whole = file.read(index);
  if (whole.type().bytes() != file.manifest().bytes_of(unit)) std::abort();
  if (snapshot.read(name, unit.slice).type() != whole.type()) std::abort();
  for (int64_t d = 0; d < static_cast<int64_t>(unit.slice.shape().size()); ++d) {
    const Ranges held = unit.slice.ranges(d);
    if (held.empty()) continue;
    const TensorSlice first = unit.slice.narrowed(d, Ranges{{held.front().begin, held.front().begin + 1}});
    if (file.read(index, first).shape() != first.shape()) std::abort();
  }
}

// `input`: how many words the manifest has (2 bytes), the manifest, and the data. True when the file was
// accepted.
inline bool snapshot_file(std::string_view input) {
  if (input.size() < 2) return false;
  const size_t words =
      static_cast<uint8_t>(input[0]) + 256 * static_cast<size_t>(static_cast<uint8_t>(input[1]));
  const size_t manifest_bytes = std::min(8 * words, (input.size() - 2) / 8 * 8);
  std::string data(input.substr(2 + manifest_bytes));
  data.resize(static_cast<size_t>(round_up_to_page(static_cast<int64_t>(data.size()))));
  try {
    const auto file = SnapshotFile::open(
        std::make_unique<BytesSource>(file_with_checksums(input.substr(2, manifest_bytes), data)));
    if (!file->verify().empty()) std::abort();
    const Snapshot snapshot({file});
    snapshot.missing();
    for (size_t index = 0; index < file->manifest().units.size(); ++index) {
      try {
        read_unit(snapshot, *file, index);
      } catch (const Error& error) {  // such as booleans other than 0 and 1
        if (error.kind() != ErrorKind::usage) std::abort();
      }
    }
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) std::abort();
    return false;
  }
}

}  // namespace het::fuzz
