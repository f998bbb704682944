#include "core/run/local_runs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/cluster/environment.h"

namespace het {
namespace {

constexpr std::string_view kLauncherOptions[] = {"--workers", "--join"};  // also "--workers=4"

// The texts of a file of /proc that ends each with a zero byte; empty where it cannot be read.
std::vector<std::string> texts_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> texts;
  for (size_t at = 0; at < content.size();) {
    const size_t end = std::min(content.find('\0', at), content.size());
    texts.push_back(content.substr(at, end - at));
    at = end + 1;
  }
  return texts;
}

std::optional<std::string> value_of(const std::vector<std::string>& texts, const std::string& name) {
  for (const std::string& text : texts)
    if (text.starts_with(name + "=")) return text.substr(name.size() + 1);
  return std::nullopt;
}

// The parent of a process and when the process was started; nothing: it is gone.
std::optional<std::pair<int, int64_t>> parent_and_start(const std::string& process) {
  std::ifstream file(process + "/stat");
  const std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = content.rfind(')');  // the name may hold anything
  if (name_end == content.npos) return std::nullopt;
  std::vector<std::string> fields;
  for (size_t at = name_end + 2; at < content.size();) {
    const size_t end = std::min(content.find(' ', at), content.size());
    fields.push_back(content.substr(at, end - at));
    at = end + 1;
  }
  constexpr size_t kParent = 1, kStart = 19;  // counted from the state
  if (fields.size() <= kStart) return std::nullopt;
  return std::pair(std::atoi(fields[kParent].c_str()),
                   static_cast<int64_t>(std::atoll(fields[kStart].c_str())));
}

// Whether this user runs it: root may read the processes of all. Who owns the folder says nothing of a
// process that may not be traced.
bool is_of_this_user(const std::string& process) {
  std::ifstream file(process + "/status");
  const std::string title = "Uid:";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(title)) continue;
    std::istringstream numbers(line.substr(title.size()));
    int64_t real = -1, effective = -1;
    numbers >> real >> effective;
    return effective == static_cast<int64_t>(geteuid());
  }
  return false;
}

// A launcher of ranks; they are started without these options.
bool is_launcher(const std::string& process) {
  const auto words = texts_of(process + "/cmdline");
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return std::find(std::begin(kLauncherOptions), std::end(kLauncherOptions),
                     std::string_view(word).substr(0, word.find('='))) != std::end(kLauncherOptions);
  });
}

// The run that a process is a rank of; its pid and start are not set yet.
std::optional<LocalRun> run_of(const std::string& process) {
  if (!is_of_this_user(process)) return std::nullopt;
  const auto variables = texts_of(process + "/environ");
  LocalRun run;
  run.secret = value_of(variables, "HETRUN_SECRET").value_or("");
  if (run.secret.empty()) return std::nullopt;
  const auto words = texts_of(process + "/cmdline");
  run.etcd = value_of(words, "--rendezvous");
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "--rendezvous") run.etcd = words[i + 1];
  if (!run.etcd) run.etcd = value_of(variables, "HETRUN_RENDEZVOUS");
  if (const auto store = value_of(variables, "HETRUN_STORE")) {
    if (!value_of(variables, "RANK")) return std::nullopt;
    run.store = *store;
    return run;
  }
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink(process + "/exe", ignored);
  if (!program.filename().string().starts_with("hetrun")) return std::nullopt;
  LaunchedRank launched;
  try {
    launched = read_launched_rank([&](const std::string& name) { return value_of(variables, name); });
  } catch (const Error&) {  // it will not have begun
    return std::nullopt;
  }
  const bool is_alone = launched.world_size.value_or(1) < 2;
  if (is_alone || launched.master_host.empty() || launched.master_port == 0) return std::nullopt;
  run.store = fmt::format("{}:{}", launched.master_host, launched.master_port);
  return run;
}

}  // namespace

std::vector<LocalRun> list_local_runs(const std::string& processes) {
  struct Found {
    LocalRun run;
    bool of_launcher = false;
    // The launcher rather than a shell that a rank was started in; else the oldest. A process that a rank
    // forks has its environment and its command line, but the rank, which is younger, as its parent.
    auto order() const { return std::tuple(!of_launcher, run.started, run.pid); }
  };
  std::map<std::pair<std::string, std::string>, Found> found;  // by where the ranks meet
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(processes, ignored)) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    const std::string process = entry.path().string();
    auto run = run_of(process);
    const auto about = run ? parent_and_start(process) : std::nullopt;
    if (!about) continue;
    const std::string parent = processes + "/" + std::to_string(about->first);
    const auto about_parent = parent_and_start(parent);
    run->pid = about->first;
    run->started = about_parent ? about_parent->second : about->second;
    const Found candidate{*run, is_launcher(parent)};
    const auto [place, is_new] = found.try_emplace({run->store, run->etcd.value_or("")}, candidate);
    if (!is_new && candidate.order() < place->second.order()) place->second = candidate;
  }
  std::vector<LocalRun> runs;
  for (const auto& [place, each] : found) runs.push_back(each.run);
  std::sort(runs.begin(), runs.end(), [](const LocalRun& a, const LocalRun& b) {
    return std::tuple(a.started, a.pid) > std::tuple(b.started, b.pid);
  });
  return runs;
}

}  // namespace het
