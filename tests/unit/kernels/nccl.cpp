// Collectives between GPUs, on emulated ones by an emulated NCCL (tests/emulated_cuda), with ranks as
// threads.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <deque>
#include <mutex>

#include "core/comm/groups.h"
#include "tests/emulated_cuda/device.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;
using Kind = CollectiveKind;
using std::chrono::milliseconds;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A group as ranks with a GPU see it: operands are brought there, and results back, around each operation.
class OnGpu final : public Communicator {
 public:
  OnGpu(Communicator& group, Device& device) : group_(group), device_(device) {}
  const std::string& name() const override { return group_.name(); }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  const std::vector<int>& ranks() const override { return group_.ranks(); }
  void abort(std::string_view why) override { group_.abort(why); }
  int64_t bytes_sent() const override { return group_.bytes_sent(); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override {
    auto operation = std::make_unique<Operation>(*this, request);
    group_.connect();
    return operation;
  }

 private:
  class Operation final : public Collective {
   public:
    Operation(OnGpu& group, const CollectiveRequest& request)
        : device_(group.device_),
          width_(bytes_of(request.dtype)),
          in_bytes_(input_elements(request, group.rank(), group.size()) * width_),
          out_bytes_(output_elements(request, group.rank(), group.size()) * width_),
          memory_(device_.allocate(2 * (in_bytes_ + out_bytes_) + 64)),
          operation_(group.group_.prepare(request)) {}
    // At odd addresses; in place where it is on the host.
    void start(const std::byte* in, std::byte* out) override {
      const auto from = reinterpret_cast<uintptr_t>(in), to = reinterpret_cast<uintptr_t>(out);
      std::byte* near_in = memory_->address() + in_bytes_ + out_bytes_ + width_;
      out_ = memory_->address() + width_;
      if (in != nullptr && from >= to && from < to + static_cast<uintptr_t>(out_bytes_))
        near_in = out_ + (from - to);
      else if (out != nullptr && to > from && to < from + static_cast<uintptr_t>(in_bytes_))
        out_ = near_in + (to - from);
      device_.copy_in(near_in, in, in_bytes_);
      host_ = out;
      operation_->start(near_in, out_);
    }
    bool done() const override { return operation_->done(); }
    void wait() override {
      operation_->wait();
      device_.copy_out(host_, out_, out_bytes_);
    }
    const CollectiveRequest& request() const override { return operation_->request(); }
    CollectiveTimes times() const override { return operation_->times(); }

   private:
    Device& device_;
    int64_t width_, in_bytes_, out_bytes_;
    std::unique_ptr<Memory> memory_;
    std::unique_ptr<Collective> operation_;
    std::byte* out_ = nullptr;
    std::byte* host_ = nullptr;
  };

  Communicator& group_;
  Device& device_;
};

// One rank: its GPU, and its groups.
struct Rank {
  explicit Rank(Fabric& fabric) : fabric(fabric), device(cuda_emulated::make_device(fabric.rank())) {}
  std::shared_ptr<Communicator> group(const std::string& name, std::vector<int> ranks) {
    return device->connect(fabric.group(name, std::move(ranks)));
  }
  std::unique_ptr<Memory> values(const std::vector<float>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    auto memory = device->allocate(bytes);
    device->copy_in(memory->address(), reinterpret_cast<const std::byte*>(values.data()), bytes);
    return memory;
  }
  std::vector<float> read(const Memory& memory, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    device->copy_out(reinterpret_cast<std::byte*>(values.data()), memory.address(),
                     count * static_cast<int64_t>(sizeof(float)));
    return values;
  }

  Fabric& fabric;
  std::shared_ptr<Device> device;
};

CollectiveRequest sum_of(int64_t count) {
  return {Kind::all_reduce, DType::f32, {count}, -1, 0, Reduction::sum, "wte.gradient"};
}
CollectiveRequest message(Kind kind, int64_t count, int peer, int tag) {
  return {kind, DType::f32, {count}, peer, tag, Reduction::sum, "x"};
}

// The error that `body` ends with, which must be of a peer; "" for none.
std::string peer_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    HET_REQUIRE(error.kind() == ErrorKind::peer, error.what());
    return error.what();
  }
  return {};
}

void require_none(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    INFO("rank " << rank);
    CHECK(errors[rank] == "");  // of each: what one rank says may follow from what another does
  }
}

}  // namespace

TEST_CASE("collectives between GPUs equal plain sums and copies, bit by bit", "[nccl]") {
  constexpr std::array kKinds = {Kind::all_reduce, Kind::all_gather,        Kind::reduce_scatter,
                                 Kind::broadcast,  Kind::grouped_broadcast, Kind::all_to_all,
                                 Kind::barrier};
  constexpr std::array kTypes = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                 DType::i32, DType::i64, DType::u8};
  for (int size = 1; size <= 4; ++size)
    require_none(on_ranks(loopback_maker(), size, {}, [&](Fabric& fabric) {
      Rank self(fabric);
      const auto group = self.group("all", all_ranks(size));
      OnGpu near(*group, *self.device);
      std::mt19937 random(static_cast<uint32_t>(50 + size));
      for (const Kind kind : kKinds)
        for (const DType dtype : kTypes)
          for (int trial = 0; trial < 3; ++trial) {
            const std::string problem = try_collective(near, random_request(random, kind, dtype, size, 3000));
            if (!problem.empty()) fail(ErrorKind::bug, "{}", problem);
          }
    }));
}

TEST_CASE("messages between GPUs are started in any order", "[nccl]") {
  // Everybody sends and receives on two channels with everybody, in orders that would stop if one message
  // waited for another; three times over, all under way before the first is waited for.
  require_none(on_ranks(loopback_maker(), 3, {}, [&](Fabric& fabric) {
    constexpr int64_t kCount = 1000;
    Rank self(fabric);
    const auto group = self.group("all", all_ranks(3));
    struct Message {
      std::unique_ptr<Collective> operation;
      std::unique_ptr<Memory> memory;
      float expected = 0;
    };
    std::vector<Message> messages;
    for (int peer = 0; peer < 3; ++peer)
      for (const int tag : {0, 7})
        for (const Kind kind : {Kind::send, Kind::receive}) {
          if (peer == fabric.rank()) continue;
          Message& m = messages.emplace_back();
          m.operation = group->prepare(message(kind, kCount, peer, tag));
          const int from = kind == Kind::send ? fabric.rank() : peer, to = fabric.rank() + peer - from;
          if (kind == Kind::receive) m.expected = static_cast<float>(from * 100 + to * 10 + tag);
          m.memory = self.values(std::vector<float>(kCount, static_cast<float>(from * 100 + to * 10 + tag)));
        }
    group->connect();
    std::mt19937 random(static_cast<uint32_t>(fabric.rank()));
    for (int round = 0; round < 3; ++round) {
      for (Message& m : messages)
        if (m.expected != 0) {
          const std::vector<float> nothing(kCount, -1.0F);
          self.device->copy_in(m.memory->address(), reinterpret_cast<const std::byte*>(nothing.data()),
                               kCount * 4);
        }
      std::shuffle(messages.begin(), messages.end(), random);
      for (Message& m : messages) m.operation->start(m.memory->address(), m.memory->address());
      std::shuffle(messages.begin(), messages.end(), random);
      for (Message& m : messages) m.operation->wait();
      for (Message& m : messages)
        if (m.expected != 0)
          HET_REQUIRE(self.read(*m.memory, kCount) == std::vector<float>(kCount, m.expected), round);
    }
    HET_REQUIRE(group->bytes_sent() == 3 * 4 * kCount * 4, group->bytes_sent());
  }));
}

TEST_CASE("an operation between GPUs that lacks a rank holds up neither messages nor other groups",
          "[nccl]") {
  require_none(on_ranks(loopback_maker(), 3, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto all = self.group("all", all_ranks(3));
    const auto sum = self.values(std::vector<float>(1000, 1.0F));
    const auto one = self.values({static_cast<float>(fabric.rank())});
    const auto reduce = all->prepare(sum_of(1000));
    std::vector<std::unique_ptr<Collective>> go;
    if (fabric.rank() < 2) go.push_back(all->prepare(message(Kind::send, 1, 2, 0)));
    if (fabric.rank() == 2)
      for (const int peer : {0, 1}) go.push_back(all->prepare(message(Kind::receive, 1, peer, 0)));
    all->connect();
    if (fabric.rank() < 2) {
      const auto pair = self.group("pair", {0, 1});
      const auto most = pair->prepare({Kind::all_reduce, DType::f32, {1}, -1, 0, Reduction::max, "max"});
      pair->connect();
      reduce->start(sum->address(), sum->address());
      most->start(one->address(), one->address());
      most->wait();
      HET_REQUIRE(self.read(*one, 1)[0] == 1.0F);
      HET_REQUIRE(!reduce->done());
    }
    for (const auto& message : go) {
      message->start(one->address(), one->address());
      message->wait();
    }
    self.device->synchronize();
    if (fabric.rank() == 2) reduce->start(sum->address(), sum->address());
    reduce->wait();
    HET_REQUIRE(self.read(*sum, 1000) == std::vector<float>(1000, 3.0F));
    HET_REQUIRE(reduce->done());
  }));
}

TEST_CASE("starting and waiting for operations between GPUs never stops the host", "[nccl]") {
  // Rank 1 comes to its part only when rank 0 has queued all of its own, its waits and what follows them.
  Gate queued(2);
  require_none(on_ranks(loopback_maker(), 2, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("all", all_ranks(2));
    const auto data = self.values(std::vector<float>(100, 1.0F));
    const auto copy = self.values(std::vector<float>(100, 0.0F));
    const auto first = group->prepare(sum_of(100)), second = group->prepare(sum_of(100));
    group->connect();
    if (fabric.rank() == 1) queued.pass();
    first->start(data->address(), data->address());
    first->wait();
    second->start(data->address(), copy->address());
    second->wait();
    if (fabric.rank() == 0) {
      HET_REQUIRE(!first->done());
      queued.pass();
    }
    HET_REQUIRE(self.read(*copy, 100) == std::vector<float>(100, 4.0F));
    HET_REQUIRE(first->times().finished >= first->times().started);
  }));
}

TEST_CASE("more operations between GPUs than fit in a queue wait for the first", "[nccl]") {
  require_none(on_ranks(loopback_maker(), 2, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("all", all_ranks(2));
    const auto data = self.values({1.0F, 1.0F});
    std::vector<std::unique_ptr<Collective>> sums;
    for (int i = 0; i < 100; ++i) sums.push_back(group->prepare(sum_of(1)));
    group->connect();
    if (fabric.rank() == 1) std::this_thread::sleep_for(milliseconds(50));
    for (const auto& sum : sums) sum->start(data->address(), data->address() + 4);
    for (const auto& sum : sums) sum->wait();
    HET_REQUIRE(self.read(*data, 2)[1] == 2.0F);
  }));
}

TEST_CASE("between GPUs, a rank that does not come is named, first in a warning, then in the error",
          "[nccl]") {
  Gate begin(3), end(3);
  std::mutex mutex;
  std::vector<std::string> warnings;
  const Timeouts timeouts{milliseconds(400), milliseconds(2000), [&](const std::string& text) {
                            std::lock_guard lock(mutex);
                            warnings.push_back(text);
                          }};
  const auto errors = on_ranks(loopback_maker(), 3, timeouts, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("dp0", all_ranks(3));
    const auto sum = group->prepare(sum_of(10));
    {
      const PassAtEnd connected{begin};
      group->connect();
    }
    const auto data = self.values(std::vector<float>(10, 1.0F));
    const std::string error = peer_error([&] {
      if (fabric.rank() == 2) return;
      sum->start(data->address(), data->address());
      sum->wait();
      self.device->synchronize();
    });
    end.pass();
    self.device->synchronize();  // says it once
    if (!error.empty()) fail(ErrorKind::peer, "{}", error);
  });
  REQUIRE(warnings.size() == 2);
  for (const std::string& text : warnings) {
    INFO(text);
    CHECK(has(text, "s for rank 2 (has not arrived) during all-reduce of wte.gradient"));
  }
  CHECK(errors[2] == "");
  for (const int rank : {0, 1}) {
    INFO(errors[rank]);
    CHECK(has(errors[rank], "lost rank 2 (did not arrive within "));
    CHECK(has(errors[rank], " s) during all-reduce of wte.gradient"));
  }
}

TEST_CASE("between GPUs, a rank that has not come to connect is named", "[nccl]") {
  Gate end(2);
  const Timeouts timeouts{milliseconds(100), milliseconds(500), {}};
  const auto errors = on_ranks(loopback_maker(), 2, timeouts, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("dp0", all_ranks(2));
    const auto sum = group->prepare(sum_of(10));
    const std::string error = peer_error([&] {
      if (fabric.rank() == 0) group->connect();
    });
    end.pass();
    if (!error.empty()) fail(ErrorKind::peer, "{}", error);
  });
  INFO(errors[0]);
  CHECK(has(errors[0], "lost rank 1 (did not arrive within "));
  CHECK(has(errors[0], " s) during all-gather of the GPUs to connect"));
  CHECK(errors[1] == "");
}

TEST_CASE("a message between GPUs whose other end was not prepared is named on all ranks", "[nccl]") {
  const auto errors = on_ranks(loopback_maker(), 3, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("pipe", all_ranks(3));
    const auto message_of_0 =
        fabric.rank() == 0 ? group->prepare(message(Kind::send, 1, 1, 4)) : std::unique_ptr<Collective>();
    group->connect();
  });
  for (const std::string& error : errors) {
    INFO(error);
    CHECK(has(error, "of the message from rank 0 to rank 1 with tag 4, only rank 0 "));
  }
}

TEST_CASE("between GPUs, a rank that leaves is named by every other, and no rank hangs", "[nccl]") {
  const auto errors = on_ranks(loopback_maker(), 3, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("dp0", all_ranks(3));
    const auto other = fabric.rank() == 1 ? nullptr : self.group("pair", {0, 2});
    const auto sum = group->prepare(sum_of(10));
    group->connect();
    std::unique_ptr<Collective> pair;
    if (other != nullptr) {
      pair = other->prepare(sum_of(10));
      other->connect();
    }
    const auto data = self.values(std::vector<float>(10, 1.0F)), more = self.values(std::vector<float>(10));
    sum->start(data->address(), data->address());
    sum->wait();
    self.device->synchronize();
    if (fabric.rank() == 1) return;  // takes its connections with it
    sum->start(data->address(), data->address());
    // Rank 2 does not come to this one any more: an abort of the first must not wait for it.
    if (fabric.rank() == 0) pair->start(more->address(), more->address());
    sum->wait();
    self.device->synchronize();
  });
  CHECK(errors[1] == "");
  for (const int rank : {0, 2}) {
    INFO(errors[rank]);
    CHECK(has(errors[rank], "all-reduce of wte.gradient"));
  }
  CHECK((has(errors[0], "lost rank 1 (connection closed)") ||
         has(errors[2], "lost rank 1 (connection closed)") ||
         has(errors[0], "NCCL says \"remote process exited")));
}

namespace {

// A rank that dies leaves its part of NCCL as it is, and its connections close: as the host's group of the
// others sees it, whose own rank goes on here.
class HostOfTheLiving final : public Communicator, public FailureDetector {
 public:
  HostOfTheLiving(std::shared_ptr<Communicator> group, std::atomic<int>& dead)
      : group_(std::move(group)), dead_(dead) {}
  const std::string& name() const override { return group_->name(); }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::vector<int>& ranks() const override { return group_->ranks(); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override {
    return group_->prepare(request);
  }
  void abort(std::string_view why) override { group_->abort(why); }
  int64_t bytes_sent() const override { return group_->bytes_sent(); }
  FailureDetector* failure_detector() override { return this; }

  const Timeouts& timeouts() const override { return group_->failure_detector()->timeouts(); }
  std::string peer_name(int peer) const override { return fmt::format("rank {} on host{}", peer, peer); }
  std::string lost(int peer) override {
    return peer == dead_ ? "lost " + peer_name(peer) + " (connection closed)" : "";
  }
  void post_waiting(int64_t sequence) override { group_->failure_detector()->post_waiting(sequence); }
  bool is_waiting(int peer, int64_t sequence) override {
    return group_->failure_detector()->is_waiting(peer, sequence);
  }
  void watch(const void* key, std::function<void(const std::string&)> dead) override {
    group_->failure_detector()->watch(key, std::move(dead));
  }
  void unwatch(const void* key) override { group_->failure_detector()->unwatch(key); }

 private:
  std::shared_ptr<Communicator> group_;
  std::atomic<int>& dead_;
};

}  // namespace

TEST_CASE("when a rank with a GPU is killed, the others' waits end with its name", "[nccl]") {
  // The timeout is a minute: it is not what ends the waits.
  std::atomic<int> dead{-1};
  Gate begin(3), end(3);
  const auto errors = on_ranks(loopback_maker(), 3, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto host = std::make_shared<HostOfTheLiving>(fabric.group("dp0", all_ranks(3)), dead);
    const auto group = self.device->connect(host);
    const auto sum = group->prepare(sum_of(10));
    {
      const PassAtEnd connected{begin};
      group->connect();
    }
    const auto data = self.values(std::vector<float>(10, 1.0F));
    if (fabric.rank() == 1) {
      dead = 1;
      return end.pass();
    }
    const std::string error = peer_error([&] {
      sum->start(data->address(), data->address());
      sum->wait();
      self.device->synchronize();
    });
    const std::string later = peer_error([&] { sum->start(data->address(), data->address()); });
    end.pass();
    HET_REQUIRE(has(later, "lost rank 1 on host1"), later);
    fail(ErrorKind::peer, "{}", error);
  });
  for (const int rank : {0, 2}) {
    INFO(errors[rank]);
    CHECK(has(errors[rank], "lost rank 1 on host1 (connection closed) during all-reduce of wte.gradient"));
  }
}

TEST_CASE("an abort ends the waits for GPUs of other ranks, with its reason", "[nccl]") {
  // By the fabric, as the watch over members does it, from a separate thread.
  Gate waiting(2);
  const auto errors = on_ranks(loopback_maker(), 2, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("dp0", all_ranks(2));
    const auto sum = group->prepare(sum_of(10));
    group->connect();
    const auto data = self.values(std::vector<float>(10, 1.0F));
    if (fabric.rank() == 1) {
      waiting.pass();
      fabric.abort("a new generation begins");
    } else {
      sum->start(data->address(), data->address());
      sum->wait();
      std::thread other([&] { waiting.pass(); });
      const std::string text = peer_error([&] { self.device->synchronize(); });
      other.join();
      HET_REQUIRE(has(text, "lost rank 1 (a new generation begins) during all-reduce of wte.gradient"), text);
    }
    sum->start(data->address(), data->address());
  });
  for (const std::string& text : errors) {
    INFO(text);
    CHECK(has(text, "lost rank 1 (a new generation begins)"));
  }
}

TEST_CASE("after a failure between GPUs a new generation takes over", "[nccl]") {
  // An abort may take a sum along that is done on the rank that aborts and not yet on the others, whose GPUs
  // are late: it comes when all have their sums.
  constexpr int kGenerations = 6;
  std::deque<Gate> summed;
  for (int generation = 0; generation < kGenerations; ++generation) summed.emplace_back(3);
  require_none(on_ranks(loopback_maker(), 3, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto kept = self.values(std::vector<float>(10, 7.0F));
    for (int generation = 0; generation < kGenerations; ++generation) {
      const auto group = self.group(fmt::format("generation {}", generation), all_ranks(3));
      const auto sum = group->prepare(sum_of(10));
      const auto data = self.values(std::vector<float>(10, 1.0F));
      {
        const PassAtEnd at_end{summed[static_cast<size_t>(generation)]};
        group->connect();
        sum->start(data->address(), data->address());
        sum->wait();
        HET_REQUIRE(self.read(*data, 10) == std::vector<float>(10, 3.0F));
      }
      const std::string error = peer_error([&] {
        if (fabric.rank() == generation % 3) return group->abort("to begin again");
        sum->start(data->address(), data->address());
        sum->wait();
        self.device->synchronize();
      });
      HET_REQUIRE(error.empty() == (fabric.rank() == generation % 3), error);
      HET_REQUIRE(self.read(*kept, 10) == std::vector<float>(10, 7.0F));
    }
  }));
}

TEST_CASE("an abort in the midst of traffic between GPUs ends every rank", "[nccl]") {
  const Timeouts timeouts{milliseconds(5000), milliseconds(10000), {}};
  require_none(on_ranks(loopback_maker(), 3, timeouts, [&](Fabric& fabric) {
    Rank self(fabric);
    std::mt19937 random(5);
    const auto data = self.values(std::vector<float>(1000)), more = self.values(std::vector<float>(1000));
    for (int generation = 0; generation < 20; ++generation) {
      const int aborts = static_cast<int>(random() % 3);
      const std::chrono::microseconds after(random() % 15'000);  // some while the GPUs are being connected
      std::thread other;
      const std::string text = peer_error([&] {
        const auto host = fabric.group(fmt::format("generation {}", generation), all_ranks(3));
        other = std::thread([&, host] {
          std::this_thread::sleep_for(after);
          if (fabric.rank() == aborts) host->abort("the test says so");
        });
        const auto group = self.device->connect(host);
        const auto first = group->prepare(sum_of(1000)), second = group->prepare(sum_of(1000));
        group->connect();
        while (true) {
          first->start(data->address(), data->address());
          second->start(more->address(), more->address());
          first->wait();
          second->wait();
          self.device->synchronize();
        }
      });
      if (other.joinable()) other.join();
      // The rank itself may learn of it from the host's communicator.
      const bool own = fabric.rank() == aborts && has(text, "this rank gave up: the test says so");
      HET_REQUIRE(own || has(text, fmt::format("lost rank {} (", aborts)), text);
    }
  }));
}

TEST_CASE("an operation between GPUs that is given up ends its group", "[nccl]") {
  Gate begin(2), given_up(2);
  const auto errors = on_ranks(loopback_maker(), 2, {}, [&](Fabric& fabric) {
    Rank self(fabric);
    const auto group = self.group("dp0", all_ranks(2));
    auto sum = group->prepare(sum_of(10));
    {
      const PassAtEnd connected{begin};
      group->connect();
    }
    const auto data = self.values(std::vector<float>(10, 1.0F));
    if (fabric.rank() == 0) {
      sum->start(data->address(), data->address());
      sum.reset();
    }
    given_up.pass();
    if (fabric.rank() == 0) return;
    sum->start(data->address(), data->address());
    sum->wait();
    self.device->synchronize();
  });
  CHECK(errors[0] == "");
  INFO(errors[1]);
  CHECK(has(errors[1], "all-reduce of wte.gradient was given up"));
}

TEST_CASE("GPUs are reached directly only where all members of a group can", "[nccl]") {
  class Other final : public Device {  // a GPU as another rank might have it
   public:
    Other(DeviceTransport way) : way_(std::move(way)) {}
    std::string name() const override { return "other"; }
    std::unique_ptr<Memory> allocate(int64_t) override { return nullptr; }
    bool has_own_memory() const override { return true; }
    DeviceTransport device_transport() override { return way_; }
    int64_t available_bytes() const override { return 0; }
    std::unique_ptr<Kernel> prepare(const KernelRequest&) override { return nullptr; }
    void copy_in(std::byte*, const std::byte*, int64_t) override {}
    void copy_out(std::byte*, const std::byte*, int64_t) override {}

   private:
    DeviceTransport way_;
  };
  class Processor final : public Device {
   public:
    std::string name() const override { return "processor"; }
    std::unique_ptr<Memory> allocate(int64_t) override { return nullptr; }
    int64_t available_bytes() const override { return 0; }
    std::unique_ptr<Kernel> prepare(const KernelRequest&) override { return nullptr; }
    void copy_in(std::byte*, const std::byte*, int64_t) override {}
    void copy_out(std::byte*, const std::byte*, int64_t) override {}
  };
  const auto way_of = [&](const std::function<std::shared_ptr<Device>(int rank)>& device) {
    std::array<std::string, 2> ways;
    require_none(on_ranks(loopback_maker(), 2, {}, [&](Fabric& fabric) {
      // Not destroyed here: the groups are shared with the fabric's owner.
      Groups groups(std::shared_ptr<Fabric>(&fabric, [](Fabric*) {}));
      const auto own = device(fabric.rank());
      const Communicator* direct = groups.direct({0, 1}, own);
      HET_REQUIRE(groups.direct({0, 1}, own) == direct);
      HET_REQUIRE(groups.ways().size() <= 1);
      if (!groups.ways().empty()) ways[fabric.rank()] = groups.ways()[0];
      HET_REQUIRE((direct != nullptr) == has(ways[fabric.rank()], "from device to device"));
    }));
    CHECK(ways[0] == ways[1]);
    return ways[0];
  };
  const auto gpu = [](int rank) { return cuda_emulated::make_device(rank); };
  CHECK(way_of(gpu) == "ranks 0,1: from device to device by NCCL 2.28.9");
  CHECK(way_of([&](int rank) -> std::shared_ptr<Device> {
          return rank == 0 ? gpu(0) : std::make_shared<Processor>();
        }) == "ranks 0,1: through the memory of hosts (rank 1 computes in the memory of its host)");
  CHECK(way_of([&](int) { return gpu(3); }) ==
        "ranks 0,1: through the memory of hosts (ranks 0 and 1 share one device)");
  CHECK(way_of([&](int rank) -> std::shared_ptr<Device> {
          return rank == 0 ? gpu(0) : std::make_shared<Other>(DeviceTransport{"NCCL 2.27.3", "x", ""});
        }) == "ranks 0,1: through the memory of hosts (rank 0 has NCCL 2.28.9, rank 1 has NCCL 2.27.3)");
  CHECK(way_of([&](int rank) -> std::shared_ptr<Device> {
          return rank == 0 ? gpu(0)
                           : std::make_shared<Other>(DeviceTransport{"", "", "libnccl.so.2 was not found"});
        }) == "ranks 0,1: through the memory of hosts (rank 1: libnccl.so.2 was not found)");
  CHECK(way_of([](int) { return std::make_shared<Processor>(); }) == "");
}
