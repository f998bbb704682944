#include "core/comm/communicator.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace het {

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce: return "all_reduce";
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::broadcast: return "broadcast";
    case CollectiveKind::grouped_broadcast: return "grouped_broadcast";
    case CollectiveKind::all_to_all: return "all_to_all";
    case CollectiveKind::send: return "send";
    case CollectiveKind::receive: return "receive";
    case CollectiveKind::barrier: return "barrier";
  }
  return "unknown";
}

namespace {
int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

size_t counts_of(CollectiveKind kind, int size) {
  switch (kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::grouped_broadcast: return static_cast<size_t>(size);
    case CollectiveKind::all_to_all: return static_cast<size_t>(size) * static_cast<size_t>(size);
    case CollectiveKind::barrier: return 0;
    default: return 1;
  }
}
}  // namespace

int64_t input_elements(const CollectiveRequest& request, int rank, int size) {
  switch (request.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::send: return request.counts[0];
    case CollectiveKind::broadcast: return rank == request.peer ? request.counts[0] : 0;
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast: return request.counts[rank];
    case CollectiveKind::reduce_scatter: return total(request.counts);
    case CollectiveKind::all_to_all: {
      int64_t sum = 0;
      for (int to = 0; to < size; ++to) sum += request.counts[rank * size + to];
      return sum;
    }
    case CollectiveKind::receive:
    case CollectiveKind::barrier: return 0;
  }
  return 0;
}

int64_t output_elements(const CollectiveRequest& request, int rank, int size) {
  switch (request.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::receive:
    case CollectiveKind::broadcast: return request.counts[0];
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast: return total(request.counts);
    case CollectiveKind::reduce_scatter: return request.counts[rank];
    case CollectiveKind::all_to_all: {
      int64_t sum = 0;
      for (int from = 0; from < size; ++from) sum += request.counts[from * size + rank];
      return sum;
    }
    case CollectiveKind::send:
    case CollectiveKind::barrier: return 0;
  }
  return 0;
}

std::vector<std::string> problems_of(const CollectiveRequest& request, int rank, int size) {
  std::vector<std::string> problems;
  const auto add = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    problems.push_back(
        fmt::format("{}: {}", text_of(request), fmt::format(format, std::forward<Args>(args)...)));
  };
  const size_t expected = counts_of(request.kind, size);
  if (request.counts.size() != expected)
    add("{} counts given for {} ranks; it takes {}", request.counts.size(), size, expected);
  for (const int64_t count : request.counts)
    if (count < 0) add("a count is {}; counts are at least 0", count);
  if (request.kind != CollectiveKind::barrier && bytes_of(request.dtype) == 0) add("it has no dtype");
  const bool reduces =
      request.kind == CollectiveKind::all_reduce || request.kind == CollectiveKind::reduce_scatter;
  if (reduces && request.dtype == DType::boolean) add("booleans cannot be reduced; use u8");
  const bool message = request.kind == CollectiveKind::send || request.kind == CollectiveKind::receive;
  if (message || request.kind == CollectiveKind::broadcast) {
    if (request.peer < 0 || request.peer >= size)
      add("peer {} is no rank of the group; it has ranks 0 to {}", request.peer, size - 1);
    else if (message && request.peer == rank)
      add("rank {} would talk to itself", rank);
  }
  if (message && (request.tag < 0 || request.tag >= (1 << 20)))
    add("tag {} is not in 0 to 2^20 - 1", request.tag);
  return problems;
}

void require_valid(const CollectiveRequest& request, int rank, int size) {
  const std::vector<std::string> problems = problems_of(request, rank, size);
  if (!problems.empty()) throw Error(ErrorKind::bug, fmt::format("{}", fmt::join(problems, "; ")));
}

std::string text_of(const CollectiveRequest& request) {
  std::string kind(name_of(request.kind));
  std::replace(kind.begin(), kind.end(), '_', '-');
  for (const std::string_view of : {"gradient", "parameter"})
    if (const std::string several = fmt::format("{}s", of); request.label.starts_with(several)) {
      const std::string_view rest = std::string_view(request.label).substr(several.size());
      if (rest.empty() || rest.starts_with(" of ")) return fmt::format("{} {}{}", of, kind, rest);
    }
  return fmt::format("{} of {}", kind, request.label);
}

void run_once(Communicator& group, const CollectiveRequest& request, const void* in, void* out) {
  const std::unique_ptr<Collective> collective = group.prepare(request);
  collective->start(static_cast<const std::byte*>(in), static_cast<std::byte*>(out));
  collective->wait();
}

std::vector<std::string> all_gather_text(Communicator& group, const std::string& own,
                                         const std::string& label) {
  CollectiveRequest request;
  request.kind = CollectiveKind::all_gather;
  request.dtype = DType::i64;
  request.counts.assign(static_cast<size_t>(group.size()), 1);
  request.label = label;
  std::vector<int64_t> sizes(static_cast<size_t>(group.size()));
  const auto size = static_cast<int64_t>(own.size());
  run_once(group, request, &size, sizes.data());
  request.dtype = DType::u8;
  request.counts = sizes;
  std::string all(static_cast<size_t>(total(sizes)), ' ');
  run_once(group, request, own.data(), all.data());
  std::vector<std::string> texts;
  size_t at = 0;
  for (const int64_t each : sizes) {
    texts.push_back(all.substr(at, static_cast<size_t>(each)));
    at += static_cast<size_t>(each);
  }
  return texts;
}

}  // namespace het
