#include "snapshot/layout.h"

#include <bit>
#include <cstring>
#include <string_view>

#include "core/base/crc32c.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace het {
namespace {

constexpr std::string_view kMagic = "hetrun snapshot\n";
constexpr uint32_t kFormat = 1;
constexpr int64_t kMostManifestBytes = 1 << 30;

// The fields as they stand in the file, little-endian, without padding.
struct Fields {
  char magic[16];
  uint32_t format;
  uint32_t manifest_checksum;
  int64_t manifest_offset, manifest_bytes;
  uint32_t unused;
  uint32_t checksum;  // of all that is before it
};
static_assert(sizeof(Fields) == 48 && std::endian::native == std::endian::little);
constexpr int64_t kChecked = offsetof(Fields, checksum);

}  // namespace

HeaderPage encode_header(const SnapshotHeader& header) {
  Fields fields{};
  std::memcpy(fields.magic, kMagic.data(), kMagic.size());
  fields.format = kFormat;
  fields.manifest_checksum = header.manifest_checksum;
  fields.manifest_offset = header.manifest_offset;
  fields.manifest_bytes = header.manifest_bytes;
  fields.checksum = crc32c(&fields, kChecked);
  HeaderPage page{};
  std::memcpy(page.data(), &fields, sizeof fields);
  return page;
}

SnapshotHeader parse_header(std::span<const std::byte> page, int64_t file_bytes, const std::string& path) {
  Fields fields{};
  if (page.size() < sizeof fields || file_bytes < kSnapshotPage)
    fail_usage("'{}' is not a snapshot or is truncated: it has {} bytes, fewer than its header page", path,
               file_bytes);
  std::memcpy(&fields, page.data(), sizeof fields);
  if (fields.magic[0] == '\0' && crc32c(&fields, sizeof fields) == crc32c(HeaderPage{}.data(), sizeof fields))
    fail_usage("'{}' is an unfinished snapshot: its header was never written", path);
  if (std::string_view(fields.magic, sizeof fields.magic) != kMagic)
    fail_usage("'{}' is not a snapshot: it does not begin with \"{}\"", path, kMagic.substr(0, 15));
  if (fields.format != kFormat)
    fail_usage("'{}' is a snapshot of format {}; this hetrun reads format {}", path, fields.format, kFormat);
  if (crc32c(&fields, kChecked) != fields.checksum)
    fail_usage("'{}' is damaged: the header does not match its checksum", path);
  const SnapshotHeader header{fields.manifest_offset, fields.manifest_bytes, fields.manifest_checksum};
  if (header.manifest_bytes <= 0 || header.manifest_bytes > kMostManifestBytes ||
      header.manifest_bytes % 8 != 0)
    fail_usage("'{}' is damaged: its manifest would take {} bytes", path, header.manifest_bytes);
  if (header.manifest_offset < kSnapshotPage || header.manifest_offset % kSnapshotPage != 0 ||
      header.manifest_offset > file_bytes || header.file_bytes() > file_bytes)
    fail_usage("'{}' is truncated: it has {} bytes, its manifest would end at {}", path, file_bytes,
               header.manifest_offset > file_bytes ? header.manifest_offset : header.file_bytes());
  if (header.file_bytes() != file_bytes)
    fail_usage("'{}' is damaged: {} bytes follow its end", path, file_bytes - header.file_bytes());
  return header;
}

}  // namespace het
