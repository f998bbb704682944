// Products with an activation (attribute `activation` of linear and linear_input_gradient) on devices whose
// product does not make it: the product, then the device's own elementwise kernel on its result. A device
// whose product makes it asks is_activated() and needs no more of this.
#pragma once

#include <memory>
#include <vector>

#include "core/device/device.h"

namespace het::kernels {

// Whether the request asks for an activation.
bool is_activated(const KernelRequest& request);

// The elementwise call that makes the activation of `product`, which must outlive it.
class ActivationCall {
 public:
  explicit ActivationCall(const KernelRequest& product);
  ~ActivationCall();
  ActivationCall(const ActivationCall&) = delete;
  ActivationCall& operator=(const ActivationCall&) = delete;
  KernelRequest request() const;

 private:
  const KernelRequest& product_;
  const Attributes by_tanh_;  // the default
  std::vector<Layout> operands_;
};

// `product`, which makes result 0 of the request without the activation, and then the kernel of its
// ActivationCall.
std::unique_ptr<Kernel> with_activation(const KernelRequest& request, std::unique_ptr<Kernel> product,
                                        std::unique_ptr<Kernel> activation);

}  // namespace het::kernels
