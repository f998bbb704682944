#include "core/cluster/http.h"

#include <algorithm>
#include <array>

#include <curl/curl.h>

#include "core/base/error.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kReplyBytes = 256 << 20;  // at most, of a reply or of a line

size_t append(const char* data, size_t size, size_t count, void* into) {
  auto& text = *static_cast<std::string*>(into);
  if (text.size() + size * count > kReplyBytes) return 0;  // fails the transfer
  text.append(data, size * count);
  return size * count;
}

struct Headers {
  curl_slist* list = nullptr;
  ~Headers() { ::curl_slist_free_all(list); }
};

void set_up(CURL* curl, const HttpOptions& options, const HttpRequest& request, Headers& headers,
            std::string& into, std::array<char, CURL_ERROR_SIZE>& problem) {
  ::curl_easy_reset(curl);  // keeps the connections
  problem[0] = 0;
  ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  ::curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  ::curl_easy_setopt(curl, CURLOPT_POST, 1L);
  ::curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  ::curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
  headers.list = ::curl_slist_append(nullptr, "Content-Type: application/json");
  headers.list = ::curl_slist_append(headers.list, "Expect:");  // no round trip to ask before a large body
  for (const std::string& header : request.headers)
    headers.list = ::curl_slist_append(headers.list, header.c_str());
  ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list);
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &into);
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
  HttpReply reply;
  Headers headers;
  std::array<char, CURL_ERROR_SIZE> problem{};
  set_up(handle->curl, options_, request, headers, reply.body, problem);
  constexpr milliseconds kConnect{2000};
  ::curl_easy_setopt(handle->curl, CURLOPT_TIMEOUT_MS, std::max<long>(1, request.timeout.count()));
  ::curl_easy_setopt(handle->curl, CURLOPT_CONNECTTIMEOUT_MS,
                     std::max<long>(1, std::min(request.timeout, kConnect).count()));
  const CURLcode code = ::curl_easy_perform(handle->curl);
  if (code == CURLE_OK) {
    ::curl_easy_getinfo(handle->curl, CURLINFO_RESPONSE_CODE, &reply.status);
  } else {
    curl_off_t connected = 0;
    ::curl_easy_getinfo(handle->curl, CURLINFO_CONNECT_TIME_T, &connected);
    const bool late = code == CURLE_OPERATION_TIMEDOUT;
    reply.sent = !never_sent(code) && !(late && connected == 0);
    reply.problem =
        late ? fmt::format("no response within {} ms", request.timeout.count()) : problem_of(code, problem);
    return reply;  // and the handle goes, with its connections
  }
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
  return reply;
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
  std::string text;    // what came and is not taken yet
  size_t scanned = 0;  // of it, without an end of line
};

HttpStream::HttpStream(const HttpOptions& options, const HttpRequest& request)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.request = request;
  set_up(s.curl, options, s.request, s.headers, s.text, s.problem);
  ::curl_easy_setopt(s.curl, CURLOPT_CONNECTTIMEOUT_MS, std::max<long>(1, request.timeout.count()));
  s.added = ::curl_multi_add_handle(s.multi, s.curl) == CURLM_OK;
  if (!s.added) fail_environment("libcurl could not be set up");
}
HttpStream::~HttpStream() = default;

std::optional<std::string> HttpStream::next_line(Clock::time_point deadline) {
  State& s = *state_;
  for (bool waited = false;; waited = true) {
    const size_t end = s.text.find('\n', s.scanned);
    if (end != s.text.npos) {
      std::string line = s.text.substr(0, end);
      s.text.erase(0, end + 1);
      s.scanned = 0;
      return line;
    }
    s.scanned = s.text.size();
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (waited && left.count() <= 0) return std::nullopt;
    int running = 0, queued = 0;
    if (::curl_multi_perform(s.multi, &running) != CURLM_OK) fail(ErrorKind::peer, "libcurl could not go on");
    if (s.text.size() > s.scanned) continue;
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
