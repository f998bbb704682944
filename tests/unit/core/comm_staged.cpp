// Collectives of devices whose memory the host cannot touch.
#include <algorithm>
#include <catch2/catch.hpp>

#include "core/comm/staged.h"
#include "core/tensor/tensor.h"
#include "tests/unit/core/comm_testing.h"

using namespace het;
using namespace het::testing;

namespace {

// Memory at addresses that mean nothing to the host: reading or writing there ends the test.
class FarDevice final : public Device {
 public:
  std::string name() const override { return "far"; }
  std::unique_ptr<Memory> allocate(int64_t bytes) override { return std::make_unique<FarMemory>(bytes); }
  bool has_own_memory() const override { return true; }
  int64_t available_bytes() const override { return int64_t{1} << 30; }
  std::unique_ptr<Kernel> prepare(const KernelRequest&) override { return nullptr; }
  void copy_in(std::byte* to, const std::byte* host, int64_t bytes) override {
    std::copy_n(host, bytes, near(to));
  }
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override {
    std::copy_n(near(const_cast<std::byte*>(from)), bytes, host);
  }

 private:
  static constexpr uintptr_t kFar = uintptr_t{1} << 62;
  static std::byte* near(std::byte* far) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(far) - kFar);
  }
  class FarMemory final : public Memory {
   public:
    explicit FarMemory(int64_t bytes) : buffer_(bytes) {}
    std::byte* address() const override {
      return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(buffer_.data()) + kFar);
    }

   private:
    Buffer buffer_;
  };
};

// A group as ranks with such a device see it: operands are brought there, and results back, around each
// operation.
class OnDevice final : public Communicator {
 public:
  OnDevice(Communicator& group, Device& device) : group_(group), device_(device) {}
  const std::string& name() const override { return group_.name(); }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  const std::vector<int>& ranks() const override { return group_.ranks(); }
  void abort(std::string_view why) override { group_.abort(why); }
  int64_t bytes_sent() const override { return group_.bytes_sent(); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override {
    return std::make_unique<Operation>(make_staged(group_.prepare(request), group_, device_), *this);
  }

 private:
  class Operation final : public Collective {
   public:
    Operation(std::unique_ptr<Collective> staged, OnDevice& group)
        : device_(group.device_),
          in_bytes_(input_elements(staged->request(), group.rank(), group.size()) *
                    bytes_of(staged->request().dtype)),
          out_bytes_(output_elements(staged->request(), group.rank(), group.size()) *
                     bytes_of(staged->request().dtype)),
          in_(device_.allocate(in_bytes_)),
          out_(device_.allocate(out_bytes_)),
          staged_(std::move(staged)) {}
    void start(const std::byte* in, std::byte* out) override {
      device_.copy_in(in_->address(), in, in_bytes_);
      to_ = out;
      staged_->start(in_->address(), out_->address());
    }
    bool done() const override { return staged_->done(); }
    void wait() override {
      staged_->wait();
      device_.copy_out(to_, out_->address(), out_bytes_);
    }
    const CollectiveRequest& request() const override { return staged_->request(); }
    CollectiveTimes times() const override { return staged_->times(); }

   private:
    Device& device_;
    int64_t in_bytes_, out_bytes_;
    std::unique_ptr<Memory> in_, out_;
    std::unique_ptr<Collective> staged_;
    std::byte* to_ = nullptr;
  };

  Communicator& group_;
  Device& device_;
};

}  // namespace

TEST_CASE("ranks with memory of their own and ranks without form one group") {
  constexpr CollectiveKind kKinds[] = {
      CollectiveKind::all_reduce, CollectiveKind::all_gather,        CollectiveKind::reduce_scatter,
      CollectiveKind::broadcast,  CollectiveKind::grouped_broadcast, CollectiveKind::all_to_all,
      CollectiveKind::barrier};
  for (const int size : {1, 2, 3}) {
    const auto errors = on_ranks(loopback_maker(), size, {}, [&](Fabric& fabric) {
      const auto group = fabric.group("all", all_ranks(size));
      FarDevice device;
      OnDevice far(*group, device);
      Communicator& mine = fabric.rank() % 2 == 0 ? far : *group;
      std::mt19937 random(17);
      for (const CollectiveKind kind : kKinds)
        for (const DType dtype : {DType::f32, DType::bf16, DType::i64})
          for (int trial = 0; trial < 4; ++trial) {
            const CollectiveRequest request = random_request(random, kind, dtype, size, 3000);
            if (const std::string problem = try_collective(mine, request); !problem.empty())
              throw std::runtime_error(problem);
          }
      if (size < 2 || fabric.rank() > 1) return;
      CollectiveRequest message;
      message.kind = fabric.rank() == 0 ? CollectiveKind::send : CollectiveKind::receive;
      message.counts = {1000};
      message.peer = 1 - fabric.rank();
      message.label = "x";
      if (const std::string problem = try_collective(mine, message); !problem.empty())
        throw std::runtime_error(problem);
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}
