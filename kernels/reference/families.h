// The kernels of each family, one file each, and all of them in one list.
#pragma once

#include <vector>

#include "core/device/device.h"

namespace het::reference {

std::vector<KernelEntry> elementwise_kernels();
std::vector<KernelEntry> shape_kernels();
std::vector<KernelEntry> reduce_kernels();
std::vector<KernelEntry> scan_kernels();
std::vector<KernelEntry> softmax_kernels();
std::vector<KernelEntry> matmul_kernels();
std::vector<KernelEntry> norm_kernels();
std::vector<KernelEntry> rotary_kernels();
std::vector<KernelEntry> attention_kernels();
std::vector<KernelEntry> embedding_kernels();
std::vector<KernelEntry> gather_kernels();
std::vector<KernelEntry> conv_kernels();
std::vector<KernelEntry> pool_kernels();
std::vector<KernelEntry> experts_kernels();
std::vector<KernelEntry> loss_kernels();
std::vector<KernelEntry> dropout_kernels();
std::vector<KernelEntry> rounding_kernels();
std::vector<KernelEntry> optimizer_kernels();

inline std::vector<KernelEntry> all_kernels() {
  std::vector<KernelEntry> all;
  for (const auto family :
       {elementwise_kernels, shape_kernels, reduce_kernels, scan_kernels, softmax_kernels, matmul_kernels,
        norm_kernels, rotary_kernels, attention_kernels, embedding_kernels, gather_kernels, conv_kernels,
        pool_kernels, experts_kernels, loss_kernels, dropout_kernels, rounding_kernels, optimizer_kernels})
    for (const KernelEntry& entry : family()) all.push_back(entry);
  return all;
}

}  // namespace het::reference
