#include "planner/measured/links.h"

#include <algorithm>
#include <cmath>

namespace het::planner {
namespace {

// GB/s = square * x^2 + slope * x + base, where x = log2(message in MB), and never more than `most`, the
// largest bandwidth that the fit was made from. Measured with NCCL sends between two machines
// (sailor/providers, multizone_bandwidths_het.json, zone us-central1-a; profile_utils.py gives the meaning of
// x), by how many pairs of GPUs send at once.
struct Fit {
  const char *a, *b;
  int pairs;
  double square, slope, base, most;
};
constexpr Fit kFits[] = {
    {"GH-96", "GH-96", 1, -0.16570, 2.79431, 11.74410, 22.93},
    {"GH-96", "GH-96", 2, -0.33459, 5.65057, 23.30373, 45.70},
    {"GH-96", "GH-96", 4, -0.65351, 11.42554, 45.25031, 92.55},
    {"GH-96", "A100-40", 1, -0.00244, 0.14086, 1.11682, 2.42},
    {"GH-96", "V100-16", 1, 0.00441, 0.04658, 0.87936, 1.72},
    {"A100-40", "A100-40", 1, -0.00244, 0.14086, 1.11682, 2.42},
    {"A100-40", "A100-40", 2, -0.00720, 0.23169, 2.11271, 3.67},
    {"A100-40", "A100-40", 4, -0.03668, 0.47733, 4.55926, 6.04},
    {"A100-40", "V100-16", 1, 0.00441, 0.04658, 0.87936, 1.72},
    {"A100-40", "V100-16", 2, -0.01153, 0.10562, 1.77580, 2.90},
    {"A100-40", "V100-16", 4, -0.00845, 0.32345, 3.44694, 5.79},
    {"V100-16", "V100-16", 1, 0.00441, 0.04658, 0.87936, 1.72},
    {"V100-16", "V100-16", 2, -0.01153, 0.10562, 1.77580, 2.90},
    {"V100-16", "V100-16", 4, -0.00845, 0.32345, 3.44694, 5.79},
    {"Titan-RTX", "Titan-RTX", 1, -0.02187, 0.25920, 2.24710, 2.86},
    {"Titan-RTX", "Titan-RTX", 2, -0.01179, 0.12457, 2.64814, 2.86},
    {"Titan-RTX", "Titan-RTX", 4, 0.00180, 0.01963, 2.82090, 2.86},
    {"RTX-2080", "RTX-2080", 1, -0.02079, 0.25231, 2.22757, 2.86},
    {"RTX-2080", "RTX-2080", 2, -0.01637, 0.17169, 2.57753, 2.86},
    {"RTX-2080", "RTX-2080", 4, -0.00567, 0.05691, 2.77867, 2.86},
    // Of these two the file has 2.86 GB/s for two and four pairs and 0.115 for one and eight, the latter the
    // figure of the RTX-3090's link; a port does not slow down with fewer senders, so the former stands for
    // all.
    {"Titan-RTX", "RTX-2080", 1, -0.00567, 0.05691, 2.77867, 2.86},
    {"RTX-3090", "RTX-3090", 1, -0.00004, 0.00066, 0.11264, 0.116},
    {"RTX-3090", "Titan-RTX", 1, -0.00004, 0.00066, 0.11264, 0.116},
    {"RTX-3090", "RTX-2080", 1, -0.00004, 0.00066, 0.11264, 0.116},
};
// Between us-central1 and us-west1, where types differ by less than message sizes; zones of one region are as
// near as one zone.
constexpr Fit kRegions[] = {
    {"", "", 1, -0.00265, 0.04790, 0.20738, 0.62},
    {"", "", 2, -0.00145, 0.05090, 0.32637, 0.89},
    {"", "", 4, -0.00041, 0.05616, 0.37597, 1.09},
};

// Inside a machine, between two GPUs, at the largest message of the fit (sailor/providers,
// intra_node_bandwidths .json). Pairs of RTX-3090 are bridged: two tensor-parallel groups meet over what four
// of them have.
struct Inside {
  const char* type;
  double giga_bytes_per_second;
};
constexpr Inside kInsides[] = {{"A100-40", 248.9}, {"A100-80", 248.9},  {"GH-96", 125.5},  {"V100-16", 68.3},
                               {"RTX-2080", 10.8}, {"Titan-RTX", 10.8}, {"RTX-3090", 7.86}};
constexpr Link kPcie{10e-6, 12e9};  // 3 x16, as device_types.cpp has it

// "us-west1-b" is in region us-west1.
std::string region_of(const std::string& zone) { return zone.substr(0, zone.rfind('-')); }

double bytes_per_second(const Fit& fit, double bytes) {
  // Fits are made from 1 MB up; below, the bandwidth of 1 MB.
  const double x = std::log2(std::max(bytes / 1e6, 1.0));
  return std::min(fit.square * x * x + fit.slope * x + fit.base, fit.most) * 1e9;
}

}  // namespace

PublishedLink published_link(const std::string& a, const std::string& zone_a, const std::string& b,
                             const std::string& zone_b, int pairs, double bytes) {
  const Fit* best = nullptr;
  const auto consider = [&](const Fit& fit) {
    if (fit.pairs <= pairs && (best == nullptr || fit.pairs > best->pairs)) best = &fit;
  };
  bool known = false;
  for (const Fit& fit : kFits)
    if ((fit.a == a && fit.b == b) || (fit.a == b && fit.b == a)) {
      known = true;
      consider(fit);
    }
  if (known && region_of(zone_a) != region_of(zone_b)) {
    best = nullptr;
    for (const Fit& fit : kRegions) consider(fit);
  }
  if (best == nullptr) return {{0, kAssumedBandwidth}, true};
  return {{0, std::max(bytes_per_second(*best, bytes), 1e6)}, false};
}

int published_interfaces(const std::string& type) {
  constexpr double kInProportion = 0.9;
  double one = 0;
  int interfaces = 1;
  for (const Fit& fit : kFits) {
    if (fit.a != type || fit.b != type) continue;
    if (fit.pairs == 1) one = fit.most;
    if (fit.most >= kInProportion * fit.pairs * one) interfaces = std::max(interfaces, fit.pairs);
  }
  return interfaces;
}

Link inside_link_of(const std::string& type) {
  for (const Inside& inside : kInsides)
    if (inside.type == type) return {0, inside.giga_bytes_per_second * 1e9};
  const DeviceType* known = find_device_type(type);
  return known != nullptr ? known->inside : kPcie;
}

}  // namespace het::planner
