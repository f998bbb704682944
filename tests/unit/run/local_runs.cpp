#include "core/run/local_runs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

#include "tests/unit/io/scratch.h"

using namespace het;
using het::testing::Scratch;

namespace {

using Texts = std::vector<std::string>;

constexpr int kShell = 5'000'000, kLauncher = 5'000'001;  // more than Linux numbers processes

struct Process {
  int pid = 0, parent = 1, started = 100;
  Texts words{}, variables{};
  int64_t user = geteuid();
};

std::string ended_by_zeros(const Texts& texts) {
  std::string all;
  for (const std::string& text : texts) all.append(text).push_back('\0');
  return all;
}

// As proc(5) shows it.
void add(const Scratch& processes, const Process& process) {
  const std::string folder = std::to_string(process.pid) + "/";
  processes.put(folder + "stat",
                fmt::format("{} (a name) with ) S {} 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 {} 4096 10\n",
                            process.pid, process.parent, process.started));
  processes.put(folder + "status", fmt::format("Name:\tany\nUid:\t{0}\t{0}\t{0}\t{0}\n", process.user));
  processes.put(folder + "cmdline", ended_by_zeros(process.words));
  processes.put(folder + "environ", ended_by_zeros(process.variables));
}

const Texts kRank0 = {"RANK=0", "HETRUN_STORE=127.0.0.1:4711", "HETRUN_SECRET=ours"};
const Texts kRank1 = {"RANK=1", "HETRUN_STORE=127.0.0.1:4711", "HETRUN_SECRET=ours"};

}  // namespace

TEST_CASE("a run is found once, by its launcher, whatever its ranks have forked", "[local_runs]") {
  const Scratch processes;
  add(processes, {.pid = kLauncher, .parent = kShell, .words = {"hetrun", "--workers=2", "recipe.lua"}});
  add(processes, {.pid = kLauncher + 1, .parent = kLauncher, .started = 101, .variables = kRank0});
  add(processes, {.pid = kLauncher + 2, .parent = kLauncher, .started = 102, .variables = kRank1});
  add(processes, {.pid = kLauncher + 3, .parent = kLauncher + 1, .started = 103, .variables = kRank0});
  add(processes, {.pid = kLauncher + 4, .parent = kLauncher + 2, .started = 104, .variables = kRank1});

  const auto runs = list_local_runs(processes.folder());
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].pid == kLauncher);
  CHECK(runs[0].started == 100);
  CHECK(runs[0].store == "127.0.0.1:4711");
  CHECK(runs[0].secret == "ours");
  CHECK_FALSE(runs[0].etcd);

  // One rank with its helper is left.
  std::filesystem::remove_all(processes.path(std::to_string(kLauncher + 1)));
  std::filesystem::remove_all(processes.path(std::to_string(kLauncher + 3)));
  REQUIRE(list_local_runs(processes.folder()).size() == 1);
  CHECK(list_local_runs(processes.folder())[0].pid == kLauncher);
}

TEST_CASE(
    "a launcher counts before a shell in which a rank was started, and the first launcher before others",
    "[local_runs]") {
  const Scratch processes;
  add(processes, {.pid = kShell, .started = 1, .words = {"sh"}});
  add(processes, {.pid = kShell - 1, .parent = kShell, .started = 90, .variables = kRank1});
  add(processes, {.pid = kLauncher, .parent = kShell, .words = {"hetrun", "--workers", "1", "recipe.lua"}});
  add(processes, {.pid = kLauncher + 1, .parent = kLauncher, .started = 101, .variables = kRank0});
  add(processes,
      {.pid = kLauncher + 2, .parent = kShell, .started = 200, .words = {"hetrun", "--join", "x"}});
  add(processes, {.pid = kLauncher + 3, .parent = kLauncher + 2, .started = 201, .variables = kRank1});
  const auto runs = list_local_runs(processes.folder());
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].pid == kLauncher);
}

TEST_CASE("without a launcher a run is that of the process that started its ranks", "[local_runs]") {
  const Scratch processes;
  add(processes, {.pid = kShell, .started = 1, .words = {"sh"}});
  add(processes, {.pid = kShell - 1, .parent = kShell, .started = 90, .variables = kRank0});
  add(processes, {.pid = kShell - 2, .parent = kShell - 1, .started = 91, .variables = kRank0});
  add(processes, {.pid = kShell + 1, .parent = kShell - 1, .started = 92, .variables = kRank0});
  const auto runs = list_local_runs(processes.folder());
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].pid == kShell);
}

TEST_CASE("runs of other users are not listed", "[local_runs]") {
  const Scratch processes;
  const int64_t other = geteuid() + 1;
  add(processes, {.pid = kLauncher, .words = {"hetrun", "--workers=1", "a.lua"}, .user = other});
  add(processes, {.pid = kLauncher + 1, .parent = kLauncher, .variables = kRank0, .user = other});
  CHECK(list_local_runs(processes.folder()).empty());

  add(processes, {.pid = kLauncher + 1, .parent = kLauncher, .variables = kRank0});
  CHECK(list_local_runs(processes.folder()).size() == 1);
}

TEST_CASE("runs are listed from the newest to the oldest, each with where its ranks meet", "[local_runs]") {
  const Scratch processes;
  add(processes, {.pid = kLauncher, .started = 100, .words = {"hetrun", "--workers=1", "a.lua"}});
  add(processes, {.pid = kLauncher + 1, .parent = kLauncher, .started = 101, .variables = kRank0});
  add(processes, {.pid = kLauncher + 2, .started = 300, .words = {"hetrun", "--workers=1", "b.lua"}});
  add(processes, {.pid = kLauncher + 3,
                  .parent = kLauncher + 2,
                  .started = 301,
                  .words = {"hetrun", "--rendezvous", "etcd://here:2379", "b.lua"},
                  .variables = kRank0});
  // Without a secret it is no rank, nor is another program's process that has one.
  add(processes, {.pid = kLauncher + 4, .started = 400, .variables = {"RANK=0", "HETRUN_STORE=127.0.0.1:1"}});
  add(processes, {.pid = kLauncher + 5,
                  .started = 500,
                  .variables = {"RANK=0", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "HETRUN_SECRET=ours"}});
  processes.put("meminfo", "");

  const auto runs = list_local_runs(processes.folder());
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].pid == kLauncher + 2);
  CHECK(runs[0].etcd == "etcd://here:2379");
  CHECK(runs[1].pid == kLauncher);
  CHECK_FALSE(runs[1].etcd);
}

TEST_CASE("ranks of other launchers are found where these have them meet", "[local_runs]") {
  const Scratch processes;
  const auto start = [&](int pid, Texts variables) {
    variables.push_back("HETRUN_SECRET=ours");
    add(processes, {.pid = pid, .words = {"hetrun", "a.lua"}, .variables = std::move(variables)});
    std::filesystem::create_symlink("/usr/bin/hetrun",
                                    processes.folder() + "/" + std::to_string(pid) + "/exe");
  };
  start(kLauncher, {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=here", "MASTER_PORT=4711",
                    "TORCHELASTIC_USE_AGENT_STORE=True"});
  start(kLauncher + 1, {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2",
                        "SLURM_JOB_NODELIST=gpu[02-05]"});
  start(kLauncher + 2,
        {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "MASTER_ADDR=there", "MASTER_PORT=4712"});
  // The only task of a step, and one that does not know where the others are.
  start(kLauncher + 3, {"SLURM_JOB_ID=8", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1",
                        "SLURM_JOB_NODELIST=gpu01"});
  start(kLauncher + 4, {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"});
  start(kLauncher + 5, {"RANK=1"});

  std::vector<std::string> stores;
  for (const LocalRun& run : list_local_runs(processes.folder())) stores.push_back(run.store);
  std::sort(stores.begin(), stores.end());
  CHECK(stores == Texts{"gpu02:20007", "here:4712", "there:4712"});
}
