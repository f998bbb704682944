// Object stores: whole objects under keys, in a folder (file://) or in a bucket (s3://). What is kept there
// outlives every machine of a run. A store is a place of its own: keys are relative to its URL.
// Used from several threads; each call blocks until it is done, and works with threads of its own where an
// object has several parts. Errors name the object: usage for a URL, key or object that is wrong or missing,
// environment for rights, credentials and disks, peer for a server that does not answer as it should.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "core/cluster/environment.h"
#include "core/io/files.h"

namespace het {

struct StoredObject {
  std::string key;
  int64_t bytes = 0;
  int64_t modified = 0;  // seconds since 1970 by the store's clock
  bool operator==(const StoredObject&) const = default;
};

struct TransferOptions {
  // Called with the bytes done so far: from threads of the transfer, one call at a time. After a failed try
  // the count may fall.
  std::function<void(int64_t bytes)> progress;
  std::stop_token cancelled;  // ends the transfer with an Error(peer)
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  const std::string& url() const { return url_; }
  std::string url_of(const std::string& key) const { return url_ + "/" + key; }

  // Copies a file, which does not change meanwhile, to the object at `key`: readers see the previous object
  // or all of the new one. `only_new`: an object that is there stays, and the answer is false; a folder, and
  // a server without conditional writes, are looked at before, so that both of two writers may get true.
  virtual bool put(const std::string& key, const Path& file, bool only_new = false,
                   const TransferOptions& options = {}) = 0;
  // Reads into.size() bytes from `offset` on. Throws Error(usage) for an object that is missing or ends
  // before.
  virtual void get_range(const std::string& key, int64_t offset, std::span<std::byte> into,
                         const TransferOptions& options = {}) = 0;
  virtual std::optional<int64_t> size(const std::string& key) = 0;  // nullopt: there is no such object
  // The objects whose keys begin with `prefix`, by key.
  virtual std::vector<StoredObject> list(const std::string& prefix = {}) = 0;
  virtual void remove(const std::string& key) = 0;  // also one that is missing
  // Removes what puts begun more than `age` ago have left without finishing. Their keys.
  virtual std::vector<std::string> remove_unfinished(std::chrono::seconds age,
                                                     const std::string& prefix = {}) = 0;
  // The file that the object is, where it is one.
  virtual std::optional<Path> file_of(const std::string& key) const { return std::nullopt; }

 protected:
  explicit ObjectStore(std::string url) : url_(std::move(url)) {}

 private:
  const std::string url_;  // without a slash at the end
};

struct StoreAccess {
  EnvironmentLookup environment = process_environment();  // credentials, region, endpoint: as AWS's tools
  int connections = 4;                                    // of one transfer
  int64_t part_bytes = 16 << 20;  // of an upload or a download: memory is connections x part_bytes
  int tries = 6;                  // of a request
  std::chrono::milliseconds first_wait{200}, longest_wait{20'000};  // between tries
  std::chrono::milliseconds stall{30'000};  // without a byte moved: the try has failed
};

// "s3://bucket/prefix"; "file:///folder", or the path of a folder, which is made when something is put.
// Throws Error(usage) for other URLs, Error(environment) where credentials are missing.
std::unique_ptr<ObjectStore> open_store(const Path& url, const StoreAccess& access = {});
bool is_store_url(std::string_view text);  // "s3://" or "file://", as against a path

// Keys have parts between slashes, none of them empty, "." or "..", no control characters, at most 900 bytes.
// Throws Error(usage).
void check_key(const std::string& key);

}  // namespace het
