// Ranks as processes, which is what they are in a run: some are killed, stopped, or never come.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/comm/tcp.h"
#include "core/net/socket.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;
using Kind = CollectiveKind;
using std::chrono::milliseconds;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Child processes that each run `body` with a fabric over 127.0.0.1 and a folder to meet in; by calling its
// second argument it says that it has begun. Whatever happens, none outlives the object.
class Processes {
 public:
  using Body = std::function<void(Fabric&, const std::function<void()>& say_begun)>;

  Processes(int size, const Timeouts& timeouts, const Body& body) {
    std::string name = (std::filesystem::temp_directory_path() / "hetrun-ranks-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail_environment("cannot make a folder like {}", name);
    folder_ = name;
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(run(rank, size, timeouts, body));
      children_.push_back(child);
    }
  }
  ~Processes() {
    for (const pid_t child : children_)
      if (child > 0) {
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
      }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void signal(int rank, int number) { ::kill(children_[rank], number); }
  // Exit code of a rank; 128 + the signal that ended it; -1 when it has not ended within a minute.
  int wait(int rank) {
    for (int i = 0; i < 60'000; ++i) {
      int status = 0;
      if (::waitpid(children_[rank], &status, WNOHANG) == children_[rank]) {
        children_[rank] = -1;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    return -1;
  }
  bool has_begun(int rank) const { return std::filesystem::exists(folder_ / fmt::format("begun{}", rank)); }
  std::string error(int rank) const {
    std::ifstream file(folder_ / fmt::format("error{}", rank));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  int run(int rank, int size, const Timeouts& timeouts, const Body& body) {
    try {
      TcpOptions options;
      options.secret = kTestSecret;
      options.rank = rank;
      options.size = size;
      options.interface = "lo";
      options.store = make_file_key_value(folder_ / "store");
      options.prefix = "generation1";
      options.host = fmt::format("host{}", rank);
      options.timeouts = timeouts;
      const auto fabric = make_tcp(std::move(options));
      body(*fabric, [&] { std::ofstream(folder_ / fmt::format("begun{}", rank)).put('y'); });
      return 0;
    } catch (const std::exception& error) {
      std::ofstream(folder_ / fmt::format("error{}", rank)) << error.what();
      return 1;
    }
  }

  std::filesystem::path folder_;
  std::vector<pid_t> children_;
};

void sum_forever(Fabric& fabric, int rounds, int64_t count, const std::function<void()>& say_begun) {
  const auto group = fabric.group("dp0", all_ranks(fabric.size()));
  std::vector<float> data(count);
  auto* const bytes = reinterpret_cast<std::byte*>(data.data());
  const auto sum =
      group->prepare({Kind::all_reduce, DType::f32, {count}, -1, 0, Reduction::sum, "wte.gradient"});
  for (int round = 0; round < rounds; ++round) {
    std::fill(data.begin(), data.end(), static_cast<float>(fabric.rank()));
    sum->start(bytes, bytes);
    sum->wait();
    const int ranks = fabric.size(), total = ranks * (ranks - 1) / 2;
    const auto expected = static_cast<float>(total);
    if (data.front() != expected || data.back() != expected)
      fail(ErrorKind::bug, "round {}: a wrong sum", round);
    if (round == 0) say_begun();
  }
}

constexpr int kForever = 1'000'000'000;

}  // namespace

TEST_CASE("ranks in processes of their own agree, and their last messages arrive though they leave at once",
          "[comm]") {
  for (int i = 0; i < 5; ++i) {
    Processes processes(4, {},
                        [](Fabric& fabric, const auto& begun) { sum_forever(fabric, 3, 300'000, begun); });
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(processes.wait(rank) == 0);
      CHECK(processes.error(rank) == "");
    }
  }
}

TEST_CASE("every other rank ends and names the one that was killed", "[comm]") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 12; ++trial) {
    const int size = 2 + trial % 4, victim = static_cast<int>(random() % size);
    const int count = trial % 2 == 0 ? 1'000'000 : 500;
    INFO("trial " << trial << ": rank " << victim << " of " << size);
    Processes processes(
        size, {}, [&](Fabric& fabric, const auto& begun) { sum_forever(fabric, kForever, count, begun); });
    for (int rank = 0; rank < size; ++rank)
      while (!processes.has_begun(rank)) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(100 + random() % 100));
    processes.signal(victim, SIGKILL);
    CHECK(processes.wait(victim) == 128 + SIGKILL);
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      CHECK(processes.wait(rank) == 1);
      const std::string text = processes.error(rank);
      INFO(text);
      CHECK(has(text, fmt::format("lost rank {0} on host{0} (", victim)));
      CHECK(has(text, ") during all-reduce of wte.gradient"));  // under way, or about to begin
    }
  }
}

TEST_CASE("a stopped rank is named after the timeout", "[comm]") {
  Timeouts timeouts{milliseconds(300), milliseconds(1000), {}};
  Processes processes(3, timeouts, [&](Fabric& fabric, const auto& begun) {
    sum_forever(fabric, kForever, 1'000'000, begun);
  });
  for (int rank = 0; rank < 3; ++rank)
    while (!processes.has_begun(rank)) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(200));
  processes.signal(1, SIGSTOP);
  for (const int rank : {0, 2}) {
    CHECK(processes.wait(rank) == 1);
    const std::string text = processes.error(rank);
    INFO(text);
    CHECK((has(text, "lost rank 1 on host1 (did not arrive within ") ||
           has(text, "lost rank 1 on host1 (no answer for ")));
    CHECK(!has(text, "lost rank 0"));
    CHECK(!has(text, "lost rank 2"));
  }
}

namespace {

// A store in which one key is never seen, so that a rank stays away after it has published its address.
class Blinkered final : public KeyValue {
 public:
  Blinkered(std::shared_ptr<KeyValue> store, std::string hidden)
      : store_(std::move(store)), hidden_(std::move(hidden)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> get(const std::string& key) override {
    return key == hidden_ ? std::nullopt : store_->get(key);
  }
  std::optional<std::string> wait(const std::string& key, milliseconds timeout) override {
    if (key != hidden_) return store_->wait(key, timeout);
    std::this_thread::sleep_for(timeout);
    return std::nullopt;
  }

 private:
  std::shared_ptr<KeyValue> store_;
  std::string hidden_;
};

TcpOptions local(int rank, int size, std::shared_ptr<KeyValue> store) {
  TcpOptions options;
  options.secret = kTestSecret;
  options.rank = rank;
  options.size = size;
  options.address = "127.0.0.1";
  options.store = std::move(store);
  options.prefix = "g";
  options.host = fmt::format("host{}", rank);
  return options;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("forming a group can be aborted at any stage", "[comm]") {
  // Neither sees the other; one sees the other, which does not connect.
  for (const bool both : {true, false})
    for (const int patient : {0, 1}) {
      INFO("both " << both << ", rank " << patient << " waits");
      const auto store = make_memory_key_value();
      const auto fabric_of = [&](int rank) {
        const bool blind = both || rank != patient;
        const std::shared_ptr<KeyValue> own =
            blind ? std::make_shared<Blinkered>(store, fmt::format("g/address/{}", 1 - rank)) : store;
        return make_tcp(local(rank, 2, own));
      };
      const auto first = fabric_of(0), second = fabric_of(1);
      std::string texts[2];
      std::thread one([&] { texts[0] = error_of([&] { first->group("all", {0, 1}); }); });
      std::thread two([&] { texts[1] = error_of([&] { second->group("all", {0, 1}); }); });
      while (!store->get("g/address/0") || !store->get("g/address/1"))
        std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(100));
      (patient == 0 ? first : second)->abort("a node was lost");
      (patient == 0 ? one : two).join();
      (patient == 0 ? second : first)->abort("a node was lost");
      (patient == 0 ? two : one).join();
      CHECK(texts[0] == "a node was lost");
      CHECK(texts[1] == "a node was lost");
    }
}

TEST_CASE("connections that break while a group forms do not end the process", "[comm]") {
  constexpr int kRanks = 17;
  const auto store = make_memory_key_value();
  const auto fabric = make_tcp(local(0, kRanks, store));
  std::string text;
  std::thread forming([&] { text = error_of([&] { fabric->group("all", all_ranks(kRanks)); }); });
  std::optional<std::string> address;
  while (!(address = store->get("g/address/0"))) std::this_thread::sleep_for(milliseconds(1));
  const Endpoint endpoint = parse_endpoint(address->substr(0, address->find(' ')));
  int connected = 0;
  for (int i = 0; i < kRanks - 1; ++i) {
    const Descriptor socket = connect_to(endpoint, "", std::chrono::steady_clock::now() + milliseconds(5000));
    ++connected;
    const linger reset{1, 0};
    ::setsockopt(socket.number(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  CHECK(connected == kRanks - 1);
  std::this_thread::sleep_for(milliseconds(50));
  fabric->abort("that is enough");
  forming.join();
  CHECK(text == "that is enough");
}

TEST_CASE("communication refuses every address, and names what the machine has", "[comm]") {
  const auto with = [](const std::string& interface, const std::string& address) {
    return error_of([&] {
      TcpOptions options = local(0, 1, make_memory_key_value());
      options.interface = interface;
      options.address = address;
      make_tcp(options);
    });
  };
  CHECK(has(with("", ""), "needs an interface or an address of this machine"));
  CHECK(has(with("", "0.0.0.0"), "this machine has no address '0.0.0.0' for communication; it has"));
  CHECK(has(with("", "0.0.0.0"), "127.0.0.1"));
  CHECK(has(with("eth77", ""), "this machine has no interface 'eth77' for communication; it has"));
}

TEST_CASE("a store over a folder keeps any bytes under any key", "[comm]") {
  std::string name = (std::filesystem::temp_directory_path() / "hetrun-store-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  const auto store = make_file_key_value(name), other = make_file_key_value(name);
  const std::string bytes("a\0b\n\xff", 5);
  CHECK(!store->get("../x/y").has_value());
  CHECK(!store->wait("../x/y", milliseconds(5)).has_value());
  store->set("../x/y", bytes);
  CHECK(other->get("../x/y") == bytes);
  CHECK(other->wait("../x/y", milliseconds(0)) == bytes);
  store->set("../x/y", "");
  CHECK(other->get("../x/y") == "");
  std::filesystem::remove_all(name);
}
