// Helpers of the tests of communication: ranks as threads, data that every rank can compute for any other,
// and results by plain loops.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/comm/communicator.h"

namespace het::testing {

// The collectives that all ranks of a group take part in.
inline const std::vector<CollectiveKind> kKinds = {
    CollectiveKind::all_reduce, CollectiveKind::all_gather,        CollectiveKind::reduce_scatter,
    CollectiveKind::broadcast,  CollectiveKind::grouped_broadcast, CollectiveKind::all_to_all,
    CollectiveKind::barrier};

inline constexpr const char* kTestSecret = "the secret of the tests";

// Makes the fabrics of ranks 0 to size - 1; the function for one rank runs on that rank's thread.
using FabricMaker =
    std::function<std::vector<std::function<std::shared_ptr<Fabric>()>>(int size, Timeouts timeouts)>;
FabricMaker loopback_maker();
FabricMaker tcp_maker();  // over 127.0.0.1, each rank with a separate listening socket

// Run `body` on a thread for each rank; what each threw, or "". Assertions of Catch2 belong after it.
inline std::vector<std::string> on_ranks(const FabricMaker& maker, int size, const Timeouts& timeouts,
                                         const std::function<void(Fabric&)>& body) {
  const auto makers = maker(size, timeouts);
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const std::shared_ptr<Fabric> fabric = makers[rank]();
        body(*fabric);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Threads wait for each other by count, without communication.
class Gate {
 public:
  explicit Gate(int count) : count_(count) {}
  void pass() {
    std::unique_lock lock(mutex_);
    if (--count_ == 0) changed_.notify_all();
    changed_.wait(lock, [&] { return count_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_;
};

// However a scope is left.
struct PassAtEnd {
  Gate& gate;
  ~PassAtEnd() { gate.pass(); }
};

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  for (int r = 0; r < size; ++r) ranks[r] = r;
  return ranks;
}

using Bytes = std::vector<std::byte>;
// What rank `rank` puts into the request: noise that depends on both, of moderate size.
Bytes input_of(const CollectiveRequest& request, int rank, int size);
// What rank `rank` must get, bit by bit: reductions in rank order, 16-bit floats summed in f32.
Bytes expected_of(const CollectiveRequest& request, int rank, int size);
// "" when this rank gets what it must, from the collective run twice, the second time in place where that is
// allowed; otherwise what is wrong.
std::string try_collective(Communicator& group, const CollectiveRequest& request);
// A request of every kind but send and receive with random, uneven and zero counts.
CollectiveRequest random_request(std::mt19937& random, CollectiveKind kind, DType dtype, int size,
                                 int64_t most);

}  // namespace het::testing
