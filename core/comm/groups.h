// The communicators of one generation of a run, made on first use and kept by their ranks, so that several
// programs (training, evaluation) share them. Used from one thread, but for abort().
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "core/comm/communicator.h"

namespace het {

class Groups {
 public:
  explicit Groups(std::shared_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  int rank() const { return fabric_->rank(); }
  int size() const { return fabric_->size(); }
  // As Fabric::group: members ask for the groups that they share in the same order.
  Communicator& group(const std::vector<int>& ranks);
  void abort(std::string_view why) { fabric_->abort(why); }

 private:
  std::shared_ptr<Fabric> fabric_;
  std::map<std::vector<int>, std::shared_ptr<Communicator>> made_;
};

}  // namespace het
