#include "core/cluster/http.h"

#include <algorithm>
#include <array>

#include <curl/curl.h>

#include "core/base/error.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What comes of a reply.
struct Received {
  std::string text;  // the body; of a stream, what is not taken yet
  size_t head_bytes = 0;
  size_t most = 0;  // bytes, of the head and of the text
  std::string etag;
};

size_t append(const char* data, size_t size, size_t count, void* into) {
  auto& received = *static_cast<Received*>(into);
  if (received.text.size() + size * count > received.most) return 0;  // fails the transfer
  received.text.append(data, size * count);
  return size * count;
}

// A line of the head, with its end of line.
size_t take_header(const char* data, size_t size, size_t count, void* into) {
  auto& received = *static_cast<Received*>(into);
  received.head_bytes += size * count;
  if (received.head_bytes > received.most) return 0;
  const std::string_view line(data, size * count);
  constexpr std::string_view kName = "etag:";
  if (line.size() > kName.size() && ::curl_strnequal(data, kName.data(), kName.size())) {
    const size_t from = line.find_first_not_of(" \t", kName.size());
    const size_t last = line.find_last_not_of(" \t\r\n");
    received.etag = from <= last ? line.substr(from, last - from + 1) : "";
  }
  return size * count;
}

struct Headers {
  curl_slist* list = nullptr;
  ~Headers() { ::curl_slist_free_all(list); }
};

void set_up(CURL* curl, const HttpOptions& options, const HttpRequest& request, Headers& headers,
            Received& into, std::array<char, CURL_ERROR_SIZE>& problem) {
  ::curl_easy_reset(curl);  // keeps the connections
  problem[0] = 0;
  ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  ::curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  if (request.method != "GET") {
    ::curl_easy_setopt(curl, CURLOPT_POST, 1L);
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
    if (request.method != "POST") ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  into.most = request.reply_bytes;
  headers.list =
      ::curl_slist_append(nullptr, request.body.empty() ? "Content-Type:" : "Content-Type: application/json");
  headers.list = ::curl_slist_append(headers.list, "Expect:");  // no round trip to ask before a large body
  for (const std::string& header : request.headers)
    headers.list = ::curl_slist_append(headers.list, header.c_str());
  ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list);
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &into);
  ::curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  ::curl_easy_setopt(curl, CURLOPT_HEADERDATA, &into);
  ::curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, problem.data());
  ::curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
  ::curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
  ::curl_easy_setopt(curl, CURLOPT_TCP_KEEPIDLE, 5L);
  ::curl_easy_setopt(curl, CURLOPT_TCP_KEEPINTVL, 2L);
  if (request.once) ::curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
  if (!options.source.empty()) ::curl_easy_setopt(curl, CURLOPT_INTERFACE, options.source.c_str());
  if (!options.ca_file.empty()) ::curl_easy_setopt(curl, CURLOPT_CAINFO, options.ca_file.c_str());
  if (!options.certificate_file.empty())
    ::curl_easy_setopt(curl, CURLOPT_SSLCERT, options.certificate_file.c_str());
  if (!options.key_file.empty()) ::curl_easy_setopt(curl, CURLOPT_SSLKEY, options.key_file.c_str());
}

bool never_sent(CURLcode code) {
  return code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
         code == CURLE_SSL_CONNECT_ERROR || code == CURLE_PEER_FAILED_VERIFICATION ||
         code == CURLE_INTERFACE_FAILED || code == CURLE_URL_MALFORMAT;
}

std::string problem_of(CURLcode code, const std::array<char, CURL_ERROR_SIZE>& problem) {
  return problem[0] ? problem.data() : ::curl_easy_strerror(code);
}

void set_timeouts(CURL* curl, const HttpRequest& request) {
  ::curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, std::max<long>(1, request.timeout.count()));
  ::curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     std::max<long>(1, std::min(request.timeout, request.connect_timeout).count()));
}

// What became of a transfer that has ended.
HttpReply reply_of(CURL* curl, CURLcode code, const HttpRequest& request, Received received,
                   const std::array<char, CURL_ERROR_SIZE>& problem) {
  HttpReply reply;
  if (code == CURLE_OK) {
    ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
    reply.body = std::move(received.text);
    reply.etag = std::move(received.etag);
    return reply;
  }
  curl_off_t connected = 0;
  ::curl_easy_getinfo(curl, CURLINFO_CONNECT_TIME_T, &connected);
  const bool late = code == CURLE_OPERATION_TIMEDOUT;
  reply.sent = !never_sent(code) && !(late && connected == 0);
  reply.problem =
      late ? fmt::format("no response within {} ms", request.timeout.count()) : problem_of(code, problem);
  return reply;
}

}  // namespace

struct HttpClient::Handle {
  Handle() : curl(::curl_easy_init()) {
    if (!curl) fail_environment("libcurl could not be set up");
  }
  ~Handle() { ::curl_easy_cleanup(curl); }
  CURL* curl;
};

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)) {}
HttpClient::~HttpClient() = default;

std::unique_ptr<HttpClient::Handle> HttpClient::take() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Handle>();
  auto handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

HttpReply HttpClient::post(const HttpRequest& request) {
  auto handle = take();
  Received received;
  Headers headers;
  std::array<char, CURL_ERROR_SIZE> problem{};
  set_up(handle->curl, options_, request, headers, received, problem);
  set_timeouts(handle->curl, request);
  const CURLcode code = ::curl_easy_perform(handle->curl);
  HttpReply reply = reply_of(handle->curl, code, request, std::move(received), problem);
  if (code != CURLE_OK) return reply;  // and the handle goes, with its connections
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
  return reply;
}

struct HttpSession::State {
  State() : multi(::curl_multi_init()), curl(::curl_easy_init()) {
    if (!multi || !curl) fail_environment("libcurl could not be set up");
  }
  ~State() {
    ::curl_easy_cleanup(curl);
    ::curl_multi_cleanup(multi);
  }

  CURLM* multi;
  CURL* curl;
};

HttpSession::HttpSession(HttpOptions options)
    : state_(std::make_unique<State>()), options_(std::move(options)) {}
HttpSession::~HttpSession() = default;

HttpReply HttpSession::send(const HttpRequest& request) {
  State& s = *state_;
  Received received;
  Headers headers;
  std::array<char, CURL_ERROR_SIZE> problem{};
  set_up(s.curl, options_, request, headers, received, problem);
  set_timeouts(s.curl, request);
  if (::curl_multi_add_handle(s.multi, s.curl) != CURLM_OK) fail_environment("libcurl could not be set up");
  CURLcode code = CURLE_ABORTED_BY_CALLBACK;
  while (!ended_) {
    int running = 0, queued = 0;
    if (::curl_multi_perform(s.multi, &running) != CURLM_OK) break;
    if (const CURLMsg* message = ::curl_multi_info_read(s.multi, &queued)) {
      code = message->data.result;
      break;
    }
    constexpr int kLongest = 1'000'000;  // libcurl's timers end it earlier
    ::curl_multi_poll(s.multi, nullptr, 0, kLongest, nullptr);
  }
  ::curl_multi_remove_handle(s.multi, s.curl);  // closes the connection of a transfer that has not ended
  HttpReply reply = reply_of(s.curl, code, request, std::move(received), problem);
  ::curl_easy_reset(s.curl);  // it knows addresses on this stack
  return reply;
}

void HttpSession::end() {
  ended_ = true;
  ::curl_multi_wakeup(state_->multi);
}

struct HttpStream::State {
  State() : multi(::curl_multi_init()), curl(::curl_easy_init()) {
    if (!multi || !curl) fail_environment("libcurl could not be set up");
  }
  ~State() {
    if (added) ::curl_multi_remove_handle(multi, curl);
    ::curl_easy_cleanup(curl);
    ::curl_multi_cleanup(multi);
  }

  CURLM* multi;
  CURL* curl;
  bool added = false;
  HttpRequest request;  // libcurl reads its body while it sends
  Headers headers;
  std::array<char, CURL_ERROR_SIZE> problem{};
  Received received;
  size_t scanned = 0;  // of its text, without an end of line
};

HttpStream::HttpStream(const HttpOptions& options, const HttpRequest& request)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.request = request;
  set_up(s.curl, options, s.request, s.headers, s.received, s.problem);
  ::curl_easy_setopt(s.curl, CURLOPT_CONNECTTIMEOUT_MS, std::max<long>(1, request.timeout.count()));
  s.added = ::curl_multi_add_handle(s.multi, s.curl) == CURLM_OK;
  if (!s.added) fail_environment("libcurl could not be set up");
}
HttpStream::~HttpStream() = default;

std::optional<std::string> HttpStream::next_line(Clock::time_point deadline) {
  State& s = *state_;
  std::string& text = s.received.text;
  for (bool waited = false;; waited = true) {
    const size_t end = text.find('\n', s.scanned);
    if (end != text.npos) {
      std::string line = text.substr(0, end);
      text.erase(0, end + 1);
      s.scanned = 0;
      return line;
    }
    s.scanned = text.size();
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (waited && left.count() <= 0) return std::nullopt;
    int running = 0, queued = 0;
    if (::curl_multi_perform(s.multi, &running) != CURLM_OK) fail(ErrorKind::peer, "libcurl could not go on");
    if (text.size() > s.scanned) continue;
    if (const CURLMsg* message = ::curl_multi_info_read(s.multi, &queued); message && running == 0) {
      const CURLcode code = message->data.result;
      fail(ErrorKind::peer, "{}", code == CURLE_OK ? "the reply ended" : problem_of(code, s.problem));
    }
    int ready = 0;
    constexpr long kLongest = 1'000'000;
    ::curl_multi_poll(s.multi, nullptr, 0, static_cast<int>(std::clamp<long>(left.count(), 0, kLongest)),
                      &ready);
    if (ended_) return std::nullopt;
  }
}

void HttpStream::end() {
  ended_ = true;
  ::curl_multi_wakeup(state_->multi);
}

}  // namespace het
