#include "snapshot/store/web.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include <curl/curl.h>

#include "core/base/error.h"
#include "core/base/trimmed.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostText = 16 << 20;  // of a reply that is kept as text
constexpr size_t kMostHeaders = 64 << 10;

// What the callbacks of one transfer write to.
struct Receiving {
  std::span<std::byte> into;
  WebReply* reply = nullptr;
  size_t header_bytes = 0;
  const char* refused = nullptr;  // why the rest was not taken
};

size_t take_header(const char* data, size_t size, size_t count, void* to) {
  auto& receiving = *static_cast<Receiving*>(to);
  const std::string_view line(data, size * count);
  receiving.header_bytes += line.size();
  if (receiving.header_bytes > kMostHeaders) {
    receiving.refused = "the reply has too many headers";
    return 0;
  }
  if (line.starts_with("HTTP/")) {  // of the next reply, after one that only said to go on
    receiving.reply->headers.clear();
    const size_t space = line.find(' ');
    receiving.reply->status = space == line.npos ? 0 : std::strtol(line.data() + space, nullptr, 10);
  } else if (const size_t colon = line.find(':'); colon != line.npos) {
    std::string name(line.substr(0, colon));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    receiving.reply->headers[name] = trimmed(line.substr(colon + 1));
  }
  return line.size();
}

size_t take_body(const char* data, size_t size, size_t count, void* to) {
  auto& receiving = *static_cast<Receiving*>(to);
  WebReply& reply = *receiving.reply;
  const size_t bytes = size * count;
  if (reply.status / 100 == 2 && !receiving.into.empty()) {
    const auto have = static_cast<size_t>(reply.received);
    if (bytes > receiving.into.size() - have) {
      receiving.refused = "the reply has more bytes than were asked for";
      return 0;
    }
    std::memcpy(receiving.into.data() + have, data, bytes);
    reply.received += static_cast<int64_t>(bytes);
  } else if (reply.text.size() + bytes > kMostText) {
    receiving.refused = "the reply is longer than a reply may be";
    return 0;
  } else {
    reply.text.append(data, bytes);
  }
  return bytes;
}

struct HeaderList {
  curl_slist* list = nullptr;
  ~HeaderList() { ::curl_slist_free_all(list); }
  void add(const std::string& line) {
    curl_slist* longer = ::curl_slist_append(list, line.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    list = longer;
  }
};

bool is_lasting(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_URL_MALFORMAT ||
         code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_WRITE_ERROR;
}

}  // namespace

// An easy handle alone in a multi handle, which has the connections and can be polled.
struct WebClient::Handle {
  Handle() : multi(::curl_multi_init()), curl(::curl_easy_init()) {
    if (!multi || !curl) fail_environment("libcurl could not be set up");
  }
  ~Handle() {
    ::curl_easy_cleanup(curl);
    ::curl_multi_cleanup(multi);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void set_up(const WebRequest& request, const WebOptions& options, HeaderList& headers);
  void perform(const WebRequest& request, const WebOptions& options, Receiving& receiving);
  int64_t moved() const {
    curl_off_t up = 0, down = 0;
    ::curl_easy_getinfo(curl, CURLINFO_SIZE_UPLOAD_T, &up);
    ::curl_easy_getinfo(curl, CURLINFO_SIZE_DOWNLOAD_T, &down);
    return up + down;
  }

  CURLM* multi;
  CURL* curl;
  std::array<char, CURL_ERROR_SIZE> problem{};
};

void WebClient::Handle::set_up(const WebRequest& request, const WebOptions& options, HeaderList& headers) {
  constexpr long kBufferBytes = 512 << 10, kConnectMilliseconds = 10'000;
  ::curl_easy_reset(curl);
  problem[0] = 0;
  ::curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  ::curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  ::curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  if (options.direct) ::curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  ::curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  ::curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);  // as it was signed
  if (request.method == "GET") {
    ::curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
  } else if (request.method == "HEAD") {
    ::curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "DELETE") {
    ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, "DELETE");
  } else {
    ::curl_easy_setopt(curl, CURLOPT_POST, 1L);
    ::curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    ::curl_easy_setopt(curl, CURLOPT_POSTFIELDS, reinterpret_cast<const char*>(request.body.data()));
    headers.add("Content-Type: application/octet-stream");
  }
  headers.add("Expect:");  // no round trip to ask before a body
  for (const auto& [name, value] : request.headers) headers.add(name + ": " + value);
  ::curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.list);
  ::curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  ::curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
  ::curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, problem.data());
  ::curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  ::curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  ::curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                     std::clamp<long>(options.stall.count(), 1, kConnectMilliseconds));
  ::curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
  ::curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
  if (!options.ca_file.empty()) ::curl_easy_setopt(curl, CURLOPT_CAINFO, options.ca_file.c_str());
}

void WebClient::Handle::perform(const WebRequest& request, const WebOptions& options, Receiving& receiving) {
  WebReply& reply = *receiving.reply;
  ::curl_easy_setopt(curl, CURLOPT_HEADERDATA, &receiving);
  ::curl_easy_setopt(curl, CURLOPT_WRITEDATA, &receiving);
  if (::curl_multi_add_handle(multi, curl) != CURLM_OK) fail_environment("libcurl could not be set up");
  constexpr int kLookMilliseconds = 100;  // at `cancelled` and at the clock
  int64_t last = 0;
  Clock::time_point since = Clock::now();
  for (int running = 1; running != 0;) {
    int ignored = 0;
    if (::curl_multi_perform(multi, &running) != CURLM_OK) reply.problem = "libcurl could not go on";
    if (const int64_t now = moved(); now != last) {
      last = now;
      since = Clock::now();
      if (request.progress) request.progress(now);
    }
    if (request.cancelled.stop_requested() && running != 0) {
      reply.cancelled = true;
      reply.problem = "it was cancelled";
    } else if (running != 0 && Clock::now() - since > options.stall) {
      reply.problem = fmt::format("no byte was moved for {} ms", options.stall.count());
    }
    if (!reply.problem.empty()) break;
    if (running != 0) ::curl_multi_poll(multi, nullptr, 0, kLookMilliseconds, &ignored);
  }
  int queued = 0;
  const CURLMsg* message = ::curl_multi_info_read(multi, &queued);
  const CURLcode code = message != nullptr ? message->data.result : CURLE_OK;
  if (reply.problem.empty() && code != CURLE_OK) {
    reply.problem = receiving.refused != nullptr ? receiving.refused
                    : problem[0]                 ? problem.data()
                                                 : ::curl_easy_strerror(code);
    reply.lasting = is_lasting(code);
  }
  curl_off_t wait = 0;
  if (::curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait) == CURLE_OK && wait > 0)
    reply.retry_after = std::chrono::seconds(wait);
  ::curl_multi_remove_handle(multi, curl);
}

WebClient::WebClient(WebOptions options) : options_(std::move(options)) {}
WebClient::~WebClient() = default;

std::unique_ptr<WebClient::Handle> WebClient::take() {
  std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Handle>();
  auto handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

WebReply WebClient::send(const WebRequest& request) {
  auto handle = take();
  WebReply reply;
  HeaderList headers;
  Receiving receiving{request.into, &reply, 0, nullptr};
  handle->set_up(request, options_, headers);
  handle->perform(request, options_, receiving);
  if (!reply.problem.empty()) return reply;  // and the handle goes, with its connection
  std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
  return reply;
}

}  // namespace het
