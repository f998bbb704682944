#include "tests/unit/snapshot/s3_server.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/net/proof.h"
#include "snapshot/store/sign.h"
#include "snapshot/store/xml.h"

namespace het::testing {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return std::chrono::steady_clock::now() + milliseconds(20); }

std::string decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '%' && i + 2 < text.size()) {
      result += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      result += text[i];
    }
  return result;
}

S3Reply failed(int status, const std::string& code) {
  return {status,
          {},
          fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code>"
                      "<Message>The server says {}.</Message></Error>",
                      code, code)};
}

S3Reply said(const std::string& root, const std::string& content) {
  return {200,
          {},
          fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{0} xmlns=\"http://s3.amazonaws.com/doc/"
                      "2006-03-01/\">{1}</{0}>",
                      root, content)};
}

std::string tag_of(const std::string& content) { return '"' + hex_of(sha256(content)).substr(0, 32) + '"'; }

}  // namespace

S3Server::S3Server() : listener_(listen_at(at_)) {
  accepting_ = std::jthread([this] { accept(); });
}

S3Server::~S3Server() { ended_ = true; }

EnvironmentLookup S3Server::environment() const {
  const std::string endpoint = "http://" + to_string(at_);
  return [endpoint](const std::string& name) -> std::optional<std::string> {
    if (name == "AWS_ACCESS_KEY_ID") return kAccess;
    if (name == "AWS_SECRET_ACCESS_KEY") return kSecret;
    if (name == "AWS_ENDPOINT_URL") return endpoint;
    return std::nullopt;
  };
}

StoreAccess S3Server::access() const {
  StoreAccess access;
  access.environment = environment();
  access.part_bytes = 64 << 10;
  access.first_wait = milliseconds(1);
  access.longest_wait = milliseconds(4);
  return access;
}

std::map<std::string, S3Server::Object> S3Server::objects() {
  std::lock_guard lock(mutex_);
  return objects_;
}
void S3Server::put(const std::string& key, const std::string& content) {
  std::lock_guard lock(mutex_);
  objects_[key] = {content, ""};
}
size_t S3Server::uploads() {
  std::lock_guard lock(mutex_);
  return uploads_.size();
}
std::vector<std::string> S3Server::log() {
  std::lock_guard lock(mutex_);
  return log_;
}
size_t S3Server::count(const std::string& begin) {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(log_.begin(), log_.end(),
                                           [&](const std::string& line) { return line.starts_with(begin); }));
}

void S3Server::accept() {
  while (!ended_) {
    std::string who;
    if (!wait_for(listener_, Ready::read, soon())) continue;
    auto connection = std::make_shared<Descriptor>(accept_from(listener_, who));
    if (*connection) threads_.emplace_back([this, connection] { serve(*connection); });
  }
  threads_.clear();  // waits
}

bool S3Server::receive(const Descriptor& connection, std::string& buffer, S3Request& request) const {
  const auto more = [&] {
    char piece[64 << 10];
    while (!ended_) {
      if (!wait_for(connection, Ready::read, soon())) continue;
      const long got = receive_some(connection, piece, sizeof piece);
      if (got < 0) return false;
      buffer.append(piece, static_cast<size_t>(got));
      if (got > 0) return true;
    }
    return false;
  };
  size_t end = 0;
  while ((end = buffer.find("\r\n\r\n")) == buffer.npos)
    if (!more()) return false;
  const std::string head = buffer.substr(0, end + 2);
  buffer.erase(0, end + 4);
  const size_t line = head.find("\r\n"), first = head.find(' '), second = head.find(' ', first + 1);
  request.method = head.substr(0, first);
  const std::string target = head.substr(first + 1, second - first - 1);
  const size_t mark = target.find('?');
  request.path = decoded(target.substr(0, mark));
  for (size_t at = mark; at < target.size();) {
    const size_t next = std::min(target.find('&', at + 1), target.size());
    const std::string pair = target.substr(at + 1, next - at - 1);
    const size_t equals = pair.find('=');
    request.query[decoded(pair.substr(0, equals))] =
        equals == pair.npos ? "" : decoded(pair.substr(equals + 1));
    at = next;
  }
  for (size_t at = line + 2; at < head.size();) {
    const size_t next = head.find("\r\n", at), colon = head.find(':', at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return static_cast<char>(std::tolower(c)); });
    request.headers[name] = head.substr(std::min(colon + 2, next), next - std::min(colon + 2, next));
    at = next + 2;
  }
  const std::string length = request.header("content-length");
  const size_t bytes = length.empty() ? 0 : std::stoul(length);
  while (buffer.size() < bytes)
    if (!more()) return false;
  request.body = buffer.substr(0, bytes);
  buffer.erase(0, bytes);
  return true;
}

bool S3Server::send(const Descriptor& connection, const S3Request& request, const S3Reply& reply,
                    int64_t cut) {
  std::string text = fmt::format("HTTP/1.1 {} said\r\n", reply.status);
  const auto length = reply.length >= 0 ? reply.length : static_cast<int64_t>(reply.body.size());
  text += fmt::format("Content-Length: {}\r\n", length);
  for (const auto& [name, value] : reply.headers) text += name + ": " + value + "\r\n";
  text += "\r\n";
  if (request.method != "HEAD") {
    const size_t bytes =
        cut < 0 ? reply.body.size() : std::min<size_t>(reply.body.size(), static_cast<size_t>(cut));
    text += reply.body.substr(0, bytes);
    served_ += static_cast<int64_t>(bytes);
  }
  for (size_t sent = 0; sent < text.size() && !ended_;) {
    if (!wait_for(connection, Ready::write, soon())) continue;
    const long moved = send_some(connection, std::string_view(text).substr(sent));
    if (moved < 0) return false;
    sent += static_cast<size_t>(moved);
  }
  return cut < 0;
}

void S3Server::serve(const Descriptor& connection) {
  std::string buffer;
  for (S3Request request; receive(connection, buffer, request); request = {}) {
    S3Fault wrong;
    S3Reply reply;
    {
      std::lock_guard lock(mutex_);
      std::string line = request.method + " " + request.key();
      for (const auto& [name, value] : request.query) line += " " + name;
      log_.push_back(line);
      wrong = fault(request);
      if (wrong.status != 0)
        reply = failed(wrong.status, wrong.code);
      else if (!wrong.deaf)
        reply = answer(request);
    }
    if (wrong.lost) return;
    if (wrong.deaf) {
      char ignored = 0;
      while (!ended_ &&
             (!wait_for(connection, Ready::read, soon()) || receive_some(connection, &ignored, 1) >= 0))
        continue;
      return;
    }
    if (wrong.retry_after > 0) reply.headers["Retry-After"] = std::to_string(wrong.retry_after);
    if (wrong.edit) wrong.edit(reply);
    if (!send(connection, request, reply, wrong.cut)) return;
  }
}

S3Reply S3Server::answer(const S3Request& request) {
  if (request.header("authorization").find(fmt::format("Credential={}/", kAccess)) == std::string::npos)
    return failed(403, "InvalidAccessKeyId");
  if (request.header("x-amz-content-sha256") != hex_of(sha256(request.body)))
    return failed(400, "XAmzContentSHA256Mismatch");
  if (!request.path.starts_with("/bucket")) return failed(404, "NoSuchBucket");
  const std::string key = request.key();
  if (key.empty()) return list(request);
  if (request.has("uploads") || request.has("uploadId")) return upload(request);
  if (request.method == "PUT") return put_object(request);
  if (request.method == "DELETE") {
    objects_.erase(key);
    return {204};
  }
  const auto found = objects_.find(key);
  if (found == objects_.end()) return failed(404, "NoSuchKey");
  S3Reply reply = get(request, found->second.content);
  reply.headers["x-amz-meta-hetrun-upload"] = found->second.token;
  return reply;
}

S3Reply S3Server::get(const S3Request& request, const std::string& content) const {
  if (request.method == "HEAD") return {200, {}, "", static_cast<int64_t>(content.size())};
  const std::string range = request.header("range");
  const size_t begin = std::stoul(range.substr(6)), last = std::stoul(range.substr(range.find('-') + 1));
  if (begin >= content.size()) return failed(416, "InvalidRange");
  const size_t end = std::min(last + 1, content.size());
  return {206,
          {{"Content-Range", fmt::format("bytes {}-{}/{}", begin, end - 1, content.size())}},
          content.substr(begin, end - begin)};
}

S3Reply S3Server::put_object(const S3Request& request) {
  const bool only_new = !request.header("if-none-match").empty();
  if (only_new && !conditional) return failed(501, "NotImplemented");
  if (only_new && objects_.count(request.key()) != 0) return failed(412, "PreconditionFailed");
  objects_[request.key()] = {request.body, request.header("x-amz-meta-hetrun-upload")};
  return {200, {{"ETag", tag_of(request.body)}}, ""};
}

S3Reply S3Server::upload(const S3Request& request) {
  if (request.method == "POST" && request.has("uploads")) {
    const std::string id = fmt::format("id/{}+=", ++next_upload_);  // has to be encoded
    uploads_[id] = {request.key(), request.header("x-amz-meta-hetrun-upload"), {}};
    return said("InitiateMultipartUploadResult", "<UploadId>" + id + "</UploadId>");
  }
  const auto found = uploads_.find(request.query.at("uploadId"));
  if (found == uploads_.end()) return failed(404, "NoSuchUpload");
  Upload& upload = found->second;
  if (request.method == "PUT") {
    upload.parts[std::stoi(request.query.at("partNumber"))] = request.body;
    return {200, {{"ETag", tag_of(request.body)}}, ""};
  }
  if (request.method == "POST") {
    if (!request.header("if-none-match").empty()) {
      if (!conditional) return failed(501, "NotImplemented");
      if (objects_.count(request.key()) != 0) return failed(412, "PreconditionFailed");
    }
    const auto asked = parse_xml(request.body);
    if (!asked || asked->children.size() != upload.parts.size()) return failed(400, "InvalidPart");
    std::string content;
    auto part = upload.parts.begin();
    for (const XmlElement& each : asked->children) {
      if (each.text_of("PartNumber") != std::to_string(part->first) ||
          each.text_of("ETag") != tag_of(part->second))
        return failed(400, "InvalidPart");
      content += (part++)->second;
    }
    objects_[upload.key] = {content, upload.token};
    uploads_.erase(found);
    return said("CompleteMultipartUploadResult", "<Key>" + escape_xml(request.key()) + "</Key>");
  }
  uploads_.erase(found);
  return {204};
}

S3Reply S3Server::list(const S3Request& request) const {
  const auto value = [&](const std::string& name) {
    const auto found = request.query.find(name);
    return found == request.query.end() ? "" : found->second;
  };
  const std::string prefix = value("prefix");
  std::string content = "<EncodingType>url</EncodingType>";
  int count = 0;
  bool more = false;
  if (request.has("uploads")) {
    for (const auto& [id, upload] : uploads_) {
      if (!upload.key.starts_with(prefix) || id <= value("upload-id-marker")) continue;
      if ((more = ++count > page)) break;
      content += fmt::format("<Upload><Key>{}</Key><UploadId>{}</UploadId><Initiated>{}</Initiated></Upload>",
                             percent_encode(upload.key, true), id, begun);
      if (count == page)
        content += fmt::format(
            "<NextKeyMarker>{}</NextKeyMarker><NextUploadIdMarker>{}"
            "</NextUploadIdMarker>",
            percent_encode(upload.key), id);
    }
    content += fmt::format("<IsTruncated>{}</IsTruncated>", more);
    return said("ListMultipartUploadsResult", content);
  }
  for (const auto& [key, object] : objects_) {
    if (!key.starts_with(prefix) || key <= value("continuation-token")) continue;
    if ((more = ++count > page)) break;
    content += fmt::format(
        "<Contents><Key>{}</Key><LastModified>2021-02-03T04:05:06.000Z</LastModified>"
        "<Size>{}</Size></Contents>",
        percent_encode(key, true), object.content.size());
    if (count == page) content += "<NextContinuationToken>" + escape_xml(key) + "</NextContinuationToken>";
  }
  content += fmt::format("<IsTruncated>{}</IsTruncated>", more);
  return said("ListBucketResult", content);
}

}  // namespace het::testing
