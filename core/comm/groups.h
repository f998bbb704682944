// The communicators of one generation of a run, made on first use and kept by their ranks, so that several
// programs (training, evaluation) share them. Used from one thread; to abort them all, abort their fabric.
#pragma once

#include <map>
#include <memory>
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

 private:
  std::shared_ptr<Fabric> fabric_;
  std::map<std::vector<int>, std::shared_ptr<Communicator>> made_;
};

}  // namespace het
