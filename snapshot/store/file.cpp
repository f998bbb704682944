#include "snapshot/store/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/stat.h>

#include "core/base/error.h"
#include "core/io/file.h"

namespace het {
namespace {

constexpr std::string_view kDead = ".dead";  // of a file that is being removed

bool is_dead(const std::string& name) { return name.ends_with(kDead); }
bool is_unfinished(const std::string& name) { return name_of_unfinished(name).has_value(); }
bool is_unnamed(const std::string& name) { return is_dead(name) || is_unfinished(name); }

class FileStore final : public ObjectStore {
 public:
  explicit FileStore(const Path& folder) : ObjectStore(folder.text), folder_(folder) {}

  bool put(const std::string& key, const Path& file, bool only_new, const TransferOptions& options) override {
    const Path path = path_of(key);
    if (only_new && kind_of(path) != FileKind::none) return false;
    const OpenFile source(file);
    make_folder(path.with(folder_of(path.text)));
    AtomicFile target(path);
    if (source.bytes > 0) target.reserve(source.bytes);
    constexpr int64_t kPiece = 4 << 20;
    std::vector<std::byte> piece(static_cast<size_t>(std::min(kPiece, source.bytes)));
    for (int64_t at = 0; at < source.bytes;) {
      if (options.cancelled.stop_requested())
        fail(ErrorKind::peer, "copying '{}' to '{}' was cancelled", file.text, path.text);
      const int64_t bytes = std::min(kPiece, source.bytes - at);
      source.read_at(at, piece.data(), bytes);
      target.write_at(at, piece.data(), bytes);
      at += bytes;
      if (options.progress) options.progress(at);
    }
    target.commit();
    return true;
  }

  void get_range(const std::string& key, int64_t offset, std::span<std::byte> into,
                 const TransferOptions& options) override {
    HET_REQUIRE(offset >= 0, key, offset);
    const OpenFile file(path_of(key));
    const auto bytes = static_cast<int64_t>(into.size());
    if (offset > file.bytes || bytes > file.bytes - offset)
      fail_usage("'{}' is truncated: it has {} bytes; {} from byte {} on are wanted", file.path, file.bytes,
                 bytes, offset);
    if (options.cancelled.stop_requested()) fail(ErrorKind::peer, "reading '{}' was cancelled", file.path);
    if (bytes > 0) file.read_at(offset, into.data(), bytes);
    if (options.progress) options.progress(bytes);
  }

  std::optional<int64_t> size(const std::string& key) override {
    const Path path = path_of(key);
    if (kind_of(path) != FileKind::file) return std::nullopt;
    return OpenFile(path).bytes;
  }

  std::vector<StoredObject> list(const std::string& prefix) override {
    std::vector<StoredObject> found;
    walk({}, prefix, [&](const std::string& key, const FolderEntry& entry) {
      if (!is_unnamed(key)) found.push_back({key, entry.bytes, modified_at(path_of(key))});
    });
    std::sort(found.begin(), found.end(),
              [](const StoredObject& a, const StoredObject& b) { return a.key < b.key; });
    return found;
  }

  void remove(const std::string& key) override {
    const Path path = path_of(key), dead = path.with(path.text + std::string(kDead));
    const int error = -path.opener().rename(path.text, dead.text);
    if (error != 0 && error != ENOENT) fail_remove(path, error);
    remove_file(dead);
  }

  std::vector<std::string> remove_unfinished(std::chrono::seconds age, const std::string& prefix) override {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const int64_t before = std::chrono::duration_cast<std::chrono::seconds>(now - age).count();
    std::vector<std::string> keys;
    walk({}, prefix, [&](const std::string& key, const FolderEntry&) {
      if (is_dead(key) || (is_unfinished(key) && modified_at(folder_.child(key)) < before))
        keys.push_back(key);
    });
    for (const std::string& key : keys) remove_file(folder_.child(key));
    return keys;
  }

  std::optional<Path> file_of(const std::string& key) const override { return path_of(key); }

 private:
  Path path_of(const std::string& key) const {
    check_key(key);
    if (is_unnamed(key)) fail_usage("'{}' cannot be the key of an object in a folder", key);
    return folder_.child(key);
  }

  // The files whose keys begin with `prefix`. Links are not followed.
  template <typename Visit>
  void walk(const std::string& within, const std::string& prefix, const Visit& visit) const {
    const Path folder = within.empty() ? folder_ : folder_.child(within);
    if (kind_of(folder) != FileKind::folder) return;
    for (const FolderEntry& entry : list_folder(folder)) {
      const std::string key = within.empty() ? entry.name : within + "/" + entry.name;
      const bool begins = key.starts_with(prefix);
      if (entry.kind == FileKind::folder && (begins || prefix.starts_with(key + "/")))
        walk(key, prefix, visit);
      if (entry.kind == FileKind::file && begins) visit(key, entry);
    }
  }

  [[noreturn]] static void fail_remove(const Path& path, int error) {
    fail_environment("cannot remove '{}': {}", path.text, std::strerror(error));
  }
  static void remove_file(const Path& path) {
    const int error = -path.opener().remove(path.text);
    if (error != 0 && error != ENOENT) fail_remove(path, error);
  }

  const Path folder_;
};

}  // namespace

std::unique_ptr<ObjectStore> open_file_store(const Path& folder) {
  return std::make_unique<FileStore>(folder);
}

}  // namespace het
