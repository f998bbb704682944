#include "core/comm/speed.h"

#include <exception>
#include <thread>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/base/median.h"
#include "core/comm/tcp.h"
#include "core/net/proof.h"

namespace het {
namespace {

constexpr int kSpeedTag = 2000;  // apart from what programs and savers send

// One end of the round trips with `peer`, of messages in the memory of `device` (null: the host's); the one
// that begins takes the time.
std::vector<double> seconds_of(Communicator& group, Device* device, int peer, bool begins,
                               const std::vector<int64_t>& sizes, int rounds) {
  std::vector<double> halves;
  for (const int64_t size : sizes) {
    std::vector<std::byte> host_out(device == nullptr ? static_cast<size_t>(size) : 0), host_in(host_out);
    std::unique_ptr<Memory> device_out, device_in;
    if (device != nullptr) {
      device_out = device->allocate(size);
      device_in = device->allocate(size);
    }
    std::byte* out = device == nullptr ? host_out.data() : device_out->address();
    std::byte* in = device == nullptr ? host_in.data() : device_in->address();
    CollectiveRequest request;
    request.dtype = DType::u8;
    request.counts = {size};
    request.peer = peer;
    request.tag = kSpeedTag;
    request.label = "a message that is timed";
    request.kind = CollectiveKind::send;
    const auto send = group.prepare(request);
    request.kind = CollectiveKind::receive;
    const auto receive = group.prepare(request);
    group.connect();
    const auto give = [&] {
      send->start(out, nullptr);
      send->wait();
      if (device != nullptr) device->synchronize();
    };
    const auto take = [&] {
      receive->start(nullptr, in);
      receive->wait();
      if (device != nullptr) device->synchronize();
    };
    std::vector<double> trips;
    for (int round = -1; round < rounds; ++round) {  // the first makes connections and touches memory
      const auto began = CommClock::now();
      begins ? give() : take();
      begins ? take() : give();
      if (round >= 0) trips.push_back(seconds_since(began));
    }
    halves.push_back(median(std::move(trips)) / 2);
  }
  return halves;
}

}  // namespace

std::vector<MessageTime> time_messages(Communicator& group, int from, int to,
                                       const std::vector<int64_t>& sizes, int rounds,
                                       const DirectPair& direct) {
  HET_REQUIRE(from != to && rounds > 0, from, to, rounds);
  const bool begins = group.rank() == from;
  if (!begins && group.rank() != to) return {};
  std::vector<double> seconds =
      direct.pair == nullptr
          ? seconds_of(group, nullptr, begins ? to : from, begins, sizes, rounds)
          : seconds_of(*direct.pair, direct.device, 1 - direct.pair->rank(), begins, sizes, rounds);
  // Both know what the beginner measured.
  CollectiveRequest request;
  request.kind = begins ? CollectiveKind::send : CollectiveKind::receive;
  request.dtype = DType::f64;
  request.counts = {static_cast<int64_t>(seconds.size())};
  request.peer = begins ? to : from;
  request.tag = kSpeedTag;
  request.label = "how long messages took";
  run_once(group, request, begins ? seconds.data() : nullptr, begins ? nullptr : seconds.data());
  std::vector<MessageTime> times;
  for (size_t i = 0; i < sizes.size(); ++i) times.push_back({sizes[i], seconds[i]});
  return times;
}

std::vector<MessageTime> time_messages_here(const std::vector<int64_t>& sizes, int rounds) {
  const std::shared_ptr<KeyValue> store = make_memory_key_value();
  const std::string secret = random_bytes(32);
  std::vector<MessageTime> times;
  std::exception_ptr failures[2];
  const auto end = [&](int rank) {
    try {
      TcpOptions options;
      options.rank = rank;
      options.size = 2;
      options.address = "127.0.0.1";
      options.store = store;
      options.secret = secret;
      options.prefix = "speed";
      const auto fabric = make_tcp(std::move(options));
      const auto group = fabric->group("speed", {0, 1});
      auto own = time_messages(*group, 0, 1, sizes, rounds);
      if (rank == 0) times = std::move(own);
    } catch (...) {
      failures[rank] = std::current_exception();
    }
  };
  std::thread other([&] { end(1); });
  end(0);
  other.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return times;
}

}  // namespace het
