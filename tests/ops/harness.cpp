#include "tests/ops/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/graph/fuse.h"
#include "core/ops/op.h"
#include "core/program/executor.h"
#include "core/tensor/convert.h"
#include "kernels/reference/device.h"
#include "planner/lower/lower.h"

namespace het::ops_test {
namespace {

constexpr int64_t kGuard = 128;  // bytes before and after every operand
constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kPoisonByte{0xFF};  // every float dtype reads it as NaN

double uniform(uint64_t stream, int64_t i) {
  const auto words = philox(philox_key(7, stream), static_cast<uint64_t>(i));
  return (words[0] + 0.5) * 0x1p-32;
}

std::vector<TensorType> types_of(const std::vector<Tensor>& tensors) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : tensors) types.push_back(tensor.type());
  return types;
}

TensorType widened(TensorType type) {
  if (is_float(type.dtype)) type.dtype = DType::f64;
  return type;
}

// --- operands in memory

// A tensor between guard bytes, three elements off the alignment of its buffer unless aligned.
struct Placed {
  Tensor tensor;
  std::vector<std::byte> before;  // the buffer's bytes when the kernel was started

  void remember() {
    before.assign(tensor.buffer()->data(), tensor.buffer()->data() + tensor.buffer()->bytes());
  }
};

Strides strides_of(const Shape& shape, Placing placing) {
  Strides strides(shape.size());
  const int64_t rank = static_cast<int64_t>(shape.size());
  int64_t step = 1;
  switch (placing) {
    case Placing::packed: return contiguous_strides(shape);
    case Placing::padded:
    case Placing::spaced:
      for (int64_t d = rank; d-- > 0; step = step * shape[d] + (placing == Placing::spaced ? 8 : 3))
        strides[d] = step;
      if (rank > 0) strides[rank - 1] = 1;
      return strides;
    case Placing::permuted:
      if (rank == 0) return strides;
      strides[rank - 1] = 1;
      step = shape[rank - 1];
      for (int64_t d = 0; d + 1 < rank; ++d) {
        strides[d] = step;
        step *= shape[d];
      }
      return strides;
    case Placing::reversed:
      for (int64_t d = 0; d < rank; ++d) {
        strides[d] = step;
        step *= shape[d];
      }
      return strides;
  }
  return strides;
}

Placed place(const TensorType& type, Placing placing, bool aligned = false) {
  if (!type.present()) return {};
  const int64_t size = bytes_of(type.dtype);
  Layout layout{type, strides_of(type.shape, placing), kGuard / size + (aligned ? 0 : 3)};
  int64_t extent = type.elements() == 0 ? 0 : 1;
  for (size_t d = 0; d < type.shape.size() && extent > 0; ++d)
    extent += (type.shape[d] - 1) * layout.strides[d];
  auto buffer = std::make_shared<Buffer>((layout.offset + extent) * size + kGuard);
  std::memset(buffer->data(), static_cast<int>(kGuardByte), static_cast<size_t>(buffer->bytes()));
  return {Tensor(std::move(buffer), std::move(layout)), {}};
}

// Call visit(byte offset in the buffer) for each element.
template <typename Visit>
void each_element(const Tensor& tensor, const Visit& visit) {
  const Layout& layout = tensor.layout();
  const int64_t size = bytes_of(tensor.dtype()), count = tensor.elements();
  if (layout.is_contiguous()) {
    for (int64_t i = 0; i < count; ++i) visit((layout.offset + i) * size);
    return;
  }
  std::vector<int64_t> index(tensor.shape().size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = layout.offset;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * layout.strides[d];
    visit(at * size);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < tensor.shape()[d]) break;
      index[d] = 0;
    }
  }
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.elements()));
  each_element(tensor, [&](int64_t at) {
    values.push_back(load_element(tensor.buffer()->data() + at, tensor.dtype()));
  });
  return values;
}

void poison(const Tensor& tensor) {
  const size_t size = static_cast<size_t>(bytes_of(tensor.dtype()));
  each_element(tensor, [&](int64_t at) {
    std::memset(tensor.buffer()->data() + at, static_cast<int>(kPoisonByte), size);
  });
}

// Bytes of the buffer that changed; those of its elements do not count when `written`.
std::optional<std::string> stray_write(const Placed& placed, bool written) {
  const int64_t size = bytes_of(placed.tensor.dtype());
  const std::byte* bytes = placed.tensor.buffer()->data();
  std::vector<std::byte> now(bytes, bytes + placed.tensor.buffer()->bytes());
  if (const Layout& layout = placed.tensor.layout(); written && layout.is_contiguous())
    std::memcpy(now.data() + layout.offset * size, placed.before.data() + layout.offset * size,
                static_cast<size_t>(placed.tensor.elements() * size));
  else if (written)
    each_element(placed.tensor, [&](int64_t at) {
      std::memcpy(now.data() + at, placed.before.data() + at, static_cast<size_t>(size));
    });
  if (now == placed.before) return std::nullopt;
  const auto changed = std::mismatch(now.begin(), now.end(), placed.before.begin()).first;
  const int64_t first = placed.tensor.layout().offset * size;
  return fmt::format("byte {} from its first element was overwritten", changed - now.begin() - first);
}

Layout bare(const Tensor& tensor) {
  Layout layout = tensor.layout();
  layout.offset = 0;
  return layout;
}

struct Launch {
  std::vector<Layout> input_layouts, output_layouts;
  std::vector<std::byte*> inputs, outputs;

  // `address` is where the first element of a tensor is for the kernel.
  template <typename Address>
  Launch(const std::vector<Placed>& in, const std::vector<Placed>& out, const Address& address) {
    for (const Placed& placed : in) {
      input_layouts.push_back(bare(placed.tensor));
      inputs.push_back(placed.tensor.present() ? address(placed.tensor) : nullptr);
    }
    for (const Placed& placed : out) {
      output_layouts.push_back(bare(placed.tensor));
      outputs.push_back(placed.tensor.present() ? address(placed.tensor) : nullptr);
    }
  }
};

// Buffers of operands in a device's memory, as they are in the host's: a result that is written over an
// operand shares its buffer.
class Mirror {
 public:
  Mirror(Device& device, std::initializer_list<const std::vector<Placed>*> lists) : device_(device) {
    for (const auto* list : lists)
      for (const Placed& placed : *list)
        if (placed.tensor.present() && copies_.count(placed.tensor.buffer().get()) == 0)
          copies_.emplace(placed.tensor.buffer().get(), device.allocate(placed.tensor.buffer()->bytes()));
  }
  std::byte* address(const Tensor& tensor) const {
    return copies_.at(tensor.buffer().get())->address() + (tensor.bytes() - tensor.buffer()->data());
  }
  void copy_in() {
    for (const auto& [buffer, copy] : copies_)
      device_.copy_in(copy->address(), buffer->data(), buffer->bytes());
  }
  void copy_out() {
    for (const auto& [buffer, copy] : copies_)
      device_.copy_out(buffer->data(), copy->address(), buffer->bytes());
  }

 private:
  Device& device_;
  std::map<Buffer*, std::unique_ptr<Memory>> copies_;
};

// Run with a workspace of exactly the size asked for, full of NaN, and look after its guards.
std::optional<std::string> run_guarded(Device& device, Kernel& kernel, const Launch& launch) {
  const int64_t bytes = kernel.workspace_bytes();
  Buffer workspace(bytes + 2 * kGuard);
  std::memset(workspace.data(), static_cast<int>(kPoisonByte), static_cast<size_t>(workspace.bytes()));
  const auto copy = device.allocate(workspace.bytes());
  device.copy_in(copy->address(), workspace.data(), workspace.bytes());
  kernel.run({launch.inputs.data(), launch.outputs.data(), copy->address() + kGuard, bytes});
  device.synchronize();
  device.copy_out(workspace.data(), copy->address(), workspace.bytes());
  for (int64_t b = 0; b < kGuard; ++b)
    if (workspace.data()[b] != kPoisonByte || workspace.data()[kGuard + bytes + b] != kPoisonByte)
      return fmt::format("it wrote past its workspace of {} bytes", bytes);
  return std::nullopt;
}

int aliased_input(const OpDef& op, size_t output) { return written_over(op, static_cast<int>(output)); }

Placing placing_of(uint32_t strided, size_t i, Placing placing) {
  return (strided >> i) & 1 ? placing : Placing::packed;
}

double tolerance_for(const Tolerance& tolerance, DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-11;
    case DType::f32: return tolerance.f32;
    case DType::bf16: return tolerance.bf16;
    case DType::f16: return tolerance.f16;
    default: return 0;
  }
}

// Of one result of the case in `dtype`.
Tolerance tolerance_on(const Device& device, const Case& test, size_t result, DType dtype) {
  Tolerance tolerance = test.tolerance;
  const bool multiplies_bf16 = device.model() == "cpu v4_amx" || device.model() == "cpu v4_dot";
  const bool rounds = device.name() == "cuda" || (multiplies_bf16 && dtype == DType::bf16);
  if (rounds && ((test.rounded >> result) & 1) != 0) tolerance.f32 = tolerance_for(tolerance, dtype);
  return tolerance;
}

}  // namespace

std::string_view name_of(Placing placing) {
  static constexpr std::string_view kNames[] = {"packed", "padded", "permuted", "reversed", "spaced"};
  return kNames[static_cast<size_t>(placing)];
}

Tensor drawn(const OperandCase& operand, const TensorType& type, uint64_t stream) {
  if (!type.present()) return {};
  Tensor tensor(type);
  const Draw& draw = operand.draw;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    double value = draw.low + (draw.high - draw.low) * uniform(stream, i);
    if (!is_float(type.dtype)) value = std::floor(value);
    if (std::abs(value) < draw.apart) value = value < 0 ? value - draw.apart : value + draw.apart;
    if (!draw.values.empty()) value = draw.values[static_cast<size_t>(i) % draw.values.size()];
    tensor.set(i, value);
  }
  return tensor;
}

std::vector<Tensor> drawn_inputs(const Case& test, DType dtype) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < test.inputs.size(); ++i)
    inputs.push_back(drawn(test.inputs[i], type_of(test.inputs[i], dtype), 1000 + i));
  return inputs;
}

std::vector<Tensor> oracle(const OpDef& op, const std::vector<Tensor>& inputs, const Attributes& attributes) {
  const auto results = op.infer({op, types_of(inputs), attributes});
  std::vector<Placed> in, out;
  for (const Tensor& tensor : inputs) {
    in.push_back(place(widened(tensor.type()), Placing::packed));
    if (tensor.present()) in.back().tensor.copy_from(tensor);
  }
  for (size_t o = 0; o < results.size(); ++o) {
    const int aliased = aliased_input(op, o);
    out.push_back(aliased >= 0 ? in[aliased] : place(widened(results[o]), Placing::packed));
  }
  const Launch launch(in, out, [](const Tensor& tensor) { return tensor.bytes(); });
  const auto kernel =
      make_reference_device()->prepare({op, attributes, launch.input_layouts, launch.output_layouts, 0});
  Buffer workspace(kernel->workspace_bytes() + 1);
  kernel->run({launch.inputs.data(), launch.outputs.data(), workspace.data(), kernel->workspace_bytes()});
  std::vector<Tensor> tensors;
  for (const Placed& placed : out) tensors.push_back(placed.tensor);
  return tensors;
}

std::optional<std::string> difference(const Tensor& result, const Tensor& wanted,
                                      const Tolerance& tolerance) {
  if (result.shape() != wanted.shape())
    return fmt::format("its shape is {}, not {}", het::to_string(result.shape()),
                       het::to_string(wanted.shape()));
  const std::vector<double> results = values_of(result), expected = values_of(wanted);
  double square = 0;
  int64_t finite = 0;
  for (const double w : expected)
    if (std::isfinite(w)) {
      square += w * w;
      ++finite;
    }
  const double scale = finite == 0 ? 0 : std::sqrt(square / static_cast<double>(finite));
  const double allowed = tolerance_for(tolerance, result.dtype());
  double worst = 0;
  int64_t at = -1;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double r = results[i], w = expected[i];
    if ((std::isnan(w) && std::isnan(r)) || r == w) continue;
    // Beyond the largest f16, or of a dtype's rounding to infinity.
    if (std::isfinite(w) && std::isinf(r) && result.dtype() == DType::f16 && std::abs(w) >= 65520 &&
        (r > 0) == (w > 0))
      continue;
    const double bound = allowed * (std::abs(w) + scale);
    const double excess =
        std::isfinite(r) && std::isfinite(w) ? std::abs(r - w) / (bound + 1e-300) : INFINITY;
    if (!(excess <= 1) && excess > worst) {
      worst = excess;
      at = static_cast<int64_t>(i);
    }
  }
  if (at < 0) return std::nullopt;
  return fmt::format(
      "element {} is {:.9g}, should be {:.9g} ({} times the tolerance; the root mean square is {:.3g})", at,
      result.at(at), wanted.at(at), worst, scale);
}

TypedCase typed_case(const Case& test, DType dtype) {
  std::vector<Tensor> inputs = drawn_inputs(test, dtype);
  std::vector<Tensor> wanted = oracle(op_named(test.op), inputs, test.attributes);
  return {test, dtype, std::move(inputs), std::move(wanted)};
}

std::vector<std::string> compare(Device& device, const Trial& trial, bool& supported) {
  const Case& test = trial.typed.test;
  const OpDef& op = op_named(test.op);
  const Attributes& attributes = test.attributes;
  const std::vector<Tensor>& inputs = trial.typed.inputs;
  auto results = op.infer({op, types_of(inputs), attributes});
  for (size_t o = 0; o < results.size(); ++o)
    if (has_bit(trial.absent, o)) results[o] = {};

  std::vector<Placed> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(place(inputs[i].type(), placing_of(op.strided_inputs, i, trial.placing), trial.aligned));
    if (inputs[i].present()) in.back().tensor.copy_from(inputs[i]);
  }
  std::vector<bool> written(in.size(), false);
  std::vector<Tensor> wanted = trial.typed.wanted;
  for (size_t o = 0; o < results.size(); ++o) {
    const int aliased = aliased_input(op, o);
    if (aliased >= 0) {
      out.push_back(in[aliased]);
      written[aliased] = true;
      continue;
    }
    out.push_back(place(results[o], placing_of(op.strided_outputs, o, trial.placing), trial.aligned));
    if (!results[o].present()) continue;
    if ((trial.accumulate >> o) & 1) {
      const Tensor there = drawn(T({}), results[o], 2000 + o);
      out.back().tensor.copy_from(there);
      Tensor sum(wanted[o].type());
      for (int64_t i = 0; i < there.elements(); ++i) sum.set(i, wanted[o].at(i) + there.at(i));
      wanted[o] = sum;
    } else {
      poison(out.back().tensor);
    }
  }
  for (Placed& placed : in)
    if (placed.tensor.present()) placed.remember();
  for (Placed& placed : out)
    if (placed.tensor.present()) placed.remember();

  Mirror mirror(device, {&in, &out});
  const Launch launch(in, out, [&](const Tensor& tensor) { return mirror.address(tensor); });
  std::unique_ptr<Kernel> kernel;
  try {
    kernel = device.prepare({op, attributes, launch.input_layouts, launch.output_layouts, trial.accumulate});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    supported = false;
    return {};
  }
  supported = true;

  std::vector<std::string> problems;
  const auto problem = [&](std::string text) { problems.push_back(std::move(text)); };
  mirror.copy_in();
  if (const auto stray = run_guarded(device, *kernel, launch)) problem(*stray);
  mirror.copy_out();
  for (size_t i = 0; i < in.size(); ++i)
    if (in[i].tensor.present())
      if (const auto stray = stray_write(in[i], written[i])) problem(fmt::format("input {}: {}", i, *stray));
  for (size_t o = 0; o < out.size(); ++o) {
    if (!out[o].tensor.present()) continue;
    if (const auto stray = stray_write(out[o], true)) problem(fmt::format("result {}: {}", o, *stray));
    const Tolerance tolerance = tolerance_on(device, test, o, trial.typed.dtype);
    if (const auto wrong = difference(out[o].tensor, wanted[o], tolerance))
      problem(fmt::format("result {}: {}", o, *wrong));
  }

  // Once more from the same bytes: bitwise the same.
  std::vector<std::vector<std::byte>> first;
  for (const Placed& placed : out) {
    if (!placed.tensor.present()) continue;
    first.emplace_back(placed.tensor.buffer()->data(),
                       placed.tensor.buffer()->data() + placed.tensor.buffer()->bytes());
  }
  for (const auto* operands : {&in, &out})
    for (const Placed& placed : *operands)
      if (placed.tensor.present())
        std::memcpy(placed.tensor.buffer()->data(), placed.before.data(), placed.before.size());
  mirror.copy_in();
  run_guarded(device, *kernel, launch);
  mirror.copy_out();
  size_t next = 0;
  for (size_t o = 0; o < out.size(); ++o) {
    if (!out[o].tensor.present()) continue;
    const auto& bytes = first[next++];
    if (std::memcmp(bytes.data(), out[o].tensor.buffer()->data(), bytes.size()) != 0)
      problem(fmt::format("result {}: a second run gave other bits", o));
  }
  return problems;
}

// --- graphs of one node

namespace {

struct OneNode {
  Graph graph;
  std::vector<ValueId> inputs, outputs;

  OneNode(const Case& test, DType dtype) {
    GraphBuilder builder(graph);
    for (size_t i = 0; i < test.inputs.size(); ++i) {
      const TensorType type = type_of(test.inputs[i], dtype);
      inputs.push_back(type.present() ? builder.input(fmt::format("x{}", i), type) : kAbsent);
    }
    outputs = builder.call_all(op_named(test.op), inputs, test.attributes);
  }
};

std::vector<double> read_values(const Executor& executor, const std::string& name) {
  return values_of(executor.read(name));
}

void write_all(Executor& executor, const std::vector<Tensor>& inputs) {
  for (const BufferSpec& buffer : executor.program().buffers) {
    if (buffer.home != Home::input || buffer.name[0] != 'x') continue;
    executor.write(buffer.name, inputs[std::stoul(buffer.name.substr(1))]);
  }
}

// loss = sum over the outputs in `through` of sum(output * weights), the weights being inputs w0, w1, ...; or
// the output itself when it is a single number and `bare` says so.
ValueId add_loss(OneNode& one, const Case& test, bool bare) {
  GraphBuilder builder(one.graph);
  if (bare) return one.outputs[0];
  ValueId loss = kAbsent;
  for (size_t o = 0; o < one.outputs.size(); ++o) {
    if (((test.through >> o) & 1) == 0 || one.outputs[o] == kAbsent) continue;
    const ValueId weights = builder.input(fmt::format("w{}", o), one.graph.type(one.outputs[o]));
    const ValueId part = builder.call("sum", {builder.call("mul", {one.outputs[o], weights})});
    loss = loss == kAbsent ? part : builder.call("add", {loss, part});
  }
  return loss;
}

void write_weights(Executor& executor) {
  for (const BufferSpec& buffer : executor.program().buffers)
    if (buffer.home == Home::input && buffer.name[0] == 'w')
      executor.write(buffer.name, drawn(T({}), buffer.type, 3000 + std::stoul(buffer.name.substr(1))));
}

Program program_of(const Graph& graph, bool fused) {
  return lower_single(fused ? fuse(graph) : prune(graph));
}

std::vector<std::string> check_gradient_of(const Case& test, bool fused, bool bare_loss) {
  const auto device = make_reference_device();
  OneNode forward(test, DType::f64);
  forward.graph.outputs.push_back({"loss", add_loss(forward, test, bare_loss)});
  Executor evaluate(program_of(forward.graph, false), std::make_shared<StateStore>(device, 1));

  OneNode backward(test, DType::f64);
  const ValueId loss = add_loss(backward, test, bare_loss);
  // Read beside, so that what a gradient rule puts in its place is checked too.
  backward.graph.outputs.push_back({"loss", loss});
  std::vector<ValueId> wanted;
  std::vector<size_t> operands;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    if (backward.inputs[i] == kAbsent || !test.inputs[i].differentiable ||
        !is_float(backward.graph.type(backward.inputs[i]).dtype))
      continue;
    wanted.push_back(backward.inputs[i]);
    operands.push_back(i);
  }
  if (wanted.empty()) return {};
  const auto gradients = differentiate(backward.graph, loss, wanted);
  std::vector<std::string> problems = verify(backward.graph);
  for (size_t w = 0; w < wanted.size(); ++w) {
    const ValueId gradient = gradients.at(wanted[w]);
    if (gradient == kAbsent) {
      problems.push_back(fmt::format("operand {} has no gradient", operands[w]));
    } else if (backward.graph.type(gradient) != backward.graph.type(wanted[w])) {
      problems.push_back(fmt::format("the gradient of operand {} is {}", operands[w],
                                     het::to_string(backward.graph.type(gradient))));
    } else {
      backward.graph.outputs.push_back({fmt::format("d{}", operands[w]), gradient});
    }
  }
  if (!problems.empty()) return problems;

  Executor executor(program_of(backward.graph, fused), std::make_shared<StateStore>(device, 1));
  std::vector<Tensor> inputs = drawn_inputs(test, DType::f64);
  write_all(executor, inputs);
  write_weights(executor);
  executor.run();
  write_all(evaluate, inputs);
  write_weights(evaluate);
  evaluate.run();
  const double alone = evaluate.read("loss").at(0), beside = executor.read("loss").at(0);
  if (!(std::abs(alone - beside) <= 1e-11 * (1 + std::abs(alone))))
    problems.push_back(
        fmt::format("the loss is {:.12g} with its gradient and {:.12g} without", beside, alone));

  for (const size_t operand : operands) {
    const std::vector<double> analytic = read_values(executor, fmt::format("d{}", operand));
    Tensor& x = inputs[operand];
    double scale = 0;
    for (const double value : analytic) scale = std::max(scale, std::abs(value));
    // All elements of small operands, some forty of large ones.
    const int64_t count = x.elements(), step = std::max<int64_t>(1, count / 40);
    for (int64_t i = 0; i < count; i += step) {
      const double value = x.at(i), h = 1e-4 * std::max(1.0, std::abs(value));
      const auto loss_at = [&](double moved) {
        x.set(i, moved);
        evaluate.write(fmt::format("x{}", operand), x);
        evaluate.run();
        return evaluate.read("loss").at(0);
      };
      // Central differences of fourth order.
      const double numeric = (8 * (loss_at(value + h) - loss_at(value - h)) -
                              (loss_at(value + 2 * h) - loss_at(value - 2 * h))) /
                             (12 * h);
      x.set(i, value);
      const double error = std::abs(numeric - analytic[static_cast<size_t>(i)]);
      if (!(error <= 1e-7 * (std::abs(numeric) + scale + 1e-2)))
        problems.push_back(
            fmt::format("operand {} element {}: the gradient is {:.10g}, differences give {:.10g}", operand,
                        i, analytic[static_cast<size_t>(i)], numeric));
    }
    evaluate.write(fmt::format("x{}", operand), x);
  }
  return problems;
}

}  // namespace

std::vector<std::string> check_gradient(const Case& test, bool fused) {
  std::vector<std::string> problems = check_gradient_of(test, fused, false);
  const OneNode probe(test, DType::f64);
  if (probe.outputs.size() >= 1 && probe.graph.type(probe.outputs[0]).elements() == 1)
    for (const std::string& problem : check_gradient_of(test, fused, true))
      problems.push_back("as the loss itself: " + problem);
  return problems;
}

std::vector<std::string> check_graph(const std::shared_ptr<Device>& device, const Case& test, DType dtype) {
  const auto run = [&](const std::shared_ptr<Device>& on, DType as, const std::vector<Tensor>& inputs) {
    OneNode one(test, as);
    std::vector<Tensor> results;
    for (size_t o = 0; o < one.outputs.size(); ++o)
      if (one.outputs[o] != kAbsent) one.graph.outputs.push_back({fmt::format("y{}", o), one.outputs[o]});
    Executor executor(lower_single(one.graph), std::make_shared<StateStore>(on, 1));
    write_all(executor, inputs);
    executor.run();
    for (const Output& output : one.graph.outputs) results.push_back(executor.read(output.name));
    return results;
  };
  const std::vector<Tensor> inputs = drawn_inputs(test, dtype);
  const auto wanted = run(make_reference_device(), DType::f64, inputs);
  const auto given = run(device, dtype, inputs);
  std::vector<std::string> problems;
  for (size_t o = 0; o < given.size(); ++o)
    if (const auto wrong = difference(given[o], wanted[o], tolerance_on(*device, test, o, dtype)))
      problems.push_back(fmt::format("result {}: {}", o, *wrong));
  return problems;
}

}  // namespace het::ops_test
