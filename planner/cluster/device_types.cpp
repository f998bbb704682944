// Common accelerators, from the makers' public data sheets: dense rates (the sheets' sparse figures are
// halved), memory in GiB as sold, memory bandwidth, and what joins two of them in one node. NVLink figures on
// the sheets are the sum of both directions: a ring uses one, so half is taken. Latencies inside a node are
// this project's own round figures (5 us NVLink, 10 us PCIe), not from a sheet.
#include "planner/cluster/cluster.h"

namespace het::planner {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kGib = 1024.0 * 1024 * 1024;

DeviceType make(const char* name, double f32_tflops, double bf16_tflops, double f16_tflops, double memory_gib,
                double memory_gb_per_second, double link_gb_per_second, bool nvlink) {
  DeviceType type;
  type.name = name;
  type.f32_flops = f32_tflops * kTera;
  type.bf16_flops = bf16_tflops * kTera;
  type.f16_flops = f16_tflops * kTera;
  type.memory_bytes = memory_gib * kGib;
  type.memory_bytes_per_second = memory_gb_per_second * kGiga;
  type.inside = {nvlink ? 5e-6 : 10e-6, link_gb_per_second * kGiga};
  return type;
}

std::vector<DeviceType> make_table() {
  return {
      //    name          f32    bf16   f16    GiB  GB/s  link
      // NVIDIA A100 Tensor Core GPU data sheet (2021): 19.5 / 312 / 312 TFLOP/s, SXM, NVLink 600 GB/s.
      make("A100-40", 19.5, 312, 312, 40, 1555, 300, true),
      make("A100-80", 19.5, 312, 312, 80, 2039, 300, true),
      // A800: an A100 80 GB whose NVLink is cut to 400 GB/s (NVIDIA A800 80GB data sheet, 2022).
      make("A800", 19.5, 312, 312, 80, 2039, 200, true),
      // NVIDIA H100 data sheet (2023), SXM: 67 / 989.4 / 989.4 (sparse 1,979), 3.35 TB/s, NVLink 900 GB/s.
      make("H100", 67, 989.4, 989.4, 80, 3350, 450, true),
      // H800: H100 SXM whose NVLink is cut to 400 GB/s (Lenovo product guide LP1814, 2023).
      make("H800", 67, 989.4, 989.4, 80, 3350, 200, true),
      // H20: 44 / 148 / 148, 96 GB, 4.0 TB/s, NVLink 900 GB/s (vendors' product pages, 2024).
      make("H20", 44, 148, 148, 96, 4000, 450, true),
      // NVIDIA H200 data sheet (2024), SXM: rates of H100, 141 GB, 4.8 TB/s.
      make("H200", 67, 989.4, 989.4, 141, 4800, 450, true),
      // NVIDIA V100 data sheet (2020), SXM2: 15.7 / none / 125, 900 GB/s, NVLink 300 GB/s.
      make("V100-16", 15.7, 0, 125, 16, 900, 150, true),
      make("V100-32", 15.7, 0, 125, 32, 900, 150, true),
      // NVIDIA P100 data sheet (2016), PCIe: 9.3 / none / 18.7, 732 GB/s, PCIe 3 x16 (16 GB/s a direction).
      make("P100", 9.3, 0, 18.7, 16, 732, 12, false),
      // NVIDIA T4 data sheet (2019): 8.1 / none / 65, 320 GB/s, PCIe 3 x16.
      make("T4", 8.1, 0, 65, 16, 320, 12, false),
      // NVIDIA L4 data sheet (2023): 30.3 / 121 / 121 (sparse 242), 300 GB/s, PCIe 4 x16 (32 GB/s a
      // direction).
      make("L4", 30.3, 121, 121, 24, 300, 25, false),
      // NVIDIA A10 data sheet (2021): 31.2 / 125 / 125; A10G, sold by AWS, has 70 (product page of EC2 G5),
      // 600 GB/s.
      make("A10G", 31.2, 70, 70, 24, 600, 25, false),
      // NVIDIA L40S data sheet (2023): 91.6 / 362 / 362 (sparse 733), 864 GB/s, PCIe 4 x16.
      make("L40S", 91.6, 362, 362, 48, 864, 25, false),
      // NVIDIA GA102 white paper (2020): RTX 3090 35.6 / 71 / 71 (f32 accumulate), 936 GB/s.
      make("RTX-3090", 35.6, 71, 71, 24, 936, 25, false),
      // NVIDIA Ada white paper (2022): RTX 4090 82.6 / 165.2 / 165.2 (f32 accumulate), 1,008 GB/s.
      make("RTX-4090", 82.6, 165.2, 165.2, 24, 1008, 25, false),
      // NVIDIA Turing white paper (2018): RTX 2080 Ti 13.4 / none / 53.8 (f32 accumulate), 616 GB/s.
      make("RTX-2080-Ti", 13.4, 0, 53.8, 11, 616, 12, false),
      // NVIDIA Turing white paper (2018): Titan RTX 16.3 / none / 130.5, 672 GB/s.
      make("Titan-RTX", 16.3, 0, 130.5, 24, 672, 12, false),
  };
}

}  // namespace

const std::vector<DeviceType>& known_device_types() {
  static const std::vector<DeviceType> table = make_table();
  return table;
}

}  // namespace het::planner
