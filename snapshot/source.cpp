#include "snapshot/source.h"

#include <optional>
#include <utility>

#include "core/base/error.h"

namespace het {
namespace {

class FileSource final : public SnapshotSource {
 public:
  FileSource(const Path& path, SnapshotAccess access) : file_(path) {
    if (access == SnapshotAccess::mapped || (access == SnapshotAccess::automatic && file_.is_local))
      mapped_.emplace(file_);
  }
  const std::string& name() const override { return file_.path; }
  int64_t bytes() const override { return file_.bytes; }
  void read_at(int64_t position, std::byte* to, int64_t count) const override {
    file_.read_at(position, to, count);
  }
  const MappedFile* mapped() const override { return mapped_ ? &*mapped_ : nullptr; }

 private:
  OpenFile file_;
  std::optional<MappedFile> mapped_;
};

class ObjectSource final : public SnapshotSource {
 public:
  ObjectSource(std::shared_ptr<ObjectStore> store, const std::string& key, int64_t bytes)
      : store_(std::move(store)), key_(key), name_(store_->url_of(key)), bytes_(bytes) {}
  const std::string& name() const override { return name_; }
  int64_t bytes() const override { return bytes_; }
  void read_at(int64_t position, std::byte* to, int64_t count) const override {
    store_->get_range(key_, position, {to, static_cast<size_t>(count)});
  }

 private:
  std::shared_ptr<ObjectStore> store_;
  std::string key_, name_;
  int64_t bytes_;
};

}  // namespace

std::unique_ptr<const SnapshotSource> file_source(const Path& path, SnapshotAccess access) {
  return std::make_unique<FileSource>(path, access);
}

std::unique_ptr<const SnapshotSource> object_source(std::shared_ptr<ObjectStore> store,
                                                    const std::string& key) {
  if (const auto file = store->file_of(key)) return file_source(*file);
  const auto bytes = store->size(key);
  if (!bytes) fail_usage("there is no object '{}'", store->url_of(key));
  return std::make_unique<ObjectSource>(std::move(store), key, *bytes);
}

}  // namespace het
