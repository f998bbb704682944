#include "kernels/activation.h"

#include <algorithm>
#include <utility>

#include "kernels/request.h"

namespace het::kernels {
namespace {

// y = gelu(before), where before is the product; where nobody wants that, y is, before it is its own gelu.
class ActivatedLinear final : public Kernel {
 public:
  ActivatedLinear(std::unique_ptr<Kernel> product, std::unique_ptr<Kernel> gelu, bool keeps)
      : product_(std::move(product)), gelu_(std::move(gelu)), keeps_(keeps) {}
  int64_t workspace_bytes() const override {
    return std::max(product_->workspace_bytes(), gelu_->workspace_bytes());
  }
  void run(const KernelArguments& a) override {
    std::byte* const y = a.outputs[0];
    std::byte* const before = keeps_ ? a.outputs[1] : y;
    product_->run({a.inputs, &before, a.workspace, a.workspace_bytes});
    gelu_->run({&before, &y, a.workspace, a.workspace_bytes});
  }

 private:
  std::unique_ptr<Kernel> product_, gelu_;
  bool keeps_;
};

// dx = gelu'(before) dx, where dx is the product at first.
class ActivatedGradient final : public Kernel {
 public:
  ActivatedGradient(std::unique_ptr<Kernel> product, std::unique_ptr<Kernel> gradient)
      : product_(std::move(product)), gradient_(std::move(gradient)) {}
  int64_t workspace_bytes() const override {
    return std::max(product_->workspace_bytes(), gradient_->workspace_bytes());
  }
  void run(const KernelArguments& a) override {
    product_->run(a);
    std::byte* const operands[] = {a.inputs[2], a.outputs[0]};
    gradient_->run({operands, a.outputs, a.workspace, a.workspace_bytes});
  }

 private:
  std::unique_ptr<Kernel> product_, gradient_;
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
  if (request.op.name == "linear_input_gradient")
    return std::make_unique<ActivatedGradient>(std::move(product), std::move(activation));
  return std::make_unique<ActivatedLinear>(std::move(product), std::move(activation),
                                           present(request.outputs, 1));
}

}  // namespace het::kernels
