// The memory that one GPU of a published run uses, term by term, as nvidia-smi counts it: what the process
// holds in PyTorch's caching allocator and what CUDA, NCCL and kernels take beside it. Derived from how
// PyTorch, Megatron-LM and DeepSpeed work; memory.cpp names the source of each constant. Pure.
#pragma once

#include <string>
#include <vector>

#include "planner/measured/files.h"

namespace het::planner {

// One GPU of a tensor-parallel group that runs layers [first, first + count) of a model in f32.
struct GpuStage {
  const std::vector<LayerSize>* layers = nullptr;  // of the whole model, at this degree
  int first = 0, count = 0;
  int tensor = 1;
  int microbatch = 1;                // samples
  int microbatches = 1;              // of a step
  int in_flight = 1;                 // most micro-batches held at once
  int replicas = 1;                  // of the stage
  int neighbours = 0;                // stages that it sends to or receives from
  std::vector<std::string> types{};  // of its group's machines
};

struct GpuMemory {             // bytes
  double state = 0;            // weights, gradients, Adam's moments
  double flat_gradients = 0;   // the bucket in which gradients are exchanged
  double activations = 0;      // of the micro-batches in flight
  double loss = 0;             // logits that the layers' sizes leave out
  double backward = 0;         // gradients of one layer's activations
  double weight_gradient = 0;  // of one weight, before it is added to those of earlier micro-batches
  double segments = 0;         // partly filled segments of the allocator
  double communication = 0;    // NCCL's buffers
  double framework = 0;        // CUDA's context, kernels and libraries
  double total() const;
};
GpuMemory gpu_memory(const GpuStage& stage);

// What PyTorch's caching allocator reserves for one tensor that finds no free block.
double segment_bytes(double bytes);

// The logits of one sample on one GPU, or 0 where the sizes do not show them.
double logits_bytes(const std::vector<LayerSize>& layers, int tensor);

}  // namespace het::planner
