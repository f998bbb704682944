#include "core/run/local_runs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <tuple>

#include <unistd.h>

namespace het {
namespace {

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

// Its parent and when it was started; nothing: it is gone.
std::optional<std::pair<int, int64_t>> parent_and_start(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
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

std::optional<LocalRun> run_of(const std::string& process) {
  const auto variables = texts_of(process + "/environ");
  LocalRun run;
  run.secret = value_of(variables, "HETRUN_SECRET").value_or("");
  if (!value_of(variables, "RANK") || run.secret.empty()) return std::nullopt;
  const auto words = texts_of(process + "/cmdline");
  run.etcd = value_of(words, "--rendezvous");
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "--rendezvous") run.etcd = words[i + 1];
  if (!run.etcd) run.etcd = value_of(variables, "HETRUN_RENDEZVOUS");
  if (const auto store = value_of(variables, "HETRUN_STORE")) {
    run.store = *store;
  } else {
    std::error_code ignored;
    const auto program = std::filesystem::read_symlink(process + "/exe", ignored);
    const auto host = value_of(variables, "MASTER_ADDR"), port = value_of(variables, "MASTER_PORT");
    if (!program.filename().string().starts_with("hetrun") || !host || !port) return std::nullopt;
    run.store = *host + ":" + *port;
  }
  return run;
}

}  // namespace

std::vector<LocalRun> list_local_runs() {
  std::map<std::pair<std::string, std::string>, LocalRun> found;  // by where the ranks meet
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    auto run = run_of(entry.path().string());
    const auto about = run ? parent_and_start(pid) : std::nullopt;
    if (!about) continue;
    const auto of_parent = parent_and_start(about->first);
    run->pid = about->first;
    run->started = of_parent ? of_parent->second : about->second;
    const auto [place, is_new] = found.try_emplace({run->store, run->etcd.value_or("")}, *run);
    ++place->second.ranks;
  }
  std::vector<LocalRun> runs;
  for (const auto& [place, run] : found) runs.push_back(run);
  std::sort(runs.begin(), runs.end(), [](const LocalRun& a, const LocalRun& b) {
    return std::tuple(a.started, a.pid) > std::tuple(b.started, b.pid);
  });
  return runs;
}

}  // namespace het
