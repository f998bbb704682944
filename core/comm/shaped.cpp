#include "core/comm/shaped.h"

#include <mutex>

#include "core/base/error.h"

namespace het {
namespace {

using Seconds = std::chrono::duration<double>;

class ShapedLinks final : public Pacer {
 public:
  explicit ShapedLinks(LinkOf link) : link_(std::move(link)) {}

  CommClock::time_point release(const CollectiveRequest& request, const std::vector<int>& ranks, int rank,
                                CommClock::time_point arrived) override {
    const int size = static_cast<int>(ranks.size());
    const WireTime time = wire_time(mesh_steps(request, rank, size), size, [&](int from, int to) {
      return link_(ranks[static_cast<size_t>(from)], ranks[static_cast<size_t>(to)]);
    });
    const auto busy = std::chrono::duration_cast<CommClock::duration>(Seconds(time.busy));
    const auto latency = std::chrono::duration_cast<CommClock::duration>(Seconds(time.latency));
    std::lock_guard lock(mutex_);
    return ways_.use(request.kind, arrived, busy) + latency;
  }

 private:
  const LinkOf link_;
  std::mutex mutex_;
  RankWays<CommClock::time_point> ways_;
};

}  // namespace

std::shared_ptr<Pacer> make_shaped_links(LinkOf link) {
  return std::make_shared<ShapedLinks>(std::move(link));
}

std::shared_ptr<Pacer> make_shaped_links(std::vector<Link> links, int ranks) {
  if (links.empty()) return nullptr;
  if (static_cast<int>(links.size()) != ranks * ranks)
    fail_usage("there are {} links between {} ranks; {} are needed", links.size(), ranks, ranks * ranks);
  return make_shaped_links([links = std::move(links), ranks](int from, int to) {
    return links[static_cast<size_t>(from) * static_cast<size_t>(ranks) + static_cast<size_t>(to)];
  });
}

}  // namespace het
