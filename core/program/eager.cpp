#include "core/program/eager.h"

#include <map>

#include "core/base/bits.h"
#include "core/base/error.h"

namespace het {

Kernel& Eager::kernel_for(const KernelRequest& request) {
  std::string key = key_of(request);
  if (const auto* kept = kernels_.find(key)) return **kept;
  return *kernels_.add(std::move(key), device_->prepare(request));
}

std::vector<Tensor> Eager::call(const OpDef& op, const std::vector<Tensor>& inputs,
                                const Attributes& attributes) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : inputs) types.push_back(tensor.type());
  const std::vector<TensorType> result_types = op.infer(OpCall{op, types, attributes});

  if (op.view) {
    auto layouts = op.view(inputs[0].layout(), attributes);
    const Tensor source = layouts ? inputs[0] : inputs[0].contiguous();
    if (!layouts) layouts = op.view(source.layout(), attributes);
    HET_REQUIRE(layouts.has_value(), op.name);
    std::vector<Tensor> views;
    for (Layout& layout : *layouts) views.push_back(source.view(std::move(layout)));
    return views;
  }

  std::vector<Tensor> results;
  if (op.concatenates) {
    results.emplace_back(result_types[0]);
    const int64_t dim = from_start(attributes.get<int64_t>("dim"), result_types[0].shape.size());
    int64_t start = 0;
    for (const Tensor& part : inputs) {
      results[0].view(sliced(results[0].layout(), dim, start, part.shape()[dim])).copy_from(part);
      start += part.shape()[dim];
    }
    return results;
  }

  std::vector<Tensor> packed;
  std::vector<Layout> input_layouts, output_layouts;
  const auto bare = [](const Tensor& tensor) {
    Layout layout = tensor.layout();
    layout.offset = 0;
    return layout;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool strided = has_bit(op.strided_inputs, i) && inputs[i].present() && !inputs[i].shape().empty() &&
                         inputs[i].layout().strides.back() == 1;
    packed.push_back(strided || !inputs[i].present() ? inputs[i] : inputs[i].contiguous());
  }
  for (size_t o = 0; o < result_types.size(); ++o) {
    Tensor result = result_types[o].present() ? Tensor(result_types[o]) : Tensor();
    const int in = written_over(op, static_cast<int>(o));
    if (in >= 0 && in < static_cast<int>(packed.size()) && packed[in].present()) {
      result.copy_from(packed[in]);  // the caller's tensor stays as it is
      packed[in] = result;
    }
    results.push_back(std::move(result));
  }
  for (const Tensor& tensor : packed) input_layouts.push_back(bare(tensor));
  for (const Tensor& tensor : results) output_layouts.push_back(bare(tensor));

  Kernel& kernel = kernel_for({op, attributes, input_layouts, output_layouts, 0});

  device_->enter();
  if (device_->has_own_memory()) {
    run_on_copies(kernel, packed, results);
  } else {
    std::vector<std::byte*> in, out;
    for (const Tensor& tensor : packed) in.push_back(tensor.present() ? tensor.bytes() : nullptr);
    for (const Tensor& tensor : results) out.push_back(tensor.present() ? tensor.bytes() : nullptr);
    const Buffer workspace(kernel.workspace_bytes());
    kernel.run({in.data(), out.data(), workspace.data(), workspace.bytes()});
    device_->synchronize();
  }
  return results;
}

// Operands that the operator updates in place are those of `results`.
void Eager::run_on_copies(Kernel& kernel, const std::vector<Tensor>& inputs, std::vector<Tensor>& results) {
  std::map<const Buffer*, std::unique_ptr<Memory>> copies;
  const auto address = [&](const Tensor& tensor) -> std::byte* {
    if (!tensor.present()) return nullptr;
    std::unique_ptr<Memory>& copy = copies[tensor.buffer().get()];
    if (copy == nullptr) {
      copy = device_->allocate(tensor.buffer()->bytes());
      device_->copy_in(copy->address(), tensor.buffer()->data(), tensor.buffer()->bytes());
    }
    return copy->address() + (tensor.bytes() - tensor.buffer()->data());
  };
  std::vector<std::byte*> in, out;
  for (const Tensor& tensor : inputs) in.push_back(address(tensor));
  for (const Tensor& tensor : results) out.push_back(address(tensor));
  const auto workspace = device_->allocate(kernel.workspace_bytes());
  kernel.run({in.data(), out.data(), workspace->address(), kernel.workspace_bytes()});
  device_->synchronize();
  for (size_t o = 0; o < results.size(); ++o)
    if (results[o].present()) device_->copy_out(results[o].bytes(), out[o], results[o].type().bytes());
}

}  // namespace het
