// Who a process is, from what launchers put into its environment. The environment is passed in, never read
// from the process here, so that every launcher can be tested.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace het {

// The value of a variable; nothing when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvironmentLookup process_environment();

// What a launcher says of this process.
struct LaunchedRank {
  std::string source;  // "torchrun's variables (RANK, WORLD_SIZE)"; empty: no launcher; this process is alone
  int rank = 0;
  std::optional<int> world_size;  // absent: the launcher does not say (JOB_COMPLETION_INDEX)
  std::optional<int> local_rank;  // among the ranks of its host
  std::string master_host;        // where rank 0 is to be found; empty: not said
  int master_port = 0;            // 0: not said; behind torchrun the one after MASTER_PORT
  std::string note;               // something found that was not followed, and why; empty: none

  bool operator==(const LaunchedRank&) const = default;
};

// In this order: RANK and WORLD_SIZE (torchrun, and by hand), OMPI_COMM_WORLD_*, SLURM_* of a step that srun
// started, JOB_COMPLETION_INDEX. Those that `hetrun --workers` set (with HETRUN_STORE) count alone. Throws
// Error(usage) for variables that contradict each other, are half set, or are no numbers.
LaunchedRank read_launched_rank(const EnvironmentLookup& lookup);

// Whether there are other ranks, or may come (`hetrun --elastic` sets HETRUN_ELASTIC).
bool is_one_of_several(const EnvironmentLookup& lookup);

// What this machine is called: HETRUN_HOST, else its own name; empty: it has none.
std::string host_of_process(const EnvironmentLookup& lookup);

// The hosts of a list as Slurm writes it: "gpu[01-03,7],login" is gpu01, gpu02, gpu03, gpu7, login. Throws
// Error(usage) for what is none.
std::vector<std::string> expand_nodelist(std::string_view list);

}  // namespace het
