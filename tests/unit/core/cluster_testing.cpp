#include "tests/unit/core/cluster_testing.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/cluster/embedded_store.h"
#include "core/cluster/etcd_store.h"
#include "core/net/socket.h"

namespace het::testing {
namespace {

class EmbeddedUnderTest final : public StoreUnderTest {
 public:
  EmbeddedUnderTest() {
    StoreServerOptions options;
    options.address = "127.0.0.1";
    options.secret = kClusterSecret;
    server_ = serve_store(options);
  }
  std::shared_ptr<Store> connect() override { return connect_where(where()); }
  std::string where() const override { return "embedded " + server_->endpoint(); }

 private:
  std::unique_ptr<StoreServer> server_;
};

class EtcdUnderTest final : public StoreUnderTest {
 public:
  std::shared_ptr<Store> connect() override { return connect_where(where()); }
  std::string where() const override { return "etcd " + members_.endpoints()[0]; }

 private:
  EtcdMembers members_{1};
};

// Ports that were free a moment ago: etcd needs them before it starts.
std::vector<int> free_ports(int count) {
  std::vector<Descriptor> listeners;
  std::vector<int> ports;
  for (int i = 0; i < count; ++i) {
    Endpoint at{"127.0.0.1", 0};
    listeners.push_back(listen_at(at));
    ports.push_back(at.port);
  }
  return ports;
}

pid_t start(std::vector<std::string> arguments, std::vector<std::string> environment,
            const std::string& output) {
  for (char** variable = environ; *variable; ++variable) environment.emplace_back(*variable);
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& variable : environment) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (!output.empty()) {
    ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  }
  pid_t process = -1;
  const int error = ::posix_spawnp(&process, argv[0], &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error) fail_environment("cannot start {}", arguments[0]);
  return process;
}

int wait_for_end(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

bool etcd_is_here(const std::string& what) {
  std::string path = std::getenv("PATH") ? std::getenv("PATH") : "";
  for (size_t end = 0; !path.empty(); path.erase(0, end == path.npos ? end : end + 1)) {
    end = path.find(':');
    if (::access((path.substr(0, end) + "/etcd").c_str(), X_OK) == 0) return true;
  }
  WARN("not tested: " << what << ", for there is no etcd here (Debian's package: etcd-server)");
  return false;
}

EtcdMembers::EtcdMembers(int count) {
  std::string pattern = (std::filesystem::temp_directory_path() / "hetrun-etcd-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) fail_environment("cannot make a folder for etcd");
  folder_ = pattern;
  const std::vector<int> ports = free_ports(2 * count);
  std::string cluster;
  for (int i = 0; i < count; ++i) {
    endpoints_.push_back(fmt::format("http://127.0.0.1:{}", ports[2 * i]));
    cluster += fmt::format("{}m{}=http://127.0.0.1:{}", i ? "," : "", i, ports[2 * i + 1]);
  }
  for (int i = 0; i < count; ++i) {
    const std::string peer = fmt::format("http://127.0.0.1:{}", ports[2 * i + 1]);
    // Elections of one member need no long timeouts; those of several must bear a loaded machine.
    const int heartbeat = count == 1 ? 10 : 100;
    members_.push_back(start({"etcd",
                              "--name",
                              fmt::format("m{}", i),
                              "--data-dir",
                              fmt::format("{}/m{}", folder_, i),
                              "--listen-client-urls",
                              endpoints_[i],
                              "--advertise-client-urls",
                              endpoints_[i],
                              "--listen-peer-urls",
                              peer,
                              "--initial-advertise-peer-urls",
                              peer,
                              "--initial-cluster",
                              cluster,
                              "--unsafe-no-fsync",
                              "--heartbeat-interval",
                              std::to_string(heartbeat),
                              "--election-timeout",
                              std::to_string(10 * heartbeat)},
                             {}, folder_ + "/log"));
  }
}

EtcdMembers::~EtcdMembers() {
  for (size_t i = 0; i < members_.size(); ++i) kill(static_cast<int>(i));
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void EtcdMembers::kill(int member) {
  if (members_[member] < 0) return;
  ::kill(members_[member], SIGKILL);
  wait_for_end(members_[member]);
  members_[member] = -1;
}

void EtcdMembers::stop(int member) { ::kill(members_[member], SIGSTOP); }

std::vector<StoreKind> store_kinds() {
  std::vector<StoreKind> kinds = {{"embedded", [] { return std::make_unique<EmbeddedUnderTest>(); }}};
  if (etcd_is_here("the etcd store"))
    kinds.push_back({"etcd", [] { return std::make_unique<EtcdUnderTest>(); }});
  return kinds;
}

std::shared_ptr<Store> connect_where(const std::string& where) {
  const size_t space = where.find(' ');
  if (where.starts_with("etcd")) {
    EtcdOptions etcd;
    etcd.endpoints = {where.substr(space + 1)};
    etcd.prefix = "hetrun/test/";
    etcd.timeout = kStoreHung;
    return connect_etcd(etcd);
  }
  StoreClientOptions options;
  options.endpoint = where.substr(space + 1);
  options.secret = kClusterSecret;
  options.timeout = kStoreHung;
  return connect_store(options);
}

std::vector<StoreEvent> take_events(StoreWatch& watch, size_t count) {
  std::vector<StoreEvent> events;
  const auto until = std::chrono::steady_clock::now() + kStoreHung;
  while (events.size() < count && std::chrono::steady_clock::now() < until)
    for (StoreEvent& event : watch.next(std::chrono::milliseconds(1000))) events.push_back(std::move(event));
  return events;
}

ChildTest::ChildTest(const std::string& name, std::vector<std::string> environment)
    : process_(start({"/proc/self/exe", name}, std::move(environment), "")) {}

ChildTest::~ChildTest() {
  if (process_ < 0) return;
  kill();
  wait();
}

void ChildTest::kill() { ::kill(process_, SIGKILL); }

void ChildTest::stop() { ::kill(process_, SIGSTOP); }

void ChildTest::go_on() { ::kill(process_, SIGCONT); }

int ChildTest::wait() { return wait_for_end(std::exchange(process_, -1)); }

}  // namespace het::testing
