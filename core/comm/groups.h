// The communicators of one generation of a run, made on first use and kept by their ranks, so that several
// programs (training, evaluation) share them. Used from one thread; to abort them all, abort their fabric.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/device/device.h"

namespace het {

class Groups {
 public:
  // `name` begins those of the groups: another one where several have one fabric. `pacer` holds back what
  // they do; null: the fabric's. `members`: ranks here are places in this list of the fabric's ranks, as a
  // plan gives its ranks to some members of a run; empty: they are the fabric's.
  explicit Groups(std::shared_ptr<Fabric> fabric, std::string name = "",
                  std::shared_ptr<Pacer> pacer = nullptr, std::vector<int> members = {})
      : fabric_(std::move(fabric)),
        name_(std::move(name)),
        pacer_(std::move(pacer)),
        members_(std::move(members)) {}

  int rank() const;  // -1: not one of `members`
  int size() const { return members_.empty() ? fabric_->size() : static_cast<int>(members_.size()); }
  // As Fabric::group: members ask for the groups that they share in the same order. `lane`: above 0 another
  // one of the same ranks, over separate connections.
  Communicator& group(const std::vector<int>& ranks, int lane = 0);
  // The same group from device to device, when every member's device has a library for it of the same version
  // and is a separate device; else null, for all of them. Every member asks, whatever its device; once for
  // each group and device they tell each other what they have.
  Communicator* direct(const std::vector<int>& ranks, const std::shared_ptr<Device>& device);

  // How operands of devices with memory of their own travel: a sentence for each group that has such members.
  const std::vector<std::string>& ways() const { return ways_; }

 private:
  std::shared_ptr<Fabric> fabric_;
  std::string name_;
  std::shared_ptr<Pacer> pacer_;
  std::vector<int> members_;
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<Communicator>> made_;  // by ranks and lane
  struct Direct {
    std::shared_ptr<Device> device;
    std::shared_ptr<Communicator> communicator;
  };
  std::map<std::pair<std::vector<int>, const Device*>, Direct> direct_;  // goes before the hosts' groups
  std::vector<std::string> ways_;
};

}  // namespace het
