#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <mutex>
#include <random>

#include "core/base/error.h"
#include "core/comm/status_board.h"
#include "core/comm/tcp.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;
using Kind = CollectiveKind;
using std::chrono::milliseconds;

namespace {

std::unique_ptr<Collective> sum_of(Communicator& group, std::vector<float>& data) {
  auto collective = group.prepare({Kind::all_reduce,
                                   DType::f32,
                                   {static_cast<int64_t>(data.size())},
                                   -1,
                                   0,
                                   Reduction::sum,
                                   "wte.gradient"});
  collective->start(reinterpret_cast<std::byte*>(data.data()), reinterpret_cast<std::byte*>(data.data()));
  return collective;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void try_absent(const FabricMaker& maker) {
  Gate begin(3), end(3);
  std::mutex mutex;
  std::vector<std::string> warnings;
  Timeouts timeouts{milliseconds(400), milliseconds(2000), [&](const std::string& text) {
                      std::lock_guard lock(mutex);
                      warnings.push_back(text);
                    }};
  const auto errors = on_ranks(maker, 3, timeouts, [&](Fabric& fabric) {
    const auto group = [&] {
      const PassAtEnd formed{begin};
      return fabric.group("dp0", all_ranks(3));
    }();
    std::vector<float> data(1'000'000, 1.0F);
    const PassAtEnd at_end{end};
    if (fabric.rank() != 2) sum_of(*group, data)->wait();
  });
  REQUIRE(warnings.size() == 2);
  for (const std::string& text : warnings) {
    INFO(text);
    CHECK(has(text, " s for rank 2"));
    CHECK(has(text, " (has not arrived) during all-reduce of wte.gradient"));
    CHECK(text.starts_with("waiting "));
  }
  CHECK(errors[2] == "");
  for (const int rank : {0, 1}) {
    INFO(errors[rank]);
    CHECK(has(errors[rank], "lost rank 2"));
    CHECK(has(errors[rank], " (did not arrive within "));
    CHECK(has(errors[rank], " s) during all-reduce of wte.gradient"));
  }
}

void try_gone(const FabricMaker& maker) {
  const auto errors = on_ranks(maker, 4, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("dp0", all_ranks(4));
    std::vector<float> data(1'000'000, 1.0F);
    sum_of(*group, data)->wait();
    if (fabric.rank() == 1) return;  // takes its connections with it
    sum_of(*group, data)->wait();
  });
  CHECK(errors[1] == "");
  for (const int rank : {0, 2, 3}) {
    INFO(errors[rank]);
    // Also of one that heard of it from another rank before it came to its sum.
    CHECK(has(errors[rank], "lost rank 1"));
    CHECK(has(errors[rank], ") during all-reduce of wte.gradient"));
  }
}

// A rank that waits for nothing learns of a failure too, and names it with the operation that it would have
// begun, or had just begun.
void try_gone_meanwhile(const FabricMaker& maker) {
  const auto errors = on_ranks(maker, 3, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("dp0", all_ranks(3));
    std::vector<float> data(1000, 1.0F);
    sum_of(*group, data)->wait();
    if (fabric.rank() == 1) return;
    if (fabric.rank() == 0) {
      std::promise<void> dead;  // perhaps on this thread, within watch()
      group->failure_detector()->watch(&dead, [&](const std::string&) { dead.set_value(); });
      dead.get_future().wait();
      group->failure_detector()->unwatch(&dead);
    }
    sum_of(*group, data)->wait();
  });
  INFO(errors[0]);
  CHECK(has(errors[0], "lost rank 1"));  // as rank 2 says
  CHECK(has(errors[0], ") during all-reduce of wte.gradient"));
}

void try_abort(const FabricMaker& maker) {
  Gate waiting(2);
  const auto errors = on_ranks(maker, 2, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("dp0", all_ranks(2));
    std::vector<float> data(1'000'000, 1.0F);
    if (fabric.rank() == 1) {
      waiting.pass();
      fabric.abort("a new generation begins");
      std::string text;
      try {
        sum_of(*group, data);
      } catch (const Error& error) {
        text = error.what();
        HET_REQUIRE(error.kind() == ErrorKind::peer);
      }
      HET_REQUIRE(has(text, "a new generation begins"), text);
      fail(ErrorKind::peer, "{}", text);
    }
    const auto first = sum_of(*group, data);
    std::vector<float> more(10, 1.0F);
    const auto second = sum_of(*group, more);
    waiting.pass();
    std::string text;
    try {
      first->wait();
    } catch (const Error& error) {
      text = error.what();
    }
    HET_REQUIRE(has(text, "a new generation begins"), text);
    second->wait();  // throws as well
  });
  CHECK(has(errors[0], "lost rank 1"));
  CHECK(has(errors[0], " (a new generation begins) during all-reduce of wte.gradient"));
  CHECK(has(errors[1], "this rank gave up: a new generation begins"));
}

void try_abort_here(const FabricMaker& maker) {
  // Another thread of the same rank aborts while the operation is waited for.
  Gate end(2);
  const auto errors = on_ranks(maker, 2, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("dp0", all_ranks(2));
    if (fabric.rank() == 1) return end.pass();
    std::vector<float> data(1'000'000, 1.0F);
    const auto sum = sum_of(*group, data);
    std::thread other([&] { group->abort("the user stopped it"); });
    std::string text;
    try {
      sum->wait();
    } catch (const Error& error) {
      text = error.what();
    }
    other.join();
    end.pass();
    fail(ErrorKind::peer, "{}", text);
  });
  CHECK(has(errors[0], "this rank gave up: the user stopped it"));
}

void try_missing_member(const FabricMaker& maker) {
  Gate end(3);
  Timeouts timeouts{milliseconds(100), milliseconds(500), {}};
  const auto errors = on_ranks(maker, 3, timeouts, [&](Fabric& fabric) {
    const PassAtEnd at_end{end};
    if (fabric.rank() != 1) fabric.group("dp0", all_ranks(3));
  });
  for (const int rank : {0, 2}) {
    INFO(errors[rank]);
    CHECK(has(errors[rank], "lost rank 1"));
    CHECK(has(errors[rank], " (did not join within 0.5 s) while forming group 'dp0'"));
  }
}

void try_new_generation(const FabricMaker& maker) {
  // A dropped operation ends its communicator, on all ranks; the fabric makes a new one at once.
  const auto errors = on_ranks(maker, 3, {}, [&](Fabric& fabric) {
    std::vector<float> data(1'000'000, 1.0F);
    {
      const auto group = fabric.group("generation 1", all_ranks(3));
      bool failed = false;
      try {
        if (fabric.rank() == 0)
          group->abort("to begin again");
        else
          sum_of(*group, data)->wait();
      } catch (const Error&) {
        failed = true;
      }
      HET_REQUIRE(failed == (fabric.rank() != 0));
    }
    const auto group = fabric.group("generation 2", all_ranks(3));
    data.assign(1'000'000, 1.0F);
    sum_of(*group, data)->wait();
    HET_REQUIRE(data == std::vector<float>(1'000'000, 3.0F));
  });
  for (const std::string& text : errors) CHECK(text == "");
}

void try_abort_at_any_time(const FabricMaker& maker) {
  // One rank aborts in the midst of traffic; all end, and the fabrics go on to the next generation.
  const Timeouts timeouts{milliseconds(5000), milliseconds(10000), {}};
  const auto errors = on_ranks(maker, 4, timeouts, [&](Fabric& fabric) {
    std::mt19937 random(3);
    std::vector<float> data(200'000), more(200'000);
    for (int generation = 0; generation < 25; ++generation) {
      const int aborts = static_cast<int>(random() % 4);
      const std::chrono::microseconds after(random() % 3000);
      std::thread other;
      std::string text;
      try {  // others may still be forming the group when it is aborted
        const auto group = fabric.group(fmt::format("generation {}", generation), all_ranks(4));
        other = std::thread([&, group] {
          std::this_thread::sleep_for(after);
          if (fabric.rank() == aborts) group->abort("the test says so");
        });
        while (true) {
          const auto first = sum_of(*group, data), second = sum_of(*group, more);
          first->wait();
          second->wait();
        }
      } catch (const Error& error) {
        text = error.what();
      }
      if (other.joinable()) other.join();
      const bool own = fabric.rank() == aborts;
      HET_REQUIRE(has(text, own ? "this rank gave up: " : fmt::format("lost rank {} ", aborts)), text);
      HET_REQUIRE(has(text, "the test says so"), text);
    }
  });
  for (const std::string& text : errors) CHECK(text == "");
}

void try_held_up(const FabricMaker& maker) {
  // Rank 0 waits for a message of rank 1, which waits for one of rank 2, in another group.
  Gate begun(2), end(3);
  const Timeouts timeouts{milliseconds(10'000), milliseconds(2000), {}};
  const auto errors = on_ranks(maker, 3, timeouts, [&](Fabric& fabric) {
    const int rank = fabric.rank();
    std::shared_ptr<Communicator> first, second;
    if (rank < 2) first = fabric.group("first", {0, 1});
    if (rank > 0) second = fabric.group("second", {1, 2});
    std::vector<float> data(10);
    const PassAtEnd at_end{end};
    if (rank < 2) {
      Communicator& group = rank == 0 ? *first : *second;
      const auto message = group.prepare({Kind::receive, DType::f32, {10}, 1, 0, Reduction::sum, "add"});
      message->start(nullptr, reinterpret_cast<std::byte*>(data.data()));
      if (rank == 1) begun.pass();  // rank 0 waits first, and so gives up first
      std::thread other;
      if (rank == 0) other = std::thread([&] { begun.pass(); });
      try {
        message->wait();
      } catch (...) {
        if (other.joinable()) other.join();
        throw;
      }
    }
  });
  INFO(errors[0] << "\n" << errors[1]);
  CHECK(has(errors[0], "lost rank 2"));
  CHECK(has(errors[0], ", which rank 1 waits for (did not arrive within "));
  CHECK(has(errors[0], "s) during receive of add"));
  CHECK(!has(errors[0], "lost rank 1"));
  CHECK(has(errors[1], "lost rank 2"));
  CHECK(errors[2] == "");
}

}  // namespace

TEST_CASE("an operation dropped because another group failed ends its group with that reason", "[comm]") {
  const auto errors = on_ranks(loopback_maker(), 3, {}, [&](Fabric& fabric) {
    const int rank = fabric.rank();
    std::shared_ptr<Communicator> first, second;
    if (rank < 2) first = fabric.group("first", {0, 1});
    if (rank != 1) second = fabric.group("second", {0, 2});
    if (rank == 1) return first->abort("the node is on fire");
    std::vector<float> data(10), more(10);
    const auto receive = [&](Communicator& group, std::vector<float>& into) {
      auto message =
          group.prepare({Kind::receive, DType::f32, {10}, 1 - group.rank(), 0, Reduction::sum, "x"});
      message->start(nullptr, reinterpret_cast<std::byte*>(into.data()));
      return message;
    };
    const auto message = receive(*second, data);
    if (rank == 0)
      receive(*first, more)->wait();  // throws, and drops the other
    else
      message->wait();
  });
  INFO(errors[2]);
  CHECK(has(errors[2], "the node is on fire"));
}

TEST_CASE("a rank that waits itself is not blamed, but the one awaited is", "[comm]") {
  try_held_up(loopback_maker());
}
TEST_CASE("over TCP, a rank that waits itself is not blamed, but the one awaited is", "[comm]") {
  try_held_up(tcp_maker());
}

TEST_CASE("over TCP, a member that forms another group is not blamed, but the one awaited is", "[comm]") {
  Gate end(3);
  const Timeouts timeouts{milliseconds(10'000), milliseconds(2000), {}};
  const auto errors = on_ranks(tcp_maker(), 3, timeouts, [&](Fabric& fabric) {
    const PassAtEnd at_end{end};
    if (fabric.rank() == 0) {
      fabric.group("second", {0, 1});
    } else if (fabric.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));  // rank 0 gives up first
      fabric.group("first", {1, 2});
    }
  });
  INFO(errors[0] << "\n" << errors[1]);
  CHECK(has(errors[0], "lost rank 2"));
  CHECK(has(errors[0], ", which rank 1 waits for (did not join within 2.0 s) while forming group 'second'"));
  CHECK(has(errors[1], "lost rank 2"));
  CHECK(has(errors[1], "(did not join within 2.0 s) while forming group 'first'"));
}

TEST_CASE("a rank that does not come is named, first in a warning, then in the error", "[comm]") {
  try_absent(loopback_maker());
}
TEST_CASE("a rank that leaves is named by every other", "[comm]") { try_gone(loopback_maker()); }
TEST_CASE("an abort fails pending and later operations everywhere, with its reason", "[comm]") {
  try_abort(loopback_maker());
}
TEST_CASE("a wait ends when another thread aborts", "[comm]") { try_abort_here(loopback_maker()); }
TEST_CASE("a member that does not join a group is named", "[comm]") { try_missing_member(loopback_maker()); }
TEST_CASE("after a failure a new communicator takes over", "[comm]") { try_new_generation(loopback_maker()); }

TEST_CASE("an abort in the midst of traffic ends every rank", "[comm]") {
  try_abort_at_any_time(loopback_maker());
}

TEST_CASE("over TCP, an abort in the midst of traffic ends every rank", "[comm]") {
  try_abort_at_any_time(tcp_maker());
}
TEST_CASE("over TCP, a rank that does not come is named, first in a warning, then in the error", "[comm]") {
  try_absent(tcp_maker());
}
TEST_CASE("over TCP, a rank that leaves is named by every other", "[comm]") { try_gone(tcp_maker()); }
TEST_CASE("over TCP, a rank that leaves is named by one that was not waiting, too", "[comm]") {
  try_gone_meanwhile(tcp_maker());
}
TEST_CASE("over TCP, an abort fails pending and later operations everywhere, with its reason", "[comm]") {
  try_abort(tcp_maker());
}
TEST_CASE("over TCP, a wait ends when another thread aborts", "[comm]") { try_abort_here(tcp_maker()); }
TEST_CASE("over TCP, a member that does not join a group is named", "[comm]") {
  try_missing_member(tcp_maker());
}
TEST_CASE("over TCP, after a failure a new communicator takes over", "[comm]") {
  try_new_generation(tcp_maker());
}

TEST_CASE("starting an operation twice is an error of the program", "[comm]") {
  const auto errors = on_ranks(loopback_maker(), 1, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("alone", {0});
    float value = 3.0F;
    auto* const bytes = reinterpret_cast<std::byte*>(&value);
    const auto sum = group->prepare({Kind::all_reduce, DType::f32, {1}, -1, 0, Reduction::sum, "x"});
    sum->start(bytes, bytes);
    sum->start(bytes, bytes);
  });
  CHECK(has(errors[0], "internal requirement failed: !operation.started"));
}

namespace {

// Fails whoever asks it, and counts them.
class SilentBoard final : public KeyValue {
 public:
  std::atomic<int> asked = 0;
  void set(const std::string&, const std::string&) override { refuse(); }
  std::optional<std::string> get(const std::string&) override { refuse(); }
  std::optional<std::string> wait(const std::string&, std::chrono::milliseconds) override { refuse(); }

 private:
  [[noreturn]] void refuse() {
    ++asked;
    fail(ErrorKind::peer, "no answer");
  }
};

using SilentBoards = std::vector<std::shared_ptr<SilentBoard>>;
FabricMaker silent_maker(const SilentBoards& boards, const std::string& store_host = {}) {
  const auto store = make_memory_key_value();
  return [=](int size, const Timeouts& timeouts) {
    std::vector<std::function<std::shared_ptr<Fabric>()>> makers;
    for (int rank = 0; rank < size; ++rank)
      makers.emplace_back([=] {
        TcpOptions options;
        options.secret = kTestSecret;
        options.rank = rank;
        options.size = size;
        options.address = "127.0.0.1";
        options.store = store;
        options.board = boards[static_cast<size_t>(rank)];
        options.store_host = store_host;
        options.prefix = "test";
        options.timeouts = timeouts;
        return make_tcp(std::move(options));
      });
    return makers;
  };
}

}  // namespace

TEST_CASE("a rank that keeps the board and is silent with it is blamed alone", "[comm]") {
  StatusBoard board(std::make_shared<SilentBoard>(), "test", 2, "rank 0 on host0");
  const PendingPeer store_host{0, "host0"}, other{1, "host1"}, third{3, "host3"};
  CHECK(board.suspects({store_host, other}) == std::vector{store_host});
  CHECK(board.suspects({other, third}) == std::vector{other, third});
}

TEST_CASE("over TCP, a board that is silent is asked once by all groups, and the missing rank is named",
          "[comm]") {
  const SilentBoards boards{std::make_shared<SilentBoard>(), std::make_shared<SilentBoard>()};
  const FabricMaker maker = silent_maker(boards);
  Gate begin(2), end(2);
  Timeouts timeouts;
  timeouts.warn_after = std::chrono::milliseconds(100);
  timeouts.timeout = std::chrono::milliseconds(1000);  // two of them, while the board counts as silent
  const auto errors = on_ranks(maker, 2, timeouts, [&](Fabric& fabric) {
    const auto [group, other] = [&] {
      const PassAtEnd formed{begin};
      return std::pair(fabric.group("dp0", all_ranks(2)), fabric.group("dp1", all_ranks(2)));
    }();
    std::vector<float> data(10, 1.0F);
    if (fabric.rank() == 0) try {
        sum_of(*other, data)->wait();
      } catch (const Error&) {
      }
    const PassAtEnd at_end{end};
    if (fabric.rank() == 0) sum_of(*group, data)->wait();
  });
  INFO(errors[0]);
  CHECK(has(errors[0], "lost rank 1"));
  CHECK(has(errors[0], " (did not arrive within "));
  CHECK(has(errors[0], " s) during all-reduce of wte.gradient"));
  CHECK(boards[0]->asked == 1);
}

TEST_CASE("over TCP, of a rank that has ended while the board is silent the board's keeper is blamed",
          "[comm]") {
  const SilentBoards boards{std::make_shared<SilentBoard>(), std::make_shared<SilentBoard>()};
  Gate ended(2), end(2);
  const auto errors = on_ranks(silent_maker(boards, "rank 2 on host2"), 2, {}, [&](Fabric& fabric) {
    fabric.group("dp0", all_ranks(2));
    const PassAtEnd at_end{end};
    if (fabric.rank() == 1) fabric.abort("lost rank 2");
    ended.pass();
    if (fabric.rank() == 0) fabric.group("dp1", all_ranks(2));
  });
  INFO(errors[0]);
  CHECK(has(errors[0], "lost rank 2 on host2, which serves the store (it does not answer; rank 1"));
  CHECK(has(errors[0], ": has ended generation 1) while forming group 'dp1'"));
}
