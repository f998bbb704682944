// Fetching a whole file: first its header and manifest, then the chunks that the previous file does not have.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "core/io/file.h"
#include "snapshot/exchange_transfer.h"
#include "snapshot/layout.h"
#include "snapshot/manifest.h"
#include "snapshot/reader.h"

namespace het {
namespace {

struct Chunk {
  size_t unit = 0;     // in the manifest
  int64_t number = 0;  // in the unit
  int64_t offset = 0, bytes = 0;
  uint32_t checksum = 0;
};

std::vector<Chunk> chunks_in(const SnapshotManifest& manifest) {
  std::vector<Chunk> chunks;
  for (size_t index = 0; index < manifest.units.size(); ++index) {
    const SnapshotUnit& unit = manifest.units[index];
    const int64_t bytes = manifest.bytes_of(unit);
    for (int64_t number = 0; number < chunks_of(bytes); ++number) {
      const int64_t begin = number * kSnapshotChunk;
      chunks.push_back({index, number, unit.offset + begin, std::min(kSnapshotChunk, bytes - begin),
                        unit.checksums[static_cast<size_t>(number)]});
    }
  }
  return chunks;
}

// The units of an earlier file by what they hold, and its bytes.
class PreviousFile {
 public:
  explicit PreviousFile(const Path& path) : file_(path) {
    const auto snapshot = SnapshotFile::open(path, SnapshotAccess::read);
    manifest_ = snapshot->manifest();
    for (size_t unit = 0; unit < manifest_.units.size(); ++unit)
      units_.emplace(identity_of(manifest_, unit), unit);
  }

  // Reads the chunk into `to` where this file has it. False: it does not, or it is damaged.
  bool read(const SnapshotManifest& manifest, const Chunk& chunk, std::byte* to) const {
    const auto found = units_.find(identity_of(manifest, chunk.unit));
    if (found == units_.end()) return false;
    const SnapshotUnit& unit = manifest_.units[found->second];
    if (unit.checksums[static_cast<size_t>(chunk.number)] != chunk.checksum) return false;
    try {
      file_.read_at(unit.offset + chunk.number * kSnapshotChunk, to, chunk.bytes);
    } catch (const Error&) {  // its disk fails: the peer has the bytes
      return false;
    }
    return crc32c(to, chunk.bytes) == chunk.checksum;
  }

 private:
  // Equal only for equal slices of tensors of one type, which have equally many bytes.
  static std::string identity_of(const SnapshotManifest& manifest, size_t index) {
    const SnapshotUnit& unit = manifest.units[index];
    const SnapshotTensor& tensor = manifest.tensors[unit.tensor];
    return fmt::format("{}{} {}", to_string(tensor.type), to_string(unit.slice), tensor.name);
  }

  OpenFile file_;
  SnapshotManifest manifest_;
  std::map<std::string, size_t> units_;
};

// Nothing where it cannot be used: then all is fetched.
std::optional<PreviousFile> open_previous(const std::optional<Path>& path) {
  if (!path) return std::nullopt;
  try {
    return std::optional<PreviousFile>(std::in_place, *path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// -1: there is no such file.
int64_t bytes_of_file(const std::string& path) {
  struct stat about {};
  return ::lstat(path.c_str(), &about) == 0 ? about.st_size : -1;
}

bool is_in_memory(const Path& path) {
  struct statfs system {};
  return ::statfs(folder_of(path.text).c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

class Fetch {
 public:
  Fetch(ExchangeConnection& connection, const std::string& file, const FetchOptions& options)
      : connection_(connection), name_(file), place_(fmt::format("{} of {}", file, connection.who())) {
    HET_REQUIRE(parse_snapshot_name(file), file);
    receive_header(options);
    receive_manifest();
  }

  SnapshotTransfer write(const Path& into, const FetchOptions& options) {
    const bool fits = options.spent && bytes_of_file(*options.spent) == header_.file_bytes();
    AtomicFile file = fits ? AtomicFile(into, *options.spent) : AtomicFile(into);
    // In memory each page would be allocated before any byte is asked for.
    if (!is_in_memory(into) && file.write_directly()) file.reserve(header_.file_bytes());
    SnapshotTransfer transfer;
    const auto previous = open_previous(options.previous);
    std::vector<Chunk> missing;
    for (const Chunk& chunk : chunks_in(manifest_)) {
      connection_.check_stopped();
      if (!previous || !previous->read(manifest_, chunk, buffer_.get())) {
        missing.push_back(chunk);
        continue;
      }
      write_chunk(file, chunk);
      transfer.copied += chunk.bytes;
    }
    transfer.transferred = kSnapshotPage + header_.manifest_bytes + receive_chunks(file, missing);
    write_manifest(file);
    file.flush();
    // Written again from what it says: what else stood in the page is not checked.
    const HeaderPage page = encode_header(header_);
    std::memcpy(buffer_.get(), page.data(), page.size());
    file.write_at(0, buffer_.get(), kSnapshotPage);
    file.commit();
    return transfer;
  }

 private:
  // What the peer holds is wrong; the readers' errors are of kind usage.
  template <typename Body>
  auto checked(const Body& body) const {
    try {
      return body();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      fail(ErrorKind::peer, "{}", error.sentence());
    }
  }

  void receive_header(const FetchOptions& options) {
    HeaderPage page{};
    const int64_t file_bytes = read_ranges(connection_, name_, {{0, kSnapshotPage}},
                                           [&](size_t) { connection_.receive(page.data(), kSnapshotPage); });
    if (options.bytes && *options.bytes != file_bytes)
      fail(ErrorKind::peer, "'{}' has {} bytes; {} were announced", place_, file_bytes, *options.bytes);
    header_ = checked([&] { return parse_header(page, file_bytes, place_); });
  }

  void receive_manifest() {
    std::vector<FileRange> ranges;
    for (int64_t at = 0; at < header_.manifest_bytes; at += kRequestBytes)
      ranges.push_back({header_.manifest_offset + at, std::min(kRequestBytes, header_.manifest_bytes - at)});
    read_ranges(connection_, name_, ranges, [&](size_t i) {
      // As the bytes come: a peer's number alone takes no memory.
      const size_t before = message_.size();
      message_.resize(before + static_cast<size_t>(ranges[i].bytes));
      connection_.receive(message_.data() + before, ranges[i].bytes);
    });
    if (crc32c(message_.data(), header_.manifest_bytes) != header_.manifest_checksum)
      fail(ErrorKind::peer, "'{}' is damaged: the manifest does not match its checksum", place_);
    manifest_ = checked([&] { return parse_manifest(message_, header_.manifest_offset, place_); });
    const SnapshotName said{manifest_.version, manifest_.rank, manifest_.ranks};
    if (to_string(said) != name_)
      fail(ErrorKind::peer, "'{}' is what should be called '{}'", place_, to_string(said));
  }

  // Chunks that follow each other are asked for together, with the padding between them.
  int64_t receive_chunks(AtomicFile& file, const std::vector<Chunk>& chunks) {
    std::vector<FileRange> ranges;
    std::vector<size_t> firsts;  // of the chunks of each range
    for (size_t i = 0; i < chunks.size(); ++i) {
      const int64_t end = chunks[i].offset + chunks[i].bytes;
      const bool follows = i > 0 &&
                           chunks[i].offset == round_up_to_page(chunks[i - 1].offset + chunks[i - 1].bytes) &&
                           end - ranges.back().offset <= kRequestBytes;
      if (follows) {
        ranges.back().bytes = end - ranges.back().offset;
      } else {
        ranges.push_back({chunks[i].offset, chunks[i].bytes});
        firsts.push_back(i);
      }
    }
    read_ranges(connection_, name_, ranges, [&](size_t range) {
      int64_t position = ranges[range].offset;
      const int64_t end = position + ranges[range].bytes;
      for (size_t i = firsts[range]; position < end; ++i) {
        connection_.receive(buffer_.get(), chunks[i].offset - position);  // padding
        connection_.receive(buffer_.get(), chunks[i].bytes);
        if (crc32c(buffer_.get(), chunks[i].bytes) != chunks[i].checksum) fail_chunk(chunks[i]);
        write_chunk(file, chunks[i]);
        position = chunks[i].offset + chunks[i].bytes;
      }
    });
    int64_t bytes = 0;
    for (const FileRange& range : ranges) bytes += range.bytes;
    return bytes;
  }

  [[noreturn]] void fail_chunk(const Chunk& chunk) const {
    const SnapshotUnit& unit = manifest_.units[chunk.unit];
    fail(ErrorKind::peer,
         "'{}' is damaged: chunk {} of {} of '{}' {}, at byte {}, does not match its checksum", place_,
         chunk.number + 1, unit.checksums.size(), manifest_.tensors[unit.tensor].name, to_string(unit.slice),
         chunk.offset);
  }

  // The chunk in the buffer, with the padding after it.
  void write_chunk(AtomicFile& file, const Chunk& chunk) { write_buffer(file, chunk.offset, chunk.bytes); }

  void write_manifest(AtomicFile& file) {
    for (int64_t at = 0; at < header_.manifest_bytes; at += kSnapshotChunk) {
      const int64_t bytes = std::min(kSnapshotChunk, header_.manifest_bytes - at);
      std::memcpy(buffer_.get(), message_.data() + at, static_cast<size_t>(bytes));
      write_buffer(file, header_.manifest_offset + at, bytes);
    }
  }

  void write_buffer(AtomicFile& file, int64_t offset, int64_t bytes) {
    const int64_t padded = round_up_to_page(bytes);
    std::memset(buffer_.get() + bytes, 0, static_cast<size_t>(padded - bytes));
    file.write_at(offset, buffer_.get(), padded);
  }

  ExchangeConnection& connection_;
  const std::string& name_;
  const std::string place_;  // for errors
  SnapshotHeader header_;
  std::vector<std::byte> message_;
  SnapshotManifest manifest_;
  // Of one chunk: from the socket to here, checked while it is in the cache, then to the file. Receiving into
  // a mapping of the file would save the copy, but faults and clears each page first, which takes longer.
  PageMemory buffer_ = page_memory(kSnapshotChunk);
};

}  // namespace

SnapshotTransfer fetch_file(ExchangeConnection& connection, const std::string& file, const Path& into,
                            const FetchOptions& options) {
  return Fetch(connection, file, options).write(into, options);
}

}  // namespace het
