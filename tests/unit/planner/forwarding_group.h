// A group that passes everything on to another one, for tests in which something goes wrong on the way.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/comm/communicator.h"

namespace het::testing {

class ForwardingGroup : public Communicator {
 public:
  explicit ForwardingGroup(Communicator& group) : group_(group) {}

  const std::string& name() const override { return group_.name(); }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  const std::vector<int>& ranks() const override { return group_.ranks(); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override {
    return std::make_unique<Operation>(*this, group_.prepare(request));
  }
  void abort(std::string_view why) override { group_.abort(why); }
  int64_t bytes_sent() const override { return group_.bytes_sent(); }

 protected:
  virtual void before_start() {}
  virtual void after_wait(const CollectiveRequest&, std::byte* /*out*/) {}

 private:
  class Operation final : public Collective {
   public:
    Operation(ForwardingGroup& group, std::unique_ptr<Collective> inner)
        : group_(group), inner_(std::move(inner)) {}
    void start(const std::byte* in, std::byte* out) override {
      group_.before_start();
      out_ = out;
      inner_->start(in, out);
    }
    bool done() const override { return inner_->done(); }
    void wait() override {
      inner_->wait();
      group_.after_wait(inner_->request(), out_);
    }
    const CollectiveRequest& request() const override { return inner_->request(); }
    CollectiveTimes times() const override { return inner_->times(); }

   private:
    ForwardingGroup& group_;
    std::unique_ptr<Collective> inner_;
    std::byte* out_ = nullptr;
  };

  Communicator& group_;
};

// Its rank is lost when it starts its operation number `last`.
class DyingGroup final : public ForwardingGroup {
 public:
  DyingGroup(Communicator& group, Fabric& fabric, int last)
      : ForwardingGroup(group), fabric_(fabric), left_(last) {}

 private:
  void before_start() override {
    if (left_-- != 0) return;
    fabric_.abort("it is lost");
    throw Error(ErrorKind::peer, "it is lost");
  }

  Fabric& fabric_;
  int left_;
};

}  // namespace het::testing
