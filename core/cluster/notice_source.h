// How each cloud announces that it takes a machine away: requests to its metadata service, and what the
// replies mean. Replies are not trusted: whatever comes, a source reads it or counts it as a failure. Of one
// thread. Internal to core/cluster.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/cluster/http.h"
#include "core/cluster/notice.h"

namespace het {

struct NoticePoll {
  bool answered = false;  // as the cloud does; else it is a failure
  bool waited = false;    // for as long as asked: the next request need not wait
  std::optional<Notice> notice;
  std::optional<HttpRequest> acknowledgement;  // with which the machine's owner lets it go
};

class NoticeSource {
 public:
  virtual ~NoticeSource() = default;
  // A request to which only this cloud replies as recognises() expects.
  virtual HttpRequest probe() const = 0;
  virtual bool recognises(const HttpReply& reply) = 0;
  virtual NoticePoll poll(HttpSession& session) = 0;
  virtual std::chrono::milliseconds interval() const = 0;  // between two polls
};
// Of aws, gcp or azure. `metadata`: "http://169.254.169.254".
std::unique_ptr<NoticeSource> make_notice_source(Cloud cloud, const std::string& metadata,
                                                 const NoticeTimes& times);

}  // namespace het
