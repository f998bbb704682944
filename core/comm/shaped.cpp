#include "core/comm/shaped.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include "core/base/error.h"

namespace het {
namespace {

using Seconds = std::chrono::duration<double>;

// The slowest of a ring's links.
Link slowest_of_ring(const std::vector<int>& ranks, const LinkOf& link) {
  Link slowest{std::numeric_limits<double>::infinity(), 0};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Link next = link(ranks[i], ranks[(i + 1) % ranks.size()]);
    HET_REQUIRE(next.bytes_per_second > 0 && next.latency_seconds >= 0, next.bytes_per_second,
                next.latency_seconds);
    slowest.bytes_per_second = std::min(slowest.bytes_per_second, next.bytes_per_second);
    slowest.latency_seconds = std::max(slowest.latency_seconds, next.latency_seconds);
  }
  return slowest;
}

// Blocks travel round the ring: each link carries all but the block of the rank it leads to.
double ring_of_blocks(const CollectiveRequest& request, const std::vector<int>& ranks, const LinkOf& link) {
  const size_t n = ranks.size();
  const int64_t width = bytes_of(request.dtype);
  const int64_t total = std::accumulate(request.counts.begin(), request.counts.end(), int64_t{0});
  double longest = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t to = (i + 1) % n;
    const double bytes = static_cast<double>((total - request.counts[to]) * width);
    longest = std::max(longest, bytes / link(ranks[i], ranks[to]).bytes_per_second);
  }
  return longest;
}

WireTime all_to_all_time(const CollectiveRequest& request, const std::vector<int>& ranks, int rank,
                         const LinkOf& link) {
  const int n = static_cast<int>(ranks.size());
  const int64_t width = bytes_of(request.dtype);
  double out = 0, in = 0, latency = 0;
  for (int peer = 0; peer < n; ++peer) {
    if (peer == rank) continue;
    const Link to = link(ranks[rank], ranks[peer]), from = link(ranks[peer], ranks[rank]);
    out += static_cast<double>(request.counts[rank * n + peer] * width) / to.bytes_per_second;
    in += static_cast<double>(request.counts[peer * n + rank] * width) / from.bytes_per_second;
    latency = std::max({latency, to.latency_seconds, from.latency_seconds});
  }
  return {std::max(out, in), latency};
}

}  // namespace

WireTime wire_time(const CollectiveRequest& request, const std::vector<int>& ranks, int rank,
                   const LinkOf& link) {
  const auto n = static_cast<double>(ranks.size());
  if (ranks.size() < 2) return {};
  if (request.kind == CollectiveKind::all_to_all) return all_to_all_time(request, ranks, rank, link);
  if (request.kind == CollectiveKind::send || request.kind == CollectiveKind::receive) {
    const int here = ranks[rank], there = ranks[request.peer];
    const Link way = request.kind == CollectiveKind::send ? link(here, there) : link(there, here);
    return {static_cast<double>(request.counts[0] * bytes_of(request.dtype)) / way.bytes_per_second,
            way.latency_seconds};
  }
  const Link slowest = slowest_of_ring(ranks, link);
  const double once = (n - 1) * slowest.latency_seconds;
  const double bytes =
      request.counts.empty() ? 0 : static_cast<double>(request.counts[0] * bytes_of(request.dtype));
  switch (request.kind) {
    case CollectiveKind::all_reduce: return {2 * (n - 1) / n * bytes / slowest.bytes_per_second, 2 * once};
    case CollectiveKind::broadcast: return {bytes / slowest.bytes_per_second, once};
    case CollectiveKind::barrier: return {0, 2 * once};
    default: return {ring_of_blocks(request, ranks, link), once};
  }
}

namespace {

class ShapedLinks final : public Pacer {
 public:
  explicit ShapedLinks(LinkOf link) : link_(std::move(link)) {}

  CommClock::time_point release(const CollectiveRequest& request, const std::vector<int>& ranks, int rank,
                                CommClock::time_point arrived) override {
    const WireTime time = wire_time(request, ranks, rank, link_);
    const auto busy = std::chrono::duration_cast<CommClock::duration>(Seconds(time.busy));
    const auto latency = std::chrono::duration_cast<CommClock::duration>(Seconds(time.latency));
    const bool out = request.kind != CollectiveKind::receive, in = request.kind != CollectiveKind::send;
    std::lock_guard lock(mutex_);
    CommClock::time_point begin = arrived;
    if (out) begin = std::max(begin, out_free_);
    if (in) begin = std::max(begin, in_free_);
    if (out) out_free_ = begin + busy;
    if (in) in_free_ = begin + busy;
    return begin + busy + latency;
  }

 private:
  const LinkOf link_;
  std::mutex mutex_;
  CommClock::time_point out_free_{}, in_free_{};  // when this rank's ways are next free
};

}  // namespace

std::shared_ptr<Pacer> make_shaped_links(LinkOf link) {
  return std::make_shared<ShapedLinks>(std::move(link));
}

}  // namespace het
