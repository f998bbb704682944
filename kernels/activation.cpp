#include "kernels/activation.h"

#include <algorithm>
#include <utility>

#include "kernels/request.h"

namespace het::kernels {
namespace {

// The product, and then result 0 from it. It is kept as result 1 where it is wanted, else it lies where
// result 0 will. A gradient is at operand 2.
class Activated final : public Kernel {
 public:
  Activated(std::unique_ptr<Kernel> product, std::unique_ptr<Kernel> activation, bool is_gradient, bool keeps)
      : product_(std::move(product)),
        activation_(std::move(activation)),
        is_gradient_(is_gradient),
        keeps_(keeps) {}
  int64_t workspace_bytes() const override {
    return std::max(product_->workspace_bytes(), activation_->workspace_bytes());
  }
  void run(const KernelArguments& a) override {
    std::byte *made = a.outputs[keeps_ ? 1 : 0], *result = a.outputs[0];
    product_->run({a.inputs, &made, a.workspace, a.workspace_bytes});
    std::byte* const gradient[] = {is_gradient_ ? a.inputs[2] : nullptr, made};
    activation_->run({is_gradient_ ? gradient : &made, &result, a.workspace, a.workspace_bytes});
  }

 private:
  std::unique_ptr<Kernel> product_, activation_;
  bool is_gradient_, keeps_;
};

}  // namespace

bool is_activated(const KernelRequest& request) {
  return request.attributes.get<std::string>("activation", "none") != "none";
}

ActivationCall::ActivationCall(const KernelRequest& product) : product_(product) {
  if (product.op.name == "linear_input_gradient") operands_.push_back(product.inputs[2]);
  operands_.push_back(product.outputs[0]);
}
ActivationCall::~ActivationCall() = default;

KernelRequest ActivationCall::request() const {
  return {op_named(operands_.size() == 2 ? "gelu_gradient" : "gelu"), by_tanh_, operands_,
          product_.outputs.subspan(0, 1), 0};
}

std::unique_ptr<Kernel> with_activation(const KernelRequest& request, std::unique_ptr<Kernel> product,
                                        std::unique_ptr<Kernel> activation) {
  return std::make_unique<Activated>(std::move(product), std::move(activation),
                                     request.op.name == "linear_input_gradient", present(request.outputs, 1));
}

}  // namespace het::kernels
