// Many generations in one process: what one leaves behind, a run of weeks collects.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "core/comm/tcp.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;
using std::chrono::milliseconds;

namespace {

constexpr int kRanks = 4;

struct Counts {
  long descriptors = 0, threads = 0, maps = 0;
};

Counts counts() {
  const auto entries = [](const char* folder) {
    const auto all = std::filesystem::directory_iterator(folder);
    return std::distance(begin(all), end(all));
  };
  std::ifstream maps("/proc/self/maps");
  Counts found{entries("/proc/self/fd"), entries("/proc/self/task"), 0};
  for (std::string line; std::getline(maps, line);) ++found.maps;
  return found;
}

// A generation on one rank: groups, sums, and an end by an abort in the midst of traffic or by leaving.
void live(const std::shared_ptr<Acceptor>& acceptor, const std::vector<TcpAddress>& addresses,
          const std::shared_ptr<KeyValue>& board, int rank, int generation) {
  TcpOptions options;
  options.rank = rank;
  options.size = kRanks;
  options.acceptor = acceptor;
  options.generation = generation;
  options.addresses = addresses;
  options.board = board;
  options.prefix = fmt::format("{}", generation);
  options.host = "host";
  options.timeouts.timeout = milliseconds(20'000);
  const auto fabric = make_tcp(std::move(options));
  const bool aborted = generation % 2 != 0;
  std::thread aborting;
  try {
    const auto all = fabric->group("all", all_ranks(kRanks));
    const auto pair = fabric->group("pair", rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
    if (generation % kRanks == rank && aborted)
      aborting = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(generation * 37 % 2000));
        fabric->abort("a member is lost");
      });
    std::vector<float> data(20'000);
    const CollectiveRequest sum{CollectiveKind::all_reduce, DType::f32, {20'000}, -1, 0, Reduction::sum, "x"};
    do {
      std::fill(data.begin(), data.end(), 1.0F);
      run_once(*all, sum, data.data(), data.data());
      run_once(*pair, sum, data.data(), data.data());
      HET_REQUIRE(data[7] == 8.0F, data[7]);
    } while (aborted);
  } catch (const Error& error) {
    if (aborting.joinable()) aborting.join();
    if (!aborted || error.kind() != ErrorKind::peer) throw;
  }
}

}  // namespace

TEST_CASE("200 generations in one process leave no descriptor, thread or memory map behind", "[comm]") {
  std::vector<std::shared_ptr<Acceptor>> acceptors;
  std::vector<TcpAddress> addresses;
  for (int rank = 0; rank < kRanks; ++rank) {
    AcceptorOptions options;
    options.address = "127.0.0.1";
    options.run = "generations";
    options.secret = kTestSecret;
    acceptors.push_back(std::make_shared<Acceptor>(options));
    addresses.push_back({"host", acceptors.back()->endpoint()});
  }
  const auto board = make_memory_key_value();
  std::vector<std::string> errors(kRanks);
  const auto generations = [&](int first, int last) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          for (int generation = first; generation <= last; ++generation)
            live(acceptors[static_cast<size_t>(rank)], addresses, board, rank, generation);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
  };
  generations(1, 100);
  const Counts before = counts();
  generations(101, 200);
  Counts after = counts();
  for (int i = 0; i < 1000 && after.threads > before.threads;
       ++i) {  // a thread that was joined is listed for a moment
    std::this_thread::sleep_for(milliseconds(1));
    after = counts();
  }
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.threads == before.threads);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // whose allocators keep what was freed
  CHECK(after.maps < before.maps + 20);                              // the allocator may split some
#endif
}
