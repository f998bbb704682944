#include "snapshot/store/s3_client.h"

#include <array>
#include <condition_variable>
#include <ctime>
#include <random>
#include <utility>

#include "core/base/error.h"
#include "core/base/visible.h"
#include "core/net/proof.h"
#include "snapshot/store/xml.h"

namespace het {
namespace {

std::string date_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc)};
}

std::string without_scheme(const std::string& url) { return url.substr(url.find("://") + 3); }

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]");
}

std::optional<XmlElement> error_of(const WebReply& reply) {
  constexpr size_t kMostBytes = 64 << 10;  // of an error
  if (reply.text.size() > kMostBytes) return std::nullopt;
  auto root = parse_xml(reply.text);
  return root && root->name == "Error" ? std::move(root) : std::nullopt;
}

void replace_all(std::string& text, const std::string& what, std::string_view by) {
  if (what.empty()) return;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size())
    text.replace(at, what.size(), by);
}

}  // namespace

std::string error_code(const WebReply& reply) {
  const auto error = error_of(reply);
  return error ? error->text_of("Code") : "";
}

S3Client::S3Client(std::string bucket, const StoreAccess& access)
    : bucket_(std::move(bucket)),
      access_(access),
      site_(find_site(access.environment)),
      credentials_(find_credentials(access.environment)) {
  const bool in_path = !site_.endpoint.empty() || bucket_.find('.') != bucket_.npos;  // TLS: no dots in '*'
  if (site_.endpoint.empty()) {
    const std::string aws =
        fmt::format("s3.{}.amazonaws.com{}", site_.region, site_.region.starts_with("cn-") ? ".cn" : "");
    origin_ = "https://" + (in_path ? aws : bucket_ + "." + aws);
  } else {
    origin_ = site_.endpoint;
  }
  host_ = without_scheme(origin_);
  const std::string standard = origin_.starts_with("https:") ? ":443" : ":80";  // not named in the header
  if (host_.ends_with(standard)) host_.resize(host_.size() - standard.size());
  path_ = in_path ? "/" + bucket_ : "";
  web_ = std::make_unique<WebClient>(WebOptions{site_.ca_file, is_loopback(host_), access.stall});
}

std::string S3Client::name_of(const std::string& key) const {
  return "s3://" + bucket_ + (key.empty() ? "" : "/" + key);
}

Backoff S3Client::backoff() const {
  return {access_.first_wait, access_.longest_wait, std::random_device{}()};
}

void S3Client::wait(const S3Call& call, std::chrono::milliseconds time) const {
  const std::stop_token cancelled = call.options != nullptr ? call.options->cancelled : std::stop_token();
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, cancelled, time, [] { return false; });
  if (cancelled.stop_requested())
    fail(ErrorKind::peer, "{} of {} was cancelled", call.method, name_of(call.key));
}

bool S3Client::may_pass(const WebReply& reply) {
  if (reply.cancelled) return false;
  if (!reply.problem.empty()) return !reply.lasting;
  const long status = reply.status;
  if (status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504)
    return true;
  // Errors that may come with a status of 200, as from the end of an upload, or of 4xx.
  const std::string code = error_code(reply);
  return code == "InternalError" || code == "SlowDown" || code == "RequestTimeout" ||
         code == "ServiceUnavailable" || code == "OperationAborted" || code == "ConditionalRequestConflict";
}

WebReply S3Client::send_once(const S3Call& call) {
  WebReply reply = perform(call);
  return error_code(reply) == "ExpiredToken" && renew_credentials() ? perform(call) : reply;
}

WebReply S3Client::perform(const S3Call& call) {
  UnsignedRequest request;
  request.method = call.method;
  request.path = path_ + (call.key.empty() && !path_.empty() ? "" : "/" + percent_encode(call.key, true));
  request.query = call.query;
  request.headers = call.headers;
  request.headers["host"] = host_;
  request.content_sha256 =
      hex_of(sha256({reinterpret_cast<const char*>(call.body.data()), call.body.size()}));
  Credentials credentials;
  {
    std::lock_guard lock(mutex_);
    credentials = credentials_;
  }
  WebRequest web;
  web.method = call.method;
  web.url = origin_ + request.path;
  if (!call.query.empty()) web.url += "?" + encode_query(call.query);
  web.headers = sign(request, credentials, site_.region, date_now());
  web.body = call.body;
  web.into = call.into;
  web.progress = call.progress;
  if (call.options != nullptr) web.cancelled = call.options->cancelled;
  return web_->send(web);
}

WebReply S3Client::send(const S3Call& call) {
  Backoff waits = backoff();
  for (int tried = 1;; ++tried) {
    WebReply reply = send_once(call);
    if (!may_pass(reply)) {
      if (!reply.problem.empty()) refuse(call, reply, tried);
      return reply;
    }
    if (tried >= tries()) refuse(call, reply, tried);
    wait(call, waits.next(reply.retry_after));
  }
}

// Session tokens end; whoever made them writes new ones into the profile.
bool S3Client::renew_credentials() {
  const Credentials found = find_credentials(access_.environment);
  std::lock_guard lock(mutex_);
  return std::exchange(credentials_, found) != found;
}

std::string S3Client::without_secrets(std::string text) const {
  std::lock_guard lock(mutex_);
  replace_all(text, credentials_.secret_key, "(secret)");
  replace_all(text, credentials_.session_token, "(token)");
  return text;
}

void S3Client::refuse(const S3Call& call, const WebReply& reply, int tries) const {
  const std::string what = call.method + " of " + name_of(call.key);
  const std::string tried = tries > 1 ? fmt::format(" ({} tries)", tries) : "";
  if (reply.cancelled) fail(ErrorKind::peer, "{} was cancelled", what);
  if (!reply.problem.empty()) {
    const std::string at = reply.status == 0 ? "" : fmt::format(" in a reply with status {}", reply.status);
    fail(ErrorKind::peer, "{} failed{}: {}{}", what, at, without_secrets(visible(reply.problem)), tried);
  }
  std::string said = fmt::format("{} was answered with status {}", what, reply.status);
  if (const auto error = error_of(reply)) {
    constexpr size_t kMost = 300;
    said += fmt::format(", {}: {}", visible(error->text_of("Code").substr(0, kMost)),
                        visible(error->text_of("Message").substr(0, kMost)));
  }
  if (const std::string region = reply.header("x-amz-bucket-region");
      reply.status / 100 != 2 && !region.empty() && region != site_.region)
    said += fmt::format("; the bucket is in the region {}: set AWS_REGION", visible(region));
  const ErrorKind kind = may_pass(reply)                              ? ErrorKind::peer
                         : reply.status == 401 || reply.status == 403 ? ErrorKind::environment
                                                                      : ErrorKind::usage;
  throw Error(kind, without_secrets(said) + tried);
}

}  // namespace het
