#include "core/comm/steps.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/parallel.h"

namespace het {
namespace {

// Up to this size a second step costs more than sending everything to everybody.
constexpr int64_t kSmallBytes = 4 * 1024;

Block share(int64_t count, int parts, int part) {
  const Range range = share_of(count, parts, part);
  return {range.begin, range.end - range.begin};
}

}  // namespace

Block block_of(const CollectiveRequest& request, int rank, int size) {
  if (request.kind == CollectiveKind::all_reduce) return share(request.counts[0], size, rank);
  if (request.kind == CollectiveKind::broadcast) {
    if (rank == request.peer) return {0, 0};
    return share(request.counts[0], size - 1, rank < request.peer ? rank : rank - 1);
  }
  int64_t first = 0;
  for (int r = 0; r < rank; ++r) first += request.counts[r];
  return {first, request.counts[rank]};
}

bool in_one_step(const CollectiveRequest& request, int size) {
  return request.counts[0] * bytes_of(request.dtype) <= kSmallBytes ||
         (request.kind == CollectiveKind::broadcast && size < 3);
}

std::vector<CollectiveStep> mesh_steps(const CollectiveRequest& request, int rank, int size) {
  std::vector<CollectiveStep> steps;
  const int64_t width = bytes_of(request.dtype);
  const auto add_step = [&](const auto& elements) {  // of the message from one rank to another
    CollectiveStep step;
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to)
        if (const int64_t count = from == to ? 0 : elements(from, to); count > 0)
          step.push_back({from, to, count * width});
    if (!step.empty()) steps.push_back(std::move(step));
  };
  const auto block = [&](int r) { return block_of(request, r, size).count; };
  const auto to_owner = [&](int, int to) { return block(to); };
  const auto from_owner = [&](int from, int) { return block(from); };
  const int root = request.peer;
  switch (request.kind) {
    case CollectiveKind::all_reduce:
      if (in_one_step(request, size)) {
        add_step([&](int, int) { return request.counts[0]; });
      } else {
        add_step(to_owner);
        add_step(from_owner);
      }
      break;
    case CollectiveKind::reduce_scatter: add_step(to_owner); break;
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast: add_step(from_owner); break;
    case CollectiveKind::broadcast:
      if (in_one_step(request, size)) {
        add_step([&](int from, int) { return from == root ? request.counts[0] : 0; });
      } else {
        add_step([&](int from, int to) { return from == root ? block(to) : 0; });
        add_step([&](int from, int to) { return to != root ? block(from) : 0; });
      }
      break;
    case CollectiveKind::all_to_all:
      add_step([&](int from, int to) { return request.counts[from * size + to]; });
      break;
    case CollectiveKind::send:
    case CollectiveKind::receive: {
      const bool sends = request.kind == CollectiveKind::send;
      add_step([&](int from, int to) {
        return from == (sends ? rank : root) && to == (sends ? root : rank) ? request.counts[0] : 0;
      });
      break;
    }
    case CollectiveKind::barrier: {
      CollectiveStep step;
      for (int from = 0; from < size; ++from)
        for (int to = 0; to < size; ++to)
          if (from != to) step.push_back({from, to, 0});
      if (!step.empty()) steps.push_back(std::move(step));
      break;
    }
  }
  return steps;
}

int64_t sent_bytes(const CollectiveRequest& request, int rank, int size) {
  const auto block = [&](int r) { return block_of(request, r, size).count; };
  const int others = size - 1;
  const bool is_root = rank == request.peer;
  int64_t elements = 0;
  switch (request.kind) {
    case CollectiveKind::all_reduce:
      elements = in_one_step(request, size) ? others * request.counts[0]
                                            : request.counts[0] - block(rank) + others * block(rank);
      break;
    case CollectiveKind::reduce_scatter:
      for (int r = 0; r < size; ++r) elements += r == rank ? 0 : block(r);
      break;
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast: elements = others * block(rank); break;
    case CollectiveKind::broadcast:
      if (in_one_step(request, size))
        elements = is_root ? others * request.counts[0] : 0;
      else
        elements = is_root ? request.counts[0] : (size - 2) * block(rank);
      break;
    case CollectiveKind::all_to_all:
      for (int to = 0; to < size; ++to) elements += to == rank ? 0 : request.counts[rank * size + to];
      break;
    case CollectiveKind::send: elements = request.counts[0]; break;
    case CollectiveKind::receive:
    case CollectiveKind::barrier: break;
  }
  return elements * bytes_of(request.dtype);
}

WireTime wire_time(const std::vector<CollectiveStep>& steps, int size, const LinkOf& link) {
  WireTime time;
  std::vector<double> out(static_cast<size_t>(size), 0), in(static_cast<size_t>(size), 0);
  for (const CollectiveStep& step : steps) {
    double latency = 0;
    for (const StepTransfer& transfer : step) {
      const Link way = link(transfer.from, transfer.to);
      HET_REQUIRE(way.bytes_per_second > 0 && way.latency_seconds >= 0, way.bytes_per_second,
                  way.latency_seconds);
      const double seconds = static_cast<double>(transfer.bytes) / way.bytes_per_second;
      out[static_cast<size_t>(transfer.from)] += seconds;
      in[static_cast<size_t>(transfer.to)] += seconds;
      latency = std::max(latency, way.latency_seconds);
    }
    time.latency += latency;
  }
  for (size_t r = 0; r < out.size(); ++r) time.busy = std::max({time.busy, out[r], in[r]});
  return time;
}

EvenSteps even_steps(CollectiveKind kind, Algorithm algorithm, int size, double bytes) {
  HET_REQUIRE(kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter ||
              kind == CollectiveKind::all_gather || kind == CollectiveKind::grouped_broadcast);
  if (size < 2) return {};
  const double n = size;
  const bool all_reduce = kind == CollectiveKind::all_reduce;
  const double passes = all_reduce ? 2 : 1;  // a reduce_scatter, and an all_gather
  switch (algorithm) {
    case Algorithm::mesh:
      if (all_reduce && bytes <= static_cast<double>(kSmallBytes)) return {1, n - 1, bytes};
      return {passes, n - 1, passes / n * bytes};
    case Algorithm::ring: return {passes * (n - 1), 1, passes * (n - 1) / n * bytes};
    case Algorithm::tree: return {passes * std::ceil(std::log2(n)), 1, passes * bytes};
  }
  return {};
}

double seconds_of(const EvenSteps& steps, const Link& link) {
  if (steps.peers == 0) return 0;
  return steps.steps * link.latency_seconds + steps.peers * steps.bytes / link.bytes_per_second;
}

}  // namespace het
