#include "snapshot/writer.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "core/io/file.h"
#include "snapshot/layout.h"

namespace het {
namespace {

// Writes a file from its first page on, in order, on a thread of its own: while one buffer is on its way to
// the disk, the next is filled.
class SequentialWriter {
 public:
  SequentialWriter(AtomicFile& file, int64_t position) : file_(file), position_(position) {
    for (Buffer& buffer : buffers_) buffer.memory = page_memory(kBufferBytes);
    thread_ = std::thread([this] { write_buffers(); });
  }
  ~SequentialWriter() { end(); }

  // `fill(to, bytes)` is called for consecutive pieces of the next `bytes` bytes.
  template <typename Fill>
  void append(int64_t bytes, Fill&& fill) {
    while (bytes > 0) {
      Buffer& buffer = buffers_[filling_];
      const int64_t piece = std::min(bytes, kBufferBytes - buffer.bytes);
      fill(buffer.memory.get() + buffer.bytes, piece);
      buffer.bytes += piece;
      bytes -= piece;
      if (buffer.bytes == kBufferBytes) hand_over();
    }
  }
  void pad_to_page() {
    Buffer& buffer = buffers_[filling_];
    const int64_t padded = round_up_to_page(buffer.bytes);
    std::memset(buffer.memory.get() + buffer.bytes, 0, static_cast<size_t>(padded - buffer.bytes));
    buffer.bytes = padded;
    if (buffer.bytes == kBufferBytes) hand_over();
  }

  // Writes what is left and waits. Throws what kept a buffer from being written.
  void finish() {
    if (buffers_[filling_].bytes > 0) hand_over();
    end();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  static constexpr int64_t kBufferBytes = 4 << 20;
  struct Buffer {
    PageMemory memory;
    int64_t bytes = 0;
    bool full = false;  // guarded by mutex_
  };

  void hand_over() {
    std::unique_lock lock(mutex_);
    buffers_[filling_].full = true;
    changed_.notify_all();
    filling_ = (filling_ + 1) % buffers_.size();
    changed_.wait(lock, [this] { return !buffers_[filling_].full || failure_ != nullptr; });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    buffers_[filling_].bytes = 0;
  }

  void write_buffers() {
    for (size_t next = 0;; next = (next + 1) % buffers_.size()) {
      Buffer& buffer = buffers_[next];
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return buffer.full || ended_; });
      if (!buffer.full) return;
      lock.unlock();
      try {
        file_.write_at(position_, buffer.memory.get(), buffer.bytes);
      } catch (...) {
        lock.lock();
        failure_ = std::current_exception();
        changed_.notify_all();
        return;
      }
      position_ += buffer.bytes;
      lock.lock();
      buffer.full = false;
      changed_.notify_all();
    }
  }

  void end() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  AtomicFile& file_;
  int64_t position_;  // in the file, of the next buffer; the thread's
  std::array<Buffer, 3> buffers_;
  size_t filling_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

void append_unit(SequentialWriter& writer, const SnapshotPart& part, int64_t bytes, SnapshotUnit& unit) {
  for (int64_t begin = 0; begin < bytes; begin += kSnapshotChunk) {
    uint32_t checksum = 0;
    int64_t at = begin;
    writer.append(std::min(kSnapshotChunk, bytes - begin), [&](std::byte* to, int64_t piece) {
      part.read(to, at, piece);
      checksum = crc32c(to, piece, checksum);
      at += piece;
    });
    unit.checksums.push_back(checksum);
  }
  writer.pad_to_page();
}

}  // namespace

SnapshotManifest lay_out(SnapshotManifest manifest, const std::vector<SnapshotPart>& parts) {
  manifest.units.clear();
  int64_t offset = kSnapshotPage;
  for (const SnapshotPart& part : parts) {
    const auto found = std::lower_bound(
        manifest.tensors.begin(), manifest.tensors.end(), part.tensor,
        [](const SnapshotTensor& tensor, const std::string& name) { return tensor.name < name; });
    HET_REQUIRE(found != manifest.tensors.end() && found->name == part.tensor, part.tensor);
    HET_REQUIRE(found->type.shape == part.slice.whole_shape(), part.tensor, to_string(part.slice));
    manifest.units.push_back({static_cast<size_t>(found - manifest.tensors.begin()), part.slice, offset, {}});
    offset += round_up_to_page(manifest.bytes_of(manifest.units.back()));
  }
  return manifest;
}

int64_t end_of_data(const SnapshotManifest& manifest) {
  if (manifest.units.empty()) return kSnapshotPage;
  const SnapshotUnit& last = manifest.units.back();
  return last.offset + round_up_to_page(manifest.bytes_of(last));
}

SnapshotManifest write_snapshot(const Path& path, SnapshotManifest manifest,
                                const std::vector<SnapshotPart>& parts, bool staged) {
  manifest = lay_out(std::move(manifest), parts);
  const int64_t data_end = end_of_data(manifest);
  AtomicFile file(path);
  file.write_directly();  // else through the page cache: tmpfs, some network file systems
  file.reserve(data_end);

  SnapshotHeader header;
  {
    SequentialWriter writer(file, kSnapshotPage);
    for (size_t i = 0; i < parts.size(); ++i)
      append_unit(writer, parts[i], manifest.bytes_of(manifest.units[i]), manifest.units[i]);
    const std::vector<std::byte> message = encode_manifest(manifest);
    header = {data_end, static_cast<int64_t>(message.size()),
              crc32c(message.data(), static_cast<int64_t>(message.size()))};
    const std::byte* from = message.data();
    writer.append(header.manifest_bytes, [&](std::byte* to, int64_t piece) {
      std::memcpy(to, from, static_cast<size_t>(piece));
      from += piece;
    });
    writer.pad_to_page();
    writer.finish();
  }
  file.flush();
  const PageMemory page = page_memory(kSnapshotPage);
  const HeaderPage encoded = encode_header(header);
  std::memcpy(page.get(), encoded.data(), encoded.size());
  file.write_at(0, page.get(), kSnapshotPage);
  if (staged)
    file.stage();
  else
    file.commit();  // flushes, then renames, then flushes the folder
  return manifest;
}

}  // namespace het
