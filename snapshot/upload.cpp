#include "snapshot/upload.h"

#include "core/base/error.h"

namespace het {
namespace {

// Whether the store has the file: its header page has the checksum of the manifest, and this those of all
// data.
bool has(ObjectStore& store, const std::string& key, const SnapshotSource& file) {
  if (store.size(key) != file.bytes()) return false;
  HeaderPage here{}, there{};
  file.read_at(0, here.data(), kSnapshotPage);
  store.get_range(key, 0, there);
  return here == there;
}

}  // namespace

std::vector<UploadedFile> upload(ObjectStore& store, const std::vector<Path>& files,
                                 const TransferOptions& options) {
  std::vector<UploadedFile> uploaded;
  int64_t before = 0;  // bytes of the files that are done
  TransferOptions each = options;
  if (options.progress) each.progress = [&](int64_t bytes) { options.progress(before + bytes); };
  for (const Path& path : files) {
    const auto file = SnapshotFile::open(path, SnapshotAccess::read);
    if (const auto damages = file->verify(); !damages.empty()) fail_usage("{}", damages.front());
    UploadedFile next{snapshot_name(file->manifest()), file->bytes(), false};
    next.was_there = has(store, next.key, *file_source(path, SnapshotAccess::read));
    if (!next.was_there) store.put(next.key, path, false, each);
    before += next.bytes;
    if (options.progress) options.progress(before);
    uploaded.push_back(std::move(next));
  }
  return uploaded;
}

}  // namespace het
