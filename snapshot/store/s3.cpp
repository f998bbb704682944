#include "snapshot/store/s3.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/base/visible.h"
#include "core/io/file.h"
#include "core/net/proof.h"
#include "snapshot/store/parts.h"
#include "snapshot/store/s3_client.h"
#include "snapshot/store/xml.h"

namespace het {
namespace {

constexpr const char* kToken = "x-amz-meta-hetrun-upload";  // names the put that an object comes from
constexpr int64_t kMostParts = 1000;                        // of an upload, as Swift allows; S3 10,000
constexpr int kMostPages = 100'000;                         // of a listing

int64_t number_of(const std::string& text) {
  int64_t value = -1;
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos || text.size() > 18) return value;
  return std::stoll(text);
}

// Seconds since 1970 of "2024-05-13T10:20:30.000Z"; 0 for what is none.
int64_t parse_time(const std::string& text) {
  std::tm utc{};
  return ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc) == nullptr ? 0 : ::timegm(&utc);
}

std::string percent_decode(const std::string& text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      decoded += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  return decoded;
}

// The bytes of parts that are under way together.
class Progress {
 public:
  Progress(const TransferOptions& options, int64_t parts)
      : report_(options.progress), done_(static_cast<size_t>(parts)) {}

  void set(int64_t part, int64_t bytes) {
    if (!report_) return;
    std::lock_guard lock(mutex_);
    total_ += bytes - std::exchange(done_[static_cast<size_t>(part)], bytes);
    report_(total_);
  }

 private:
  const std::function<void(int64_t)>& report_;
  std::mutex mutex_;
  std::vector<int64_t> done_;  // of each part; guarded by mutex_
  int64_t total_ = 0;          // guarded by mutex_
};

// Memory for the parts that are under way: as many buffers as there are threads, used again and again, as
// first touches of memory cost more than the copy.
class PartBuffers {
 public:
  explicit PartBuffers(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}

  // `use` gets the buffer.
  template <typename Use>
  void with(const Use& use) {
    std::unique_ptr<std::byte[]> buffer;
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        buffer = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (buffer == nullptr) buffer.reset(new std::byte[bytes_]);
    use(buffer.get());
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(buffer));
  }

 private:
  const size_t bytes_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> idle_;  // guarded by mutex_
};

class S3Store final : public ObjectStore {
 public:
  S3Store(const std::string& bucket, std::string prefix, const StoreAccess& access)
      : ObjectStore("s3://" + bucket + (prefix.empty() ? "" : "/" + prefix)),
        prefix_(prefix.empty() ? "" : std::move(prefix) + "/"),
        access_(access),
        client_(bucket, access) {}

  bool put(const std::string& key, const Path& file, bool only_new, const TransferOptions& options) override;
  void get_range(const std::string& key, int64_t offset, std::span<std::byte> into,
                 const TransferOptions& options) override;
  std::optional<int64_t> size(const std::string& key) override;
  std::vector<StoredObject> list(const std::string& prefix) override;
  void remove(const std::string& key) override;
  std::vector<std::string> remove_unfinished(std::chrono::seconds age, const std::string& prefix) override;

 private:
  // What the server has under a key.
  struct Head {
    int64_t bytes = 0;
    std::string token;
  };
  // A put that is under way.
  struct Upload {
    std::string key;  // in the bucket
    const OpenFile& file;
    const TransferOptions& options;
    std::string token;
    bool only_new;
    std::string id;                 // of an upload in parts
    std::vector<std::string> tags;  // of its parts
  };
  enum class Stored : uint8_t { done, refused, unclear };

  std::string full_key(const std::string& key) const {
    check_key(key);
    return prefix_ + key;
  }
  std::optional<Head> head(const std::string& full);
  Stored put_whole(Upload& upload);
  Stored put_in_parts(Upload& upload, int64_t part_bytes);
  void put_part(Upload& upload, Progress& progress, int64_t part, std::span<const std::byte> content);
  Stored finish(Upload& upload);
  void abort(const std::string& full, const std::string& id);
  Stored outcome(const S3Call& call, const WebReply& reply, const Upload& upload);
  void get_part(const std::string& full, int64_t offset, std::span<std::byte> into,
                const TransferOptions& options, const std::function<void(int64_t)>& progress);
  int64_t check_range(const S3Call& call, const WebReply& reply, int64_t first, int64_t end) const;
  XmlElement ask(const S3Call& call, std::string_view root);
  template <typename Visit>
  void each_page(const std::string& root, std::map<std::string, std::string> query, const Visit& visit);

  const std::string prefix_;  // of the keys in the bucket: empty, or with a slash at the end
  const StoreAccess access_;
  S3Client client_;
};

// --- objects

std::optional<S3Store::Head> S3Store::head(const std::string& full) {
  S3Call call{"HEAD", full};
  const WebReply reply = client_.send(call);
  if (reply.status == 404) return std::nullopt;
  if (reply.status != 200) client_.refuse(call, reply);
  const Head found{number_of(reply.header("content-length")), reply.header(kToken)};
  if (found.bytes < 0)
    fail(ErrorKind::peer, "HEAD of {} was answered without a length", client_.name_of(full));
  return found;
}

std::optional<int64_t> S3Store::size(const std::string& key) {
  const auto found = head(full_key(key));
  return found ? std::optional(found->bytes) : std::nullopt;
}

void S3Store::remove(const std::string& key) {
  S3Call call{"DELETE", full_key(key)};
  const WebReply reply = client_.send(call);
  if (reply.status / 100 != 2 && reply.status != 404) client_.refuse(call, reply);
}

// --- reading

void S3Store::get_range(const std::string& key, int64_t offset, std::span<std::byte> into,
                        const TransferOptions& options) {
  HET_REQUIRE(offset >= 0, key, offset);
  const std::string full = full_key(key);
  const auto bytes = static_cast<int64_t>(into.size());
  const int64_t parts = (bytes + access_.part_bytes - 1) / access_.part_bytes;
  Progress progress(options, parts);
  each_part(parts, access_.connections, [&](int64_t part) {
    const int64_t begin = part * access_.part_bytes, count = std::min(access_.part_bytes, bytes - begin);
    get_part(full, offset + begin, into.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
             options, [&, part](int64_t done) { progress.set(part, done); });
  });
}

// Goes on where a try broke off. A try that brought a fair share does not count as failed, so that a bad line
// delays a large part and does not end it.
void S3Store::get_part(const std::string& full, int64_t offset, std::span<std::byte> into,
                       const TransferOptions& options, const std::function<void(int64_t)>& progress) {
  const auto bytes = static_cast<int64_t>(into.size());
  const int64_t fair = std::max<int64_t>(1, bytes / 16);
  Backoff waits = client_.backoff();
  int64_t have = 0;
  for (int tried = 1;; ++tried) {
    const int64_t before = have, first = offset + have, end = offset + bytes;
    S3Call call{"GET", full};
    call.headers["range"] = fmt::format("bytes={}-{}", first, end - 1);
    call.into = into.subspan(static_cast<size_t>(have));
    call.options = &options;
    call.progress = [&](int64_t done) { progress(before + std::min(done, bytes - before)); };
    WebReply reply = client_.send_once(call);
    have += check_range(call, reply, first, end);
    progress(have);
    if (have == bytes) return;
    if (reply.cancelled || (!S3Client::may_pass(reply) && reply.status != 206))
      client_.refuse(call, reply, tried);
    if (reply.problem.empty() && reply.status == 206)
      reply.problem = fmt::format("it ended after {} of {} bytes", reply.received, end - first);
    if (have - before >= fair) tried = 0;
    if (tried >= client_.tries()) client_.refuse(call, reply, tried);
    client_.wait(call, waits.next(reply.retry_after));
  }
}

// How many bytes of the reply are those that were asked for, [first, end) of the object.
int64_t S3Store::check_range(const S3Call& call, const WebReply& reply, int64_t first, int64_t end) const {
  const std::string name = client_.name_of(call.key);
  if (reply.status == 404 && reply.problem.empty()) {
    if (error_code(reply) == "NoSuchBucket") client_.refuse(call, reply);
    fail_usage("there is no object '{}'", name);
  }
  if (reply.status == 416) fail_usage("'{}' is truncated: it ends before byte {}", name, first);
  if (reply.status / 100 != 2) return 0;
  // "bytes 0-99/1234"
  const std::string range = reply.header("content-range");
  const size_t dash = range.find('-'), slash = range.find('/');
  const bool has_form =
      range.starts_with("bytes ") && dash != range.npos && slash != range.npos && dash < slash;
  const int64_t begin = has_form ? number_of(range.substr(6, dash - 6)) : -1,
                last = has_form ? number_of(range.substr(dash + 1, slash - dash - 1)) : -1,
                total = has_form ? number_of(range.substr(slash + 1)) : -1;
  if (reply.status != 206 || begin != first || last < begin || last >= end)
    fail(ErrorKind::peer,
         "GET of {} was answered with the wrong bytes: {} to {} were asked for, and status {} came with '{}'",
         name, first, end - 1, reply.status, visible(range));
  if (total >= 0 && total < end)
    fail_usage("'{}' is truncated: it has {} bytes; those up to {} are wanted", name, total, end);
  return std::min(reply.received, last - first + 1);
}

// --- writing

bool S3Store::put(const std::string& key, const Path& file, bool only_new, const TransferOptions& options) {
  const OpenFile source(file);
  Upload upload{full_key(key), source, options, {}, only_new, {}, {}};
  if (only_new && head(upload.key)) return false;
  const int64_t part_bytes = std::max(access_.part_bytes, (source.bytes + kMostParts - 1) / kMostParts);
  Backoff waits = client_.backoff();
  std::optional<Head> found;
  for (int tried = 1; tried <= client_.tries(); ++tried) {
    if (tried > 1) client_.wait({.method = "PUT", .key = upload.key, .options = &options}, waits.next());
    upload.token = hex_of(random_bytes(16));
    const Stored stored = source.bytes <= part_bytes ? put_whole(upload) : put_in_parts(upload, part_bytes);
    if (stored == Stored::refused) return false;
    // What the server has may be less than what it was sent. Another writer's object since then is no
    // failure. A server may keep no tokens; then its answer has to do.
    found = head(upload.key);
    const bool ours = found && found->token == upload.token, unnamed = found && found->token.empty();
    if (stored == Stored::done && found && !ours && !unnamed) return true;
    if ((ours || (unnamed && stored == Stored::done)) && found->bytes == source.bytes) return true;
    if (ours) remove(key);  // readers would take it for whole
  }
  fail(ErrorKind::peer, "'{}' was sent {} bytes and has {} ({} tries)", client_.name_of(upload.key),
       source.bytes, found ? std::to_string(found->bytes) : "none", client_.tries());
}

// What became of a put whose last request was answered so. An answer may get lost, and what was done be
// refused when it is tried again.
S3Store::Stored S3Store::outcome(const S3Call& call, const WebReply& reply, const Upload& upload) {
  if (reply.status / 100 == 2 && error_code(reply).empty()) return Stored::done;
  if (reply.status == 404 && error_code(reply) != "NoSuchUpload") client_.refuse(call, reply);
  if (reply.status == 404 || reply.status == 412) {
    const auto found = head(upload.key);
    if (found && found->token == upload.token) return Stored::done;
    return reply.status == 412 ? Stored::refused : Stored::unclear;
  }
  client_.refuse(call, reply);
}

S3Store::Stored S3Store::put_whole(Upload& upload) {
  std::vector<std::byte> content(static_cast<size_t>(upload.file.bytes));
  upload.file.read_at(0, content.data(), upload.file.bytes);
  S3Call call{"PUT", upload.key};
  call.headers[kToken] = upload.token;
  if (upload.only_new) call.headers["if-none-match"] = "*";
  call.body = content;
  call.options = &upload.options;
  call.progress = [&](int64_t done) {
    if (upload.options.progress) upload.options.progress(std::min(done, upload.file.bytes));
  };
  WebReply reply = client_.send(call);
  if (reply.status == 501 &&
      upload.only_new) {  // a server without conditional writes; it was looked at before
    call.headers.erase("if-none-match");
    reply = client_.send(call);
  }
  return outcome(call, reply, upload);
}

S3Store::Stored S3Store::put_in_parts(Upload& upload, int64_t part_bytes) {
  S3Call call{"POST", upload.key, {{"uploads", ""}}, {{kToken, upload.token}}};
  call.options = &upload.options;
  const XmlElement begun = ask(call, "InitiateMultipartUploadResult");
  upload.id = begun.text_of("UploadId");
  if (upload.id.empty())
    fail(ErrorKind::peer, "POST of {} was answered without an UploadId", client_.name_of(upload.key));
  const int64_t parts = (upload.file.bytes + part_bytes - 1) / part_bytes;
  upload.tags.assign(static_cast<size_t>(parts), {});
  try {
    Progress progress(upload.options, parts);
    PartBuffers buffers(part_bytes);
    each_part(parts, access_.connections, [&](int64_t part) {
      buffers.with([&](std::byte* buffer) {
        const int64_t begin = part * part_bytes, bytes = std::min(part_bytes, upload.file.bytes - begin);
        upload.file.read_at(begin, buffer, bytes);
        put_part(upload, progress, part, {buffer, static_cast<size_t>(bytes)});
      });
    });
    const Stored stored = finish(upload);
    if (stored != Stored::done) abort(upload.key, upload.id);
    return stored;
  } catch (...) {
    abort(upload.key, upload.id);
    throw;
  }
}

void S3Store::put_part(Upload& upload, Progress& progress, int64_t part, std::span<const std::byte> content) {
  const auto bytes = static_cast<int64_t>(content.size());
  S3Call call{"PUT", upload.key, {{"partNumber", std::to_string(part + 1)}, {"uploadId", upload.id}}};
  call.body = content;
  call.options = &upload.options;
  call.progress = [&](int64_t done) { progress.set(part, std::min(done, bytes)); };
  const WebReply reply = client_.send(call);
  if (reply.status / 100 != 2) client_.refuse(call, reply);
  std::string tag = reply.header("etag");
  if (tag.empty() || visible(tag) != tag)
    fail(ErrorKind::peer, "PUT of {} was answered without an ETag", client_.name_of(upload.key));
  upload.tags[static_cast<size_t>(part)] = std::move(tag);
}

S3Store::Stored S3Store::finish(Upload& upload) {
  std::string parts;
  for (size_t i = 0; i < upload.tags.size(); ++i)
    parts += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1,
                         escape_xml(upload.tags[i]));
  const std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" +
                           parts + "</CompleteMultipartUpload>";
  S3Call call{"POST", upload.key, {{"uploadId", upload.id}}};
  if (upload.only_new) call.headers["if-none-match"] = "*";
  call.body = std::as_bytes(std::span(body));
  call.options = &upload.options;
  WebReply reply = client_.send(call);
  if (reply.status == 501 && upload.only_new) {
    call.headers.erase("if-none-match");
    reply = client_.send(call);
  }
  return outcome(call, reply, upload);
}

// Also after a cancel, and without hiding why the upload has failed: what stays is found by
// remove_unfinished.
void S3Store::abort(const std::string& full, const std::string& id) {
  try {
    client_.send_once({.method = "DELETE", .key = full, .query = {{"uploadId", id}}});
  } catch (const Error&) {
  }
}

// --- listings

// What comes whole by its length may be cut before that.
XmlElement S3Store::ask(const S3Call& call, std::string_view root) {
  Backoff waits = client_.backoff();
  for (int tried = 1;; ++tried) {
    const WebReply reply = client_.send(call);
    if (reply.status != 200) client_.refuse(call, reply);
    auto answer = parse_xml(reply.text);
    if (answer && answer->name == root) return std::move(*answer);
    if (tried == client_.tries())
      fail(ErrorKind::peer, "{} of {} was answered with something else than <{}> ({} tries)", call.method,
           client_.name_of(call.key), root, tried);
    client_.wait(call, waits.next());
  }
}

// `visit` gets each page, and returns what the next one is asked with: empty after the last.
template <typename Visit>
void S3Store::each_page(const std::string& root, std::map<std::string, std::string> query,
                        const Visit& visit) {
  query["encoding-type"] = "url";  // XML cannot hold every key
  for (int page = 0; page < kMostPages; ++page) {
    const XmlElement answer = ask({.method = "GET", .query = query}, root);
    const std::map<std::string, std::string> next = visit(answer, [&answer](const std::string& key) {
      return answer.text_of("EncodingType") == "url" ? percent_decode(key) : key;
    });
    if (next.empty()) return;
    const auto before = query;
    for (const auto& [name, value] : next) query[name] = value;
    if (query == before) break;
  }
  fail(ErrorKind::peer, "GET of {}: the listing does not end", client_.name_of(""));
}

std::vector<StoredObject> S3Store::list(const std::string& prefix) {
  std::vector<StoredObject> found;
  each_page(
      "ListBucketResult", {{"list-type", "2"}, {"prefix", prefix_ + prefix}},
      [&](const XmlElement& page, const auto& decoded) -> std::map<std::string, std::string> {
        for (const XmlElement& entry : page.children) {
          if (entry.name != "Contents") continue;
          const std::string key = decoded(entry.text_of("Key"));
          if (!key.starts_with(prefix_ + prefix) || key.ends_with('/')) continue;  // a folder's marker
          const int64_t bytes = number_of(entry.text_of("Size"));
          if (bytes >= 0)
            found.push_back({key.substr(prefix_.size()), bytes, parse_time(entry.text_of("LastModified"))});
        }
        if (page.text_of("IsTruncated") != "true") return {};
        return {{"continuation-token", page.text_of("NextContinuationToken")}};
      });
  std::sort(found.begin(), found.end(),
            [](const StoredObject& a, const StoredObject& b) { return a.key < b.key; });
  return found;
}

std::vector<std::string> S3Store::remove_unfinished(std::chrono::seconds age, const std::string& prefix) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t before = std::chrono::duration_cast<std::chrono::seconds>(now - age).count();
  std::vector<std::pair<std::string, std::string>> old;  // full key, id
  each_page("ListMultipartUploadsResult", {{"prefix", prefix_ + prefix}, {"uploads", ""}},
            [&](const XmlElement& page, const auto& decoded) -> std::map<std::string, std::string> {
              for (const XmlElement& entry : page.children) {
                if (entry.name != "Upload") continue;
                const int64_t begun = parse_time(entry.text_of("Initiated"));
                std::string key = decoded(entry.text_of("Key"));
                if (begun > 0 && begun < before && key.starts_with(prefix_ + prefix))
                  old.emplace_back(std::move(key), entry.text_of("UploadId"));
              }
              if (page.text_of("IsTruncated") != "true") return {};
              return {{"key-marker", decoded(page.text_of("NextKeyMarker"))},
                      {"upload-id-marker", page.text_of("NextUploadIdMarker")}};
            });
  std::vector<std::string> keys;
  for (const auto& [full, id] : old) {
    S3Call call{"DELETE", full, {{"uploadId", id}}};
    const WebReply reply = client_.send(call);
    if (reply.status / 100 != 2 && reply.status != 404) client_.refuse(call, reply);
    keys.push_back(full.substr(prefix_.size()));
  }
  return keys;
}

}  // namespace

std::unique_ptr<ObjectStore> open_s3_store(const std::string& url, const StoreAccess& access) {
  constexpr std::string_view kScheme = "s3://";
  std::string rest = url.substr(kScheme.size());
  while (rest.ends_with('/')) rest.pop_back();
  const size_t slash = rest.find('/');
  const std::string bucket = rest.substr(0, slash), prefix = slash == rest.npos ? "" : rest.substr(slash + 1);
  constexpr size_t kLeast = 3, kMost = 255;
  if (bucket.size() < kLeast || bucket.size() > kMost || bucket.starts_with('.') ||
      bucket.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") !=
          bucket.npos)
    fail_usage("'{}' names no bucket: s3://bucket or s3://bucket/prefix; a bucket has {} to {} characters",
               visible(url), kLeast, kMost);
  if (!prefix.empty()) check_key(prefix);
  return std::make_unique<S3Store>(bucket, prefix, access);
}

}  // namespace het
