#include "tests/unit/core/comm_testing.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/comm/loopback.h"
#include "core/comm/tcp.h"

namespace het::testing {

FabricMaker loopback_maker() {
  return [](int size, Timeouts timeouts) {
    std::vector<std::function<std::shared_ptr<Fabric>()>> makers;
    for (auto& fabric : make_loopback(size, {std::move(timeouts), nullptr}))
      makers.emplace_back(
          [holder = std::make_shared<std::shared_ptr<Fabric>>(fabric)] { return std::move(*holder); });
    return makers;
  };
}

FabricMaker tcp_maker() {
  return [](int size, const Timeouts& timeouts) {
    const auto store = make_memory_key_value();
    std::vector<std::function<std::shared_ptr<Fabric>()>> makers;
    for (int rank = 0; rank < size; ++rank)
      makers.emplace_back([=] {
        TcpOptions options;
        options.secret = kTestSecret;
        options.rank = rank;
        options.size = size;
        options.address = "127.0.0.1";
        options.store = store;
        options.prefix = "test";
        options.host = fmt::format("host{}", rank);
        options.timeouts = timeouts;
        return make_tcp(std::move(options));
      });
    return makers;
  };
}

namespace {

// Call f with a value of the C++ type of `dtype`.
template <typename F>
auto with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    case DType::i32: return f(int32_t{});
    case DType::i64: return f(int64_t{});
    default: return f(uint8_t{});
  }
}

bool reduces(const CollectiveRequest& r) {
  return r.kind == CollectiveKind::all_reduce || r.kind == CollectiveKind::reduce_scatter;
}

Bytes slice(const Bytes& bytes, int64_t first, int64_t count, int64_t width) {
  return {bytes.begin() + first * width, bytes.begin() + (first + count) * width};
}

Bytes reduced(const CollectiveRequest& request, int size) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(input_of(request, r, size));
  Bytes result = inputs[0];
  with_type(request.dtype, [&](auto zero) {
    using T = decltype(zero);
    const size_t count = result.size() / sizeof(T);
    for (size_t i = 0; i < count; ++i) {
      const auto value = [&](int r) {
        T element;
        std::memcpy(static_cast<void*>(&element), inputs[r].data() + i * sizeof(T), sizeof(T));
        return element;
      };
      const auto fold = [&](auto sum) {
        using A = decltype(sum);
        for (int r = 1; r < size; ++r) {
          const A next = static_cast<A>(value(r));
          sum = request.reduction == Reduction::max ? std::max(sum, next) : static_cast<A>(sum + next);
        }
        const T element = static_cast<T>(sum);
        std::memcpy(result.data() + i * sizeof(T), &element, sizeof(T));
      };
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
        fold(static_cast<float>(value(0)));
      else
        fold(value(0));
    }
  });
  return result;
}

}  // namespace

Bytes input_of(const CollectiveRequest& request, int rank, int size) {
  const int64_t count = input_elements(request, rank, size);
  Bytes bytes(count * bytes_of(request.dtype));
  std::mt19937 random(static_cast<uint32_t>(rank * 7919 + count));
  with_type(request.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; ++i) {
      T value;
      if constexpr (std::is_integral_v<T>)
        value = static_cast<T>(random() % 100'000);
      else
        value = static_cast<T>(static_cast<float>(static_cast<int>(random() % 20'001) - 10'000) / 777.0F);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

Bytes expected_of(const CollectiveRequest& request, int rank, int size) {
  const int64_t width = bytes_of(request.dtype);
  switch (request.kind) {
    case CollectiveKind::all_reduce: return reduced(request, size);
    case CollectiveKind::reduce_scatter: {
      const int64_t first =
          std::accumulate(request.counts.begin(), request.counts.begin() + rank, int64_t{0});
      return slice(reduced(request, size), first, request.counts[rank], width);
    }
    case CollectiveKind::broadcast: return input_of(request, request.peer, size);
    case CollectiveKind::all_gather:
    case CollectiveKind::grouped_broadcast: {
      Bytes all;
      for (int r = 0; r < size; ++r) {
        const Bytes part = input_of(request, r, size);
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    }
    case CollectiveKind::all_to_all: {
      Bytes all;
      for (int from = 0; from < size; ++from) {
        const auto row = request.counts.begin() + from * size;
        const Bytes part = slice(input_of(request, from, size), std::accumulate(row, row + rank, int64_t{0}),
                                 row[rank], width);
        all.insert(all.end(), part.begin(), part.end());
      }
      return all;
    }
    case CollectiveKind::receive: {
      CollectiveRequest sent = request;
      sent.kind = CollectiveKind::send;
      return input_of(sent, request.peer, size);
    }
    case CollectiveKind::send:
    case CollectiveKind::barrier: return {};
  }
  return {};
}

std::string try_collective(Communicator& group, const CollectiveRequest& request) {
  const int rank = group.rank(), size = group.size();
  const Bytes in = input_of(request, rank, size), expected = expected_of(request, rank, size);
  const int64_t width = bytes_of(request.dtype);
  const auto wrong = [&](const std::byte* got, const char* how) -> std::string {
    for (size_t i = 0; i < expected.size(); ++i)
      if (got[i] != expected[i])
        return fmt::format("{} of {} over {} ranks, {}: rank {} differs at element {} of {}",
                           name_of(request.kind), request.dtype, size, how, rank, i / width,
                           expected.size() / width);
    return {};
  };
  const std::unique_ptr<Collective> collective = group.prepare(request);
  Bytes out(expected.size() + 1, std::byte{0x5a});
  collective->start(in.data(), out.data());
  collective->wait();
  if (out.back() != std::byte{0x5a}) return fmt::format("{} wrote past its end", name_of(request.kind));
  if (std::string problem = wrong(out.data(), "out of place"); !problem.empty()) return problem;

  Bytes both(std::max(in.size(), expected.size()) + 1);
  size_t in_at = 0, out_at = 0;
  if (request.kind == CollectiveKind::all_gather || request.kind == CollectiveKind::grouped_broadcast)
    in_at = width * std::accumulate(request.counts.begin(), request.counts.begin() + rank, int64_t{0});
  else if (request.kind == CollectiveKind::reduce_scatter)
    out_at = width * std::accumulate(request.counts.begin(), request.counts.begin() + rank, int64_t{0});
  else if (!reduces(request) && request.kind != CollectiveKind::broadcast)
    return {};
  std::copy(in.begin(), in.end(), both.begin() + static_cast<int64_t>(in_at));
  collective->start(both.data() + in_at, both.data() + out_at);
  collective->wait();
  return wrong(both.data() + out_at, "in place");
}

CollectiveRequest random_request(std::mt19937& random, CollectiveKind kind, DType dtype, int size,
                                 int64_t most) {
  CollectiveRequest request;
  request.kind = kind;
  request.dtype = dtype;
  request.label = "noise";
  request.reduction = random() % 3 == 0 ? Reduction::max : Reduction::sum;
  const auto count = [&]() -> int64_t {
    switch (random() % 4) {
      case 0: return 0;
      case 1: return static_cast<int64_t>(random() % 8);
      default: return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    }
  };
  size_t counts = 1;
  if (kind == CollectiveKind::barrier) counts = 0;
  if (kind == CollectiveKind::all_to_all) counts = static_cast<size_t>(size) * size;
  if (kind == CollectiveKind::all_gather || kind == CollectiveKind::grouped_broadcast ||
      kind == CollectiveKind::reduce_scatter)
    counts = size;
  const bool even = random() % 3 == 0;
  const int64_t same = count();
  for (size_t i = 0; i < counts; ++i) request.counts.push_back(even ? same : count());
  if (kind == CollectiveKind::broadcast) request.peer = static_cast<int>(random() % size);
  return request;
}

}  // namespace het::testing
