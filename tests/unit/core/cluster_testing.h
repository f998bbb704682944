// Helpers of the tests of the cluster: the stores that one table of behaviours runs on, and other processes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "core/cluster/store.h"

namespace het::testing {

inline constexpr const char* kClusterSecret = "a secret for the tests";
// Generous: a step of a test that takes longer has hung.
inline constexpr std::chrono::milliseconds kStoreHung{60'000};

// A store that runs; clients of it can be made.
class StoreUnderTest {
 public:
  virtual ~StoreUnderTest() = default;
  virtual std::shared_ptr<Store> connect() = 0;
  // "embedded 127.0.0.1:4711": from which another process connects.
  virtual std::string where() const = 0;
};
struct StoreKind {
  std::string name;
  std::function<std::unique_ptr<StoreUnderTest>()> start;
};
// Those that this machine can run; for the others, a line says which and why not.
std::vector<StoreKind> store_kinds();
std::shared_ptr<Store> connect_where(const std::string& where);

// Several members of etcd on loopback, each a process, over an empty folder; gone with the object.
class EtcdMembers {
 public:
  explicit EtcdMembers(int count);
  ~EtcdMembers();
  const std::vector<std::string>& endpoints() const { return endpoints_; }
  void kill(int member);
  void stop(int member);  // SIGSTOP

 private:
  std::string folder_;
  std::vector<std::string> endpoints_;
  std::vector<pid_t> members_;
};
// Whether this machine has etcd; where not, a line says what is not tested.
bool etcd_is_here(const std::string& what);

// Events of a watch until there are `count`, or the test has hung.
std::vector<StoreEvent> take_events(StoreWatch& watch, size_t count);

// This test program again, running the hidden test `name` with variables "NAME=value" added to its
// environment. Killed with SIGKILL when the object dies before it ended.
class ChildTest {
 public:
  ChildTest(const std::string& name, std::vector<std::string> environment);
  ~ChildTest();
  ChildTest(const ChildTest&) = delete;
  ChildTest& operator=(const ChildTest&) = delete;
  void kill();
  void stop();  // SIGSTOP
  void go_on();
  int wait();  // its exit code

 private:
  pid_t process_ = -1;
};

}  // namespace het::testing
