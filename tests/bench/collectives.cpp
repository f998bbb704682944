// How long collectives and messages take between processes of this machine, over TCP; all-reduce also against
// plain sockets that move the same bytes and sum nothing, turn by turn in one run. usage: collectives [ranks]
// [MiB of the largest] [rounds]; prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/comm/tcp.h"
#include "core/net/socket.h"

using namespace het;

namespace {

struct Setting {
  int ranks = 4;
  int64_t most = 64 << 20;
  int rounds = 15;
  std::filesystem::path folder;
};

double seconds_since(CommClock::time_point begin) {
  return std::chrono::duration<double>(CommClock::now() - begin).count();
}

// Blocking TCP connections between all ranks, made before the processes are.
class PlainMesh {
 public:
  explicit PlainMesh(int ranks) : sockets_(static_cast<size_t>(ranks)) {
    for (auto& row : sockets_) row.resize(static_cast<size_t>(ranks));
    Endpoint endpoint{"127.0.0.1", 0};
    const Descriptor listener = listen_at(endpoint);
    for (size_t low = 0; low < sockets_.size(); ++low)
      for (size_t high = low + 1; high < sockets_.size(); ++high) {
        std::string who;
        sockets_[low][high] =
            connect_to(endpoint, "", std::chrono::steady_clock::now() + std::chrono::seconds(5));
        while (!sockets_[high][low]) sockets_[high][low] = accept_from(listener, who);
        for (const Descriptor* socket : {&sockets_[low][high], &sockets_[high][low]})
          ::fcntl(socket->number(), F_SETFL, ::fcntl(socket->number(), F_GETFL) & ~O_NONBLOCK);
      }
  }

  // Each rank sends `bytes` to every other and receives as much: one thread for each direction.
  void exchange(int rank, const std::byte* out, std::byte* in, size_t bytes) const {
    const auto each = [&](const auto& move) {
      for (size_t step = 1; step < sockets_.size(); ++step)
        move((static_cast<size_t>(rank) + step) % sockets_.size());
    };
    const auto& own = sockets_[static_cast<size_t>(rank)];
    std::thread sender([&] {
      each([&](size_t peer) {
        for (size_t at = 0; at < bytes;) {
          const ssize_t sent = ::send(own[peer].number(), out + at, bytes - at, MSG_NOSIGNAL);
          if (sent <= 0) fail(ErrorKind::peer, "a plain socket has closed");
          at += static_cast<size_t>(sent);
        }
      });
    });
    // Who sends to this rank first is the one before it.
    for (size_t step = 1; step < sockets_.size(); ++step) {
      const size_t peer = (static_cast<size_t>(rank) + sockets_.size() - step) % sockets_.size();
      for (size_t at = 0; at < bytes;) {
        const ssize_t got = ::recv(own[peer].number(), in + at, bytes - at, 0);
        if (got <= 0) fail(ErrorKind::peer, "a plain socket has closed");
        at += static_cast<size_t>(got);
      }
    }
    sender.join();
  }

 private:
  std::vector<std::vector<Descriptor>> sockets_;  // [rank, peer]
};

class Bench {
 public:
  Bench(int rank, const Setting& setting, const PlainMesh& plain)
      : rank_(rank), setting_(setting), plain_(plain) {
    TcpOptions options;
    options.rank = rank;
    options.size = setting.ranks;
    options.address = "127.0.0.1";
    options.secret = "not much of a secret";
    options.store = make_file_key_value(setting.folder);
    options.prefix = "bench";
    fabric_ = make_tcp(options);
    ranks_.resize(static_cast<size_t>(setting.ranks));
    std::iota(ranks_.begin(), ranks_.end(), 0);
    group_ = fabric_->group("all", ranks_);
    barrier_ = group_->prepare({});
    in_.resize(static_cast<size_t>(setting.most) * 2);
    out_.resize(in_.size() * static_cast<size_t>(setting.ranks));
  }

  void run() {
    times_ = fmt::format("\"group\": {{\"0\": {:.1f}}}", group_microseconds());
    const std::vector<int64_t> sizes = {4, 4096, 65'536, 1 << 20, setting_.most};
    table("all_reduce", sizes, [&](int64_t bytes) { return microseconds_of(all_reduce(bytes), bytes); });
    table("all_gather", sizes, [&](int64_t bytes) {
      return microseconds_of(gather(std::vector<int64_t>(ranks_.size(), bytes / setting_.ranks)), bytes);
    });
    table("message", sizes, [&](int64_t bytes) { return message_microseconds(bytes); });
    against_plain_sockets();
    uneven();
    if (rank_ == 0)
      std::printf("{\"ranks\": %d, \"bytes\": %lld, %s, \"microseconds\": {%s}}\n", setting_.ranks,
                  static_cast<long long>(setting_.most), results_.c_str(), times_.c_str());
    meet();
  }

 private:
  void meet() {
    barrier_->start(nullptr, nullptr);
    barrier_->wait();
  }
  // Seconds of `body` on this rank, from when all ranks are ready.
  double seconds_of(const std::function<void()>& body) {
    meet();
    const auto begin = CommClock::now();
    body();
    return seconds_since(begin);
  }
  void once(Collective& collective) {
    collective.start(in_.data(), out_.data());
    collective.wait();
  }
  int rounds_of(int64_t bytes) const {
    return setting_.rounds * (bytes <= 4096 ? 40 : bytes <= (1 << 20) ? 6 : 1);
  }

  static CollectiveRequest all_reduce(int64_t bytes) {
    return {CollectiveKind::all_reduce, DType::f32, {bytes / 4}, -1, 0, Reduction::sum, "bench"};
  }
  static CollectiveRequest gather(std::vector<int64_t> counts) {
    return {CollectiveKind::all_gather, DType::u8, std::move(counts), -1, 0, Reduction::sum, "bench"};
  }

  template <typename Measure>
  void table(const char* name, const std::vector<int64_t>& sizes, const Measure& measure) {
    std::string line;
    for (const int64_t bytes : sizes)
      line += fmt::format("{}\"{}\": {:.1f}", line.empty() ? "" : ", ", bytes, measure(bytes));
    times_ += fmt::format(", \"{}\": {{{}}}", name, line);
  }

  double microseconds_of(const CollectiveRequest& request, int64_t bytes) {
    const auto collective = group_->prepare(request);
    std::vector<double> seconds;
    once(*collective);
    for (int round = 0; round < rounds_of(bytes); ++round)
      seconds.push_back(seconds_of([&] { once(*collective); }));
    return median(seconds) * 1e6;
  }

  // Half of the way there and back, between ranks 0 and 1.
  double message_microseconds(int64_t bytes) {
    std::vector<double> seconds;
    if (rank_ < 2) {
      CollectiveRequest request{CollectiveKind::send, DType::u8, {bytes}, 1 - rank_, 7,
                                Reduction::sum,       "bench"};
      const auto send = group_->prepare(request);
      request.kind = CollectiveKind::receive;
      const auto receive = group_->prepare(request);
      for (int round = -1; round < rounds_of(bytes); ++round) {
        const auto begin = CommClock::now();
        for (int turn = 0; turn < 2; ++turn) once(turn == rank_ ? *send : *receive);
        if (round >= 0) seconds.push_back(seconds_since(begin) / 2);
      }
    }
    meet();
    return seconds.empty() ? 0 : median(seconds) * 1e6;
  }

  double group_microseconds() {
    std::vector<double> seconds;
    for (int i = 0; i < 20; ++i)
      seconds.push_back(seconds_of([&] { fabric_->group(fmt::format("group {}", i), ranks_); }));
    return median(seconds) * 1e6;
  }

  // The bytes of an all-reduce: what each rank has of each block to its owner, and the sums back.
  void against_plain_sockets() {
    const auto reduce = group_->prepare(all_reduce(setting_.most));
    const auto block = static_cast<size_t>(setting_.most / setting_.ranks);
    std::vector<double> ours, plain;
    for (int round = 0; round < setting_.rounds; ++round) {
      ours.push_back(seconds_of([&] { once(*reduce); }));
      plain.push_back(seconds_of([&] {
        for (int part = 0; part < 2; ++part) plain_.exchange(rank_, in_.data(), out_.data(), block);
      }));
    }
    results_ =
        fmt::format("\"allreduce_gbs\": {:.3f}, \"allreduce_fraction\": {:.3f}",
                    static_cast<double>(setting_.most) * 1e-9 / median(ours), median(plain) / median(ours));
  }

  // Half of the data on the first rank, the rest alike; padded: all as long as the first.
  void uneven() {
    std::vector<int64_t> counts(ranks_.size(), setting_.most / 2 / (setting_.ranks - 1));
    counts[0] = setting_.most / 2;
    const auto uneven = group_->prepare(gather(counts));
    const auto padded = group_->prepare(gather(std::vector<int64_t>(ranks_.size(), counts[0])));
    std::vector<double> seconds[2];
    for (int round = 0; round < setting_.rounds; ++round) {
      seconds[0].push_back(seconds_of([&] { once(*uneven); }));
      seconds[1].push_back(seconds_of([&] { once(*padded); }));
    }
    results_ += fmt::format(", \"uneven_allgather_s\": {:.4f}, \"padded_allgather_s\": {:.4f}",
                            median(seconds[0]), median(seconds[1]));
  }

  const int rank_;
  const Setting& setting_;
  const PlainMesh& plain_;
  std::vector<int> ranks_;
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Communicator> group_;
  std::unique_ptr<Collective> barrier_;
  std::vector<std::byte> in_, out_;
  std::string times_, results_;
};

int run_all(const Setting& setting) {
  const PlainMesh plain(setting.ranks);
  std::vector<pid_t> children;
  for (int rank = 0; rank < setting.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int code = 0;
    try {
      Bench(rank, setting, plain).run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = 1;
    }
    std::fflush(stdout);
    ::_exit(code);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed += status != 0;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Setting setting;
  if (argc > 1) setting.ranks = std::atoi(argv[1]);
  if (argc > 2) setting.most = std::atoll(argv[2]) << 20;
  if (argc > 3) setting.rounds = std::atoi(argv[3]);
  if (setting.ranks < 2 || setting.most < 1 || setting.rounds < 1) {
    std::fprintf(stderr, "usage: collectives [ranks >= 2] [MiB >= 1] [rounds >= 1]\n");
    return 2;
  }
  setting.folder = std::filesystem::temp_directory_path() / fmt::format("hetrun-collectives-{}", ::getpid());
  const int code = run_all(setting);
  std::filesystem::remove_all(setting.folder);
  return code;
}
