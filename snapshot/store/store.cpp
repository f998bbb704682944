#include "snapshot/store/store.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/visible.h"
#include "snapshot/store/file.h"
#include "snapshot/store/s3.h"

namespace het {
namespace {

constexpr std::string_view kFile = "file://", kS3 = "s3://";

}  // namespace

bool is_store_url(std::string_view text) { return text.starts_with(kFile) || text.starts_with(kS3); }

std::unique_ptr<ObjectStore> open_store(const Path& url, const StoreAccess& access) {
  HET_REQUIRE(access.connections > 0 && access.part_bytes > 0 && access.tries > 0);
  if (url.text.starts_with(kS3)) return open_s3_store(url.text, access);
  std::string folder = url.text;
  if (folder.starts_with(kFile)) {
    folder.erase(0, kFile.size());
    if (!folder.starts_with('/'))
      fail_usage("'{}' names no folder; write file:///folder, or the path alone", visible(url.text));
  } else if (folder.find("://") != folder.npos) {
    fail_usage("'{}' is no store; a store is a folder, file:///folder or s3://bucket/prefix",
               visible(url.text));
  }
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  if (folder.empty()) fail_usage("an empty path names no store");
  return open_file_store(url.with(folder));
}

void check_key(const std::string& key) {
  constexpr size_t kLongest = 900;  // S3 allows 1024 with the store's prefix
  bool good =
      !key.empty() && key.size() <= kLongest && visible(key) == key && key.find_first_of("\n\t") == key.npos;
  for (size_t begin = 0; good && begin <= key.size();) {
    const size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view part = std::string_view(key).substr(begin, end - begin);
    good = !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  if (!good) fail_usage("'{}' cannot be the key of an object", visible(key));
}

}  // namespace het
