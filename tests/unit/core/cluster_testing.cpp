#include "tests/unit/core/cluster_testing.h"

#include <csignal>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/cluster/embedded_store.h"

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

}  // namespace

std::vector<StoreKind> store_kinds() {
  return {{"embedded", [] { return std::make_unique<EmbeddedUnderTest>(); }}};
}

std::shared_ptr<Store> connect_where(const std::string& where) {
  const size_t space = where.find(' ');
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

ChildTest::ChildTest(const std::string& name, std::vector<std::string> environment) {
  for (char** variable = environ; *variable; ++variable) environment.emplace_back(*variable);
  std::vector<std::string> arguments = {"/proc/self/exe", name};
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& variable : environment) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  if (::posix_spawn(&process_, "/proc/self/exe", nullptr, nullptr, argv.data(), envp.data()))
    fail_environment("cannot start this test program again");
}

ChildTest::~ChildTest() {
  if (process_ < 0) return;
  kill();
  wait();
}

void ChildTest::kill() { ::kill(process_, SIGKILL); }

int ChildTest::wait() {
  int status = 0;
  while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) continue;
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace het::testing
