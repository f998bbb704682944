#include "core/cluster/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/base/error.h"
#include "core/net/network.h"

namespace het {
namespace {

// Variables as numbers; empty ones count as not set.
class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = lookup_(name);
    return value && !value->empty() ? std::move(value) : std::nullopt;
  }
  std::optional<int> number(const std::string& name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int number = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (error != std::errc() || end != value->data() + value->size() || number < 0)
      fail_usage("{} is '{}', which is no whole number of 0 or more", name, *value);
    return number;
  }
  // One that must be there because others are.
  int needed(const std::string& name, const std::string& because) const {
    const auto value = number(name);
    if (!value)
      fail_usage("{} is set, but {} is not; both are needed to know this process' place", because, name);
    return *value;
  }

 private:
  const EnvironmentLookup& lookup_;
};

void check(const LaunchedRank& launched, const std::string& rank, const std::string& size,
           const std::string& local) {
  if (!launched.world_size) return;
  if (*launched.world_size < 1) fail_usage("{} is 0; a world has at least one process", size);
  if (launched.rank >= *launched.world_size)
    fail_usage("{} is {}, but {} is {}: ranks go from 0 to {}", rank, launched.rank, size,
               *launched.world_size, *launched.world_size - 1);
  if (launched.local_rank && *launched.local_rank >= *launched.world_size)
    fail_usage("{} is {}, but {} is {}: a host cannot have more ranks than there are", local,
               *launched.local_rank, size, *launched.world_size);
}

std::optional<LaunchedRank> from_torchrun(const Variables& variables) {
  const auto rank = variables.number("RANK"), size = variables.number("WORLD_SIZE");
  const bool index = variables.text("JOB_COMPLETION_INDEX").has_value();
  if (!rank && !size) return std::nullopt;
  if (!rank && index) return std::nullopt;  // an indexed job says the rest of it
  LaunchedRank launched;
  launched.source = "torchrun's variables (RANK, WORLD_SIZE)";
  launched.rank = rank ? *rank : variables.needed("RANK", "WORLD_SIZE");
  launched.world_size = variables.needed("WORLD_SIZE", "RANK");
  launched.local_rank = variables.number("LOCAL_RANK");
  check(launched, "RANK", "WORLD_SIZE", "LOCAL_RANK");
  const auto local_size = variables.number("LOCAL_WORLD_SIZE");
  if (local_size && launched.local_rank && *launched.local_rank >= *local_size)
    fail_usage("LOCAL_RANK is {}, but LOCAL_WORLD_SIZE is {}", *launched.local_rank, *local_size);
  return launched;
}

std::optional<LaunchedRank> from_open_mpi(const Variables& variables) {
  const std::string prefix = "OMPI_COMM_WORLD_";
  const auto rank = variables.number(prefix + "RANK"), size = variables.number(prefix + "SIZE");
  if (!rank && !size) return std::nullopt;
  LaunchedRank launched;
  launched.source = "Open MPI's variables (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)";
  launched.rank = variables.needed(prefix + "RANK", prefix + "SIZE");
  launched.world_size = variables.needed(prefix + "SIZE", prefix + "RANK");
  launched.local_rank = variables.number(prefix + "LOCAL_RANK");
  check(launched, prefix + "RANK", prefix + "SIZE", prefix + "LOCAL_RANK");
  return launched;
}

// The processes of a step over several components of a heterogeneous job are numbered through. Where
// SLURM_NTASKS is that of one component, the components' own figures add up.
int slurm_world(const Variables& variables, int components) {
  const auto step = variables.number("SLURM_STEP_NUM_TASKS");
  const int size = step ? *step : variables.needed("SLURM_NTASKS", "SLURM_PROCID");
  int sum = 0;
  for (int group = 0; group < components; ++group)
    sum += variables.number(fmt::format("SLURM_NTASKS_HET_GROUP_{}", group)).value_or(0);
  const auto rank = variables.number("SLURM_PROCID");
  return rank && *rank >= size ? std::max(size, sum) : size;
}

std::string slurm_first_host(const Variables& variables, int components) {
  std::vector<std::string> names = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};
  // The first host of all components is that of the first one.
  if (components > 1) names = {"SLURM_JOB_NODELIST_HET_GROUP_0", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};
  for (const std::string& name : names)
    if (const auto list = variables.text(name))
      return with_context([&] { return "reading " + name; }, [&] { return expand_nodelist(*list).at(0); });
  return {};
}

std::optional<LaunchedRank> from_slurm(const Variables& variables, std::string& note) {
  const auto rank = variables.number("SLURM_PROCID");
  const bool step = variables.text("SLURM_STEP_ID") || variables.text("SLURM_STEP_NODELIST");
  if (!rank || !step) {
    if (variables.text("SLURM_JOB_ID"))
      note = "this is a job of Slurm, but srun did not start this process: it does not take part as a task";
    return std::nullopt;
  }
  const int components = std::max(1, variables.number("SLURM_HET_SIZE").value_or(1));
  constexpr int kMostComponents = 1024;
  if (components > kMostComponents)
    fail_usage("SLURM_HET_SIZE is {}, more than {}", components, kMostComponents);
  LaunchedRank launched;
  launched.source = components > 1 ? fmt::format(
                                         "Slurm's variables (SLURM_PROCID, SLURM_NTASKS; a heterogeneous "
                                         "job of {} components)",
                                         components)
                                   : "Slurm's variables (SLURM_PROCID, SLURM_NTASKS)";
  launched.rank = *rank;
  launched.world_size = slurm_world(variables, components);
  launched.local_rank = variables.number("SLURM_LOCALID");
  check(launched, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID");
  launched.master_host = slurm_first_host(variables, components);
  // One job, one port, the same for all of its tasks.
  constexpr int kFirstPort = 20'000, kPorts = 10'000;
  const auto job = components > 1 && variables.text("SLURM_HET_JOB_ID") ? variables.number("SLURM_HET_JOB_ID")
                                                                        : variables.number("SLURM_JOB_ID");
  if (job) launched.master_port = kFirstPort + *job % kPorts;
  return launched;
}

std::optional<LaunchedRank> from_indexed_job(const Variables& variables) {
  const auto index = variables.number("JOB_COMPLETION_INDEX");
  if (!index) return std::nullopt;
  LaunchedRank launched;
  launched.source = "the index of a Kubernetes job (JOB_COMPLETION_INDEX)";
  launched.rank = *index;
  launched.world_size = variables.number("WORLD_SIZE");
  check(launched, "JOB_COMPLETION_INDEX", "WORLD_SIZE", "LOCAL_RANK");
  return launched;
}

constexpr int kLastPort = 65'535;

// torchrun's agent itself listens at MASTER_PORT, for the store that PyTorch's ranks share; ours is beside
// it.
int port_of_ranks(const Variables& variables, int master_port) {
  const bool is_taken =
      variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True" && !variables.text("HETRUN_STORE");
  if (!is_taken) return master_port;
  return master_port < kLastPort ? master_port + 1 : master_port - 1;
}

void add_master(const Variables& variables, LaunchedRank& launched) {
  const auto host = variables.text("MASTER_ADDR");
  const auto port = variables.number("MASTER_PORT");
  if (port && (*port < 1 || *port > kLastPort))
    fail_usage("MASTER_PORT is {}; ports go from 1 to {}", *port, kLastPort);
  if (host) launched.master_host = *host;
  if (port) launched.master_port = port_of_ranks(variables, *port);
  if (!launched.master_host.empty() && launched.master_port == 0)
    fail_usage("MASTER_ADDR is '{}', but MASTER_PORT is not set; the others are found at both",
               launched.master_host);
  if (launched.master_host.empty() && port)
    fail_usage("MASTER_PORT is {}, but MASTER_ADDR is not set; the others are found at both", *port);
}

// RANK of another launcher's processes is an old export as a rule. torchrun itself, which may number its
// processes as it likes, says that it is there.
void refuse_contradiction(const Variables& variables, const LaunchedRank& followed,
                          const std::optional<LaunchedRank>& other) {
  if (!other || followed.source == other->source || variables.text("TORCHELASTIC_RUN_ID")) return;
  if (followed.world_size == other->world_size && followed.rank != other->rank)
    fail_usage("{} say rank {} of {}, but {} say rank {}; unset those that were left over", followed.source,
               followed.rank, followed.world_size.value_or(0), other->source, other->rank);
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

LaunchedRank read_launched_rank(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  std::string note;
  const auto torchrun = from_torchrun(variables);
  if (torchrun && variables.text("HETRUN_STORE")) {
    // `hetrun --workers` set them, maybe inside of a task of another launcher, whose place is not this one's.
    LaunchedRank launched = *torchrun;
    add_master(variables, launched);
    return launched;
  }
  const auto mpi = from_open_mpi(variables), slurm = from_slurm(variables, note),
             job = from_indexed_job(variables);
  LaunchedRank launched;
  for (const auto* candidate : {&torchrun, &mpi, &slurm, &job}) {
    if (!*candidate) continue;
    launched = **candidate;
    break;
  }
  if (launched.source.empty()) {
    launched.world_size = 1;
    launched.note = note;
    return launched;
  }
  if (torchrun) refuse_contradiction(variables, *torchrun, mpi);
  if (torchrun) refuse_contradiction(variables, *torchrun, slurm);
  add_master(variables, launched);
  return launched;
}

std::vector<std::string> expand_nodelist(std::string_view list) {
  constexpr size_t kMost = 1 << 17;
  const auto refuse = [&](std::string_view why) {
    fail_usage("'{}' is no list of hosts as Slurm writes it ('node[01-03,7],login'): {}", list, why);
  };
  const auto split = [&](std::string_view text) {  // at commas outside of brackets
    std::vector<std::string_view> parts;
    size_t begin = 0;
    int depth = 0;
    for (size_t at = 0; at <= text.size(); ++at) {
      const char c = at < text.size() ? text[at] : ',';
      if (c == '[' && ++depth > 1) refuse("a bracket stands within another");
      if (c == ']' && --depth < 0) refuse("a bracket is closed that was not opened");
      if (c != ',' || depth > 0) continue;
      if (at == begin) refuse("a part of it is empty");
      parts.push_back(text.substr(begin, at - begin));
      begin = at + 1;
    }
    if (depth) refuse("a bracket is not closed");
    return parts;
  };
  const auto number = [&](std::string_view digits) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size())
      refuse(fmt::format("'{}' is no number", digits));
    return value;
  };

  std::vector<std::string> hosts;
  for (const std::string_view part : split(list)) {
    std::vector<std::string> begun = {""};  // the names so far; brackets multiply them
    for (size_t at = 0; at < part.size();) {
      const size_t open = std::min(part.find('[', at), part.size());
      for (std::string& name : begun) name += part.substr(at, open - at);
      if (open == part.size()) break;
      const size_t close = part.find(']', open);
      std::vector<std::string> values;
      for (const std::string_view range : split(part.substr(open + 1, close - open - 1))) {
        const size_t dash = range.find('-');
        const std::string_view first = range.substr(0, dash);
        const std::string_view last = dash == range.npos ? first : range.substr(dash + 1);
        const uint64_t from = number(first), to = number(last);
        if (to < from) refuse(fmt::format("'{}' runs backwards", range));
        if (to - from >= kMost || begun.size() * (values.size() + to - from + 1) > kMost)
          refuse("it has too many hosts");
        for (uint64_t value = from; value <= to; ++value)
          values.push_back(fmt::format("{:0{}}", value, first.size()));
      }
      std::vector<std::string> longer;
      for (const std::string& name : begun)
        for (const std::string& value : values) longer.push_back(name + value);
      begun = std::move(longer);
      at = close + 1;
    }
    hosts.insert(hosts.end(), begun.begin(), begun.end());
    if (hosts.size() > kMost) refuse("it has too many hosts");
  }
  return hosts;
}

std::string host_of_process(const EnvironmentLookup& lookup) {
  return lookup("HETRUN_HOST").value_or(host_name());
}

bool is_one_of_several(const EnvironmentLookup& lookup) {
  return lookup("HETRUN_ELASTIC") || read_launched_rank(lookup).world_size.value_or(1) > 1;
}

}  // namespace het
