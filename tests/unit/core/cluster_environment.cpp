#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/error.h"
#include "core/cluster/environment.h"
#include "core/cluster/secret.h"

using namespace het;
using Catch::Matchers::Contains;

namespace {

using Settings = std::map<std::string, std::string>;

EnvironmentLookup lookup_in(const Settings& settings) {
  return [settings](const std::string& name) -> std::optional<std::string> {
    const auto found = settings.find(name);
    return found == settings.end() ? std::nullopt : std::optional(found->second);
  };
}

const std::string kTorchrun = "torchrun's variables (RANK, WORLD_SIZE)";
const std::string kOpenMpi = "Open MPI's variables (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)";
const std::string kSlurm = "Slurm's variables (SLURM_PROCID, SLURM_NTASKS)";
const std::string kSlurmTwo =
    "Slurm's variables (SLURM_PROCID, SLURM_NTASKS; a heterogeneous job of 2 components)";
const std::string kIndexed = "the index of a Kubernetes job (JOB_COMPLETION_INDEX)";
const std::string kNoStep =
    "this is a job of Slurm, but srun did not start this process: it does not take part as a task";

Settings with(Settings settings, const Settings& more) {
  for (const auto& [name, value] : more) settings[name] = value;
  return settings;
}

template <typename Body>
std::string sentence_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.sentence());
  }
  return "nothing was thrown";
}

const Settings kStep = {{"SLURM_JOB_ID", "12345"}, {"SLURM_STEP_ID", "0"},
                        {"SLURM_PROCID", "5"},     {"SLURM_NTASKS", "8"},
                        {"SLURM_LOCALID", "1"},    {"SLURM_JOB_NODELIST", "gpu[02-05]"}};

}  // namespace

TEST_CASE("a process finds its place in what its launcher says", "[cluster]") {
  struct Case {
    Settings settings;
    LaunchedRank expected;
  };
  const std::vector<Case> cases = {
      {{}, {"", 0, 1, {}, "", 0, ""}},
      {{{"RANK", "3"}, {"WORLD_SIZE", "4"}}, {kTorchrun, 3, 4, {}, "", 0, ""}},
      {{{"RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "head"},
        {"MASTER_PORT", "29500"}},
       {kTorchrun, 3, 4, 1, "head", 29500, ""}},
      // torchrun's own agent listens at MASTER_PORT.
      {{{"RANK", "0"},
        {"WORLD_SIZE", "4"},
        {"MASTER_ADDR", "head"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
       {kTorchrun, 0, 4, {}, "head", 29501, ""}},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "4"},
        {"MASTER_ADDR", "head"},
        {"MASTER_PORT", "65535"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
       {kTorchrun, 0, 4, {}, "head", 65534, ""}},
      {{{"RANK", ""}, {"WORLD_SIZE", ""}}, {"", 0, 1, {}, "", 0, ""}},
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
       {kOpenMpi, 1, 2, 0, "", 0, ""}},
      {kStep, {kSlurm, 5, 8, 1, "gpu02", 22345, ""}},
      {with(kStep, {{"SLURM_STEP_NODELIST", "gpu[04-05]"}, {"SLURM_STEP_NUM_TASKS", "6"}}),
       {kSlurm, 5, 6, 1, "gpu04", 22345, ""}},
      {with(kStep, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "99"}}),
       {kSlurm, 5, 8, 1, "10.0.0.1", 99, ""}},
      // Two components in one step: tasks are numbered through, the first host is the first component's.
      {with(kStep, {{"SLURM_HET_SIZE", "2"},
                    {"SLURM_HET_JOB_ID", "12340"},
                    {"SLURM_JOB_NODELIST", "small1"},
                    {"SLURM_JOB_NODELIST_HET_GROUP_0", "big[7,9]"},
                    {"SLURM_JOB_NODELIST_HET_GROUP_1", "small1"}}),
       {kSlurmTwo, 5, 8, 1, "big7", 22340, ""}},
      // The number of tasks is that of this component, and the components' own add up.
      {with(kStep, {{"SLURM_HET_SIZE", "2"},
                    {"SLURM_NTASKS", "2"},
                    {"SLURM_NTASKS_HET_GROUP_0", "4"},
                    {"SLURM_NTASKS_HET_GROUP_1", "2"},
                    {"SLURM_JOB_NODELIST_HET_GROUP_0", "big[7,9]"}}),
       {kSlurmTwo, 5, 6, 1, "big7", 22345, ""}},
      // In the batch script itself, which is task 0 without being a step.
      {{{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}, {"", 0, 1, {}, "", 0, kNoStep}},
      {{{"JOB_COMPLETION_INDEX", "2"}}, {kIndexed, 2, {}, {}, "", 0, ""}},
      {{{"JOB_COMPLETION_INDEX", "2"},
        {"WORLD_SIZE", "3"},
        {"MASTER_ADDR", "job-0.svc"},
        {"MASTER_PORT", "4711"}},
       {kIndexed, 2, 3, {}, "job-0.svc", 4711, ""}},
      // mpirun starts its daemons with srun, torchrun is often started by it: the nearer launcher counts.
      {with(kStep, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
       {kOpenMpi, 1, 2, {}, "", 0, ""}},
      {with(kStep, {{"RANK", "9"}, {"WORLD_SIZE", "16"}}), {kTorchrun, 9, 16, {}, "", 0, ""}},
      {with(kStep, {{"RANK", "2"}, {"WORLD_SIZE", "8"}, {"TORCHELASTIC_RUN_ID", "x"}}),
       {kTorchrun, 2, 8, {}, "", 0, ""}},
      // `hetrun --workers 2` inside of a task, of Slurm's or of Open MPI's.
      {{{"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "2"},
        {"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "1"},
        {"HETRUN_STORE", "127.0.0.1:4711"}},
       {kTorchrun, 1, 2, 1, "", 0, ""}},
  };
  for (const Case& c : cases) {
    std::string settings;
    for (const auto& [name, value] : c.settings) settings += fmt::format("{}={} ", name, value);
    INFO(settings);
    const LaunchedRank found = read_launched_rank(lookup_in(c.settings));
    CHECK(found.source == c.expected.source);
    CHECK(found == c.expected);
  }
}

TEST_CASE("a place that is half said, or contradicts itself, is refused", "[cluster]") {
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"RANK", "3"}},
       "usage: RANK is set, but WORLD_SIZE is not; both are needed to know this process' place"},
      {{{"WORLD_SIZE", "3"}},
       "usage: WORLD_SIZE is set, but RANK is not; both are needed to know this process' place"},
      {{{"OMPI_COMM_WORLD_SIZE", "3"}},
       "usage: OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not; both are needed to know this "
       "process' "
       "place"},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}},
       "usage: SLURM_PROCID is set, but SLURM_NTASKS is not; both are needed to know this process' place"},
      {{{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "usage: RANK is 4, but WORLD_SIZE is 4: ranks go from 0 to 3"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "usage: WORLD_SIZE is 0; a world has at least one process"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}},
       "usage: LOCAL_RANK is 2, but WORLD_SIZE is 2: a host cannot have more ranks than there are"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
       "usage: LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"},
      {{{"RANK", "one"}, {"WORLD_SIZE", "4"}}, "usage: RANK is 'one', which is no whole number of 0 or more"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "4"}}, "usage: RANK is '-1', which is no whole number of 0 or more"},
      {{{"RANK", "1 "}, {"WORLD_SIZE", "4"}}, "usage: RANK is '1 ', which is no whole number of 0 or more"},
      {{{"RANK", "99999999999"}, {"WORLD_SIZE", "4"}},
       "usage: RANK is '99999999999', which is no whole number of 0 or more"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}},
       "usage: MASTER_ADDR is 'a', but MASTER_PORT is not set; the others are found at both"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "80"}},
       "usage: MASTER_PORT is 80, but MASTER_ADDR is not set; the others are found at both"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "65536"}, {"MASTER_ADDR", "a"}},
       "usage: MASTER_PORT is 65536; ports go from 1 to 65535"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       "usage: " + kTorchrun + " say rank 1 of 2, but " + kOpenMpi +
           " say rank 0; unset those that were left over"},
      {with(kStep, {{"RANK", "1"}, {"WORLD_SIZE", "8"}}), "usage: " + kTorchrun + " say rank 1 of 8, but " +
                                                              kSlurm +
                                                              " say rank 5; unset those that were left over"},
      {with(kStep, {{"SLURM_NTASKS", "5"}}),
       "usage: SLURM_PROCID is 5, but SLURM_NTASKS is 5: ranks go from 0 to 4"},
      {{{"JOB_COMPLETION_INDEX", "3"}, {"WORLD_SIZE", "3"}},
       "usage: JOB_COMPLETION_INDEX is 3, but WORLD_SIZE is 3: ranks go from 0 to 2"},
  };
  for (const auto& [settings, expected] : cases)
    CHECK(sentence_of([&, &settings = settings] { read_launched_rank(lookup_in(settings)); }) == expected);
}

TEST_CASE("lists of hosts are expanded as Slurm means them", "[cluster]") {
  using Hosts = std::vector<std::string>;
  CHECK(expand_nodelist("login") == Hosts{"login"});
  CHECK(expand_nodelist("gpu[01-03,7],login") == Hosts{"gpu01", "gpu02", "gpu03", "gpu7", "login"});
  CHECK(expand_nodelist("gpu[9-11]") == Hosts{"gpu9", "gpu10", "gpu11"});
  CHECK(expand_nodelist("gpu[098-101]") == Hosts{"gpu098", "gpu099", "gpu100", "gpu101"});
  CHECK(expand_nodelist("r[1-2]n[0,3]-ib") == Hosts{"r1n0-ib", "r1n3-ib", "r2n0-ib", "r2n3-ib"});
  CHECK(expand_nodelist("a,b-1.c") == Hosts{"a", "b-1.c"});
  CHECK(expand_nodelist("n[0-99999]").size() == 100000);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "a part of it is empty"},
      {"a,,b", "a part of it is empty"},
      {"a[", "a bracket is not closed"},
      {"a[1-2", "a bracket is not closed"},
      {"a]", "a bracket is closed that was not opened"},
      {"a[[1]]", "a bracket stands within another"},
      {"a[]", "a part of it is empty"},
      {"a[1,]", "a part of it is empty"},
      {"a[x]", "'x' is no number"},
      {"a[3-1]", "'3-1' runs backwards"},
      {"a[1-]", "'' is no number"},
      {"a[0-99999999]", "it has too many hosts"},
      {"a[0-9999][0-9999]", "it has too many hosts"},
      {"a[0-18446744073709551615]", "it has too many hosts"},
  };
  for (const auto& [list, why] : wrong)
    CHECK(sentence_of([&, &list = list] { expand_nodelist(list); }) ==
          fmt::format("usage: '{}' is no list of hosts as Slurm writes it ('node[01-03,7],login'): {}", list,
                      why));
}

TEST_CASE("the secret comes from a file or the environment, and is a good one", "[cluster]") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("hetrun-secret-" + hex_of(random_bytes(8)))).string();
  const auto write = [&](const std::string& text, std::filesystem::perms perms) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, perms);
  };
  using std::filesystem::perms;
  const auto mine = perms::owner_read | perms::owner_write;
  const auto environment = lookup_in({{"HETRUN_SECRET", "from the environment"}});
  CHECK(load_secret(environment, "") == "from the environment");
  write("  from the file, trimmed\n", mine);
  CHECK(load_secret(environment, path) == "from the file, trimmed");
  write("  from the file, trimmed\n", mine | perms::others_read);
  CHECK_THAT(sentence_of([&] { load_secret(environment, path); }),
             Contains("usage: everybody on this machine can read the secret in") && Contains("chmod 600"));
  write("short", mine);
  CHECK_THAT(sentence_of([&] { load_secret(environment, path); }),
             Contains("has 5 bytes; it needs 16 or more"));
  std::filesystem::remove(path);
  CHECK_THAT(sentence_of([&] { load_secret(environment, path); }), Contains("usage: "));
  CHECK_THAT(sentence_of([&] { load_secret(lookup_in({}), ""); }),
             Contains("usage: a run over several processes needs a shared secret: set HETRUN_SECRET"));
  CHECK(make_secret().size() == 64);
  CHECK(make_secret() != make_secret());
}
