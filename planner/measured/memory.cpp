#include "planner/measured/memory.h"

#include <algorithm>
#include <cmath>

#include "core/base/median.h"

namespace het::planner {
namespace {

constexpr double kMiB = 1024 * 1024;
constexpr double kElement = 4;  // f32

// Of each parameter: weight 4, gradient 4, Adam's two moments 8. DeepSpeed's FusedAdam updates in place
// (ops/adam/multi_tensor_adam.cu): it has no temporary.
constexpr double kStateBytes = 16;
// DeepSpeed flattens gradients into one tensor to exchange them, also with one replica, at most so many
// elements at once (MEMORY_OPT_ALLREDUCE_SIZE, runtime/engine.py).
constexpr double kBucketElements = 5e8;

// PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp): kSmallSize, kSmallBuffer, kMinLargeAlloc,
// kLargeBuffer, kRoundLarge.
constexpr double kSmallSize = kMiB, kSmallBuffer = 2 * kMiB;
constexpr double kMinLargeAlloc = 10 * kMiB, kLargeBuffer = 20 * kMiB, kRoundLarge = 2 * kMiB;

// NCCL has a buffer per channel, connection and protocol (src/init.cc): Simple 4 MiB, LL 8 lines x 512
// threads x 8 steps x 16 bytes, LL128 120 elements x 640 threads x 8 steps x 8 bytes. It makes at least two
// channels (graph/connect.cc doubles them). A communicator has two connections in its ring and two in its
// tree; the two-rank communicator that PyTorch makes for sends to one rank sends and receives.
constexpr double kChannelBytes = 4 * kMiB + 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8;
constexpr int kChannels = 2, kCollectiveConnections = 4, kPairConnections = 2;

// What nvidia-smi shows beside torch's own, from the simulator that is published with the plans
// (sailor/Planner/simulations/runtime_simulator.py): 4.76 GB on GH200 nodes for fused kernels, which "depends
// on GPU + platform"; its further 0.3 GB there are replaced by NCCL's buffers and the terms above. Others: 2
// GB, with tensor parallelism 3.
double framework_bytes(const std::string& type, int tensor) {
  if (type == "GH-96") return 4.76e9;
  return tensor == 1 ? 2e9 : 3e9;
}

// What a transformer layer keeps beside attention's scores, in units of its output (sequence x width): inputs
// of both norms, of the projections and of the MLP whole on each GPU; queries, keys, values, context and both
// sides of the MLP's activation (4 x width each) divided (Korthikanti et al. 2022, section 4.1 and table 2,
// without the masks of dropout).
constexpr double kWholeUnits = 4, kDividedUnits = 12;

bool differ(double a, double b) { return std::abs(a - b) > 0.01 * b; }

// The output of an inner layer, for one sample.
double unit_bytes(const std::vector<LayerSize>& layers) {
  std::vector<double> outputs;
  for (const LayerSize& layer : layers) outputs.push_back(layer.output_bytes);
  return median(std::move(outputs));
}
double inner_parameters(const std::vector<LayerSize>& layers) {
  std::vector<double> parameters;
  for (const LayerSize& layer : layers) parameters.push_back(layer.parameters);
  return median(std::move(parameters));
}

// While an MLP goes back there are the gradients of its output and input and, of both sides of its
// activation, 4 x width each; while attention does, those of output and input, of probabilities and scores,
// and of queries, keys, values and context. Attention that never writes its scores keeps none.
double backward_bytes(const GpuStage& stage, double unit) {
  const std::vector<LayerSize>& layers = *stage.layers;
  double kept = 0;
  for (int l = stage.first; l < stage.first + stage.count; ++l)
    if (l + 1 < static_cast<int>(layers.size()) || layers.size() == 1)
      kept = std::max(kept, layers[static_cast<size_t>(l)].activation_bytes);
  const double scores = std::max(0.0, kept - unit * (kWholeUnits + kDividedUnits / stage.tensor));
  return 2 * unit + std::max(8 * unit / stage.tensor, 2 * scores + 4 * unit / stage.tensor);
}

// The last stage: Megatron's vocab_parallel_cross_entropy keeps the softmax beside the logits and turns it
// into their gradient in place; DeepSpeed's pipeline engine keeps each stage's output until its buffer is
// used again, and a last stage has two buffers, so logits of the micro-batch before are there too. Sizes
// may have some of it as activations of the last layer, beside the output of its norm.
double loss_bytes(const GpuStage& stage, double unit) {
  const std::vector<LayerSize>& layers = *stage.layers;
  if (stage.first + stage.count != static_cast<int>(layers.size())) return 0;
  const double logits = logits_bytes(layers, stage.tensor);
  const double counted = std::max(0.0, layers.back().activation_bytes - unit);
  return std::max(0.0, (stage.microbatches > 1 ? 3 : 2) * logits - counted);
}

// Embedding and classifier are one weight; the largest of a layer, one matrix of the MLP, is a third of it.
double largest_weight(const GpuStage& stage) {
  const int last = static_cast<int>(stage.layers->size()) - 1;
  double most = 0;
  for (int l = stage.first; l < stage.first + stage.count; ++l)
    most = std::max(most, (*stage.layers)[static_cast<size_t>(l)].parameters / (l == 0 || l == last ? 1 : 3));
  return most;
}

}  // namespace

double segment_bytes(double bytes) {
  if (bytes <= 0) return 0;
  if (bytes <= kSmallSize) return kSmallBuffer;
  if (bytes < kMinLargeAlloc) return kLargeBuffer;
  return std::ceil(bytes / kRoundLarge) * kRoundLarge;
}

double logits_bytes(const std::vector<LayerSize>& layers, int tensor) {
  if (layers.size() < 2) return 0;
  const LayerSize &last = layers.back(), &before = layers[layers.size() - 2];
  const double unit = unit_bytes(layers);
  if (differ(last.output_bytes, before.output_bytes)) return last.output_bytes;
  // A last layer that returns the loss has logits among its inputs.
  const double beside = last.input_bytes - before.output_bytes;
  if (beside > 0 && differ(beside, unit)) return beside;
  // A classifier that shares the embedding is in no layer: vocabulary / tensor x sequence x 4, from the
  // embedding's vocabulary / tensor x width, an inner layer's 12 x width^2 / tensor and its output.
  const double inner = inner_parameters(layers) * tensor;
  if (inner > 0 && last.parameters < layers[0].parameters / 2)
    return layers[0].parameters * unit * 12 / inner;
  return 0;
}

double GpuMemory::total() const {
  return state + flat_gradients + activations + loss + backward + weight_gradient + segments + communication +
         framework;
}

GpuMemory gpu_memory(const GpuStage& stage) {
  double parameters = 0, activation = 0;
  for (int l = stage.first; l < stage.first + stage.count; ++l) {
    parameters += (*stage.layers)[static_cast<size_t>(l)].parameters;
    activation += (*stage.layers)[static_cast<size_t>(l)].activation_bytes;
  }
  const double unit = unit_bytes(*stage.layers);
  GpuMemory memory;
  memory.state = kStateBytes * parameters;
  memory.flat_gradients = segment_bytes(std::min(parameters, kBucketElements) * kElement);
  memory.activations = activation * stage.in_flight * stage.microbatch;
  memory.loss = segment_bytes(loss_bytes(stage, unit) * stage.microbatch);
  memory.backward = backward_bytes(stage, unit) * stage.microbatch;
  if (stage.microbatches > 1) memory.weight_gradient = segment_bytes(largest_weight(stage) * kElement);
  memory.segments = kSmallBuffer + kLargeBuffer;
  memory.communication =
      kChannels * kChannelBytes *
      ((stage.replicas > 1 ? kCollectiveConnections : 0) + kPairConnections * stage.neighbours);
  for (const std::string& type : stage.types)
    memory.framework = std::max(memory.framework, framework_bytes(type, stage.tensor));
  return memory;
}

}  // namespace het::planner
