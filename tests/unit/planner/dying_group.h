// A member of a run that is lost at a chosen moment.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/comm/communicator.h"

namespace het::testing {

// A group whose rank is lost when it starts its operation number `last`.
class DyingGroup final : public Communicator {
 public:
  DyingGroup(Communicator& group, Fabric& fabric, int last) : group_(group), fabric_(fabric), left_(last) {}

  const std::string& name() const override { return group_.name(); }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  const std::vector<int>& ranks() const override { return group_.ranks(); }
  std::unique_ptr<Collective> prepare(const CollectiveRequest& request) override {
    return std::make_unique<Operation>(*this, group_.prepare(request));
  }
  void abort(std::string_view why) override { group_.abort(why); }
  int64_t bytes_sent() const override { return group_.bytes_sent(); }

 private:
  class Operation final : public Collective {
   public:
    Operation(DyingGroup& group, std::unique_ptr<Collective> inner)
        : group_(group), inner_(std::move(inner)) {}
    void start(const std::byte* in, std::byte* out) override {
      if (group_.left_-- == 0) {
        group_.fabric_.abort("it is lost");
        throw Error(ErrorKind::peer, "it is lost");
      }
      inner_->start(in, out);
    }
    bool done() const override { return inner_->done(); }
    void wait() override { inner_->wait(); }
    const CollectiveRequest& request() const override { return inner_->request(); }
    CollectiveTimes times() const override { return inner_->times(); }

   private:
    DyingGroup& group_;
    std::unique_ptr<Collective> inner_;
  };

  Communicator& group_;
  Fabric& fabric_;
  int left_;
};

}  // namespace het::testing
