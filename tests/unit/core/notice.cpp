#include "core/cluster/notice.h"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <ctime>
#include <map>

#include "core/base/error.h"
#include "core/net/socket.h"
#include "tests/unit/core/cluster_testing.h"
#include "tests/unit/core/metadata_server.h"

using namespace het;
using namespace het::testing;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;

namespace {

constexpr const char* kToken = "/latest/api/token";
constexpr const char* kAction = "/latest/meta-data/spot/instance-action";
constexpr const char* kRebalance = "/latest/meta-data/events/recommendations/rebalance";
constexpr const char* kPreempted = "/computeMetadata/v1/instance/preempted";
constexpr const char* kEvents = "/metadata/scheduledevents?api-version=2020-07-01";
constexpr const char* kName = "/metadata/instance/compute/name?api-version=2020-06-01&format=text";

using Kind = Notice::Kind;

// "2017-09-18T08:22:00Z", that many seconds from now.
std::string utc_in(int seconds) {
  const std::time_t then = std::time(nullptr) + seconds;
  std::tm parts{};
  ::gmtime_r(&then, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string action_at(const std::string& action, const std::string& time) {
  return fmt::format(R"({{"action": "{}", "time": "{}"}})", action, time);
}

std::string azure_events(const std::string& type, const std::string& resource, const std::string& id) {
  return fmt::format(
      R"({{"DocumentIncarnation": 2, "Events": [{{"EventId": "{}", "EventType": "{}", "ResourceType":
      "VirtualMachine", "Resources": ["{}"], "EventStatus": "Scheduled", "NotBefore":
      "Mon, 18 Sep 2017 08:22:00 GMT"}}]}})",
      id, type, resource);
}

// Of a cloud that works: as any of the three answers when no notice is there, and 404 to the others'
// requests.
std::optional<std::string> quiet(Cloud cloud, const MetadataRequest& request) {
  if (cloud == Cloud::aws && request.method == "PUT" && request.target == kToken)
    return http_reply(200, "token");
  if (cloud == Cloud::gcp && request.target.starts_with(kPreempted)) return http_reply(200, "FALSE\n");
  if (cloud == Cloud::azure && request.target == kName) return http_reply(200, "vm-1");
  if (cloud == Cloud::azure && request.target == kEvents)
    return http_reply(200, R"({"DocumentIncarnation": 1, "Events": []})");
  return http_reply(404, "<html>not found</html>");
}

// Collects what a watch reports.
struct Heard {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Notice> notices;

  std::function<void(const Notice&)> callback() {
    return [this](const Notice& notice) {
      std::lock_guard lock(mutex);
      notices.push_back(notice);
      changed.notify_all();
    };
  }
  // All of them, once there are so many, or the test has hung.
  std::vector<Notice> wait(size_t count) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, kStoreHung, [&] { return notices.size() >= count; });
    return notices;
  }
};

// Polls at once; what waits, waits for longer than any test.
NoticeOptions options_of(const MetadataServer& server, Cloud cloud, Heard& heard) {
  NoticeOptions options;
  options.cloud = cloud;
  options.metadata = server.url();
  options.on_notice = heard.callback();
  options.times.aws_poll = options.times.azure_poll = options.times.gcp_poll = options.times.detect =
      milliseconds(1);
  options.times.timeout = 60 * kStoreHung;
  options.times.connect = kStoreHung;
  options.times.gcp_wait = 60 * kStoreHung;
  return options;
}

template <typename Body>
std::string sentence_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.what());
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("AWS gives a notice of 120 s or less, over tokens that lapse", "[notice]") {
  std::atomic<int> tokens = 0, polls = 0;
  const MetadataServer server([&](const MetadataRequest& request) -> std::optional<std::string> {
    if (request.method == "PUT" && request.target == kToken) {
      if (!request.has("X-aws-ec2-metadata-token-ttl-seconds: 21600")) return http_reply(400);
      if (!request.has("Content-Length: 0")) return http_reply(411);
      return http_reply(200, fmt::format("token-{}==", ++tokens));
    }
    if (!request.has(fmt::format("X-aws-ec2-metadata-token: token-{}==", tokens))) return http_reply(401);
    if (request.target != kAction) return http_reply(404);
    ++polls;
    if (polls == 3) return http_reply(401);  // the token has lapsed
    if (polls < 6) return http_reply(404, "<?xml version=\"1.0\"?>");
    return http_reply(200, action_at("terminate", utc_in(100)));
  });
  Heard heard;
  const NoticeWatch watch(options_of(server, Cloud::aws, heard));
  REQUIRE(heard.wait(1).size() == 1);
  const Notice notice = watch.notice().value();
  CHECK(notice.kind == Kind::terminate);
  CHECK(notice.source == "AWS");
  CHECK_THAT(notice.detail, StartsWith("terminate at 20"));
  CHECK(notice.seconds_left.value() <= 100);
  CHECK(notice.seconds_left.value() > 0);
  CHECK(tokens == 2);
  CHECK(server.seen().count(std::string("GET ") + kAction) == 6);
}

TEST_CASE("AWS recommends a rebalance before it terminates", "[notice]") {
  std::atomic<bool> terminates = false;
  const MetadataServer server([&](const MetadataRequest& request) -> std::optional<std::string> {
    if (request.target == kRebalance) return http_reply(200, R"({"noticeTime": "2020-10-27T08:22:00Z"})");
    if (request.target == kAction && terminates)
      return http_reply(200, action_at("stop", "2017-09-18T08:22:00Z"));
    return quiet(Cloud::aws, request);
  });
  Heard heard;
  const NoticeWatch watch(options_of(server, Cloud::aws, heard));
  REQUIRE(heard.wait(1).size() == 1);
  CHECK(watch.notice() ==
        Notice{Kind::rebalance, "AWS", std::nullopt, "rebalance recommended at 2020-10-27T08:22:00Z"});
  terminates = true;
  REQUIRE(heard.wait(2).size() == 2);  // the recommendation, which stands, was reported once
  CHECK(watch.notice() == Notice{Kind::terminate, "AWS", 0.0, "stop at 2017-09-18T08:22:00Z"});
}

TEST_CASE("AWS's time is believed only where it can be right", "[notice]") {
  const std::map<std::string, std::optional<double>> cases = {{R"("2017-09-18T08:22:00Z")", 0.0},
                                                              {R"("9999-09-18T08:22:00Z")", std::nullopt},
                                                              {'"' + utc_in(3600) + '"', std::nullopt},
                                                              {R"("soon")", std::nullopt},
                                                              {R"("2017-02-30T08:22:00Z")", std::nullopt},
                                                              {"17", std::nullopt},
                                                              {"null", std::nullopt},
                                                              {R"("\u001b[2J")", std::nullopt}};
  for (const auto& [time, seconds] : cases) {
    CAPTURE(time);
    const MetadataServer server([&, time = time](const MetadataRequest& request) {
      if (request.target != kAction) return quiet(Cloud::aws, request);
      return std::optional(http_reply(200, fmt::format(R"({{"action":"terminate","time":{}}})", time)));
    });
    Heard heard;
    const NoticeWatch watch(options_of(server, Cloud::aws, heard));
    REQUIRE(heard.wait(1).size() == 1);
    CHECK(heard.notices[0].seconds_left == seconds);
    CHECK(heard.notices[0].detail.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("a preemption of GCP ends the request that waits for it", "[notice]") {
  MetadataServer server([](const MetadataRequest& request) -> std::optional<std::string> {
    if (!request.has("Metadata-Flavor: Google")) return http_reply(403);
    if (request.target == kPreempted) return http_reply(200, "FALSE", "ETag: 5f3a\r\n");
    return std::nullopt;
  });
  Heard heard;
  NoticeOptions options = options_of(server, Cloud::gcp, heard);
  options.times.gcp_wait = milliseconds(3'600'000);
  const NoticeWatch watch(options);
  REQUIRE(server.wait([](const auto& seen) { return seen.waiting == 1; }));
  CHECK_FALSE(watch.notice());
  CHECK(server.seen().requests.back() ==
        fmt::format("GET {}?wait_for_change=true&timeout_sec=3600&last_etag=5f3a", kPreempted));
  server.release(http_reply(200, "TRUE\n"));
  REQUIRE(heard.wait(1).size() == 1);
  CHECK(watch.notice() == Notice{Kind::terminate, "GCP", std::nullopt, "preempted, within 30 s"});
}

TEST_CASE("a machine of GCP that is preempted already is known at once", "[notice]") {
  const MetadataServer server([](const MetadataRequest&) { return http_reply(200, "TRUE"); });
  Heard heard;
  const NoticeWatch watch(options_of(server, Cloud::gcp, heard));
  REQUIRE(heard.wait(1).size() == 1);
  CHECK(server.seen().requests == std::vector<std::string>{fmt::format("GET {}", kPreempted)});
}

TEST_CASE("a service that does not wait as GCP does is polled", "[notice]") {
  std::atomic<int> polls = 0;
  const MetadataServer server([&](const MetadataRequest&) {
    return http_reply(200, ++polls < 5 ? "FALSE" : "TRUE", "ETag: x&timeout_sec=0\r\n");
  });
  Heard heard;
  const NoticeWatch watch(options_of(server, Cloud::gcp, heard));
  REQUIRE(heard.wait(1).size() == 1);
  for (const std::string& request : server.seen().requests) CHECK_THAT(request, !Contains("last_etag"));
}

TEST_CASE("Azure's events count for this machine, which acknowledges when it is ready", "[notice]") {
  std::atomic<int> polls = 0, acknowledged = 0;
  const MetadataServer server([&](const MetadataRequest& request) -> std::optional<std::string> {
    if (!request.has("Metadata: true")) return http_reply(400);
    if (request.target != kEvents) return quiet(Cloud::azure, request);
    if (request.method == "POST") {
      if (request.body == R"({"StartRequests":[{"EventId":"A1-ours"}]})") ++acknowledged;
      return http_reply(200);
    }
    if (++polls == 1) return http_reply(200, azure_events("Preempt", "vm-2", "A1-other"));
    if (polls == 2) return http_reply(200, azure_events("Freeze", "vm-1", "A1-freeze"));
    return http_reply(200, azure_events("Preempt", "VM-1", "A1-ours"));
  });
  Heard heard;
  NoticeWatch watch(options_of(server, Cloud::azure, heard));
  REQUIRE(heard.wait(1).size() == 1);
  CHECK(watch.notice() ==
        Notice{Kind::terminate, "Azure", 0.0, "preempted at Mon, 18 Sep 2017 08:22:00 GMT"});
  CHECK(polls == 3);
  CHECK(acknowledged == 0);
  CHECK(watch.acknowledge());
  CHECK(acknowledged == 1);
}

TEST_CASE("without an event there is nothing to acknowledge", "[notice]") {
  const MetadataServer server([](const MetadataRequest& request) { return quiet(Cloud::azure, request); });
  Heard heard;
  NoticeWatch watch(options_of(server, Cloud::azure, heard));
  REQUIRE(server.wait([](const auto& seen) { return seen.requests.size() > 2; }));
  CHECK_FALSE(watch.acknowledge());
  CHECK(server.seen().count(std::string("POST ") + kEvents) == 0);
}

TEST_CASE("the cloud is detected by its replies", "[notice]") {
  const std::map<Cloud, std::string> polled = {
      {Cloud::aws, fmt::format("GET {}", kAction)},
      {Cloud::gcp, fmt::format("GET {}?wait_for_change=true&timeout_sec=3600", kPreempted)},
      {Cloud::azure, fmt::format("GET {}", kEvents)}};
  for (const auto& [cloud, request] : polled) {
    CAPTURE(request);
    std::atomic<int> requests = 0;
    const MetadataServer server([&, cloud = cloud](const MetadataRequest& asked) {
      // A service that is busy when it is first asked is asked again.
      return ++requests <= 3 ? std::optional(http_reply(503)) : quiet(cloud, asked);
    });
    Heard heard;
    const NoticeWatch watch(options_of(server, Cloud::detect, heard));
    CHECK(server.wait([&, request = request](const auto& seen) { return seen.count(request) > 0; }));
  }
}

TEST_CASE("a service of no known cloud is left alone", "[notice]") {
  const MetadataServer server([](const MetadataRequest& request) { return quiet(Cloud::none, request); });
  Heard heard;
  const NoticeWatch watch(options_of(server, Cloud::detect, heard));
  REQUIRE(server.wait([](const auto& seen) { return seen.requests.size() >= 3 && !seen.connections; }));
  CHECK(server.seen().requests == std::vector<std::string>{fmt::format("PUT {}", kToken),
                                                           fmt::format("GET {}", kPreempted),
                                                           fmt::format("GET {}", kName)});
}

TEST_CASE("a service at a stated address may start late, and again", "[notice]") {
  Endpoint at{"127.0.0.1", 0};
  { const Descriptor listener = listen_at(at); }
  Heard heard;
  NoticeOptions options;
  options.metadata = "http://" + to_string(at) + "/";
  options.on_notice = heard.callback();
  options.times.detect = options.times.gcp_poll = milliseconds(1);
  const NoticeWatch watch(options);
  constexpr int kStarts = 10, kRefused = 300;  // for so long that the watch is refused, too, now and then
  for (int i = 0; i < kStarts; ++i) {
    for (int k = 0; k < kRefused; ++k) CHECK_THROWS_AS(connect_to(at, "", Deadline::max()), Error);
    const MetadataServer busy([](const MetadataRequest&) { return http_reply(503); }, at.port);
    REQUIRE(busy.wait([](const auto& seen) { return seen.requests.size() >= 3; }));
  }
  const MetadataServer server(
      [](const MetadataRequest& request) {
        return request.target == kPreempted ? http_reply(200, "TRUE") : http_reply(404);
      },
      at.port);
  CHECK(heard.wait(1).size() == 1);
}

TEST_CASE("whatever a metadata service sends, a notice after it is found", "[notice]") {
  const std::string wrong = action_at("stop", "2017-09-18T08:22:00Z");
  const std::string large(size_t{65} << 10, ' ');
  std::vector<std::optional<std::string>> replies = {
      "",
      "nonsense\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"action\": \"stop\"",
      http_reply(500, wrong),
      http_reply(503),
      http_reply(429),
      http_reply(204),
      http_reply(302, wrong, "Location: /trap\r\n"),
      http_reply(307, wrong, "Location: /trap\r\n"),
      http_reply(200, wrong + large),
      http_reply(200, wrong, "X: " + large + "\r\n"),
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + wrong,
      std::nullopt,
  };
  for (const char* body : {"", "{", "[]", "null", "17", "\"terminate\"", "TRUE", "{\"action\": null}",
                           "{\"action\": [\"stop\"]}", "{\"action\": \"dance\"}",
                           "{\"action\": \"stop\", \"action\": \"terminate\"}", "\xff\xfe", "{\"Events\": 1}",
                           "{\"Events\": [1, null, {}, {\"EventType\": \"Preempt\"}]}",
                           "{\"Events\": [{\"EventType\": \"Preempt\", \"Resources\": [1, {}, null]}]}",
                           "{\"Events\": [{\"EventType\": [], \"Resources\": [\"vm-1\"]}]}"})
    replies.push_back(http_reply(200, body));
  replies.push_back(http_reply(200, std::string(60'000, '[')));

  struct Case {
    Cloud cloud;
    const char* polled;
    std::string good;
    std::string source;
  };
  const std::vector<Case> cases = {
      {Cloud::aws, kAction, action_at("terminate", "2017-09-18T08:22:00Z"), "AWS"},
      {Cloud::gcp, kPreempted, "TRUE", "GCP"},
      {Cloud::azure, kEvents, azure_events("Preempt", "vm-1", "\\u001b[2J\\n\\\""), "Azure"}};
  for (const Case& c : cases)
    for (size_t i = 0; i < replies.size(); ++i) {
      CAPTURE(c.source, i);
      if (c.cloud == Cloud::gcp && replies[i] == http_reply(200, "TRUE")) continue;
      std::atomic<int> polls = 0, trapped = 0;
      const MetadataServer server([&](const MetadataRequest& request) -> std::optional<std::string> {
        if (request.target == "/trap") ++trapped;
        if (!request.target.starts_with(c.polled)) return quiet(c.cloud, request);
        return ++polls == 1 ? replies[i] : http_reply(200, c.good);
      });
      Heard heard;
      NoticeOptions options = options_of(server, c.cloud, heard);
      options.times.timeout = milliseconds(100);  // some replies have no end
      const NoticeWatch watch(options);
      const std::vector<Notice> notices = heard.wait(1);
      REQUIRE(notices.size() == 1);
      CHECK(notices[0].source == c.source);
      CHECK(notices[0].kind == Kind::terminate);
      CHECK_THAT(notices[0].detail, !Contains("stop") && !Contains("\x1b"));
      CHECK(polls >= 2);
      CHECK(trapped == 0);
    }
}

TEST_CASE("a token that could not be a header is not sent", "[notice]") {
  std::atomic<int> tokens = 0;
  const MetadataServer server([&](const MetadataRequest& request) -> std::optional<std::string> {
    if (request.method == "PUT") {
      ++tokens;
      if (tokens == 1) return http_reply(200, "token\r\nX-Injected: yes");
      if (tokens == 2) return http_reply(200, std::string(2000, 'x'));
      return http_reply(200, "token");
    }
    if (!request.has("X-aws-ec2-metadata-token: token") || request.has("X-Injected: yes"))
      return http_reply(401);
    return http_reply(200, action_at("hibernate", "2017-09-18T08:22:00Z"));
  });
  Heard heard;
  const NoticeWatch watch(options_of(server, Cloud::aws, heard));
  REQUIRE(heard.wait(1).size() == 1);
  CHECK(server.seen().requests.size() == 4);
}

TEST_CASE("a watch ends while a request waits, and closes its connection", "[notice]") {
  for (const Cloud cloud : {Cloud::detect, Cloud::aws, Cloud::gcp, Cloud::azure}) {
    CAPTURE(static_cast<int>(cloud));
    const MetadataServer server([&](const MetadataRequest& request) -> std::optional<std::string> {
      const bool first = request.method == "PUT" || request.target == kName || request.target == kPreempted;
      return first && cloud != Cloud::detect ? quiet(cloud, request) : std::nullopt;
    });
    Heard heard;
    {
      const NoticeWatch watch(options_of(server, cloud, heard));
      REQUIRE(server.wait([](const auto& seen) { return seen.waiting == 1; }));
    }
    CHECK(server.wait([](const auto& seen) { return seen.given_up == 1; }));
    CHECK(heard.wait(0).empty());
  }
}

TEST_CASE("a watch ends between two polls", "[notice]") {
  const MetadataServer server([](const MetadataRequest& request) {
    return request.target == kRebalance ? http_reply(200, R"({"noticeTime": ""})")
                                        : quiet(Cloud::aws, request);
  });
  constexpr int kTimes = 100;  // in most of which the thread waits already
  for (int i = 0; i < kTimes; ++i) {
    Heard heard;
    NoticeOptions options = options_of(server, Cloud::aws, heard);
    options.times.aws_poll = 60 * kStoreHung;
    NoticeWatch watch(options);
    REQUIRE(heard.wait(1).size() == 1);
  }
}

TEST_CASE("of several notices the one that leaves least time stands", "[notice]") {
  Heard heard;
  NoticeOptions options;
  options.cloud = Cloud::none;
  options.on_notice = heard.callback();
  NoticeWatch watch(options);
  CHECK_FALSE(watch.notice());
  const std::vector<std::pair<Notice, bool>> given = {
      {{Kind::rebalance, "AWS", std::nullopt, "first"}, true},
      {{Kind::rebalance, "AWS", std::nullopt, "second"}, false},
      {{Kind::terminate, "AWS", 1e6, "third"}, true},
      {{Kind::rebalance, "AWS", std::nullopt, "fourth"}, false},
      {{Kind::terminate, "AWS", 2e6, "fifth"}, false},
      {{Kind::terminate, "SIGTERM", 5e5, "sixth"}, true},
      {{Kind::terminate, "SIGTERM", std::nullopt, "seventh"}, true},
      {{Kind::terminate, "SIGTERM", std::nullopt, "eighth"}, false},
      {{Kind::terminate, "AWS", 1.0, "ninth"}, false},
  };
  std::vector<std::string> stood;
  for (const auto& [notice, stands] : given) {
    CAPTURE(notice.detail);
    watch.give(notice);
    if (stands) stood.push_back(notice.detail);
    CHECK(watch.notice()->detail == stood.back());
  }
  std::vector<std::string> reported;
  for (const Notice& notice : heard.wait(0)) reported.push_back(notice.detail);
  CHECK(reported == stood);
  CHECK_FALSE(watch.acknowledge());
}

TEST_CASE("the seconds of a notice run down, to 0", "[notice]") {
  NoticeOptions options;
  options.cloud = Cloud::none;
  NoticeWatch watch(options);
  watch.give({Kind::terminate, "SIGTERM", 1e6, ""});
  const double first = watch.notice()->seconds_left.value();
  double later = first;
  while (later == first) later = watch.notice()->seconds_left.value();  // the clock goes on
  CHECK(later < first);
  watch.give({Kind::terminate, "SIGTERM", -3.0, ""});
  CHECK(watch.notice()->seconds_left == 0.0);
}

TEST_CASE("where notices come from is read from text and the environment", "[notice]") {
  CHECK(parse_cloud("auto") == Cloud::detect);
  CHECK(parse_cloud("azure") == Cloud::azure);
  CHECK_THAT(sentence_of([] { parse_cloud("AWS"); }),
             StartsWith("usage: 'AWS' is no cloud") && Contains("\"aws\""));
  const auto read = [](std::optional<std::string> value) {
    return read_notice_options([=](const std::string& name) -> std::optional<std::string> {
      return name == "HETRUN_METADATA" ? value : std::nullopt;
    });
  };
  CHECK(read(std::nullopt).metadata.empty());
  CHECK(read(std::nullopt).cloud == Cloud::detect);
  CHECK(read("http://127.0.0.1:4711/").metadata == "http://127.0.0.1:4711");
  CHECK(read("none").cloud == Cloud::none);
  for (const char* text : {"127.0.0.1:4711", "ftp://127.0.0.1", "http://", "None"})
    CHECK_THAT(sentence_of([&] { read(text); }),
               StartsWith(fmt::format("usage: '{}' is no address of a metadata service", text)) &&
                   Contains("in HETRUN_METADATA"));
}
