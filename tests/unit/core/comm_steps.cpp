#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "core/comm/exchange.h"
#include "core/comm/group.h"
#include "core/comm/key_value.h"
#include "core/comm/steps.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;
using Kind = CollectiveKind;

namespace {

std::vector<std::byte> buffer(int64_t elements) {  // of f32; never without memory
  return std::vector<std::byte>(static_cast<size_t>(4 * elements + 1));
}

// Messages of one step have no order.
std::vector<CollectiveStep> sorted(std::vector<CollectiveStep> steps) {
  for (CollectiveStep& step : steps)
    std::sort(step.begin(), step.end(), [](const StepTransfer& a, const StepTransfer& b) {
      return std::tie(a.from, a.to, a.bytes) < std::tie(b.from, b.to, b.bytes);
    });
  return steps;
}

// Messages between threads that know of what they came after: a rank sends in the step after the latest of
// the messages that it has waited for.
struct Recorder {
  struct Message {
    std::vector<std::byte> bytes;
    size_t step;
  };
  explicit Recorder(int size) : latest(static_cast<size_t>(size), 0) {}
  std::mutex mutex;
  std::condition_variable came;
  std::map<std::pair<int, int>, std::deque<Message>> on_the_way;  // by sender and receiver
  std::vector<size_t> latest;                                     // by rank
  std::vector<CollectiveStep> steps;
};

class RecordingChannel final : public Channel {
 public:
  RecordingChannel(Recorder& recorder, int rank) : recorder_(recorder), rank_(rank) {}
  void send(int peer, const std::byte* from, int64_t bytes) override {
    std::lock_guard lock(recorder_.mutex);
    const size_t step = recorder_.latest[static_cast<size_t>(rank_)];
    recorder_.steps.resize(std::max(recorder_.steps.size(), step + 1));
    recorder_.steps[step].push_back({rank_, peer, bytes});
    recorder_.on_the_way[{rank_, peer}].push_back({{from, from + bytes}, step + 1});
    recorder_.came.notify_all();
  }
  void receive(int peer, std::byte* to, int64_t bytes) override { posted_[peer].push_back({to, bytes}); }
  bool sent(int) override { return true; }
  bool received(int peer) override {
    std::unique_lock lock(recorder_.mutex);
    auto& messages = recorder_.on_the_way[{peer, rank_}];
    recorder_.came.wait(lock, [&] { return !messages.empty(); });
    const auto [to, bytes] = posted_[peer].front();
    posted_[peer].pop_front();
    HET_REQUIRE(static_cast<int64_t>(messages.front().bytes.size()) == bytes, bytes);
    std::copy(messages.front().bytes.begin(), messages.front().bytes.end(), to);
    size_t& latest = recorder_.latest[static_cast<size_t>(rank_)];
    latest = std::max(latest, messages.front().step);
    messages.pop_front();
    return true;
  }
  void interrupt() override {}

 private:
  Recorder& recorder_;
  int rank_;
  std::map<int, std::deque<std::pair<std::byte*, int64_t>>> posted_;
};

// Receives of a channel are counted: the first message comes when the test has started all, the others when
// as many are posted as are awaited.
struct Announcements {
  std::mutex mutex;
  std::condition_variable changed;
  int posted = 0, came = 0;
  bool all_started = false;
  const int awaited;
  explicit Announcements(int count) : awaited(count) {}
};

class AnnouncedChannel final : public Channel {
 public:
  explicit AnnouncedChannel(Announcements& announcements) : announcements_(announcements) {}
  void send(int, const std::byte*, int64_t) override {}
  void receive(int, std::byte*, int64_t) override {
    const std::lock_guard lock(announcements_.mutex);
    ++announcements_.posted;
    announcements_.changed.notify_all();
  }
  bool sent(int) override { return true; }
  bool received(int) override {
    std::unique_lock lock(announcements_.mutex);
    const bool has_come = announcements_.changed.wait_for(lock, std::chrono::milliseconds(50), [&] {
      return announcements_.came == 0 ? announcements_.all_started
                                      : announcements_.posted >= announcements_.awaited;
    });
    announcements_.came += has_come ? 1 : 0;
    return has_come;
  }
  void interrupt() override {}

 private:
  Announcements& announcements_;
};

class AnnouncedConnections final : public Connections {
 public:
  explicit AnnouncedConnections(Announcements& announcements) : announcements_(announcements) {}
  std::unique_ptr<Channel> open_channel(uint64_t) override {
    return std::make_unique<AnnouncedChannel>(announcements_);
  }
  void cut() override {}
  void watch(std::function<void(int)>) override {}
  void unwatch() override {}
  std::string host(int) const override { return ""; }
  bool gone(int) const override { return false; }

 private:
  Announcements& announcements_;
};

// What the transport sends, step by step. `requests`: of each rank.
std::vector<CollectiveStep> recorded(const std::vector<CollectiveRequest>& requests) {
  const int size = static_cast<int>(requests.size());
  Recorder recorder(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const CollectiveRequest& request = requests[static_cast<size_t>(rank)];
      const auto in = buffer(input_elements(request, rank, size));
      auto out = buffer(output_elements(request, rank, size));
      RecordingChannel channel(recorder, rank);
      std::atomic<int64_t> bytes_sent{0};
      ChannelState state(
          channel, size, [] {}, bytes_sent);
      Scratch scratch = make_scratch(scratch_bytes_of(request, rank, size), size);
      run_collective(request, rank, size, state, in.data(), out.data(), scratch);
    });
  for (std::thread& thread : threads) thread.join();
  return sorted(std::move(recorder.steps));
}

std::vector<CollectiveStep> stated(const CollectiveRequest& request, int rank, int size) {
  return sorted(mesh_steps(request, rank, size));
}

// `most`: elements of a block, or of the whole tensor. Even: all blocks are equal.
CollectiveRequest drawn(std::mt19937& random, Kind kind, int size, int64_t most, bool even) {
  CollectiveRequest request = random_request(random, kind, DType::f32, size, most);
  if (even)
    for (int64_t& count : request.counts) count = most / size * (request.counts.size() == 1 ? size : 1);
  return request;
}

int64_t bytes_from(const std::vector<CollectiveStep>& steps, int rank) {
  int64_t bytes = 0;
  for (const CollectiveStep& step : steps)
    for (const StepTransfer& transfer : step)
      if (transfer.from == rank) bytes += transfer.bytes;
  return bytes;
}

void try_bytes(const FabricMaker& maker, int size, int64_t most) {
  const auto errors = on_ranks(maker, size, {}, [&](Fabric& fabric) {
    const auto group = fabric.group("all", all_ranks(size));
    std::mt19937 random(static_cast<uint32_t>(size));
    for (const Kind kind : kKinds)
      for (const bool even : {true, false}) {
        const CollectiveRequest request = drawn(random, kind, size, most, even);
        const int64_t stated = bytes_from(mesh_steps(request, group->rank(), size), group->rank());
        const std::vector<std::byte> in = buffer(input_elements(request, group->rank(), size));
        std::vector<std::byte> out = buffer(output_elements(request, group->rank(), size));
        const int64_t before = group->bytes_sent();
        const auto collective = group->prepare(request);
        collective->start(in.data(), out.data());
        collective->wait();
        HET_REQUIRE(group->bytes_sent() - before == stated, name_of(kind), even, stated,
                    group->bytes_sent() - before);
      }
  });
  for (const std::string& text : errors) CHECK(text == "");
}

}  // namespace

TEST_CASE("the transport sends what the statement of each collective's steps says, step by step", "[comm]") {
  std::mt19937 random(7);
  for (int size = 1; size <= 5; ++size)
    for (const Kind kind : kKinds)
      for (const int64_t most : {60, 30'000})  // below and above what goes in one step
        for (const bool even : {true, false}) {
          const CollectiveRequest request = drawn(random, kind, size, most, even);
          INFO(name_of(kind) << ", " << size << " ranks, up to " << most << (even ? ", even" : ", uneven"));
          CHECK(recorded(std::vector<CollectiveRequest>(static_cast<size_t>(size), request)) ==
                stated(request, 0, size));
        }
  CollectiveRequest send{Kind::send, DType::f32, {100}, 1, 0, Reduction::sum, "x"}, receive = send;
  receive.kind = Kind::receive;
  receive.peer = 0;
  CHECK(recorded({send, receive}) == stated(send, 0, 2));
  CHECK(stated(receive, 1, 2) == stated(send, 0, 2));
}

TEST_CASE("a rank sends in a collective what all its steps together have", "[comm]") {
  std::mt19937 random(9);
  for (int size = 1; size <= 5; ++size)
    for (const Kind kind : kKinds)
      for (const int64_t most : {60, 30'000})
        for (const bool even : {true, false}) {
          const CollectiveRequest request = drawn(random, kind, size, most, even);
          for (int rank = 0; rank < size; ++rank) {
            int64_t bytes = 0;
            for (const CollectiveStep& step : mesh_steps(request, rank, size))
              for (const StepTransfer& transfer : step) bytes += transfer.from == rank ? transfer.bytes : 0;
            INFO(name_of(kind) << ", rank " << rank << " of " << size << ", up to " << most);
            CHECK(sent_bytes(request, rank, size) == bytes);
          }
        }
  CollectiveRequest message{Kind::send, DType::f32, {100}, 1, 0, Reduction::sum, "x"};
  CHECK(sent_bytes(message, 0, 2) == 400);
  message.kind = Kind::receive;
  CHECK(sent_bytes(message, 0, 2) == 0);
}

TEST_CASE("the transport sends as many bytes as stated, in however many segments", "[comm]") {
  for (int size = 2; size <= 5; ++size) {
    try_bytes(loopback_maker(), size, 60);
    try_bytes(loopback_maker(), size, 500'000);
  }
  try_bytes(tcp_maker(), 3, 500'000);
}

TEST_CASE("with equal blocks and links the steps take as long as their closed form", "[comm]") {
  const Link link{1e-3, 1e6};
  for (int size = 1; size <= 5; ++size)
    for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather})
      for (const int64_t elements : {60, 60'000}) {
        CollectiveRequest request{kind, DType::f32, {elements}, -1, 0, Reduction::sum, "x"};
        if (kind != Kind::all_reduce) request.counts.assign(static_cast<size_t>(size), elements / size);
        INFO(name_of(kind) << ", " << size << " ranks, " << elements);
        const auto steps = mesh_steps(request, 0, size);
        const WireTime time = wire_time(steps, size, [&](int, int) { return link; });
        const EvenSteps even = even_steps(kind, Algorithm::mesh, size, static_cast<double>(elements) * 4);
        CHECK(even.steps == static_cast<double>(steps.size()));
        CHECK(even.peers * even.bytes == Approx(static_cast<double>(bytes_from(steps, 0))));
        CHECK(seconds_of(even, link) == Approx(time.busy + time.latency));
      }
}

TEST_CASE("rings and trees take the time of the published formulas", "[comm]") {
  const auto seconds = [](Kind kind, Algorithm algorithm, int size) {
    return seconds_of(even_steps(kind, algorithm, size, 1e6), {1e-3, 1e9});
  };
  CHECK(seconds(Kind::all_reduce, Algorithm::ring, 1) == 0);
  CHECK(seconds(Kind::all_reduce, Algorithm::ring, 4) == Approx(6e-3 + 2 * 0.75 * 1e-3));
  CHECK(seconds(Kind::all_gather, Algorithm::ring, 4) == Approx(3e-3 + 0.75 * 1e-3));
  CHECK(seconds(Kind::all_reduce, Algorithm::tree, 5) == Approx(6e-3 + 2 * 1e-3));
  CHECK(seconds(Kind::all_reduce, Algorithm::mesh, 4) == Approx(2e-3 + 2 * 0.75 * 1e-3));
}

TEST_CASE("a receiver announces several messages of a channel before the first has come", "[comm]") {
  constexpr int kMessages = 5;
  Announcements announcements(kMessages);
  GroupOptions options;
  options.name = "two";
  options.ranks = {0, 1};
  options.timeouts.timeout = std::chrono::seconds(20);
  options.board = std::make_shared<StatusBoard>(make_memory_key_value(), "run", 0);
  const auto group = make_group(options, std::make_unique<AnnouncedConnections>(announcements));
  std::vector<std::vector<std::byte>> memory(kMessages, buffer(8));
  std::vector<std::unique_ptr<Collective>> messages;
  for (int i = 0; i < kMessages; ++i)
    messages.push_back(group->prepare({Kind::receive, DType::f32, {8}, 1, 7, Reduction::sum, "w"}));
  for (size_t i = 0; i < messages.size(); ++i) messages[i]->start(nullptr, memory[i].data());
  {
    const std::lock_guard lock(announcements.mutex);
    announcements.all_started = true;
    announcements.changed.notify_all();
  }
  for (const auto& message : messages) message->wait();
  CHECK(announcements.posted == kMessages);
}
