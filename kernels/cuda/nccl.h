// Collectives between GPUs by NCCL, which is opened when the first group asks for it. Operations are ordered
// with the kernels of the compute stream by events: the host starts them and goes on, and a failure shows in
// Device::synchronize() or in the next wait().
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "kernels/cuda/runtime.h"

namespace het::HET_CUDA {

class NcclContext;

// What one device has to do with NCCL. Used from the device's thread.
class Interconnect {
 public:
  explicit Interconnect(const Context& context) : context_(context) {}
  ~Interconnect() { close(); }
  Interconnect(const Interconnect&) = delete;
  Interconnect& operator=(const Interconnect&) = delete;

  DeviceTransport way();
  // As Device::connect.
  std::shared_ptr<Communicator> connect(std::shared_ptr<Communicator> host);
  // Wait until the compute stream is done. Throws Error(peer) once for each failure that lost an operation;
  // then too nothing runs any more.
  void synchronize();
  // Before the compute stream goes: communicators that are still there are dead from then on.
  void close();

 private:
  const Context& context_;
  std::shared_ptr<NcclContext> nccl_;  // absent: no group was connected yet
};

}  // namespace het::HET_CUDA
