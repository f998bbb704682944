#include "core/cluster/notice.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/cluster/notice_source.h"

namespace het {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array<std::pair<std::string_view, Cloud>, 5> kClouds{{{"auto", Cloud::detect},
                                                                     {"aws", Cloud::aws},
                                                                     {"gcp", Cloud::gcp},
                                                                     {"azure", Cloud::azure},
                                                                     {"none", Cloud::none}}};

bool is_address(std::string_view text) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (text.starts_with(scheme)) return text.size() > scheme.size();
  return false;
}

NoticeOptions checked(NoticeOptions options) {
  if (!options.metadata.empty() && !is_address(options.metadata))
    fail_usage(
        "'{}' is no address of a metadata service; one begins with http:// or https://, such as "
        "http://169.254.169.254",
        options.metadata);
  while (options.metadata.ends_with('/')) options.metadata.pop_back();
  return options;
}

std::string address_of(const NoticeOptions& options) {
  return options.metadata.empty() ? "http://169.254.169.254" : options.metadata;
}

struct Detected {
  std::unique_ptr<NoticeSource> source;  // null: no cloud is known
  bool final = true;                     // asking again would say the same
};

Detected detect_cloud(HttpSession& session, const NoticeOptions& options) {
  Detected found;
  for (const Cloud cloud : {Cloud::aws, Cloud::gcp, Cloud::azure}) {
    auto source = make_notice_source(cloud, address_of(options), options.times);
    const HttpReply reply = session.send(source->probe());
    if (source->recognises(reply)) return {std::move(source), true};
    const bool absent = !reply.status && !reply.sent;
    if (absent) return {nullptr, options.metadata.empty()};  // an address that someone names should be there
    const bool busy = !reply.status || reply.status == 410 || reply.status == 429 ||
                      reply.status >= 500;  // 410: Azure, soon
    if (busy) found.final = false;
  }
  return found;
}

// More and more after failures, but so that a notice of 30 s is not missed where polls are a second apart.
milliseconds backed_off(milliseconds interval, int failures) {
  return interval * (1 << std::min(failures, 3));
}

// A failure of this machine (of memory, as a rule) is one of the service: later polls may do better.
NoticePoll poll(NoticeSource& source, HttpSession& session) {
  try {
    return source.poll(session);
  } catch (const std::exception&) {
    return {};
  }
}

Detected detect(HttpSession& session, const NoticeOptions& options) {
  try {
    if (options.cloud == Cloud::detect) return detect_cloud(session, options);
    return {make_notice_source(options.cloud, address_of(options), options.times), true};
  } catch (const std::exception&) {
    return {nullptr, false};
  }
}

Notice as_of_now(Notice notice, Clock::time_point given) {
  if (notice.seconds_left) notice.seconds_left = std::max(0.0, *notice.seconds_left - seconds_since(given));
  return notice;
}

// Whether a notice leaves less time than the one that stands.
bool is_stronger(const Notice& notice, const Notice& standing) {
  if (notice.kind != standing.kind) return notice.kind > standing.kind;
  return notice.kind == Notice::Kind::terminate &&
         notice.seconds_left.value_or(0) < standing.seconds_left.value_or(0);
}

}  // namespace

std::string_view name_of(Notice::Kind kind) {
  return kind == Notice::Kind::rebalance ? "rebalance" : "terminate";
}

Cloud parse_cloud(std::string_view text) {
  for (const auto& [name, cloud] : kClouds)
    if (text == name) return cloud;
  fail_usage(
      "'{}' is no cloud whose notices are known; \"auto\", \"aws\", \"gcp\", \"azure\" and \"none\" are",
      text);
}

NoticeOptions read_notice_options(const EnvironmentLookup& lookup) {
  NoticeOptions options;
  const std::string metadata = lookup("HETRUN_METADATA").value_or("");
  if (metadata == "none")
    options.cloud = Cloud::none;
  else
    options.metadata = metadata;
  return with_context([] { return "HETRUN_METADATA"; }, [&] { return checked(std::move(options)); });
}

NoticeWatch::NoticeWatch(NoticeOptions options) : options_(checked(std::move(options))), client_({}) {
  if (options_.cloud == Cloud::none) return;
  session_ = std::make_unique<HttpSession>(HttpOptions{});
  thread_ = std::thread([this] { watch(); });
}

NoticeWatch::~NoticeWatch() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (session_) session_->end();
  }
  ended_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<Notice> NoticeWatch::notice() const {
  std::lock_guard lock(mutex_);
  if (!notice_) return std::nullopt;
  return as_of_now(*notice_, given_);
}

void NoticeWatch::give(Notice notice) {
  std::lock_guard giving(giving_);
  if (notice.seconds_left) notice.seconds_left = std::max(0.0, *notice.seconds_left);
  {
    std::lock_guard lock(mutex_);
    if (notice_ && !is_stronger(notice, as_of_now(*notice_, given_))) return;
    notice_ = notice;
    given_ = Clock::now();
  }
  if (options_.on_notice) options_.on_notice(notice);
}

bool NoticeWatch::acknowledge() {
  std::optional<HttpRequest> request;
  {
    std::lock_guard lock(mutex_);
    request = acknowledgement_;
  }
  return request && client_.post(*request).status == 200;
}

bool NoticeWatch::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !ended_changed_.wait_for(lock, time, [&] { return ended_; });
}

void NoticeWatch::watch() {
  ask(*session_);
  std::lock_guard lock(mutex_);
  session_.reset();
}

void NoticeWatch::ask(HttpSession& session) {
  Detected detected = detect(session, options_);
  for (int failures = 0; !detected.source && !detected.final; ++failures) {
    if (!pause(backed_off(options_.times.detect, failures))) return;
    detected = detect(session, options_);
  }
  if (!detected.source) return;
  const milliseconds interval = detected.source->interval();
  int failures = 0;
  while (true) {
    NoticePoll result = poll(*detected.source, session);
    if (result.acknowledgement) {
      std::lock_guard lock(mutex_);
      acknowledgement_ = std::move(result.acknowledgement);
    }
    if (result.notice) give(*result.notice);
    if (result.notice && result.notice->kind == Notice::Kind::terminate) return;
    failures = result.answered ? 0 : std::min(failures + 1, 3);
    const bool at_once = result.answered && result.waited;
    if (!pause(at_once ? milliseconds(0) : backed_off(interval, failures))) return;
  }
}

}  // namespace het
