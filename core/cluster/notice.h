// Notices that this machine will be taken away: from the metadata service of its cloud, and from the process
// itself (a SIGTERM, by give()). A NoticeWatch asks the cloud from its construction to its destruction, in a
// thread of its own; what becomes of a notice is up to its owner. A machine may also go without one, and
// earlier than a notice says.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "core/cluster/environment.h"
#include "core/cluster/http.h"

namespace het {

struct Notice {
  enum class Kind {
    rebalance,  // the machine is at a higher risk; it may stay
    terminate,  // the machine goes
  };
  Kind kind = Kind::terminate;
  std::string source;                  // "AWS", "GCP", "Azure", "SIGTERM"
  std::optional<double> seconds_left;  // 0 or more; absent: not known, and perhaps none
  std::string detail;                  // "terminate at 2017-09-18T08:22:00Z"; safe to print

  bool operator==(const Notice&) const = default;
};
std::string_view name_of(Notice::Kind kind);  // "rebalance", "terminate"

enum class Cloud { detect, aws, gcp, azure, none };
// "auto", "aws", "gcp", "azure", "none". Throws Error(usage) for anything else.
Cloud parse_cloud(std::string_view text);

struct NoticeTimes {
  std::chrono::milliseconds connect{1'000};   // to the metadata service, at most
  std::chrono::milliseconds timeout{5'000};   // of one request; Azure may be slow to begin with
  std::chrono::milliseconds aws_poll{5'000};  // between two requests
  std::chrono::milliseconds azure_poll{1'000};
  std::chrono::milliseconds gcp_poll{1'000};   // after a reply that did not wait as asked
  std::chrono::milliseconds gcp_wait{30'000};  // that a request waits for a notice; whole seconds
  std::chrono::milliseconds detect{5'000};     // until the cloud is looked for again, where that makes sense
};

struct NoticeOptions {
  Cloud cloud = Cloud::detect;
  std::string metadata;  // "http://127.0.0.1:4711"; empty: that of all clouds, http://169.254.169.254
  // Called for each notice that notice() is going to return, by the watch's thread or the one that gives it.
  // It must be quick, throw nothing, and call neither give() nor the destructor.
  std::function<void(const Notice&)> on_notice;
  NoticeTimes times;
};
// HETRUN_METADATA is the address of the metadata service, or "none". Throws Error(usage) for anything else.
NoticeOptions read_notice_options(const EnvironmentLookup& lookup);

// Thread-safe.
class NoticeWatch {
 public:
  // Returns at once. Where the cloud is to be detected and nothing listens at 169.254.169.254, the thread
  // ends after one attempt to connect. A service that fails or sends nonsense is asked again, less and less
  // often. Throws Error(usage) for an address that is none.
  explicit NoticeWatch(NoticeOptions options);
  ~NoticeWatch();  // at once: a request that is under way is given up
  NoticeWatch(const NoticeWatch&) = delete;
  NoticeWatch& operator=(const NoticeWatch&) = delete;

  // The notice that leaves least time; one that does not say how much counts as one that leaves none, and
  // "rebalance" as less than any "terminate". Its seconds are counted from this call.
  std::optional<Notice> notice() const;
  // A notice from elsewhere. Not for signal handlers.
  void give(Notice notice);

  // All that had to be saved is saved. Azure then takes the machine at once, without waiting for its time;
  // the other clouds do not want to know. True: Azure has accepted it. Waits for the reply for
  // `times.timeout` at most.
  bool acknowledge();

 private:
  void watch();
  void ask(HttpSession& session);
  // Waits, unless the watch ends.
  bool pause(std::chrono::milliseconds time);

  const NoticeOptions options_;
  HttpClient client_;  // of acknowledge()

  std::mutex giving_;  // so that callbacks come one at a time, in order
  mutable std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
  std::unique_ptr<HttpSession> session_;  // of the thread, but for end(); none once there is no more to ask
  std::optional<Notice> notice_;
  std::chrono::steady_clock::time_point given_;  // when notice_ was
  std::optional<HttpRequest> acknowledgement_;
  std::thread thread_;
};

}  // namespace het
