// Bandwidth of collectives over processes of this machine: ours against Gloo's own, turn by turn in one run.
// usage: collectives [ranks] [MiB] [rounds]; prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <vector>

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/comm/gloo.h"

using namespace het;

namespace {

struct Setting {
  int ranks = 4;
  int64_t elements = 16 << 20;
  int rounds = 15;
  std::filesystem::path folder;
};

// Seconds of `body` on this rank, from when all ranks are ready.
template <typename Body>
double seconds_of(Collective& barrier, const Body& body) {
  barrier.start(nullptr, nullptr);
  barrier.wait();
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_rank(int rank, const Setting& setting) {
  GlooOptions options;
  options.rank = rank;
  options.size = setting.ranks;
  options.address = "127.0.0.1";
  options.store = make_file_key_value(setting.folder / "ours");
  options.prefix = "bench";
  const auto fabric = make_gloo(options);
  std::vector<int> ranks(setting.ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = fabric->group("all", ranks);
  const auto barrier = group->prepare({});

  gloo::rendezvous::FileStore store((setting.folder / "raw").string());
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, setting.ranks);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  context->connectFullMesh(store, device);

  std::vector<float> data(setting.elements, 1e-20F), other(setting.elements, 1e-20F);
  auto* const bytes = reinterpret_cast<std::byte*>(data.data());
  const auto reduce = group->prepare(
      {CollectiveKind::all_reduce, DType::f32, {setting.elements}, -1, 0, Reduction::sum, "bench"});
  std::vector<double> ours, raw, uneven, padded, raw_uneven;
  for (int round = 0; round < setting.rounds; ++round) {
    ours.push_back(seconds_of(*barrier, [&] {
      reduce->start(bytes, bytes);
      reduce->wait();
    }));
    raw.push_back(seconds_of(*barrier, [&] {
      gloo::AllreduceOptions all(context);
      all.setAlgorithm(gloo::detail::AllreduceOptionsImpl::RING);
      all.setInput(other.data(), other.size());
      all.setOutput(other.data(), other.size());
      all.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(all);
    }));
  }

  // Shares of 1/2 for the first rank, the rest alike; padded: all as long as the first.
  std::vector<int64_t> counts(setting.ranks, setting.elements / 2 / (setting.ranks - 1));
  counts[0] = setting.elements / 2;
  const std::vector<int64_t> longest(setting.ranks, counts[0]);
  std::vector<float> in(counts[0], 1.0F), out(counts[0] * setting.ranks);
  const auto gather = [&](const std::vector<int64_t>& c) {
    return group->prepare({CollectiveKind::all_gather, DType::f32, c, -1, 0, Reduction::sum, "bench"});
  };
  const auto gather_uneven = gather(counts), gather_padded = gather(longest);
  const auto run = [&](Collective& collective) {
    collective.start(reinterpret_cast<std::byte*>(in.data()), reinterpret_cast<std::byte*>(out.data()));
    collective.wait();
  };
  for (int round = 0; round < setting.rounds; ++round) {
    uneven.push_back(seconds_of(*barrier, [&] { run(*gather_uneven); }));
    padded.push_back(seconds_of(*barrier, [&] { run(*gather_padded); }));
    raw_uneven.push_back(seconds_of(*barrier, [&] {
      gloo::AllgathervOptions all(context);
      all.setInput(in.data(), counts[rank]);
      all.setOutput(out.data(), std::vector<size_t>(counts.begin(), counts.end()));
      gloo::allgatherv(all);
    }));
  }
  std::vector<double> latency;
  const auto small =
      group->prepare({CollectiveKind::all_reduce, DType::f32, {1}, -1, 0, Reduction::sum, "bench"});
  for (int round = 0; round < 200; ++round)
    latency.push_back(seconds_of(*barrier, [&] {
      small->start(bytes, bytes);
      small->wait();
    }));

  const double gigabytes = static_cast<double>(setting.elements) * 4e-9;
  if (rank == 0)
    std::printf(
        "{\"ranks\": %d, \"bytes\": %lld, \"allreduce_gbs\": %.3f, \"raw_allreduce_gbs\": %.3f, "
        "\"allreduce_fraction\": %.3f, \"uneven_allgather_s\": %.4f, \"padded_allgather_s\": %.4f, "
        "\"raw_allgatherv_s\": %.4f, \"small_allreduce_us\": %.1f}\n",
        setting.ranks, static_cast<long long>(setting.elements) * 4, gigabytes / median(ours),
        gigabytes / median(raw), median(raw) / median(ours), median(uneven), median(padded),
        median(raw_uneven), median(latency) * 1e6);
  barrier->start(nullptr, nullptr);
  barrier->wait();
}

int run_all(const Setting& setting) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < setting.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int code = 0;
    try {
      run_rank(rank, setting);
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
  if (argc > 2) setting.elements = std::atoll(argv[2]) << 18;
  if (argc > 3) setting.rounds = std::atoi(argv[3]);
  if (setting.ranks < 2 || setting.elements < 1 || setting.rounds < 1) {
    std::fprintf(stderr, "usage: collectives [ranks >= 2] [MiB >= 1] [rounds >= 1]\n");
    return 2;
  }
  setting.folder = std::filesystem::temp_directory_path() / fmt::format("hetrun-collectives-{}", ::getpid());
  std::filesystem::create_directories(setting.folder / "raw");
  const int code = run_all(setting);
  std::filesystem::remove_all(setting.folder);
  return code;
}
