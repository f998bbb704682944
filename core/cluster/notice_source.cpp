#include "core/cluster/notice_source.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/trimmed.h"
#include "core/base/wall_time.h"
#include "core/io/json.h"

namespace het {
namespace {

using std::chrono::milliseconds;

constexpr size_t kReplyBytes = 64 << 10;

HttpRequest request_of(std::string method, std::string url, std::vector<std::string> headers,
                       const NoticeTimes& times) {
  HttpRequest request;
  request.method = std::move(method);
  request.url = std::move(url);
  request.headers = std::move(headers);
  request.timeout = times.timeout;
  request.connect_timeout = times.connect;
  request.reply_bytes = kReplyBytes;
  return request;
}

// Whether a text of the service can go into a header, a URL or a message as it is.
bool is_plain(std::string_view text) {
  constexpr size_t kLongest = 1024;
  constexpr std::string_view kOther = "-._~+/=:";
  return !text.empty() && text.size() <= kLongest && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOther.find(c) != kOther.npos;
  });
}

bool is_same_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::optional<Json> json_of(const std::string& text) {
  try {
    return parse_json(text, "the metadata service's reply");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Sets the time that is left, and names it. One that is further away than the cloud ever says is not
// believed: the clocks of the cloud and of this machine disagree.
void set_time(Notice& notice, const std::string* time, double longest_seconds) {
  constexpr double kClocksDiffer = 5;
  const std::optional<int64_t> moment = time ? parse_utc(*time) : std::nullopt;
  if (!moment) return;
  notice.detail += fmt::format(" at {}", *time);
  const double seconds = seconds_until(*moment);
  if (seconds <= longest_seconds + kClocksDiffer) notice.seconds_left = std::max(0.0, seconds);
}

// AWS: Instance Metadata Service, version 2. Each request needs a token; it lapses.
class AwsSource final : public NoticeSource {
 public:
  AwsSource(std::string metadata, const NoticeTimes& times) : base_(std::move(metadata)), times_(times) {}

  HttpRequest probe() const override {
    return request_of("PUT", base_ + "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds: 21600"},
                      times_);
  }
  bool recognises(const HttpReply& reply) override {
    const std::string_view token = trimmed(reply.body);
    token_ = reply.status == 200 && is_plain(token) ? token : "";
    return !token_.empty();
  }
  milliseconds interval() const override { return times_.aws_poll; }

  NoticePoll poll(HttpSession& session) override {
    const HttpReply action = get(session, "/latest/meta-data/spot/instance-action");
    if (action.status == 200) return read_action(action.body);
    if (action.status != 404) return {};
    NoticePoll result;
    result.answered = true;
    // Without it no more is lost than an early hint.
    const HttpReply hint = get(session, "/latest/meta-data/events/recommendations/rebalance");
    if (hint.status == 200) result.notice = read_rebalance(hint.body);
    return result;
  }

 private:
  HttpReply get(HttpSession& session, const std::string& path) {
    for (bool renewed = false;; renewed = true) {
      if (token_.empty() && !recognises(session.send(probe()))) return {};
      HttpReply reply =
          session.send(request_of("GET", base_ + path, {"X-aws-ec2-metadata-token: " + token_}, times_));
      if (reply.status != 401) return reply;
      token_.clear();
      if (renewed) return reply;
    }
  }

  static NoticePoll read_action(const std::string& body) {
    constexpr double kLongest = 120;
    const std::optional<Json> json = json_of(body);
    if (!json) return {};
    const std::string* action = as_string(find_member(*json, "action"));
    if (!action || (*action != "terminate" && *action != "stop" && *action != "hibernate")) return {};
    NoticePoll result;
    result.answered = true;
    result.notice = Notice{Notice::Kind::terminate, "AWS", std::nullopt, *action};
    set_time(*result.notice, as_string(find_member(*json, "time")), kLongest);
    return result;
  }
  static std::optional<Notice> read_rebalance(const std::string& body) {
    const std::optional<Json> json = json_of(body);
    const std::string* since = json ? as_string(find_member(*json, "noticeTime")) : nullptr;
    if (!since) return std::nullopt;
    Notice notice{Notice::Kind::rebalance, "AWS", std::nullopt, "rebalance recommended"};
    if (parse_utc(*since)) notice.detail += " at " + *since;
    return notice;
  }

  std::string base_;
  NoticeTimes times_;
  std::string token_;
};

// Google Cloud: a value of TRUE or FALSE. A request waits until the value is another than the one with the
// tag that it names, so that no change between two requests is missed.
class GcpSource final : public NoticeSource {
 public:
  GcpSource(std::string metadata, const NoticeTimes& times)
      : url_(std::move(metadata) + "/computeMetadata/v1/instance/preempted"), times_(times) {}

  HttpRequest probe() const override { return get(url_); }
  bool recognises(const HttpReply& reply) override { return value_of(reply).has_value(); }
  milliseconds interval() const override { return times_.gcp_poll; }

  NoticePoll poll(HttpSession& session) override {
    const bool waits = known_;  // a value that is there before the first request is no change
    HttpRequest request = get(url_);
    if (waits) {
      const auto seconds = std::chrono::ceil<std::chrono::seconds>(times_.gcp_wait);
      request.url += fmt::format("?wait_for_change=true&timeout_sec={}", seconds.count());
      if (!tag_.empty()) request.url += "&last_etag=" + tag_;
      request.timeout += seconds;
    }
    const auto asked = std::chrono::steady_clock::now();
    const HttpReply reply = session.send(request);
    const std::optional<bool> preempted = value_of(reply);
    known_ = preempted.has_value();
    tag_ = known_ && std::all_of(reply.etag.begin(), reply.etag.end(), is_tag) ? reply.etag : "";
    NoticePoll result;
    result.answered = known_;
    result.waited = !waits || std::chrono::steady_clock::now() - asked >= times_.gcp_wait / 2;
    if (preempted == true)
      result.notice = Notice{Notice::Kind::terminate, "GCP", std::nullopt, "preempted, within 30 s"};
    return result;
  }

 private:
  static bool is_tag(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }
  HttpRequest get(const std::string& url) const {
    return request_of("GET", url, {"Metadata-Flavor: Google"}, times_);
  }
  static std::optional<bool> value_of(const HttpReply& reply) {
    const std::string_view value = trimmed(reply.body);
    if (reply.status != 200 || (value != "TRUE" && value != "FALSE")) return std::nullopt;
    return value == "TRUE";
  }

  std::string url_;
  NoticeTimes times_;
  bool known_ = false;  // the last request was answered
  std::string tag_;     // of the value, then
};

// Azure: scheduled events, of this machine and of others of its set.
class AzureSource final : public NoticeSource {
 public:
  AzureSource(std::string metadata, const NoticeTimes& times)
      : base_(std::move(metadata)), times_(times), timeout_(times.timeout) {}

  HttpRequest probe() const override {
    return request_of("GET", base_ + "/metadata/instance/compute/name?api-version=2020-06-01&format=text",
                      {"Metadata: true"}, times_);
  }
  bool recognises(const HttpReply& reply) override {
    const std::string_view name = trimmed(reply.body);
    name_ = reply.status == 200 && is_plain(name) ? name : "";
    return !name_.empty();
  }
  milliseconds interval() const override { return times_.azure_poll; }

  NoticePoll poll(HttpSession& session) override {
    if (name_.empty() && !recognises(session.send(probe()))) return {};
    HttpRequest request = events("GET");
    request.timeout = timeout_;
    const HttpReply reply = session.send(request);
    // The first request turns the service on, which can take two minutes.
    constexpr milliseconds kSlowest{125'000};
    timeout_ = reply.status ? times_.timeout : std::min(2 * timeout_, std::max(kSlowest, times_.timeout));
    const std::optional<Json> json = reply.status == 200 ? json_of(reply.body) : std::nullopt;
    const Json::array_t* list = json ? as_array(find_member(*json, "Events")) : nullptr;
    if (!list) return {};
    NoticePoll result;
    result.answered = true;
    const auto event = std::find_if(list->begin(), list->end(), [&](const Json& e) { return takes(e); });
    if (event != list->end()) read_event(*event, result);
    return result;
  }

 private:
  HttpRequest events(const char* method) const {
    return request_of(method, base_ + "/metadata/scheduledevents?api-version=2020-07-01", {"Metadata: true"},
                      times_);
  }
  // Whether the event takes this machine.
  bool takes(const Json& event) const {
    const std::string* type = as_string(find_member(event, "EventType"));
    const Json::array_t* resources = as_array(find_member(event, "Resources"));
    return type && *type == "Preempt" && resources &&
           std::any_of(resources->begin(), resources->end(), [&](const Json& resource) {
             const std::string* name = as_string(resource);
             return name && is_same_name(*name, name_);
           });
  }
  void read_event(const Json& event, NoticePoll& result) const {
    constexpr double kLongest = 15 * 60;
    result.notice = Notice{Notice::Kind::terminate, "Azure", std::nullopt, "preempted"};
    set_time(*result.notice, as_string(find_member(event, "NotBefore")), kLongest);
    const std::string* id = as_string(find_member(event, "EventId"));
    if (!id || !is_plain(*id)) return;
    result.acknowledgement = events("POST");
    result.acknowledgement->body =
        dump(Json::object_t{{"StartRequests", Json::array_t{Json::object_t{{"EventId", *id}}}}});
  }

  std::string base_;
  NoticeTimes times_;
  milliseconds timeout_;  // of the next request for events
  std::string name_;      // of this machine
};

}  // namespace

std::unique_ptr<NoticeSource> make_notice_source(Cloud cloud, const std::string& metadata,
                                                 const NoticeTimes& times) {
  switch (cloud) {
    case Cloud::aws: return std::make_unique<AwsSource>(metadata, times);
    case Cloud::gcp: return std::make_unique<GcpSource>(metadata, times);
    case Cloud::azure: return std::make_unique<AzureSource>(metadata, times);
    case Cloud::detect:
    case Cloud::none: break;
  }
  HET_REQUIRE(false, static_cast<int>(cloud));
  return nullptr;
}

}  // namespace het
