// Common accelerators, from the makers' public data sheets: dense rates (the sheets' sparse figures are
// halved), memory in GiB as sold, memory bandwidth, and what joins two of them in one node. NVLink figures on
// the sheets are the sum of both directions: a ring uses one, so half is taken. Of PCIe 4 x16 (32 GB/s a
// direction) and PCIe 3 x16 (16 GB/s) about three quarters remain for what is sent. Latencies inside a node
// are this project's round figures (5 us NVLink and Infinity Fabric, 10 us PCIe), not from a sheet.
#include "planner/cluster/cluster.h"
#include "planner/cluster/type_sources.h"

namespace het::planner {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kGib = 1024.0 * 1024 * 1024;

// What joins two devices of a node, GB/s in one direction.
struct Joined {
  double seconds = 0, gb_per_second = 0;
};
constexpr Joined nvlink(double gb_per_second) { return {5e-6, gb_per_second}; }
constexpr Joined kPcie4{10e-6, 25}, kPcie3{10e-6, 12};

struct Row {
  const char* name;
  double f32, bf16, f16;  // TFLOP/s; 0: it has no units for it
  double memory_gib, memory_gb_per_second;
  Joined joined;
  const char* source;
  const char* remark = "";
};

constexpr Row kRows[] = {
    {"GB200", 80, 2500, 2500, 186, 8000, nvlink(900),
     "NVIDIA GB200 NVL72 product page (2024), half of a superchip: bf16 10 PFLOP/s sparse, 372 GB, NVLink "
     "3.6 TB/s"},
    {"B200", 75, 2250, 2250, 180, 7700, nvlink(900),
     "NVIDIA HGX B200 in the Blackwell data sheet (2024): bf16 4.5 PFLOP/s sparse, NVLink 1.8 TB/s"},
    {"H200", 67, 989.4, 989.4, 141, 4800, nvlink(450), "NVIDIA H200 data sheet (2024), SXM: rates of H100"},
    {"H20", 44, 148, 148, 96, 4000, nvlink(450), "vendors' product pages (2024): NVLink 900 GB/s"},
    {"H100", 67, 989.4, 989.4, 80, 3350, nvlink(450),
     "NVIDIA H100 data sheet (2023), SXM: bf16 1,979 TFLOP/s sparse, NVLink 900 GB/s"},
    {"H800", 67, 989.4, 989.4, 80, 3350, nvlink(200),
     "Lenovo product guide LP1814 (2023): an H100 SXM with NVLink of 400 GB/s"},
    {"A100-80", 19.5, 312, 312, 80, 2039, nvlink(300), "NVIDIA A100 data sheet (2021), SXM: NVLink 600 GB/s"},
    {"A100-40", 19.5, 312, 312, 40, 1555, nvlink(300), "NVIDIA A100 data sheet (2021), SXM: NVLink 600 GB/s"},
    {"A800", 19.5, 312, 312, 80, 2039, nvlink(200),
     "NVIDIA A800 80GB data sheet (2022): an A100 80 GB with NVLink of 400 GB/s"},
    {"V100-32", 15.7, 0, 125, 32, 900, nvlink(150), "NVIDIA V100 data sheet (2020), SXM2: NVLink 300 GB/s"},
    {"V100-16", 15.7, 0, 125, 16, 900, nvlink(150), "NVIDIA V100 data sheet (2020), SXM2: NVLink 300 GB/s"},
    {"P100", 9.3, 0, 18.7, 16, 732, kPcie3, "NVIDIA P100 data sheet (2016), PCIe 3 x16"},
    {"L40S", 91.6, 362, 362, 48, 864, kPcie4,
     "NVIDIA L40S data sheet (2023): bf16 733 TFLOP/s sparse, PCIe 4 x16"},
    {"L20", 59.8, 119.5, 119.5, 48, 864, kPcie4, "vendors' product pages (2023), PCIe 4 x16"},
    {"L4", 30.3, 121, 121, 24, 300, kPcie4,
     "NVIDIA L4 data sheet (2023): bf16 242 TFLOP/s sparse, PCIe 4 x16"},
    {"A10", 31.2, 125, 125, 24, 600, kPcie4, "NVIDIA A10 data sheet (2021), PCIe 4 x16"},
    {"A10G", 31.2, 70, 70, 24, 600, kPcie4,
     "AWS product page of EC2 G5 (2021), an A10 with fewer tensor units"},
    {"T4", 8.1, 0, 65, 16, 320, kPcie3, "NVIDIA T4 data sheet (2019), PCIe 3 x16"},
    {"RTX-4090", 82.6, 165.2, 165.2, 24, 1008, kPcie4, "NVIDIA Ada white paper (2022), f32 accumulation"},
    {"RTX-3090", 35.6, 71, 71, 24, 936, kPcie4, "NVIDIA GA102 white paper (2020), f32 accumulation"},
    {"RTX-2080-Ti", 13.4, 0, 53.8, 11, 616, kPcie3, "NVIDIA Turing white paper (2018), f32 accumulation"},
    {"Titan-RTX", 16.3, 0, 130.5, 24, 672, kPcie3, "NVIDIA Turing white paper (2018)"},
    {"MI300X",
     163.4,
     1307.4,
     1307.4,
     192,
     5300,
     {5e-6, 448},
     "AMD Instinct MI300X data sheet (2023): 7 Infinity Fabric links of 64 GB/s a direction",
     "for plans and simulations only: hetrun has no kernels for it and no RCCL"},
};

DeviceType make(const Row& row) {
  DeviceType type;
  type.name = row.name;
  type.f32_flops = row.f32 * kTera;
  type.bf16_flops = row.bf16 * kTera;
  type.f16_flops = row.f16 * kTera;
  type.memory_bytes = row.memory_gib * kGib;
  type.memory_bytes_per_second = row.memory_gb_per_second * kGiga;
  type.inside = {row.joined.seconds, row.joined.gb_per_second * kGiga};
  return type;
}

}  // namespace

const std::vector<DeviceType>& known_device_types() {
  static const std::vector<DeviceType> table = [] {
    std::vector<DeviceType> types;
    for (const Row& row : kRows) types.push_back(make(row));
    return types;
  }();
  return table;
}

TypeSource source_of(std::string_view type) {
  for (const Row& row : kRows)
    if (row.name == type) return {row.source, row.remark};
  return {};
}

}  // namespace het::planner
